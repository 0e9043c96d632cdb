"""The live scheduler on the embedded cluster's HTTP face, both in one loop and in virtual time."""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from bayplan.api import ApiObject, Node, Pod, ResourceClaim, pod_requests
from bayplan.cluster.apiserver import ApiServer, ServedCluster, start_all
from bayplan.cluster.embedded.assembly import create_in_order
from bayplan.live.address import Address
from bayplan.live.app import LiveApp, Options
from bayplan.profiles.loading import ProfileSet, default_profiles

SECONDS = 120.0
"""After so many real seconds a test is given up: it hangs."""


class Stage:
    """A served cluster and the apps that schedule it; time passes when ``advance`` is called."""

    def __init__(self, server: ApiServer, folder: Path) -> None:
        self.server = server
        self.cluster = server.cluster
        self.folder = folder
        self.apps: list[LiveApp] = []
        self._running: dict[int, asyncio.Task[int]] = {}

    # Apps --------------------------------------------------------------------------------

    async def start(self, profiles: ProfileSet | None = None, **options: Any) -> LiveApp:
        """Start a scheduler and wait until it schedules, or stands by."""
        app = self.make(profiles, **options)
        self.run(app)
        await self.until(lambda: app.live is not None or self._running[id(app)].done())
        return app

    def make(self, profiles: ProfileSet | None = None, **options: Any) -> LiveApp:
        kubeconfig = self.folder / "kubeconfig"
        if not kubeconfig.exists():
            self.server.write_kubeconfig(kubeconfig)
        given: dict[str, Any] = {
            "kubeconfig": kubeconfig,
            "leader_elect": False,
            "address": Address(port=0),
            "registry": CollectorRegistry(),
            "clock": lambda: self.cluster.clock.now,
            "load": lambda: profiles or default_profiles(),
            "hold": 0.0,
            **options,
        }
        return LiveApp(Options(**given))

    def run(self, app: LiveApp) -> asyncio.Task[int]:
        self.apps.append(app)
        task = self._running[id(app)] = asyncio.create_task(app.run())
        return task

    async def stop(self, app: LiveApp) -> int:
        """Stop a scheduler gracefully; return its exit status."""
        app.stop()
        self.apps.remove(app)
        return await self._running.pop(id(app))

    def has_ended(self, app: LiveApp) -> bool:
        return self._running[id(app)].done()

    async def exit_status(self, app: LiveApp) -> int:
        """Wait until a scheduler ends by itself; return its exit status.

        :raises BaseException: what it ended with.
        """
        async with asyncio.timeout(600):
            status = await self._running[id(app)]
        del self._running[id(app)]
        self.apps.remove(app)
        return status

    async def kill(self, app: LiveApp) -> None:
        """End a scheduler as SIGKILL does: nothing is written any more, nothing given back."""
        task = self._running.pop(id(app))
        self.apps.remove(app)
        app.halt()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def close(self) -> None:
        for app in list(self.apps):
            await self.stop(app)

    # Objects -----------------------------------------------------------------------------

    def create(self, *objects: ApiObject) -> None:
        create_in_order(self.cluster, objects)
        self.cluster.settle()

    def pods(self) -> dict[str, Pod]:
        return {pod.key: pod for pod in self.cluster.list(Pod)}

    def placements(self) -> dict[str, str]:
        return {key: pod.spec.node_name for key, pod in self.pods().items() if pod.spec.node_name}

    def events(self) -> list[dict[str, Any]]:
        """Return the Kubernetes events that were written, in order."""
        resource = self.cluster.resources.of_kind("", "Event")
        assert resource is not None
        return [record.content for record in self.cluster.records(resource).values()]

    # Checks ------------------------------------------------------------------------------

    def check_nodes(self) -> None:
        """No node has more on it than it has, and no device is in two claims."""
        used: Counter[str] = Counter()
        for pod in self.pods().values():
            if pod.spec.node_name and pod.status.phase in ("Pending", "Running"):
                used[pod.spec.node_name] += pod_requests(pod.spec).effective["cpu"]
        for node in self.cluster.list(Node):
            offered = node.status.allocatable["cpu"].milli
            assert used[node.metadata.name] <= offered, node.metadata.name
        devices = [
            (one.driver, one.pool, one.device)
            for claim in self.cluster.list(ResourceClaim)
            if claim.status.allocation is not None
            for one in claim.status.allocation.devices.results
        ]
        assert len(devices) == len(set(devices))

    async def tick(self) -> None:
        """Let the cluster's clock follow the loop's, until cancelled."""
        loop, clock = asyncio.get_running_loop(), self.cluster.clock
        start = loop.time() - clock.now
        while True:
            self.advance_to(loop.time() - start)
            at = clock.next_time()
            await asyncio.sleep(min(max(at - clock.now, 0.01), 1.0) if at is not None else 1.0)

    # Time --------------------------------------------------------------------------------

    async def until(self, true: Any) -> None:
        """Wait until a condition holds, in real time; virtual time stands still."""
        async with asyncio.timeout(SECONDS):
            while not true():
                await asyncio.sleep(0.002)

    async def settle(self) -> None:
        """Wait until nothing is left to happen at this instant."""
        calm, busy = 0, ""
        try:
            async with asyncio.timeout(SECONDS):
                while calm < 3:
                    self.cluster.settle()
                    await asyncio.sleep(0.001)
                    busy = next(filter(None, map(self._busy_with, self.apps)), "")
                    calm = 0 if busy else calm + 1
        except TimeoutError:
            raise AssertionError(f"after {SECONDS:g} s, still busy with {busy}") from None

    def _busy_with(self, app: LiveApp) -> str:
        """Return what an app is busy with, "" for nothing."""
        live = app.live
        if live is None:
            return "its start"
        doing = {
            "scheduling": not live.idle,
            "what has come": app.cache.undelivered,
            "writes of the scheduler": app.cluster.writing,
            "other writes": app.writer is not None and not app.writer.is_idle,
        }
        busy = ", ".join(what for what, is_so in doing.items() if is_so)
        at = live.next_time()
        if not busy and at is not None and at <= self.cluster.clock.now:
            live.wake()
            return "what is due"
        late = (one.kind.plural for one in app.cache.reflectors if not self._has_seen(one))
        return busy or ", ".join(f"the watch of {name}" for name in late)

    def _has_seen(self, reflector: Any) -> bool:
        resource = self.cluster.resources.find(
            reflector.kind.group, reflector.resource.version, reflector.kind.plural
        )
        if resource is None or reflector.is_partial or reflector.kind.poll_seconds:
            # What is left out of a part moves the version on, and nobody tells.
            return True
        last = self.cluster.log(resource).last_version
        return bool(reflector.version) and int(reflector.version) >= last

    async def run_out(self, until: float = 600.0) -> None:
        """Let time pass until nothing is left to happen, or until so many virtual seconds."""
        clock = self.cluster.clock
        while True:
            await self.settle()
            times = [clock.next_time()]
            times += [app.live.next_time() for app in self.apps if app.live is not None]
            due = [at for at in times if at is not None]
            if not due or min(due) > until:
                return
            self.advance_to(min(due))

    async def passes(self, true: Callable[[], bool]) -> None:
        """Let time pass, virtual and real, until a condition holds."""
        async with asyncio.timeout(20):
            while not true():
                await self.run_out()
                await asyncio.sleep(0.05)

    def advance_to(self, at: float) -> None:
        self.cluster.clock.advance(at)
        self.cluster.settle()
        for app in self.apps:
            if app.live is not None:
                app.live.wake()


@asynccontextmanager
async def stage(
    objects: Iterable[ApiObject] = (), cluster: ServedCluster | None = None, **server: Any
) -> AsyncIterator[Stage]:
    """Serve a cluster with its controllers for the time of a test."""
    served = cluster or ServedCluster()
    start_all(served)
    create_in_order(served, objects)
    with tempfile.TemporaryDirectory() as folder:
        async with ApiServer(served, **server) as api:
            made = Stage(api, Path(folder))
            try:
                yield made
            finally:
                await made.close()
