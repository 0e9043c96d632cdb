"""Volcano's Queues as rows of a tree, flat or with parents."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from bayplan.api import VolcanoQueue
from bayplan.api.queue import UNLIMITED, Queue, Share
from bayplan.dialects import volcano
from bayplan_plugins.queues.volcano.devices import CLASS_PREFIX

__all__ = ["ROOT", "queues_of"]

ROOT = "root"
"""The queue that contains all others; Volcano makes it."""


def queues_of(objects: Iterable[VolcanoQueue], hierarchical: bool) -> list[Queue]:
    """Return the queues; without a hierarchy none has a parent.

    In a hierarchy a queue without a parent belongs to the root.
    """
    found = {one.metadata.name: _bounded(volcano.queue_of(one)) for one in objects}
    if not hierarchical:
        return [replace(queue, parent="") for queue in found.values()]
    found.setdefault(ROOT, Queue(ROOT, source="the root of all Queues"))
    for name, queue in found.items():
        found[name] = replace(queue, parent="" if name == ROOT else queue.parent or ROOT)
    return list(found.values())


def _bounded(queue: Queue) -> Queue:
    """A capability of no CPU, memory or devices bounds none, as in volcano-sh/volcano."""
    stated = queue.limit.amounts
    kept = {n: v for n, v in stated.items() if v > 0 or not _unbounded_by_zero(n)}
    return queue if len(kept) == len(stated) else replace(queue, limit=Share(kept, UNLIMITED))


def _unbounded_by_zero(resource: str) -> bool:
    return resource in ("cpu", "memory") or resource.startswith(CLASS_PREFIX)
