"""The scheduling timeout of gangs whose members do not appear."""

from __future__ import annotations

import heapq

from bayplan.gangs.completeness import has_minimum
from bayplan.gangs.directory import GangDirectory

__all__ = ["GangTimeouts"]


class GangTimeouts:
    """Marks gangs ``overdue`` when members are missing for longer than the gang allows.

    A gang holds nothing while members are missing, so nothing has to be given back: its status
    says that it is overdue, and it still runs when its members appear. Times are in seconds.
    """

    def __init__(self, gangs: GangDirectory) -> None:
        self._gangs = gangs
        self._since: dict[str, float] = {}
        self._due: list[tuple[float, str]] = []

    def __len__(self) -> int:
        return len(self._since)

    def watch(self, key: str, now: float) -> None:
        """Start a gang's timeout when its first member appears; called again after each change."""
        members = self._gangs.all().get(key)
        if members is None or not members.pending:
            # The next member, or gang of that name, starts the timeout again.
            self._since.pop(key, None)
            return
        if members.gang is None:
            return
        first = key not in self._since
        since = self._since.setdefault(key, now)
        members.overdue = members.overdue and not first
        if members.gang.wait is not None and (first or members.gang.wait != members.timeout):
            members.timeout = members.gang.wait
            heapq.heappush(self._due, (since + members.gang.wait, key))

    def overdue(self, now: float) -> list[str]:
        """Mark the gangs whose timeout ended since the last call, and return their keys."""
        found = []
        while (at := self.next_time()) is not None and at <= now:
            _, key = heapq.heappop(self._due)
            members = self._gangs.all()[key]
            over = members.timeout is not None and at >= self._since[key] + members.timeout
            if over and not members.overdue:
                members.overdue = True
                found.append(key)
        return found

    def next_time(self) -> float | None:
        """Return when the next gang may be overdue, None when no gang waits for members."""
        while self._due and not self._is_short(self._due[0][1]):
            # Complete or gone. If members go, the timeout starts again with the next one.
            self._since.pop(heapq.heappop(self._due)[1], None)
        return self._due[0][0] if self._due else None

    def _is_short(self, key: str) -> bool:
        """Tell whether a gang has fewer members than it needs."""
        members = self._gangs.all().get(key)
        if members is None or members.gang is None or key not in self._since:
            return False
        return not has_minimum(members.gang, members.present)
