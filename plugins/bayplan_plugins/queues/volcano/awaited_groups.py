"""Pods whose PodGroup Volcano's controller has yet to make wait for it a moment."""

from __future__ import annotations

from bayplan import Handle, PodInfo
from bayplan.dialects import volcano

__all__ = ["AwaitedGroups"]

_PATIENCE = 2.0
"""Seconds after which a pod is tried without a group: there may be no such controller."""


class AwaitedGroups:
    """Knows the pods of Volcano's scheduler without a group, and how long they have waited.

    Placed at once, such a pod would not wait until its group is admitted.
    """

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._since: dict[str, float] = {}
        self._waiting: dict[str, PodInfo] = {}
        handle.snapshot.on_living(self._lives)

    def refusal(self, pod: PodInfo) -> str | None:
        """Return why a pod waits, None if it does not."""
        since = self._since.get(pod.key)
        if since is None or self._handle.now >= since + _PATIENCE:
            return None
        return "Volcano's controller has not made its PodGroup yet"

    def end(self) -> float | None:
        """Try the pods that have waited long enough; return when to ask again, in seconds."""
        for key, pod in list(self._waiting.items()):
            if self._handle.now >= self._since[key] + _PATIENCE:
                del self._waiting[key]
                self._handle.recheck_gates(pod)
        times = (self._since[key] + _PATIENCE for key in self._waiting)
        return min(times, default=None)

    def _lives(self, pod: PodInfo, added: bool) -> None:
        spec = pod.pod.spec
        if added and not spec.node_name and volcano.awaits_group(pod.pod):
            if pod.key not in self._since:
                self._since[pod.key] = self._handle.now
                self._waiting[pod.key] = pod
        else:
            self._since.pop(pod.key, None)
            self._waiting.pop(pod.key, None)
