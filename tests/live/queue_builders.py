"""Queues of a live scheduler."""

from __future__ import annotations

from bayplan.api import ObjectMeta, VolcanoQueue
from bayplan.api.queue_objects import VolcanoQueueSpec

__all__ = ["queue"]


def queue(name: str, **spec: object) -> VolcanoQueue:
    return VolcanoQueue(ObjectMeta(name=name), VolcanoQueueSpec(**spec))
