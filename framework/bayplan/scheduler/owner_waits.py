"""Pods that came before what owns them: the watches of two kinds do not keep step."""

from __future__ import annotations

from collections import deque

__all__ = ["OwnerWaits"]

_LONGEST = 5.0
"""Seconds after which an owner that has not been seen counts as gone."""


class OwnerWaits:
    """Keeps for how long pods have waited for objects that own them. Times are in seconds."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}
        self._owner: dict[str, str] = {}
        self._waiting: dict[str, set[str]] = {}
        self._due: deque[tuple[float, str]] = deque()

    def __bool__(self) -> bool:
        """Tell whether any pod lacks an owner."""
        return bool(self._waiting)

    def may_wait(self, pod_uid: str, owner_uid: str, now: float) -> bool:
        """Tell whether a pod may still wait for an owner, by their UIDs.

        When the owner comes, ``arrived`` names the pod, also if it does not wait any more.
        """
        until = self._until.get(pod_uid)
        if until is None:
            until = self._until[pod_uid] = now + _LONGEST
            self._due.append((until, pod_uid))
        self._leave(pod_uid)
        self._owner[pod_uid] = owner_uid
        self._waiting.setdefault(owner_uid, set()).add(pod_uid)
        return now < until

    def arrived(self, owner_uid: str) -> set[str]:
        """Return the UIDs of the pods for which an owner was missing."""
        found = self._waiting.pop(owner_uid, set())
        for pod_uid in found:
            del self._owner[pod_uid]
        return found

    def overdue(self, now: float) -> set[str]:
        """Return the UIDs of the pods that have waited too long since the last call."""
        found = set()
        while self._due and self._due[0][0] <= now:
            pod_uid = self._due.popleft()[1]
            if pod_uid in self._owner:
                found.add(pod_uid)
        return found

    def forget(self, pod_uid: str) -> None:
        """Forget a pod that is gone."""
        self._until.pop(pod_uid, None)
        self._leave(pod_uid)

    def next_time(self) -> float | None:
        """Return when the next pod has waited long enough, None when none waits."""
        while self._due and self._due[0][1] not in self._owner:
            self._due.popleft()
        return self._due[0][0] if self._due else None

    def _leave(self, pod_uid: str) -> None:
        owner = self._owner.pop(pod_uid, None)
        if owner is not None:
            self._waiting[owner].discard(pod_uid)
            if not self._waiting[owner]:
                del self._waiting[owner]
