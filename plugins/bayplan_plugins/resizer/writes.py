"""What the resizer writes: sizes of jobs, notices on pods, and what it tells of both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from bayplan import Handle, PodInfo
from bayplan.api import Pod
from bayplan.api.times import rfc3339
from bayplan.cluster.protocol import Done, Event, PatchFields, annotation_field
from bayplan.dialects.elastic import (
    ADVICE_ANNOTATION,
    RESIZED_ANNOTATION,
    Replicas,
)
from bayplan.dialects.progress import GOING_AT
from bayplan.errors import ClusterError
from bayplan.naming import counted
from bayplan_plugins.resizer.jobs import ElasticJobs, Replica

__all__ = ["Writes"]

COMPONENT = "bayplan-resizer"
_REFUSED_SECONDS = 60.0
_SHOWN_SECONDS = 30.0
"""Seconds after which a size that was written, and that the job does not show, is forgotten."""


class _Pending(msgspec.Struct):
    """A size that was written and that the watch has not shown yet."""

    size: int
    until: float


class Writes:
    """Sets sizes, once for each decision, and gives notice to pods that go."""

    def __init__(self, handle: Handle, jobs: ElasticJobs) -> None:
        self._handle = handle
        self._jobs = jobs
        self._pending: dict[tuple[str, str], _Pending] = {}
        self._refused: dict[tuple[str, str], float] = {}
        self._reported: dict[tuple[str, str], str] = {}

    def is_pending(self, part: Replicas) -> bool:
        """Tell whether a size was written that the job does not show yet, or was refused lately."""
        place = _place(part)
        if self.is_refused(part):
            return True
        pending = self._pending.get(place)
        if pending is None:
            return False
        if part.size.now == pending.size or pending.until <= self._handle.now:
            del self._pending[place]
            return False
        return True

    def is_refused(self, part: Replicas) -> bool:
        """Tell whether the cluster refused a size lately; a while later it is tried again."""
        return self._refused.get(_place(part), 0.0) > self._handle.now

    def resize(self, part: Replicas, size: int, why: str, gone: Sequence[Replica] = ()) -> None:
        """Set the number of replicas.

        :param why: continues "4 to 6 replicas: ".
        :param gone: the replicas that go.
        """
        meta = part.obj.metadata
        names = [pod.name for one in gone for pod in one.pods]
        fields: dict[str, Any] = dict(part.fields(size, names))
        now = rfc3339(self._handle.unix_time)
        fields |= annotation_field(meta.annotations, RESIZED_ANNOTATION, now)
        until = self._handle.now + _SHOWN_SECONDS
        self._pending[_place(part)] = _Pending(size, until)
        text = f"{part.size.now} to {counted(size, 'replica')}: {why}"
        write = PatchFields(type(part.obj), part.key, meta.uid, fields)
        self._handle.submit(write, self._answered(part, text))

    def _answered(self, part: Replicas, text: str) -> Done:
        def answered(error: ClusterError | None) -> None:
            if error is None:
                self.tell(part, "Normal", "Resized", text)
                return
            self._pending.pop(_place(part), None)
            self._refused[_place(part)] = self._handle.now + _REFUSED_SECONDS
            self.tell(part, "Warning", "ResizeRefused", f"{text}: {error}")

        return answered

    def tell(self, part: Replicas, type_: str, reason: str, text: str) -> None:
        """Record an event on a job; what was reported last is not shown again."""
        place = _place(part)
        if self._reported.get(place) != text:
            self._reported[place] = text
            event = Event(part.key, type_, reason, text, about=part.kind, component=COMPONENT)
            self._handle.submit(event)

    def advise(self, part: Replicas, text: str) -> None:
        """Write what a job would gain by moving; "" takes back what was written."""
        meta = part.obj.metadata
        if text == meta.annotations.get(ADVICE_ANNOTATION, ""):
            return
        fields = annotation_field(meta.annotations, ADVICE_ANNOTATION, text or None)
        self._handle.submit(PatchFields(type(part.obj), part.key, meta.uid, fields))
        if text:
            self.tell(part, "Normal", "WouldGainByMoving", text)

    # Notices -----------------------------------------------------------------------------

    def give_notice(self, pods: Sequence[PodInfo], at: float) -> None:
        """Tell pods when they go, in seconds since 1970."""
        for pod in pods:
            self._jobs.noticed(pod, at)
            annotations = pod.pod.metadata.annotations
            fields = annotation_field(annotations, GOING_AT, rfc3339(at))
            self._handle.submit(PatchFields(Pod, pod.key, pod.pod.metadata.uid, fields))


def _place(part: Replicas) -> tuple[str, str]:
    return part.obj.metadata.uid, part.part
