"""The loop of the live scheduler: deliver watch events, run cycles in slices, wait for changes.

Everything runs in one asyncio loop. A slice of cycles ends after a few milliseconds, so that the
API server's answers are handled while a long queue is processed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from bayplan.cluster.kubernetes.backend import KubernetesCluster
from bayplan.cluster.protocol import (
    Cluster,
    Done,
    WatchEvent,
    WatchHandler,
    WatchType,
    Write,
)
from bayplan.cluster.wrapped import WrappedCluster
from bayplan.cycle.decision_tables import DecisionTables
from bayplan.errors import BayplanError
from bayplan.live.unread_nodes import UnreadNodes
from bayplan.profiles.loading import ProfileSet
from bayplan.profiles.runtime import Runtime
from bayplan.scheduler.observer import Observer
from bayplan.scheduler.scheduler import Scheduler

if TYPE_CHECKING:
    # With its database library: for those who record usage.
    from bayplan.live.usage_writer import UsageWriter
    from bayplan.page.feed import Feed

__all__ = ["LiveScheduler"]

_SLICE = 0.005
"""Seconds that a slice of cycles may take."""
_LONGEST_IDLE = 1.0
_BATCH = 0.002
"""Seconds between two deliveries, so that answers that trickle in are handled together."""

_BITE = 200
"""Events that are taken at once while lists are read, which the server sends meanwhile."""

_LONG = 0.05
"""Seconds of one slice after which probes, pages and the API server's answers have their turn."""
_OTHERS = 0.1
"""The part of its time that they get then: a request takes several turns of the event loop."""

TABLES_PER_SECOND = 100.0
"""The number of decisions per second that can be explained in full afterwards."""

_log = logging.getLogger("bayplan.live")


