"""``bayplan run``: put the live scheduler together, run it, and shut it down."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from prometheus_client import REGISTRY, CollectorRegistry

from bayplan.api import Kind, Pod
from bayplan.cluster.kubernetes.backend import KubernetesCluster
from bayplan.cluster.kubernetes.events import EventRecorder
from bayplan.cluster.kubernetes.rate_limiter import RateLimiter
from bayplan.cluster.kubernetes.writer import Writer
from bayplan.cluster.protocol import Event
from bayplan.errors import BayplanError
from bayplan.garbage import collect_rarely
from bayplan.inputs.sockets import allow_many_connections
from bayplan.live.address import Address, Listener
from bayplan.live.elastic_jobs import ElasticJobs
from bayplan.live.election import Election
from bayplan.live.leases import annotations_of
from bayplan.live.load_sources import ReaderWithLoads, load_source_of
from bayplan.live.loop import LiveScheduler
from bayplan.live.metrics import LiveMetrics
from bayplan.live.observers import CycleLog, Observers
from bayplan.live.parts import parts_of
from bayplan.live.queue_metrics import QueueMetrics
from bayplan.live.reading import Reading
from bayplan.profiles.loading import ProfileSet
from bayplan.profiles.settings import ClientConnection
from bayplan.scheduler.scheduler import Scheduler
from bayplan.snapshot.kept_nodes import KeptNodes

if TYPE_CHECKING:
    from bayplan.live.bill_pages import Bills
    from bayplan.live.bill_reload import BillReload
    from bayplan.live.pages import Pages
    from bayplan.live.tenants import TenantAddress
    from bayplan.live.traces import Traces
    from bayplan.live.usage_writer import UsageWriter
    from bayplan.live.visibility import VisibilityAddress, VisibilityServer
    from bayplan.metering.journal import Journal

__all__ = ["DRAIN_SECONDS", "RELEASE_SECONDS", "LiveApp", "Options", "run"]

_ALL_REFUSED_SECONDS = 15.0
"""How long to wait until all that is forbidden has been asked for, to name it together."""
DRAIN_SECONDS = 10.0
"""Seconds that a stopping scheduler waits for its last writes."""
RELEASE_SECONDS = 5.0
"""Seconds that it then tries to release its lease."""
_BURST = 100
_PAGES_SECONDS = 5.0
"""Seconds after which who asks is answered though nothing was decided yet."""

_log = logging.getLogger("bayplan.live")


class Options(msgspec.Struct, frozen=True):
    """What ``bayplan run`` was asked for.

    :param load: reads the profiles, at the start and on every SIGHUP.
    :param registry: where the metrics are registered.
    :param clock: returns the scheduler's time in seconds; None for the event loop's.
    :param hold: seconds for which what tells only a state of the moment is held.
    :param bills: what the pages of costs are computed from, None to show none.
    :param journal: where usage is recorded, None to record none; a dry run records none.
    :param binds: whether it binds pods; otherwise another scheduler does, and this process resizes
        jobs, tells what pools have and records usage.
    :param title: what the page calls the process.
    :param visibility: where Kueue's visibility API is served, None for nowhere.
    """

    load: Callable[[], ProfileSet]
    kubeconfig: Path | None = None
    context: str = ""
    dry_run: bool = False
    leader_elect: bool = True
    address: Address = msgspec.field(default_factory=Address)
    registry: CollectorRegistry = REGISTRY
    clock: Callable[[], float] | None = None
    hold: float = 1.0
    bills: Bills | None = None
    journal: Journal | None = None
    binds: bool = True
    title: str = "bayplan run"
    visibility: VisibilityAddress | None = None
    tenants: TenantAddress | None = None
    traces_endpoint: str = ""


class LiveApp:
    """One process of the live scheduler: ``run`` runs it; ``stop`` and ``reload`` are its signals.

    ``live`` is None until every kind is listed.

    :param reading: what has been begun to read already, None for nothing.
    :raises InputError: when the profiles cannot be used.
    """

    def __init__(self, options: Options, reading: Reading | None = None) -> None:
        self._options = options
        self._profiles = options.load()
        client = self._profiles.client_connection
        kubeconfig = options.kubeconfig or client.path
        self.identity = f"{socket.gethostname()}_{uuid.uuid4()}"
        self._metrics = LiveMetrics(options.registry)
        self._queue_metrics = QueueMetrics(options.registry)
        self._bill_reload = self._follow_bills()
        self._reading = reading or Reading(kubeconfig, options.context)
        self._credentials, self.transport = self._reading.credentials, self._reading.transport
        self.transport.observe = self._observe
        self.live: LiveScheduler | None = None
        self._lost = False
        self._stopping = asyncio.Event()
        self.cache = self._reading.cache
        self.cache.on_unreadable = self._unreadable
        source = load_source_of(self._profiles)
        loads = None if source is None else ReaderWithLoads(self.transport, source)
        self.cache.follow(parts_of(self._profiles), loads)
        self.listener = Listener(options.address)
        self.pages: Pages | None = None
        self.visibility = self._make_visibility()
        self._traces = self._make_traces()
        self._election = self._make_election()
        self.writer = None if options.dry_run else self._make_writer()
        writer = self.writer
        if writer is not None:
            self._metrics.dropped_events = lambda: writer.dropped_events
        self.cluster = KubernetesCluster(self.cache, self.writer, options.clock)
        self._elastic_jobs = (
            None
            if writer is None
            else ElasticJobs(self.transport, self.cache, self.leads, self.cluster.submit)
        )
        self._usage = self._make_usage()

    # What few ask for is loaded where it is asked for: each takes time at the start.

    def _follow_bills(self) -> BillReload | None:
        """Export budgets; return what reads the price list again, None without one."""
        bills, registry = self._options.bills, self._options.registry
        if bills is None:
            return None
        from bayplan.billing.budgets import Budgets
        from bayplan.live.bill_reload import BillReload
        from bayplan.live.budget_metrics import BudgetMetrics

        BudgetMetrics(registry, Budgets(bills.terms, bills.source), bills.now)
        return None if bills.files is None else BillReload(bills.files, registry)

    def _make_visibility(self) -> VisibilityServer | None:
        if self._options.visibility is None:
            return None
        from bayplan.live.visibility import VisibilityServer

        return VisibilityServer(self._options.visibility, self.transport, lambda: self.live)

    def _make_election(self) -> Election | None:
        """Return this process's candidacy, None when it schedules without leader election."""
        options, settings = self._options, self._profiles.leader_election
        if options.dry_run or not options.leader_elect or not settings.leader_elect:
            return None
        return Election(
            self.transport,
            settings,
            self.identity,
            self._leadership,
            self._lease_annotations,
            options.clock,
        )

    def _make_traces(self) -> Traces | None:
        if not self._options.traces_endpoint:
            return None
        # OpenTelemetry's SDK is an extra.
        from bayplan.live.traces import Traces

        return Traces(self._options.traces_endpoint, self.identity, lambda: self.listener.url)

    def _lease_annotations(self) -> dict[str, str]:
        bound = self._profiles.profiles if self._options.binds else ()
        names = [profile.scheduler_name for profile in bound]
        return annotations_of(self.listener.url, names, self.listener.fingerprint)

    def _make_usage(self) -> UsageWriter | None:
        journal = self._options.journal
        if journal is None or self._options.dry_run:
            return None
        # The journal's database library takes a fifth of the start.
        from bayplan.live.usage_metrics import UsageMetrics
        from bayplan.live.usage_writer import UsageWriter

        made = UsageWriter(
            journal, self.leads, lambda: self.cluster.unix_time, self._queue_name, self._spares
        )
        UsageMetrics(made, self._options.registry)
        return made

    def _spares(self) -> Iterable[str] | None:
        """Return the spares; None before all nodes were read."""
        if self.live is None or not self.live.scheduler.has_read:
            return None
        return KeptNodes.of(self.live.scheduler.snapshot).now()

    def _queue_name(self, pod: Pod) -> str:
        return self.live.scheduler.queues.name_of(pod) if self.live is not None else ""

    def _make_writer(self) -> Writer:
        client = self._profiles.client_connection
        rate = None
        if client.qps is not None and client.qps > 0:
            rate = RateLimiter(client.qps, client.burst or _BURST)
        return Writer(
            self.transport,
            EventRecorder(self.transport, "bayplan", self.identity),
            self.cache,
            rate=rate,
            may_write=self._election.leads if self._election is not None else None,
            alone=self._is_alone,
            event_rate=_event_rate(client),
            hold=self._options.hold,
        )

    def _is_alone(self) -> bool:
        """Tell whether nobody else gives out shares: elected, and no pod of another scheduler."""
        elected = self._election is not None
        return elected and self.live is not None and not self.live.scheduler.other_schedulers

    def _observe(self, method: str, code: str, seconds: float) -> None:
        self._metrics.request(self.transport.host, method, code, seconds)

    def _unreadable(self, kind: Kind, key: str, problem: str) -> None:
        if self.live is not None and self.leads():
            self._report_unreadable(kind.name, key, problem)

    def _report_unreadable(self, kind: str, key: str, problem: str) -> None:
        text = f"bayplan skips it: {problem}"
        self.cluster.submit(Event(key, "Warning", "Unreadable", text, about=kind))

    # Running ---------------------------------------------------------------------------------

    async def run(self) -> int:
        """Run until stopped; return the exit status: 1 when the lease was lost.

        :raises BayplanError: when it cannot start.
        """
        try:
            await self._reading.start()
            self.listener.open()
            _log.info("serving %s", self.listener.url)
            if self.visibility is not None:
                await self.visibility.start()
            live = self._make_live()
            serving = asyncio.create_task(self._serve(live))
            try:
                if await self._first_lists(live):
                    await self._schedule(live)
            finally:
                serving.cancel()
                await asyncio.gather(serving, return_exceptions=True)
            if not serving.cancelled():
                serving.result()
        finally:
            await self._end()
        return 1 if self._lost else 0

    async def _serve(self, live: LiveScheduler) -> None:
        """Answer who asks, once something was decided: loading the pages would delay that.

        :raises InputError: when an address cannot be used; this ends the process, too.
        """
        try:
            if self._options.tenants is None:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(live.decided.wait(), _PAGES_SECONDS)
            self.pages = await asyncio.to_thread(self._load_pages)
            await self.pages.start(live)
        except Exception:
            self.stop()
            raise

    def _load_pages(self) -> Pages:
        from bayplan.live.pages import Pages

        options = self._options
        return Pages(
            options.title,
            self.listener,
            options.registry,
            self.transport,
            self.cache,
            self.not_ready,
            lambda: self.live,
            options.bills,
            options.tenants,
        )

    async def _first_lists(self, live: LiveScheduler) -> bool:
        """Wait until every kind is listed and read; return False when stopped before.

        :raises BayplanError: when the credentials do not allow it.
        """
        now = asyncio.get_running_loop().time
        refused_at: float | None = None
        settled = asyncio.create_task(self.cache.settle())
        stopping = asyncio.create_task(self._stopping.wait())
        reading = asyncio.create_task(live.read_lists())
        try:
            while not settled.done() and not self._stopping.is_set():
                await asyncio.wait(
                    (settled, stopping), timeout=0.1, return_when=asyncio.FIRST_COMPLETED
                )
                if not self.cache.refused:
                    refused_at = None
                    continue
                refused_at = refused_at or now()
                # Name all that is refused, not only what was refused first.
                if self.cache.settled_or_refused or now() > refused_at + _ALL_REFUSED_SECONDS:
                    raise BayplanError(_refused(self.cache.refused, self._credentials.source))
        finally:
            for task in (settled, stopping, reading):
                task.cancel()
        return not self._stopping.is_set()

    def _make_live(self) -> LiveScheduler:
        return LiveScheduler(
            self.cluster,
            self._profiles,
            self.leads,
            self._metrics.instrument,
            self._watch,
            self._observers(),
            self._usage,
            self._options.binds,
            self._traces.handle if self._traces is not None else None,
        )

    async def _schedule(self, live: LiveScheduler) -> None:
        self.live = live
        collect_rarely()
        tasks = [asyncio.create_task(live.run())]
        if self._elastic_jobs is not None:
            tasks.append(asyncio.create_task(self._elastic_jobs.run()))
        if self._election is not None:
            tasks.append(asyncio.create_task(self._election.run()))
        if self._usage is not None:
            tasks.append(asyncio.create_task(self._usage.run()))
        if self._bill_reload is not None:
            tasks.append(asyncio.create_task(self._bill_reload.run()))
        self._log_whose_pods(live.scheduler)
        if self._election is None:
            self._leadership(True)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            live.stop()
            await tasks[0]
            # Keep the lease until the last write is answered.
            await self._drain()
            if self._usage is not None and not self._lost:
                await self._usage.finish()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _observers(self) -> Observers:
        found = [self._metrics, self._queue_metrics, CycleLog(self._options.dry_run)]
        return Observers([*found, *filter(None, [self._traces])])

    def _watch(self, scheduler: Scheduler) -> None:
        if self._traces is not None:
            self._traces.watch(scheduler)
        self._metrics.watch(scheduler)
        self._queue_metrics.watch(scheduler)
        if self._elastic_jobs is not None:
            self._elastic_jobs.follow(scheduler.snapshot)

    async def _drain(self) -> None:
        if self.writer is None or self._lost or not self.leads():
            return
        if not await self.writer.drain(DRAIN_SECONDS):
            _log.warning("%d writes dropped", self.writer.waiting)

    def _log_whose_pods(self, scheduler: Scheduler) -> None:
        """Log whose pods these are, and how many wait for schedulers without a profile here."""
        names = ", ".join(scheduler.profiles)
        if not self._options.binds:
            _log.info("following pods that others bind: those of %s", names)
            return
        _log.info("scheduling pods of %s", names)
        others = Counter(
            pod.spec.scheduler_name
            for found in self.cache.objects().values()
            for pod in found.values()
            if isinstance(pod, Pod)
            and not pod.spec.node_name
            and pod.status.phase == "Pending"
            and scheduler.profile_of(pod) is None
        )
        for name, count in sorted(others.items()):
            plural = "s wait" if count > 1 else " waits"
            _log.info('%d pod%s for another scheduler, "%s"', count, plural, name)

    # Leading ---------------------------------------------------------------------------------

    def leads(self) -> bool:
        """Return whether this process may schedule and write now."""
        return self._election is None or self._election.leads()

    def _leadership(self, leading: bool) -> None:
        self._metrics.leads(self._profiles.leader_election.resource_name, leading)
        if leading:
            for (kind, key), problem in self.cache.unreadable.items():
                self._report_unreadable(kind, key, problem)
            self.cache.changed.set()
        elif not self._stopping.is_set():
            self._lost = True
            if self.writer is not None:
                self.writer.halt("the lease was lost")

    async def _end(self) -> None:
        """Drop pending writes, release the lease and close everything."""
        if self.writer is not None:
            self.writer.halt("the scheduler stops")
        if self._election is not None and self.live is not None and not self._lost:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._election.release(), RELEASE_SECONDS)
        if self._usage is not None:
            await self._usage.close()
        if self._traces is not None:
            await asyncio.to_thread(self._traces.close)
        await self.cache.stop()
        if self.pages is not None:
            await self.pages.stop()
        self.listener.close()
        if self.visibility is not None:
            await self.visibility.stop()
        await self._reading.close()
        if self.live is not None:
            _log.info("stopped: the lease was lost" if self._lost else "stopped")

    # Commands --------------------------------------------------------------------------------

    def stop(self) -> None:
        """End after the current cycle."""
        self._stopping.set()
        if self.live is not None:
            self.live.stop()

    def halt(self) -> None:
        """Write nothing from now on and keep the lease, as a killed process does."""
        self._lost = True
        if self.writer is not None:
            self.writer.halt("killed")

    def reload(self) -> None:
        """Read the profiles, prices and accounts again; invalid ones change nothing."""
        if self._bill_reload is not None:
            self._bill_reload.now()
        try:
            profiles = self._options.load()
        except BayplanError as exc:
            _log.error("profiles not reloaded: %s", exc)
            return
        self._profiles = profiles
        if self.live is not None:
            self.live.reload(profiles)

    def not_ready(self) -> str:
        """Return why this process is not ready, "" when it is."""
        if self.live is None:
            problems = self.cache.problems()
            return "\n".join(["not every kind is listed yet", *problems])
        return "\n".join(self.cache.problems(required=True))


def _event_rate(client: ClientConnection) -> RateLimiter | None:
    return RateLimiter(client.event_qps, client.event_burst) if client.event_qps else None


def _refused(problems: list[str], source: str) -> str:
    lines = [
        f"the API server refuses what the scheduler has to read, with the credentials of {source}:",
        *(f"  {problem}" for problem in sorted(set(problems))),
        "  forbidden: apply the ClusterRole of configs/deploy",
        "  unauthorized: use another token",
    ]
    return "\n".join(lines)


async def run(options: Options, reading: Reading | None = None) -> int:
    """Run the live scheduler until a signal stops it; return the exit status.

    :param reading: what has been begun to read already, None for nothing.
    """
    app = LiveApp(options, reading)
    loop = asyncio.get_running_loop()
    allow_many_connections(loop)
    handlers = {signal.SIGTERM: app.stop, signal.SIGINT: app.stop, signal.SIGHUP: app.reload}
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    try:
        return await app.run()
    finally:
        for number in handlers:
            loop.remove_signal_handler(number)
