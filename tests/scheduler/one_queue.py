"""Rules of a queue without equivalence and preemption, for tests of other things."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from bayplan.scheduler.queued_unit import QueuedUnit

__all__ = ["OneQueue"]


class OneQueue:
    """All units are in one queue, and each is tried for itself."""

    def queue_of(self, queued: QueuedUnit) -> str:
        return ""

    def equivalence(self, queued: QueuedUnit) -> tuple[Hashable, int]:
        return queued.key, 1

    def actions(self, queued: QueuedUnit) -> tuple[int, ...]:
        return (0,)

    def may_preempt(self, queued: QueuedUnit, action: int) -> bool:
        return False

    def is_strict(self, queued: QueuedUnit) -> bool:
        return False

    def choose(self, heads: Mapping[str, QueuedUnit], action: int) -> str | None:
        return next(iter(heads))
