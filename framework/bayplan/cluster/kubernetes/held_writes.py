"""Writes that only tell a state of the moment, held until the state has lasted.

While a gang is created or a claim is made, the reason for which a pod waits changes faster than
anyone can read it, and a binding soon makes it obsolete. Each write that is not sent saves the API
server about as much work as a binding. While it is busy with bindings, such writes wait longer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from bayplan.cluster.kubernetes.pending_write import PendingWrite, Subject, merged, subject_of
from bayplan.cluster.protocol import (
    Bind,
    CreateClaim,
    Event,
    Evict,
    PatchAnnotations,
    PatchPodStatus,
    PatchStatus,
    ReserveClaim,
    Write,
)
from bayplan.errors import ClusterError, Stopped

__all__ = ["HeldWrites"]


_LONGEST = 10.0
"""Seconds after which a write is sent even while others place pods."""


class _Held(msgspec.Struct):
    """The writes held for one object, the timer that releases them, and when it has to."""

    timer: asyncio.TimerHandle
    until: float
    jobs: list[PendingWrite]


class HeldWrites:
    """Holds writes for a moment and drops those that others replace meanwhile.

    Held are statuses, a pod's reason for having no node, and the events with that reason. A newer
    status of the object replaces them; so does whatever places or evicts the pod.

    :param seconds: how long a write is held; 0 for not at all.
    :param placing: returns whether pods are being placed now.
    :param release: called with each write whose time has come.
    :param answer: called with each write that is not sent, and its error if any.
    """

    def __init__(
        self,
        seconds: float,
        placing: Callable[[], bool],
        release: Callable[[PendingWrite], None],
        answer: Callable[[PendingWrite, ClusterError | None], None],
    ) -> None:
        self._seconds = seconds
        self._placing = placing
        self._release = release
        self._answer = answer
        self._held: dict[Subject, _Held] = {}

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, job: PendingWrite) -> bool:
        """Hold a write, or return False when it has to be sent now."""
        self._replace(job)
        subject = _object_of(job.write)
        if not self._seconds or subject is None or not _is_passing(job.write):
            return False
        held = self._held.get(subject)
        if held is None:
            loop = asyncio.get_running_loop()
            timer = loop.call_later(self._seconds, self._due, subject)
            held = self._held[subject] = _Held(timer, loop.time() + _LONGEST, [])
        held.jobs.append(job)
        return True

    def send_all(self) -> None:
        """Release all held writes now."""
        for subject in list(self._held):
            self._held[subject].timer.cancel()
            self._send(subject)

    def stop(self) -> list[PendingWrite]:
        """Forget all held writes and return them."""
        jobs = [job for held in self._held.values() for job in held.jobs]
        for held in self._held.values():
            held.timer.cancel()
        self._held.clear()
        return jobs

    def _due(self, subject: Subject) -> None:
        held, loop = self._held[subject], asyncio.get_running_loop()
        if self._placing() and loop.time() < held.until:
            held.timer = loop.call_later(self._seconds, self._due, subject)
        else:
            self._send(subject)

    def _send(self, subject: Subject) -> None:
        for job in self._held.pop(subject).jobs:
            self._release(job)

    def _replace(self, job: PendingWrite) -> None:
        """Drop what a write makes obsolete; it takes over the annotations that wait."""
        write = job.write
        if not self._held or isinstance(write, Event):
            return
        subject = _object_of(write)
        held = self._held.get(subject) if subject is not None else None
        if held is None:
            return
        status = isinstance(write, PatchStatus | PatchAnnotations | PatchPodStatus)
        replaced = Stopped("a newer write replaces it")
        jobs, held.jobs = held.jobs, []
        for old in jobs:
            if isinstance(old.write, PatchAnnotations) and isinstance(job.write, PatchAnnotations):
                job.write = merged(old.write, job.write)
            # The status that is never sent counts as sent: the newer one says all that it did.
            self._answer(old, None if status else replaced)
        if not (status and _is_passing(write)):
            held.timer.cancel()
            del self._held[subject]  # type: ignore[arg-type]


def _is_passing(write: Write) -> bool:
    """Return whether a write tells only a state of the moment.

    A nomination does not pass: other programs count on the node. Nor does what others await.
    """
    if isinstance(write, Event):
        return write.passing
    if isinstance(write, PatchPodStatus):
        return write.nominated_node is None and write.condition.type == "PodScheduled"
    if isinstance(write, PatchStatus):
        return not write.awaited
    return isinstance(write, PatchAnnotations)


def _object_of(write: Write) -> Subject | None:
    """Return the pod that a write places, or the object that it tells about."""
    if isinstance(write, Event):
        return write.about, write.pod
    if isinstance(write, Bind | Evict | PatchPodStatus | ReserveClaim | CreateClaim):
        return "Pod", write.pod
    return subject_of(write) if isinstance(write, PatchStatus | PatchAnnotations) else None
