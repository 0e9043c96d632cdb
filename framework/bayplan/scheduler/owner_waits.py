"""Pods that came before what owns them: the watches of two kinds do not keep step."""

from __future__ import annotations

from collections import deque

__all__ = ["OwnerWaits"]

_LONGEST = 5.0
"""Seconds after which an owner that has not been seen counts as gone."""


class OwnerWaits:
    """Keeps for how long pods have waited for an object that owns them. Times are in seconds."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}
        self._waiting: dict[str, set[str]] = {}
        self._due: deque[tuple[float, str]] = deque()

    def may_wait(self, pod_uid: str, owner_uid: str, now: float) -> bool:
        """Tell whether a pod may wait for an owner, by their UIDs; from now on it does."""
        until = self._until.get(pod_uid)
        if until is None:
            until = self._until[pod_uid] = now + _LONGEST
            self._due.append((until, pod_uid))
        if until <= now:
            return False
        self._waiting.setdefault(owner_uid, set()).add(pod_uid)
        return True

    def arrived(self, owner_uid: str) -> set[str]:
        """Return the UIDs of the pods that waited for an owner."""
        return self._waiting.pop(owner_uid, set())

    def overdue(self, now: float) -> set[str]:
        """Return the UIDs of the pods that have waited too long since the last call."""
        found = set()
        while self._due and self._due[0][0] <= now:
            found.add(self._due.popleft()[1])
        if found:
            left = ((owner, pods - found) for owner, pods in self._waiting.items())
            self._waiting = {owner: pods for owner, pods in left if pods}
        return found

    def forget(self, pod_uid: str) -> None:
        """Forget a pod that is gone."""
        self._until.pop(pod_uid, None)

    def next_time(self) -> float | None:
        """Return when the next pod has waited long enough, None when none waits."""
        while self._due and self._due[0][1] not in self._until:
            self._due.popleft()
        return self._due[0][0] if self._due else None
