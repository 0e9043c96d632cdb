"""GPUs that change between the driver and the device plugin while pods still have them.

What the device plugin offers is on disk, so that all instances of a rolling update agree: a claim
gets nothing of it, whatever options the instance has that prepares the claim. The other way round,
the device plugin gives no GPU away that a claim still has.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bayplan.errors import BayplanError
from bayplan_dra.driver.files import answers, folder, locked, write_atomically
from bayplan_dra.driver.prepare.checkpoint import Checkpoint

__all__ = ["Handover", "gpu_of"]

_LOCK_SECONDS = 20.0
"""Seconds to wait for the lock; the kubelet waits for 45 s."""


def gpu_of(device: str) -> str:
    """Return the GPU to which a device belongs: itself, or the GPU of a MIG instance."""
    return device.partition("-mig-")[0]


class Handover:
    """Which GPUs the device plugin offers, and which of them claims have.

    :param path: the driver's own folder, which all instances share.
    :raises BayplanError: when the folder cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self._path = folder(path)
        self._lock = path / "serialize.lock"
        self._file = path / "device-plugin.json"
        self._checkpoint = Checkpoint(path / "claims")

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Lock the driver's files against other threads and other instances.

        :raises BayplanError: when another one holds the lock for too long.
        """
        with locked(self._lock, _LOCK_SECONDS):
            yield

    def offer(self, gpus: Iterable[str]) -> None:
        """Offer exactly these GPUs through the device plugin: from now on no claim gets them.

        :raises BayplanError: when the disk fails, or another instance holds the lock for too long.
        """
        wanted = frozenset(gpus)
        with self.alone():
            # A restart needs no write, so not even a full disk keeps it from serving.
            if self.offered() == wanted:
                return
            try:
                write_atomically(self._file, json.dumps(sorted(wanted)).encode())
            except OSError as exc:
                raise BayplanError(f"{self._file}: {exc.strerror}") from None

    def offered(self) -> frozenset[str]:
        """Return the GPUs that the device plugin offers; callers hold the lock."""
        try:
            found = json.loads(self._file.read_bytes())
        except (FileNotFoundError, ValueError):
            return frozenset()
        return frozenset(found) if isinstance(found, list) else frozenset()

    def leave(self) -> None:
        """Remove the driver's files, unless a pod or another instance may need them.

        :raises BayplanError: when another instance holds the lock for too long.
        :raises OSError: when the disk fails.
        """
        with self.alone():
            checkpoint = self._checkpoint
            needed = self.offered() or checkpoint.claims() or checkpoint.unread
            if needed or any(answers(path) for path in self._path.glob("*.sock")):
                return
            checkpoint.remove_folder()
            for path in self._path.iterdir():
                path.unlink()
            self._path.rmdir()

    def holders(self) -> dict[str, str]:
        """Return the claims that have a GPU or a part of one, as namespace/name, by GPU.

        Callers hold the lock.
        """
        return {
            gpu_of(device.name): f"{claim.namespace}/{claim.name}"
            for claim in self._checkpoint.claims().values()
            for device in claim.devices
            if not device.admin
        }
