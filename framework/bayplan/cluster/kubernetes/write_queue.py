"""Writes that are ready to be sent: bindings first, then statuses of objects and pods in turn."""

from __future__ import annotations

from collections import deque

from bayplan.cluster.kubernetes.pending_write import PendingWrite
from bayplan.cluster.protocol import (
    CreateObject,
    DeleteObject,
    PatchAnnotations,
    PatchFields,
    PatchPodStatus,
    PatchStatus,
    PutConfigMap,
)

__all__ = ["WriteQueue"]

_OBJECT_STATUSES = (
    PatchStatus,
    PatchAnnotations,
    PatchFields,
    CreateObject,
    DeleteObject,
    PutConfigMap,
)


class WriteQueue:
    """What places or evicts pods goes first.

    Statuses of objects, such as queues and gangs, and those of pods take turns: the reasons of a
    thousand pods that wait do not keep back what their queue says, nor the other way round.
    """

    def __init__(self) -> None:
        self._placing: deque[PendingWrite] = deque()
        self._objects: deque[PendingWrite] = deque()
        self._pods: deque[PendingWrite] = deque()
        self._turn_of_pods = False

    def __len__(self) -> int:
        return len(self._placing) + len(self._objects) + len(self._pods)

    def add(self, job: PendingWrite) -> None:
        """Append a write to those of its class."""
        if isinstance(job.write, PatchPodStatus):
            self._pods.append(job)
        elif isinstance(job.write, _OBJECT_STATUSES):
            self._objects.append(job)
        else:
            self._placing.append(job)

    def take(self) -> PendingWrite | None:
        """Remove and return the next write, None when there is none."""
        if self._placing:
            return self._placing.popleft()
        self._turn_of_pods = not self._turn_of_pods
        first, second = self._objects, self._pods
        if self._turn_of_pods:
            first, second = second, first
        queue = first or second
        return queue.popleft() if queue else None

    def clear(self) -> list[PendingWrite]:
        """Remove and return all writes."""
        jobs = [*self._placing, *self._objects, *self._pods]
        for queue in (self._placing, self._objects, self._pods):
            queue.clear()
        return jobs
