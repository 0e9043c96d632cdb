"""Pods with a device that has failed, as their kubelet says."""

from __future__ import annotations

from collections.abc import Iterator

from bayplan import Handle, PodInfo
from bayplan.api.pod import failed_devices

__all__ = ["FailedDevices"]


class FailedDevices:
    """Follows which pods hold a device that has failed, and since when that is known."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._since: dict[str, tuple[str, float]] = {}
        """By the keys of pods: their uids, and seconds since 1970."""
        handle.snapshot.on_living(self._note)
        for pod in handle.snapshot.living.values():
            self._note(pod, True)

    def _note(self, pod: PodInfo, added: bool) -> None:
        uid, _ = self._since.get(pod.key, ("", 0.0))
        if added and failed_devices(pod.pod):
            if uid != pod.uid:
                self._since[pod.key] = pod.uid, self._handle.unix_time
        elif added or not self._handle.snapshot.is_living(pod):
            self._since.pop(pod.key, None)

    def look(self) -> Iterator[tuple[PodInfo, str, float]]:
        """Yield those pods that are on nodes: which devices have failed, and since when."""
        placed = self._handle.snapshot.placed
        for key, (_, since) in self._since.items():
            if key in placed:
                pod, _ = placed[key]
                yield pod, ", ".join(failed_devices(pod.pod)), since