class LiveScheduler:
    """Drives a scheduler on a cluster while this process leads.

    :param leads: asked before every slice of cycles whether this process may schedule.
    :param instrument: wraps the hooks of a profile, to measure them.
    :param on_built: called with every scheduler that is made, after a reload too.
    :param observer: called for every cycle and binding.
    :param usage: follows the watch, to record usage.
    :param binds: whether it binds pods; otherwise another scheduler does.
    :param traces: follows the watch, for traces of jobs.
    """

    def __init__(
        self,
        cluster: KubernetesCluster,
        profiles: ProfileSet,
        leads: Callable[[], bool],
        instrument: Callable[[Runtime], Runtime] | None = None,
        on_built: Callable[[Scheduler], None] | None = None,
        observer: Observer | None = None,
        usage: UsageWriter | None = None,
        binds: bool = True,
        traces: WatchHandler | None = None,
    ) -> None:
        self._cluster = cluster
        self._usage = usage
        self._feed: Feed | None = None
        self._binds = binds
        self._cache = cluster.cache
        self.leads = leads
        self._instrument = instrument
        self._on_built = on_built
        self._observer = observer
        self._unread = UnreadNodes(cluster.submit)
        self._wanted: ProfileSet | None = None
        self._wake = cluster.cache.changed
        self.stopping = False
        self.idle = False
        """Whether the loop waits for an event."""
        self.decided = asyncio.Event()
        """Set once it has decided for the first time, or stood by."""
        self._loop_time = asyncio.get_running_loop().time
        self._looked = 0.0
        self._traces = traces
        self._connection = _Connection(cluster, usage, traces)
        self.scheduler = self._build(profiles)

    def _build(self, profiles: ProfileSet) -> Scheduler:
        scheduler = Scheduler(
            self._connection,
            profiles,
            tables=DecisionTables(lambda: self._connection.now, TABLES_PER_SECOND),
            instrument=self._instrument,
            observer=self._observer,
            binds=self._binds,
        )
        if self._feed is not None:
            self._feed.follow(scheduler)
        if self._on_built is not None:
            self._on_built(scheduler)
        return scheduler

    # Commands --------------------------------------------------------------------------------

    def show(self, feed: Feed) -> None:
        """Let a page's feed follow the scheduler and its watch; it learns of all that is there."""
        feed.follow(self.scheduler)
        for objects in self._cache.objects().values():
            for obj in objects.values():
                feed.handle(WatchEvent(WatchType.ADDED, obj))
        self._feed = self._connection.feed = feed

    def wake(self) -> None:
        """Check for work now, because time has passed."""
        self._wake.set()

    def stop(self) -> None:
        """End the loop after the current cycle."""
        self.stopping = True
        self._wake.set()

    def reload(self, profiles: ProfileSet) -> None:
        """Switch to other profiles once all pending bindings are done."""
        self._wanted = profiles
        self._wake.set()

    # The loop --------------------------------------------------------------------------------

    async def read_lists(self) -> None:
        """Take what is listed as it comes, until cancelled: nothing is decided on half of it."""
        while True:
            if self._cache.deliver(_BITE):
                await asyncio.sleep(0)
            else:
                self._wake.clear()
                await self._wake.wait()

    async def run(self) -> None:
        """Run until ``stop``. The cache has to be listed before."""
        while not self.stopping:
            if self._wanted is not None:
                await self._change_profiles()
            started = time.perf_counter()
            delivered = self._cache.deliver()
            if self._cache.undelivered:
                # Do not decide on half of what is known.
                await self._give_way(started)
                continue
            if time.perf_counter() - started > _LONG:
                await self._give_way(started)
            started = time.perf_counter()
            decided = self._decide()
            self.decided.set()
            if decided or delivered:
                await self._give_way(started)
            else:
                await self._idle()

    async def _give_way(self, since: float) -> None:
        """Let others have a turn, and more than one after a long slice."""
        took = time.perf_counter() - since
        await asyncio.sleep(_OTHERS * took if took > _LONG else 0)

    def _decide(self) -> bool:
        """Run cycles for a few milliseconds; return whether there was any."""
        if self._usage is not None:
            self._usage.delivered()
        started = time.perf_counter()
        stepped = False
        if not self.leads():
            stepped = self.scheduler.read_nodes()
            if not stepped:
                self.scheduler.stand_by()
        else:
            try:
                self.scheduler.tick()
                while self.scheduler.step():
                    stepped = True
                    if self.stopping or time.perf_counter() - started > _SLICE:
                        break
            except BayplanError:
                _log.exception("a cycle failed")
            self._unread.look(self.scheduler.snapshot, self._cluster.now)
        return stepped

    def next_time(self) -> float | None:
        """Return when there is something to do without any event; None when never, or to follow."""
        times = (self.scheduler.next_time(), self._unread.next_time) if self.leads() else ()
        return min((at for at in times if at is not None), default=None)

    async def _idle(self) -> None:
        """Wait for an event, a command, or the next timeout."""
        self._wake.clear()
        self._looked = self._loop_time()
        if self._cache.undelivered or self.stopping or self._wanted is not None:
            return
        pause = _LONGEST_IDLE
        at = self.next_time()
        if at is not None:
            pause = min(pause, max(0.0, at - self._cluster.now))
        self.idle = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._wake.wait()
        self.idle = False
        early = self._looked + _BATCH - self._loop_time()
        if early > 0:
            await asyncio.sleep(early)

    async def _change_profiles(self) -> None:
        """Replace the scheduler once the old one's writes are answered and seen."""
        assert self._wanted is not None, "checked by the caller"
        profiles, self._wanted = self._wanted, None
        try:
            Scheduler(_EmptyCluster(self._cluster), profiles)
        except BayplanError as exc:
            _log.error("profiles not reloaded: %s", exc)
            return
        while self._busy() and not self.stopping:
            if not self._cache.deliver():
                await asyncio.sleep(0.01)
        if self.stopping:
            return
        self._connection.close()
        # The cache may lack the last writes: a new scheduler would place those pods again.
        if not await self._relist():
            return
        self._connection = _Connection(self._cluster, self._usage, self._traces)
        self._connection.feed = self._feed
        self.scheduler = self._build(profiles)
        _log.info("profiles reloaded: %s", ", ".join(self.scheduler.profiles))

    async def _relist(self) -> bool:
        """List everything again; return False when stopped meanwhile."""
        listing = asyncio.create_task(self._cache.restart())
        while not listing.done():
            if self.stopping:
                listing.cancel()
                await asyncio.gather(listing, return_exceptions=True)
                return False
            await asyncio.wait((listing,), timeout=0.1)
        return True

    def _busy(self) -> bool:
        # A dry run writes nothing, so no assumed pod is ever confirmed.
        unconfirmed = self.scheduler.unconfirmed if self._cluster.writes else 0
        return bool(unconfirmed or self._cluster.writing)


class _EmptyCluster:
    """A cluster without objects, to check profiles on."""

    def __init__(self, cluster: Cluster) -> None:
        self.now = cluster.now
        self.unix_time = cluster.unix_time
        self.in_order = cluster.in_order
        self.writes = cluster.writes

    def watch(self, handler: WatchHandler) -> None:
        pass

    def submit(self, write: Write, done: Done | None = None) -> None:
        pass


class _Connection(WrappedCluster):
    """One scheduler's access to the cluster; once closed, its writes are dropped.

    :param usage: gets all watch events that the scheduler gets, as ``feed`` and ``traces`` do.
    """

    feed: Feed | None = None

    def __init__(
        self,
        cluster: Cluster,
        usage: UsageWriter | None,
        traces: WatchHandler | None,
    ) -> None:
        super().__init__(cluster)
        self._traces = traces
        self._usage = usage
        self._open = True

    def watch(self, handler: WatchHandler) -> None:
        own = [self._usage.handle] if self._usage is not None else []
        followers = [*own, *filter(None, [self._traces])]

        def every(event: WatchEvent) -> None:
            try:
                handler(event)
            finally:
                for follow in followers:
                    follow(event)
                if self.feed is not None:
                    self.feed.handle(event)

        if self._usage is not None:
            self._usage.restart()
        self._cluster.watch(every)

    def submit(self, write: Write, done: Done | None = None) -> None:
        if self._open:
            self._cluster.submit(write, done)

    def close(self) -> None:
        self._open = False
