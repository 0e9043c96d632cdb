"""Queues in bayplan's own terms; the dialects translate every ecosystem's spelling into these."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import Enum

import msgspec

__all__ = ["UNLIMITED", "Amounts", "Order", "Queue", "QueueState", "Share"]

UNLIMITED = math.inf
"""The amount of a resource that nothing bounds."""

Amounts = Mapping[str, float]
"""Amounts by resource: CPU in milli-CPU, anything else in its unit (bytes, devices). A part of a
device is a fraction of one."""


class Order(Enum):
    """The order of the jobs of one queue."""

    PRIORITY = "priority"
    """The highest priority first, then the oldest; a job that does not fit lets others pass."""
    FIFO = "fifo"
    """The oldest first; a job that does not fit lets others pass."""
    STRICT = "strict"
    """The highest priority first, then the oldest; a job that does not fit blocks the others."""
    STRICT_FIFO = "strict-fifo"
    """The oldest first; a job that does not fit blocks the others."""


class QueueState(Enum):
    """Whether a queue takes jobs."""

    OPEN = "Open"
    CLOSING = "Closing"
    """Takes no new job; those that it has go on."""
    CLOSED = "Closed"


class Share(msgspec.Struct, frozen=True):
    """Amounts of a queue by resource; ``other`` holds for every resource that is not named."""

    amounts: Amounts = msgspec.field(default_factory=dict)
    other: float = 0.0

    def of(self, resource: str) -> float:
        """Return the amount of one resource."""
        return self.amounts.get(resource, self.other)


_ZERO = Share()
_ALL = Share(other=UNLIMITED)
_ONE = Share(other=1.0)


class Queue(msgspec.Struct, frozen=True):
    """One queue of a tree, whatever object defines it.

    ``name`` is unique in its tree; ``parent`` names the queue that it belongs to, "" for a root.
    ``display_name`` is what people call it, "" for its name.
    ``source`` names the kind and the object that define it, for messages.

    ``deserved`` is what the queue may have whenever it asks (Volcano's deserved, KAI's quota,
    Koordinator's min, Kueue's nominal quota), ``guaranteed`` what nobody else may use, ``limit``
    the most that it may have. ``weight`` divides what is left over. ``lent`` is the most of its
    own that others may use, ``borrowed`` the most that it may use of theirs.

    ``created`` is in seconds since 1970. Jobs of a queue that is not ``reclaimable`` are never
    evicted for another queue. For ``preempt_min_runtime`` seconds after their start they are safe
    from jobs of their own queue, for ``reclaim_min_runtime`` from those of others; None leaves it
    to the parent. A queue that ``pools`` has what its children deserve on top of its own, as
    Kueue's cohorts do. ``problem`` says what is wrong with the definition; jobs of such a queue
    stay pending.
    """

    name: str
    parent: str = ""
    source: str = ""
    deserved: Share = _ZERO
    guaranteed: Share = _ZERO
    limit: Share = _ALL
    weight: Share = _ONE
    lent: Share = _ALL
    borrowed: Share = _ALL
    priority: int = 0
    created: float = 0.0
    uid: str = ""
    reclaimable: bool = True
    preempt_min_runtime: float | None = None
    reclaim_min_runtime: float | None = None
    order: Order = Order.PRIORITY
    state: QueueState = QueueState.OPEN
    problem: str | None = None
    pools: bool = False
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)
    display_name: str = ""
