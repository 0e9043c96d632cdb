"""What need not be tried: units that are no easier to place than one that was refused.

Units of one *equivalence* (:mod:`bayplan.scheduler.requeue` finds it) differ only in how many of
their pods have to be placed at once. When one of them is refused, none that needs as many or more
is placed until the cluster changes in their favour. So a pass over ten thousand pending jobs tries
a handful.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable

import msgspec

__all__ = ["KnownRefusals", "Refusal"]

_Where = tuple[int, str, Hashable]


class Refusal(msgspec.Struct):
    """The smallest unit of an equivalence that was refused.

    ``size`` is how many of its pods had to be placed at once, ``unit`` its key, ``held`` says
    whether its queue holds it back, however many nodes there are. After an event that may help
    (``helped``) its like may be tried again from ``retry_at``, in seconds.
    """

    size: int
    unit: str
    retry_at: float
    held: bool = False
    helped: bool = False


class KnownRefusals:
    """Refusals by action, queue and equivalence; the queue "" stands for all queues.

    :param delay: returns the seconds before units like a refused one are tried again, given how
        often such were refused.
    """

    def __init__(self, delay: Callable[[int], float]) -> None:
        self._delay = delay
        self._refusals: dict[_Where, Refusal] = {}
        self._attempts: dict[_Where, int] = {}

    def __bool__(self) -> bool:
        return bool(self._refusals)

    @property
    def were_any(self) -> bool:
        """Whether any unit was refused since one like it was placed, or need not be tried."""
        return bool(self._refusals or self._attempts)

    def add(
        self,
        action: int,
        queue: str,
        equivalence: Hashable,
        size: int,
        unit: str,
        now: float,
        held: bool = False,
    ) -> None:
        """Record that a unit was refused.

        :param queue: the queue for which that holds, "" for all.
        :param now: the time in seconds.
        :param held: whether its queue holds it back.
        """
        where = (action, queue, equivalence)
        known = self._refusals.get(where)
        if known is not None and known.size <= size and not known.helped:
            return
        attempts = self._attempts[where] = self._attempts.get(where, 0) + 1
        self._refusals[where] = Refusal(size, unit, now + self._delay(attempts), held)

    def of(self, action: int, queue: str, equivalence: Hashable, size: int) -> Refusal | None:
        """Return the refusal because of which a unit need not be tried; None for none."""
        for where in ((action, "", equivalence), (action, queue, equivalence)):
            known = self._refusals.get(where)
            if known is not None and known.size <= size:
                return known
        return None

    def least(self, actions: Iterable[int], queue: str, equivalence: Hashable) -> float:
        """Return the size from which on none of these actions places a unit; infinite for none."""
        least = 0.0
        for action in actions:
            sizes = [
                known.size
                for where in ((action, "", equivalence), (action, queue, equivalence))
                if (known := self._refusals.get(where)) is not None
            ]
            least = max(least, min(sizes, default=math.inf))
        return least

    def placed(self, queue: str, equivalence: Hashable) -> None:
        """Forget how often units of an equivalence were refused, because one was placed."""
        for where in [w for w in self._attempts if w[1] in ("", queue) and w[2] == equivalence]:
            del self._attempts[where]

    def help(self) -> None:
        """Record that the cluster has changed in favour of all."""
        for refusal in self._refusals.values():
            refusal.helped = True

    def next_time(self) -> float | None:
        """Return when the next may be tried again, in seconds; None for never."""
        times = [one.retry_at for one in self._refusals.values() if one.helped]
        return min(times, default=None)

    def expire(self, now: float) -> bool:
        """Drop the refusals that no longer count; return whether there were any."""
        over = [w for w, one in self._refusals.items() if one.helped and one.retry_at <= now]
        for where in over:
            del self._refusals[where]
        return bool(over)
