"""The writer: carries out the scheduler's writes, with bounded concurrency and retries.

Writes about one object keep their order. Writes that place pods go before statuses, and these go
before events. A write that may succeed later is retried while it matters; one that may have been
carried out without an answer is looked up first. A final refusal of a binding goes to the
scheduler, whose binding cycle undoes it.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from bayplan.api import ApiObject
from bayplan.cluster.kubernetes.claim_writes import ClaimWrites
from bayplan.cluster.kubernetes.event_queue import EventQueue
from bayplan.cluster.kubernetes.events import EventRecorder
from bayplan.cluster.kubernetes.held_writes import HeldWrites
from bayplan.cluster.kubernetes.pending_write import (
    PendingWrite,
    Subject,
    merged,
    name_of,
    subject_of,
)
from bayplan.cluster.kubernetes.pod_writes import PodWrites
from bayplan.cluster.kubernetes.rate_limiter import RateLimiter
from bayplan.cluster.kubernetes.resources import WatchedResource
from bayplan.cluster.kubernetes.status_writes import StatusWrites
from bayplan.cluster.kubernetes.transport import JSON, Requests
from bayplan.cluster.kubernetes.volume_writes import VolumeWrites
from bayplan.cluster.kubernetes.write_queue import WriteQueue
from bayplan.cluster.protocol import (
    Bind,
    BindVolume,
    CreateClaim,
    CreateObject,
    DeleteObject,
    Done,
    Event,
    Evict,
    PatchAnnotations,
    PatchFields,
    PatchPodStatus,
    PatchStatus,
    PutConfigMap,
    ReleaseClaim,
    ReserveClaim,
    SelectNode,
    Write,
)
from bayplan.errors import ClusterError, InputError, Locked, NotFound, Stopped, Transient

__all__ = ["SeenObjects", "Writer"]

_FIRST_WAIT = 0.1
_LONGEST_WAIT = 5.0
_EVENT_ATTEMPTS = 5
_HELD_SECONDS = 1.0
_PLACING = (Bind, ReserveClaim, CreateClaim)
_NOT_LEADING = "this process no longer leads"

_log = logging.getLogger("bayplan.cluster")


class SeenObjects(Protocol):
    """The objects that a writer looks at before it writes."""

    def get(self, type_: type[Any], key: str) -> Any:
        """Return an object as it was last seen, None when there is none."""

    def resource_of(self, type_: type[ApiObject]) -> WatchedResource | None:
        """Return where objects of a type are in the API, None for a type that is not watched."""

    def is_absent(self, type_: type[ApiObject]) -> bool:
        """Tell whether the kind of a type was not installed when it was last looked up."""


class _FencedRequests(Requests):
    """Requests that change nothing unless ``may_write`` says so."""

    def __init__(self, inner: Requests, may_write: Callable[[], bool]) -> None:
        self._inner = inner
        self._may_write = may_write

    async def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        content_type: str = JSON,
        query: Mapping[str, str] | None = None,
        seconds: float | None = None,
    ) -> bytes:
        if method != "GET" and not self._may_write():
            raise Stopped(_NOT_LEADING)
        return await self._inner.request(method, path, body, content_type, query, seconds)


class Writer:
    """Carries out writes in the background and retries them with exponential backoff.

    :param objects: the objects as they were last seen.
    :param concurrency: the number of writes in flight at once.
    :param rate: limits writes per second; None for as many as the server takes.
    :param may_write: asked before every write; False stops it, as this process does not lead.
    :param alone: tells whether no other scheduler gives out shares of GPUs at the same time.
    :param event_rate: limits events per second; None for no limit.
    :param hold: seconds for which what tells only a state of the moment is held.
    """

    def __init__(
        self,
        transport: Requests,
        recorder: EventRecorder,
        objects: SeenObjects,
        concurrency: int = 32,
        rate: RateLimiter | None = None,
        may_write: Callable[[], bool] | None = None,
        alone: Callable[[], bool] = lambda: False,
        event_rate: RateLimiter | None = None,
        hold: float = _HELD_SECONDS,
    ) -> None:
        self._recorder = recorder
        self._concurrency = concurrency
        self._rate = rate
        self._ready = WriteQueue()
        self._events = EventQueue(event_rate)
        self._event_timer: asyncio.TimerHandle | None = None
        self._busy: dict[Subject, deque[PendingWrite]] = {}
        self._workers: set[asyncio.Task[None]] = set()
        self._retrying: dict[asyncio.TimerHandle, PendingWrite] = {}
        self._held = HeldWrites(hold, lambda: self._placing > 0, self._enqueue, self._answer)
        self._placing = 0
        self._stopped: Stopped | None = None
        self._random = random.Random()  # noqa: S311 - spreads retries, guards nothing
        self._objects = objects
        self._may_write = may_write
        self.dropped_events = 0
        self.retries = 0
        fenced = transport if may_write is None else _FencedRequests(transport, may_write)
        self._pods = PodWrites(fenced, objects.get, alone)
        self._claims = ClaimWrites(fenced, objects.get, objects.resource_of)
        self._statuses = StatusWrites(fenced, objects.get, objects.resource_of, objects.is_absent)
        self._volumes = VolumeWrites(fenced, objects.resource_of)
        self._how: dict[type, Callable[[Any, bool], Awaitable[None]]] = {
            Bind: self._pods.bind,
            Evict: self._pods.evict,
            PatchPodStatus: self._pods.patch_status,
            ReserveClaim: self._claims.reserve,
            ReleaseClaim: self._claims.release,
            CreateClaim: self._claims.create,
            BindVolume: self._volumes.bind,
            SelectNode: self._volumes.select_node,
            PatchStatus: self._statuses.patch,
            PatchAnnotations: self._statuses.patch_annotations,
            PatchFields: self._statuses.patch_fields,
            CreateObject: self._statuses.create,
            DeleteObject: self._statuses.delete,
            PutConfigMap: self._statuses.put_config_map,
            Event: self._event,
        }

    @property
    def waiting(self) -> int:
        """The number of writes without an answer, except events."""
        return (
            len(self._ready)
            + len(self._busy)
            + sum(len(jobs) for jobs in self._busy.values())
            + sum(not isinstance(job.write, Event) for job in self._retrying.values())
            + len(self._held)
        )

    @property
    def is_idle(self) -> bool:
        """Whether no write is pending, including events."""
        return not (self._workers or self._retrying or self._held or self._events)

    def submit(self, write: Write, done: Done | None = None) -> None:
        """Queue a write; ``done`` is called from the loop, never from here."""
        if self._stopped is not None:
            if done is not None:
                asyncio.get_running_loop().call_soon(done, self._stopped)
            return
        job = PendingWrite(write, done)
        if not self._held.hold(job):
            self._enqueue(job)

    async def drain(self, seconds: float) -> bool:
        """Wait until everything is written; return False after ``seconds``."""
        self._held.send_all()
        self._events.hurry()
        self._start_worker()
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while not self.is_idle:
            left = until - loop.time()
            if left <= 0:
                return False
            if self._workers:
                await asyncio.wait(self._workers, timeout=left)
            else:
                await asyncio.sleep(min(left, 0.05))
        return True

    def halt(self, why: str) -> None:
        """Stop writing at once and refuse all pending writes."""
        self._stopped = Stopped(why)
        for worker in self._workers:
            worker.cancel()
        jobs = self._ready.clear()
        jobs += [job for waiting in self._busy.values() for job in waiting]
        jobs += self._retrying.values()
        jobs += [*self._events.clear(), *self._held.stop()]
        for timer in self._retrying:
            timer.cancel()
        self._busy.clear()
        self._retrying.clear()
        for job in jobs:
            self._answer(job, self._stopped)

    # The queue -------------------------------------------------------------------------------

    def _enqueue(self, job: PendingWrite) -> None:
        subject = subject_of(job.write)
        if subject is not None:
            waiting = self._busy.get(subject)
            if waiting is not None and isinstance(job.write, Bind | Evict):
                self._give_way(subject)
                waiting = self._busy.get(subject)
            if waiting is not None:
                if not _superseded(waiting, job, self._answer):
                    waiting.append(job)
                return
            self._busy[subject] = deque()
        self._queue(job)

    def _queue(self, job: PendingWrite) -> None:
        """Put a write into its queue: bindings before statuses, and these before events."""
        if isinstance(job.write, Event):
            dropped = self._events.add(job)
            if dropped is not None:
                self.dropped_events += 1
                self._answer(dropped, None)
        else:
            self._ready.add(job)
        self._start_worker()

    def _start_worker(self) -> None:
        if len(self._workers) < self._concurrency:
            self._workers.add(asyncio.create_task(self._work()))

    def _give_way(self, subject: Subject) -> None:
        """Drop a retrying status of a pod that is about to be bound or evicted."""
        for timer, job in list(self._retrying.items()):
            if isinstance(job.write, PatchPodStatus) and subject_of(job.write) == subject:
                timer.cancel()
                del self._retrying[timer]
                self._finished(job, Stopped("a binding or eviction of the pod replaces its status"))

    async def _work(self) -> None:
        own = asyncio.current_task()
        assert own is not None, "it runs in a task"
        try:
            while (job := self._next()) is not None:
                await self._try(job)
        finally:
            # At once: as long as it counts, a write that comes meanwhile gets no worker.
            self._workers.discard(own)

    def _next(self) -> PendingWrite | None:
        job = self._ready.take()
        return self._next_event() if job is None else job

    def _next_event(self) -> PendingWrite | None:
        """Return the next event; when none may be written yet, come back for it later."""
        loop = asyncio.get_running_loop()
        job = self._events.take(loop.time())
        if job is None and self._event_timer is None:
            wait = self._events.wait(loop.time())
            if wait is not None:
                self._event_timer = loop.call_later(wait, self._events_are_due)
        return job

    def _events_are_due(self) -> None:
        self._event_timer = None
        self._start_worker()

    async def _try(self, job: PendingWrite) -> None:
        try:
            if self._rate is not None:
                delay = self._rate.delay(asyncio.get_running_loop().time())
                if delay > 0:
                    await asyncio.sleep(delay)
            places = isinstance(job.write, _PLACING)
            self._placing += places
            try:
                await self._how[type(job.write)](job.write, job.sent)
            finally:
                self._placing -= places
        except (Transient, InputError) as exc:
            job.attempts += 1
            if isinstance(exc, Transient):
                job.sent |= exc.sent
            subject = subject_of(job.write)
            behind = self._busy.get(subject, ()) if subject is not None else ()
            if isinstance(job.write, Event) and job.attempts >= _EVENT_ATTEMPTS:
                self.dropped_events += 1
            elif isinstance(job.write, PatchPodStatus) and any(
                isinstance(other.write, Bind | Evict) for other in behind
            ):
                self._finished(job, exc if isinstance(exc, ClusterError) else None)
            else:
                self._again(job, exc)
        except ClusterError as exc:
            self._finished(job, exc)
        except asyncio.CancelledError:
            self._answer(job, self._stopped or Stopped("the scheduler stops"))
            raise
        except Exception as exc:
            _log.exception("%s failed", type(job.write).__name__)
            self._finished(job, ClusterError(f"{type(exc).__name__}: {exc}"))
        else:
            self._finished(job, None)

    def _again(self, job: PendingWrite, exc: Transient | InputError) -> None:
        self.retries += 1
        if job.attempts == 1:
            _log.warning("%s of %s: %s; retrying", *name_of(job.write), exc)
        # Whoever waits for a lock does not wait longer each time.
        attempts = 1 if isinstance(exc, Locked) else job.attempts
        wait = min(_FIRST_WAIT * 2 ** (attempts - 1), _LONGEST_WAIT)
        wait *= 0.5 + self._random.random()
        after = exc.retry_after if isinstance(exc, Transient) else None
        loop = asyncio.get_running_loop()

        def retry() -> None:
            self._retrying.pop(timer, None)
            self._queue(job)

        timer = loop.call_later(max(wait, after or 0.0), retry)
        self._retrying[timer] = job

    def _finished(self, job: PendingWrite, error: ClusterError | None) -> None:
        subject = subject_of(job.write)
        if subject is not None:
            waiting = self._busy.pop(subject, None)
            if waiting:
                self._busy[subject] = waiting
                self._queue(waiting.popleft())
        self._answer(job, error)

    def _answer(self, job: PendingWrite, error: ClusterError | None) -> None:
        if job.done is not None:
            try:
                job.done(error)
            except Exception:
                _log.exception("%s: the handler of its answer failed", type(job.write).__name__)
        elif error is not None and not isinstance(error, Stopped):
            # Whose object has gone needs no report.
            level = logging.INFO if isinstance(error, NotFound) else logging.WARNING
            _log.log(level, "%s of %s: %s", *name_of(job.write), error)

    async def _event(self, event: Event, sent: bool) -> None:
        if self._may_write is not None and not self._may_write():
            raise Stopped(_NOT_LEADING)
        await self._recorder.record(event, self._objects.get)


def _superseded(
    waiting: deque[PendingWrite],
    job: PendingWrite,
    answer: Callable[[PendingWrite, ClusterError | None], None],
) -> bool:
    """Replace a queued status with a newer one of the same object."""
    if not waiting or type(waiting[-1].write) is not type(job.write):
        return False
    last, new = waiting[-1].write, job.write
    if isinstance(new, PatchPodStatus) and isinstance(last, PatchPodStatus):
        if new.uid != last.uid or new.condition.type != last.condition.type:
            return False
        if new.nominated_node is None:
            job.write = PatchPodStatus(new.pod, new.uid, new.condition, last.nominated_node)
    elif isinstance(new, PatchAnnotations) and isinstance(last, PatchAnnotations):
        job.write = merged(last, new)
    elif not isinstance(new, PatchStatus):
        return False
    answer(waiting.pop(), None)
    waiting.append(job)
    return True
