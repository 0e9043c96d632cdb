"""What need not be tried: units that are no easier to place than one that was refused.

A *shape* stands for units that differ only in how many of their pods have to be placed at once.
When one of them is refused, none that needs as many or more is placed until the cluster changes in
their favour. So a pass over ten thousand waiting jobs tries a handful.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass

__all__ = ["KnownRefusals", "Refusal"]

_Where = tuple[int, str, Hashable]


@dataclass
class Refusal:
    """The smallest unit of a shape that was refused.

    ``size`` is how many of its pods had to be placed at once, ``unit`` its key, ``held`` says
    whether its queue holds it back, however many nodes there are. After an event that may help
    (``helped``) the shape may be tried again from ``retry_at``, in seconds.
    """

    size: int
    unit: str
    retry_at: float
    held: bool = False
    helped: bool = False


class KnownRefusals:
    """Refusals by action, queue and shape; the queue "" stands for all queues.

    :param delay: returns the seconds before a shape is tried again, given how often it was refused.
    """

    def __init__(self, delay: Callable[[int], float]) -> None:
        self._delay = delay
        self._refusals: dict[_Where, Refusal] = {}
        self._attempts: dict[_Where, int] = {}

    def __bool__(self) -> bool:
        return bool(self._refusals)

    def add(
        self,
        action: int,
        queue: str,
        shape: Hashable,
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
        where = (action, queue, shape)
        known = self._refusals.get(where)
        if known is not None and known.size <= size and not known.helped:
            return
        attempts = self._attempts[where] = self._attempts.get(where, 0) + 1
        self._refusals[where] = Refusal(size, unit, now + self._delay(attempts), held)

    def of(self, action: int, queue: str, shape: Hashable, size: int) -> Refusal | None:
        """Return the refusal because of which a unit need not be tried; None for none."""
        for where in ((action, "", shape), (action, queue, shape)):
            known = self._refusals.get(where)
            if known is not None and known.size <= size:
                return known
        return None

    def least(self, actions: Iterable[int], queue: str, shape: Hashable) -> float:
        """Return the size from which on none of these actions places a unit; infinite for none."""
        least = 0.0
        for action in actions:
            sizes = [
                known.size
                for where in ((action, "", shape), (action, queue, shape))
                if (known := self._refusals.get(where)) is not None
            ]
            least = max(least, min(sizes, default=math.inf))
        return least

    def placed(self, queue: str, shape: Hashable) -> None:
        """Forget how often a shape was refused, because a unit of it was placed."""
        for where in [w for w in self._attempts if w[1] in ("", queue) and w[2] == shape]:
            del self._attempts[where]

    def help(self) -> None:
        """Record that the cluster has changed in favour of all shapes."""
        for refusal in self._refusals.values():
            refusal.helped = True

    def next_time(self) -> float | None:
        """Return when the next shape may be tried again, in seconds; None for never."""
        times = [one.retry_at for one in self._refusals.values() if one.helped]
        return min(times, default=None)

    def expire(self, now: float) -> bool:
        """Drop the refusals of shapes that may be tried again; return whether there were any."""
        over = [w for w, one in self._refusals.items() if one.helped and one.retry_at <= now]
        for where in over:
            del self._refusals[where]
        return bool(over)
