"""The rules of a queue without lanes, shapes and ways to make room, for tests of other things."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from bayplan.scheduler.queue import QueuedUnit

__all__ = ["OneLane"]


class OneLane:
    """All units are in one lane, and each is tried for itself."""

    def lane(self, queued: QueuedUnit) -> str:
        return ""

    def shape(self, queued: QueuedUnit) -> tuple[Hashable, int]:
        return queued.key, 1

    def actions(self, queued: QueuedUnit) -> tuple[int, ...]:
        return (0,)

    def may_make_room(self, queued: QueuedUnit, action: int) -> bool:
        return False

    def is_strict(self, queued: QueuedUnit) -> bool:
        return False

    def choose(self, heads: Mapping[str, QueuedUnit], action: int) -> str | None:
        return next(iter(heads))
