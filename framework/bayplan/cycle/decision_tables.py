"""Which decisions keep their table: the nodes each plugin removed, and the best nodes' scores.

A table costs more than the decision itself. When many pods come at once only some get one, so
that explaining a few does not delay all; and only the newest are kept.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

from bayplan.plugin.decision import PodDecision

__all__ = ["DecisionTables"]


class DecisionTables:
    """Allows tables at a limited rate, and drops the oldest.

    :param now: returns the time in seconds.
    :param per_second: how many tables may be made per second, on average; infinity for all.
    :param kept: how many are kept; as many may be made at once.
    :param always: pods, by key, that get a table in any case and keep it.
    """

    def __init__(
        self,
        now: Callable[[], float],
        per_second: float = 100.0,
        kept: int = 1_000,
        always: frozenset[str] = frozenset(),
    ) -> None:
        self._now = now
        self._always = always
        self._rate = per_second
        self._most = kept
        self._left = float(kept)
        self._since = now()
        self._kept: deque[PodDecision] = deque()

    def may_make(self, pod: str) -> bool:
        """Tell whether a pod, by key, gets a table, and count it against the rate."""
        if math.isinf(self._rate) or pod in self._always:
            return True
        now = self._now()
        self._left = min(float(self._most), self._left + (now - self._since) * self._rate)
        self._since = now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True

    def keep(self, decision: PodDecision) -> None:
        """Keep a table until ``kept`` newer ones were made."""
        if decision.pod in self._always:
            return
        self._kept.append(decision)
        if len(self._kept) > self._most:
            oldest = self._kept.popleft()
            oldest.finalists = oldest.refused = oldest.removed = ()
