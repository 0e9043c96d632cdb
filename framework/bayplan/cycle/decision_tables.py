"""Which decisions keep their table: what each plugin took out, and the scores of the best nodes.

A table costs more than the decision itself. In a rush of pods only some get one, so that the
explanation of some does not delay all; and only the newest are kept.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

from bayplan.plugin.decision import PodDecision

__all__ = ["DecisionTables"]


class DecisionTables:
    """Hands out tables at a limited rate, and forgets the oldest.

    :param now: returns the time in seconds.
    :param per_second: how many tables may be made a second, in the long run; infinity for all.
    :param kept: how many are kept; as many may be made at once.
    """

    def __init__(
        self, now: Callable[[], float], per_second: float = 100.0, kept: int = 1_000
    ) -> None:
        self._now = now
        self._rate = per_second
        self._most = kept
        self._left = float(kept)
        self._since = now()
        self._kept: deque[PodDecision] = deque()

    def may_make(self) -> bool:
        """Whether there is time for another table; counts it if so."""
        if math.isinf(self._rate):
            return True
        now = self._now()
        self._left = min(float(self._most), self._left + (now - self._since) * self._rate)
        self._since = now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True

    def keep(self, decision: PodDecision) -> None:
        """Keep a table until so many newer ones were made."""
        self._kept.append(decision)
        if len(self._kept) > self._most:
            oldest = self._kept.popleft()
            oldest.finalists = oldest.refused = oldest.removed = ()
