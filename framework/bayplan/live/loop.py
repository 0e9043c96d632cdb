"""The loop of the live scheduler: events in, cycles in slices, waits until something happens.

Everything runs in one asyncio loop. A slice of cycles ends after a few milliseconds, so that
answers of the API server are taken in while a long queue is worked off.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

from bayplan.cluster.kubernetes.backend import KubernetesCluster
from bayplan.cluster.protocol import Cluster, Done, WatchHandler, Write
from bayplan.cycle.decision_tables import DecisionTables
from bayplan.errors import BayplanError
from bayplan.profiles.loading import ProfileSet
from bayplan.profiles.runtime import Runtime
from bayplan.scheduler.observer import Observer
from bayplan.scheduler.scheduler import Scheduler

__all__ = ["LiveScheduler"]

_SLICE = 0.005
_LONGEST_IDLE = 1.0
_BATCH = 0.002
"""Seconds between two looks at what came, so that a trickle of answers is taken in together."""

TABLES_PER_SECOND = 100.0
"""How many decisions a second can be explained in full afterwards."""

_log = logging.getLogger("bayplan.live")


class LiveScheduler:
    """Drives a scheduler on a cluster for as long as it leads.

    :param instrument: wraps the hooks of a profile, to measure them.
    :param on_built: told of every scheduler that is made, before it sees any object.
    :param observer: told of every cycle and binding.
    """

    def __init__(
        self,
        cluster: KubernetesCluster,
        profiles: ProfileSet,
        instrument: Callable[[Runtime], Runtime] | None = None,
        on_built: Callable[[Scheduler], None] = lambda scheduler: None,
        observer: Observer | None = None,
    ) -> None:
        self._cluster = cluster
        self._instrument = instrument
        self._on_built = on_built
        self._observer = observer
        self._wanted: ProfileSet | None = None
        self._wake = cluster.changed
        self.leads: Callable[[], bool] = lambda: True
        """Asked before every slice of cycles whether this process may schedule."""
        self.stopping = False
        self.idle = False
        """Whether it waits for an event."""
        self._loop_time = asyncio.get_running_loop().time
        self._looked = 0.0
        self._port = _Port(cluster)
        self.scheduler = self._build(profiles)

    def _build(self, profiles: ProfileSet) -> Scheduler:
        scheduler = Scheduler(
            self._port,
            profiles,
            tables=DecisionTables(lambda: self._port.now, TABLES_PER_SECOND),
            instrument=self._instrument,
            observer=self._observer,
        )
        self._on_built(scheduler)
        return scheduler

    # Orders ----------------------------------------------------------------------------------

    def wake(self) -> None:
        """Look whether there is something to do, because time has passed."""
        self._wake.set()

    def stop(self) -> None:
        """End the loop after the cycle that runs."""
        self.stopping = True
        self._wake.set()

    def reload(self, profiles: ProfileSet) -> None:
        """Go on with other profiles, once what is being bound is bound."""
        self._wanted = profiles
        self._wake.set()

    # The loop --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run until ``stop``; the cluster's objects have to be known by then."""
        while not self.stopping:
            if self._wanted is not None:
                await self._change_profiles()
            busy = self._slice()
            if busy:
                await asyncio.sleep(0)
            else:
                await self._idle()

    def _slice(self) -> bool:
        """Take events in and run cycles for a few milliseconds; return whether more waits."""
        delivered = self._cluster.deliver()
        if self._cluster.undelivered:
            # Half of what is known is no ground for a decision.
            return True
        started = time.perf_counter()
        stepped = False
        if not self.leads():
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
        return stepped or delivered

    async def _idle(self) -> None:
        """Wait for an event, an order, or the time of something that waits."""
        self._wake.clear()
        self._looked = self._loop_time()
        if self._cluster.undelivered or self.stopping or self._wanted is not None:
            return
        pause = _LONGEST_IDLE
        at = self.scheduler.next_time() if self.leads() else None
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
        """Make a scheduler anew, after the writes of the old one are answered and seen."""
        assert self._wanted is not None, "checked by the caller"
        profiles, self._wanted = self._wanted, None
        try:
            Scheduler(_Nowhere(self._cluster), profiles)
        except BayplanError as exc:
            _log.error("profiles not reloaded: %s", exc)
            return
        while self._busy() and not self.stopping:
            if not self._cluster.deliver():
                await asyncio.sleep(0.01)
        if self.stopping:
            return
        self._port.detach()
        # What was written last may not be known yet: another scheduler would place it twice.
        if not await self._listed_anew():
            return
        self._port = _Port(self._cluster)
        self.scheduler = self._build(profiles)
        _log.info("profiles reloaded: %s", ", ".join(self.scheduler.profiles))

    async def _listed_anew(self) -> bool:
        """Have the cluster list everything; False when stopped before that was done."""
        listing = asyncio.create_task(self._cluster.restart())
        while not listing.done():
            if self.stopping:
                listing.cancel()
                await asyncio.gather(listing, return_exceptions=True)
                return False
            await asyncio.wait((listing,), timeout=0.1)
        return True

    def _busy(self) -> bool:
        # In a dry run nothing is ever confirmed.
        unconfirmed = self.scheduler.unconfirmed if self._cluster.writes else 0
        return bool(unconfirmed or self._cluster.writing)


class _Nowhere:
    """A cluster to try profiles on."""

    def __init__(self, cluster: Cluster) -> None:
        self.now = cluster.now

    def watch(self, handler: WatchHandler) -> None:
        pass

    def submit(self, write: Write, done: Done | None = None) -> None:
        pass


class _Port:
    """The cluster as one scheduler sees it; one that was replaced writes nothing any more."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._attached = True

    @property
    def now(self) -> float:
        return self._cluster.now

    def watch(self, handler: WatchHandler) -> None:
        self._cluster.watch(handler)

    def submit(self, write: Write, done: Done | None = None) -> None:
        if self._attached:
            self._cluster.submit(write, done)

    def detach(self) -> None:
        self._attached = False
