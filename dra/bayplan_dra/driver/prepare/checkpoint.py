"""What the driver has prepared, on disk: one file for each claim, named after its UID.

A file is written before the kubelet gets its answer, and survives a kill or a reboot. Damage to a
file affects only its own claim.
"""

from __future__ import annotations

import re
import zlib
from pathlib import Path

import msgspec

from bayplan_dra.driver.files import TEMPORARY, folder, remove, write_atomically

__all__ = ["Checkpoint", "MigInstance", "PreparedClaim", "PreparedDevice", "is_uid"]

_VERSION = 1


class MigInstance(msgspec.Struct, frozen=True):
    """The MIG instance that a partition became: its UUID and its numbers on its GPU."""

    uuid: str
    gpu_instance: int
    compute_instance: int


class PreparedDevice(msgspec.Struct, frozen=True):
    """A device of a claim, with the requests that it answers (without their alternatives).

    ``instance`` is that of a partition; None until it is made. ``time_slice`` is what a GPU's time
    slice was set to, "" if it was not.
    """

    name: str
    requests: tuple[str, ...]
    admin: bool = False
    share_id: str = ""
    instance: MigInstance | None = None
    time_slice: str = ""


class PreparedClaim(msgspec.Struct, frozen=True):
    """A claim as it was prepared; ``spec`` is the text of its CDI file.

    ``joint`` has the requests for which the CDI file says what their devices have in common; "" is
    the whole claim. A claim of an older version of this driver has none.
    """

    uid: str
    namespace: str
    name: str
    pool: str
    devices: tuple[PreparedDevice, ...]
    spec: str
    joint: tuple[str, ...] = ()


class _CheckpointFile(msgspec.Struct):
    version: int
    checksum: int
    claim: msgspec.Raw


def is_uid(text: str) -> bool:
    """Tell whether a text can be a UID, and so a file's name."""
    return re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9-]{0,62}", text) is not None


class Checkpoint:
    """All prepared claims of a driver on a node, including those of other instances.

    Callers have to hold a lock, see ``files.locked``.

    :ivar damaged: messages about damaged files, which are kept with another suffix.
    :ivar unread: by UID, why a file cannot be read: a disk error, or a newer driver wrote it.
    """

    def __init__(self, path: Path) -> None:
        self._path = folder(path, 0o700)
        self._known: dict[str, tuple[object, PreparedClaim]] = {}
        self.damaged: list[str] = []
        self.unread: dict[str, str] = {}

    def clean(self) -> None:
        """Remove files that a killed process left incomplete."""
        for path in self._path.glob(f"*{TEMPORARY}"):
            remove(path)

    def remove_folder(self) -> None:
        """Remove what is left: incomplete and damaged files, and the folder."""
        for path in self._path.iterdir():
            path.unlink()
        self._path.rmdir()

    def claims(self) -> dict[str, PreparedClaim]:
        """Return all prepared claims by UID."""
        found = {}
        self.unread.clear()
        for path in self._path.glob("*.json"):
            claim = self._read(path)
            if claim is not None:
                found[claim.uid] = claim
        return found

    def get(self, uid: str) -> PreparedClaim | None:
        """Return a prepared claim, None if there is none or its file cannot be read."""
        path = self._file(uid)
        return self._read(path) if path.exists() else None

    def put(self, claim: PreparedClaim) -> None:
        """Write a claim durably.

        :raises OSError: when the disk fails.
        """
        raw = msgspec.json.encode(claim)
        content = msgspec.json.encode(_CheckpointFile(_VERSION, zlib.crc32(raw), msgspec.Raw(raw)))
        write_atomically(self._file(claim.uid), content)

    def remove(self, uid: str) -> None:
        """Remove a claim; an unknown one is fine."""
        remove(self._file(uid))
        self._known.pop(uid, None)

    def _file(self, uid: str) -> Path:
        assert is_uid(uid), uid
        return self._path / f"{uid}.json"

    def _read(self, path: Path) -> PreparedClaim | None:
        try:
            status = path.stat()
            changed = (status.st_mtime_ns, status.st_ino, status.st_size)
            known = self._known.get(path.stem)
            if known is not None and known[0] == changed:
                return known[1]
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as exc:
            self.unread[path.stem] = str(exc)
            return None
        try:
            file = msgspec.json.decode(content, type=_CheckpointFile)
            if file.version > _VERSION:
                self.unread[path.stem] = f"{path}: its version is {file.version}"
                return None
            if zlib.crc32(bytes(file.claim)) != file.checksum:
                raise ValueError("its checksum is wrong")
            claim = msgspec.json.decode(file.claim, type=PreparedClaim)
        except (ValueError, msgspec.MsgspecError) as exc:
            aside = path.with_suffix(".damaged")
            path.replace(aside)
            self.damaged.append(f"{aside}: {exc}")
            return None
        self._known[claim.uid] = (changed, claim)
        return claim
