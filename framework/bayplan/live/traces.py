"""Traces: a span for the life of each job, in OpenTelemetry's words, sent to a collector (OTLP).

A trace is one job on its way to its nodes: the span ``job`` from its creation until all of its pods
run; in it ``queued`` until it was first tried, a ``try`` for as long as tries end in the same
way, ``bind`` and ``start`` for each pod. What a cycle decided is linked by its address.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec

from bayplan.api import KueueWorkload, Pod
from bayplan.api.object_key import controller_key
from bayplan.cluster.protocol import WatchEvent, WatchType
from bayplan.cycle.scheduling_cycle import Result
from bayplan.dialects.reading import timestamp
from bayplan.errors import InputError
from bayplan.plugin.base import Unit
from bayplan.plugin.decision import Decision, Outcome
from bayplan.queues.workload_waits import ADMITTED, reached
from bayplan.scheduler.observer import Observer
from bayplan.scheduler.scheduler import Scheduler
from bayplan.snapshot import PodInfo

try:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.trace import Span, Status, StatusCode, set_span_in_context
except ImportError:
    raise InputError(
        "needs OpenTelemetry's SDK: pip install 'bayplan[traces]'", "--traces-endpoint"
    ) from None

if TYPE_CHECKING:
    from opentelemetry.context import Context

__all__ = ["Traces"]

_MOST = 10_000
"""Jobs whose life is followed; the oldest of more end where they are."""
_LONGEST = 1_000
_NANOSECONDS = 1_000_000_000
_EXPORT_SECONDS = 5.0


def _at(seconds: float) -> int:
    return int(seconds * _NANOSECONDS)


class _Try(msgspec.Struct):
    """Cycles of a job that ended in the same way."""

    span: Span
    said: tuple[str, str]
    cycles: int = 0
    until: float = 0.0


class _Job(msgspec.Struct):
    """A job on its way: its span, its tries, and what its pods wait for."""

    span: Span
    context: Context
    pods: set[str] = msgspec.field(default_factory=set)
    tried: _Try | None = None
    binding: dict[str, Span] = msgspec.field(default_factory=dict)
    starting: dict[str, Span] = msgspec.field(default_factory=dict)


class Traces(Observer):
    """Follows a scheduler, and sends spans from a thread of its own; what is too much is dropped.

    :param endpoint: where a collector takes OTLP over HTTP, such as
        ``http://collector:4318/v1/traces``. Headers come from ``OTEL_EXPORTER_OTLP_HEADERS``.
    :param identity: the name of this process.
    :param page: returns the URL of the scheduler's page.
    """

    def __init__(self, endpoint: str, identity: str, page: Callable[[], str]) -> None:
        resource = Resource.create({"service.name": "bayplan", "service.instance.id": identity})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        exporter = OTLPSpanExporter(endpoint, timeout=_EXPORT_SECONDS)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("bayplan")
        self._page = page
        self._jobs: OrderedDict[str, _Job] = OrderedDict()
        self._job_of: dict[str, str] = {}
        self._admitted: OrderedDict[str, float] = OrderedDict()
        self._now: Callable[[], float] = lambda: 0.0

    def watch(self, scheduler: Scheduler) -> None:
        """Follow a scheduler, and another one once its profiles were read again."""
        self._now = lambda: scheduler.unix_time
        scheduler.snapshot.on_object(KueueWorkload, self._workload_changed)

    def close(self) -> None:
        """Send what is left; wait for a collector that does not answer a few seconds at most."""
        for key in list(self._jobs):
            self._end(key, "unfinished")
        self._provider.force_flush(int(_EXPORT_SECONDS * 1000))
        self._provider.shutdown()

    # What a scheduler reports ----------------------------------------------------------------

    def ended(self, profile: str, unit: Unit, result: Result, seconds: float) -> None:
        """Add a try of a job, or say that it was tried again with the same result."""
        decision, now = result.decision, self._now()
        job = self._jobs.get(decision.unit) or self._begin(decision.unit, profile, unit, seconds)
        for one in unit.pods:
            job.pods.add(one.key)
            self._job_of[one.key] = decision.unit
        said = (decision.outcome.value, _message(decision))
        if job.tried is None or job.tried.said != said:
            self._end_try(job)
            job.tried = _Try(self._try(job, decision, now - seconds), said)
        job.tried.cycles += 1
        job.tried.until = now
        if decision.outcome is Outcome.PLACED:
            self._end_try(job)
            job.span.add_event("placed", {"bayplan.domain": decision.domain or ""}, _at(now))
            for reserved in result.reserved:
                key = reserved.pod.key
                named = _of_pod(key) | {"k8s.node.name": reserved.node}
                job.binding[key] = self._span("bind", job.context, now, named)

    def given_up(self, decision: Decision) -> None:
        """Say why a placed job gave its nodes back."""
        job, now = self._jobs.get(decision.unit), _at(self._now())
        if job is None:
            return
        job.span.add_event("given up", {"bayplan.message": _message(decision)}, now)
        for key in [key for key in job.binding if key in decision.pods]:
            job.binding.pop(key).end(now)

    def bound(self, pod: PodInfo, node: str, cycle: int, attempts: int, seconds: float) -> None:
        """End a pod's binding; what is left is its start."""
        job, now = self._jobs.get(self._job_of.get(pod.key, "")), self._now()
        if job is None:
            return
        if (span := job.binding.pop(pod.key, None)) is not None:
            span.end(_at(now))
        named = _of_pod(pod.key) | {"k8s.node.name": node}
        job.starting[pod.key] = self._span("start", job.context, now, named)

    def evicted(self, pod: PodInfo, reason: str) -> None:
        """Say that a pod of a job that is not yet running was evicted."""
        job = self._jobs.get(self._job_of.get(pod.key, ""))
        if job is not None:
            named = {"k8s.pod.name": pod.key, "bayplan.reason": reason}
            job.span.add_event("evicted", named, _at(self._now()))

    # What objects say ------------------------------------------------------------------------

    def handle(self, event: WatchEvent) -> None:
        """Note what an event of the watch says of pods, after the scheduler has seen it."""
        if event.type is WatchType.RESYNC:
            there = {one.key: one for one in event.objects if isinstance(one, Pod)}
            for key in list(self._job_of):
                self._seen(key, there.get(key))
        elif isinstance(event.obj, Pod):
            self._seen(event.obj.key, None if event.type is WatchType.DELETED else event.obj)

    def _seen(self, key: str, pod: Pod | None) -> None:
        """End the start of a pod that runs or has ended; None is gone."""
        job = self._jobs.get(self._job_of.get(key, ""))
        phase = "" if pod is None else pod.status.phase
        if job is None or phase == "Pending":
            return
        unit = self._job_of[key]
        spans = job.binding.pop(key, None), job.starting.pop(key, None)
        for span in filter(None, spans):
            span.end(_at(self._now()))
        if phase not in ("Running", "Succeeded"):
            job.pods.discard(key)
            del self._job_of[key]
        if not job.pods:
            self._end(unit, "gone")
        elif any(spans) and not job.starting and not job.binding:
            self._end(unit, "running")

    def _workload_changed(self, old: KueueWorkload | None, new: KueueWorkload | None) -> None:
        if new is None or all(one.condition != ADMITTED for one in reached(old, new)):
            return
        namespace = new.metadata.namespace
        for owner in new.metadata.owner_references:
            self._admitted[f"{namespace}/{owner.name}"] = self._now()
        while len(self._admitted) > _MOST:
            self._admitted.popitem(last=False)

    # Spans -----------------------------------------------------------------------------------

    def _begin(self, key: str, profile: str, unit: Unit, seconds: float) -> _Job:
        now = self._now()
        made = [timestamp(one.pod.metadata.creation_timestamp) or now for one in unit.pods]
        created, first = min(made, default=now), now - seconds
        named: dict[str, str | int] = {
            "k8s.namespace.name": key.partition("/")[0],
            "bayplan.job": key,
            "bayplan.profile": profile,
            "bayplan.pods": len(unit.pods),
        }
        span = self._tracer.start_span("job", attributes=named, start_time=_at(created))
        job = self._jobs[key] = _Job(span, set_span_in_context(span))
        span.add_event("created", timestamp=_at(created))
        owners = {key, *(controller_key(one.pod.metadata) for one in unit.pods)}
        for owner in sorted(owners & self._admitted.keys()):
            span.add_event("admitted", timestamp=_at(self._admitted.pop(owner)))
        self._span("queued", job.context, created, {}).end(_at(max(created, first)))
        if len(self._jobs) > _MOST:
            self._end(next(iter(self._jobs)), "unfinished")
        return job

    def _end(self, key: str, outcome: str) -> None:
        """End a job and what is left of it."""
        job, now = self._jobs.pop(key), _at(self._now())
        self._end_try(job)
        for span in (*job.binding.values(), *job.starting.values()):
            span.end(now)
        job.span.set_attribute("bayplan.outcome", outcome)
        job.span.end(now)
        for pod in job.pods:
            self._job_of.pop(pod, None)

    def _try(self, job: _Job, decision: Decision, begin: float) -> Span:
        named: dict[str, str | int | list[str]] = {
            "bayplan.cycle": decision.cycle,
            "bayplan.outcome": decision.outcome.value,
            "bayplan.message": _message(decision),
            "bayplan.refused_by": sorted(decision.refused_by),
            "bayplan.decision": f"{self._page()}/debug/decisions?unit={quote(decision.unit)}",
        }
        span = self._span("try", job.context, begin, named)
        if decision.outcome is Outcome.ERROR:
            span.set_status(Status(StatusCode.ERROR, _message(decision)))
        return span

    def _end_try(self, job: _Job) -> None:
        if job.tried is not None:
            job.tried.span.set_attribute("bayplan.cycles", job.tried.cycles)
            job.tried.span.end(_at(job.tried.until))
            job.tried = None

    def _span(
        self,
        name: str,
        context: Context,
        begin: float,
        named: Mapping[str, str | int | list[str]],
    ) -> Span:
        return self._tracer.start_span(name, context, attributes=named, start_time=_at(begin))


def _of_pod(key: str) -> dict[str, str | int | list[str]]:
    namespace, _, name = key.partition("/")
    return {"k8s.namespace.name": namespace, "k8s.pod.name": name}


def _message(decision: Decision) -> str:
    own = (one.message for one in decision.pods.values() if one.message)
    return (decision.message or next(own, ""))[:_LONGEST]
