"""Volcano's Queues as rows of a tree, flat or with parents."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from bayplan.api import VolcanoQueue
from bayplan.api.queue import UNLIMITED, Queue, Share
from bayplan.dialects import volcano
from bayplan.queues.definitions import Translations
from bayplan_plugins.queues.class_devices import CLASS_PREFIX

__all__ = ["ROOT", "QueueDefinitions"]

ROOT = "root"
"""The queue that contains all others; Volcano makes it."""


class QueueDefinitions:
    """The queues; without a hierarchy none has a parent.

    In a hierarchy a queue without a parent belongs to the root.
    """

    def __init__(self, hierarchical: bool) -> None:
        self._hierarchical = hierarchical
        self._known = Translations(self._queue)

    def of(self, objects: Mapping[str, VolcanoQueue]) -> list[Queue]:
        """Return the queues that objects define, given by name."""
        found = self._known.of(objects)
        if self._hierarchical and ROOT not in objects:
            found.append(_ROOT)
        return found

    def _queue(self, one: VolcanoQueue) -> Queue:
        queue = _bounded(volcano.queue_of(one))
        parent = queue.parent or ROOT if self._hierarchical and queue.name != ROOT else ""
        return replace(queue, parent=parent)


_ROOT = Queue(ROOT, source="the root of all Queues")


def _bounded(queue: Queue) -> Queue:
    """A capability of no CPU, memory or devices bounds none, as in volcano-sh/volcano."""
    stated = queue.limit.amounts
    kept = {n: v for n, v in stated.items() if v > 0 or not _unbounded_by_zero(n)}
    return queue if len(kept) == len(stated) else replace(queue, limit=Share(kept, UNLIMITED))


def _unbounded_by_zero(resource: str) -> bool:
    return resource in ("cpu", "memory") or resource.startswith(CLASS_PREFIX)
