"""What breaks, and that nothing is lost by it: counted at the end, in the cluster itself."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec import structs
from msgspec.structs import replace
from tests.live.stage import Stage, stage
from tests.paths import ROOT

from bayplan.api import ApiObject, Job, ObjectMeta, Pod, PodGroup, ResourceClaim, VolcanoQueue
from bayplan.cluster.apiserver import ServedCluster, WatchFault, WatchSettings
from bayplan.cluster.manifests import load_manifests
from bayplan.profiles.loading import ProfileSet, default_profiles
from bayplan.profiles.settings import LeaderElection
from bayplan.testing import make_gang, make_node, make_pod

EXAMPLES = ROOT / "configs" / "examples"


@asynccontextmanager
async def ticking(*objects: ApiObject, **server: Any) -> AsyncIterator[Stage]:
    """A stage whose time passes by itself."""
    async with stage(objects, **server) as made:
        ticker = asyncio.create_task(made.tick())
        try:
            yield made
        finally:
            ticker.cancel()
            await asyncio.gather(ticker, return_exceptions=True)


def nodes(count: int, cpu: int = 8) -> list[ApiObject]:
    return [make_node(f"n{index}", cpu, "64Gi") for index in range(count)]


def clock_of(made: Stage) -> dict[str, Any]:
    return {"clock": asyncio.get_running_loop().time}


async def all_bound(made: Stage, count: int) -> None:
    """Wait until so many pods are bound."""
    async with asyncio.timeout(600):
        while len(made.placements()) < count:
            await asyncio.sleep(0.05)


def bindings(made: Stage) -> int:
    """Return how often a binding was asked for."""
    return made.server.calls["create", "", "pods/binding", True]


async def test_a_watch_that_is_dropped_a_hundred_times_loses_nothing_and_lists_nothing_anew() -> (
    None
):
    async with ticking(*nodes(20)) as made:
        app = await made.start(**clock_of(made))
        for index in range(100):
            made.create(make_pod(f"p{index}"))
            while not made.server.end_watches():
                await asyncio.sleep(0.1)
            await asyncio.sleep(1)
        await all_bound(made, 100)
        watched = [one for one in app.cache.reflectors if not one.kind.poll_seconds]
        assert {reflector.relists for reflector in watched} == {1}
        assert bindings(made) == 100
        made.check_nodes()


@pytest.mark.parametrize("fault", [WatchFault.TRUNCATE, WatchFault.GARBAGE, WatchFault.EXPIRE])
async def test_a_watch_that_breaks_in_any_way_is_taken_up_again(fault: WatchFault) -> None:
    async with ticking(*nodes(5)) as made:
        await made.start(**clock_of(made))
        for index in range(20):
            made.server.end_watches(fault)
            made.create(make_pod(f"p{index}"))
            await asyncio.sleep(0.5)
        await all_bound(made, 20)
        assert bindings(made) == 20


async def test_after_410_a_list_shows_what_came_and_what_went_meanwhile() -> None:
    async with ticking(*nodes(2, cpu=4)) as made:
        await made.start(**clock_of(made))
        made.create(*(make_pod(f"old{index}") for index in range(8)))
        await all_bound(made, 8)
        # The connection is gone, the history is forgotten, and the world goes on.
        port = made.server.port
        await made.server.stop()
        for index in range(4):
            made.cluster.delete(Pod, f"default/old{index}", grace=0)
        made.create(*(make_pod(f"new{index}") for index in range(4)))
        made.server.compact()
        made.server.port = port
        await made.server.start()
        await all_bound(made, 8)
        assert {f"default/new{index}" for index in range(4)} <= made.placements().keys()
        made.check_nodes()


async def test_a_tenth_of_all_writes_fails_and_every_pod_is_bound_once() -> None:
    async with ticking(*nodes(30)) as made:
        faults = made.server.faults
        app = await made.start(**clock_of(made))
        for verb in ("create", "patch"):
            faults.fail(None, verb, code=500, share=0.03)
            faults.fail(None, verb, code=429, retry_after=1, share=0.03)
            faults.fail(None, verb, code=409, share=0.01)
            faults.close(None, verb, share=0.02)
            faults.close(None, verb, after=True, share=0.02)
        made.create(make_gang("g", 8), *(make_pod(f"g{i}", gang="g") for i in range(8)))
        made.create(*(make_pod(f"p{index}") for index in range(192)))
        await all_bound(made, 200)
        assert faults.happened > 20
        faults.clear()
        async with asyncio.timeout(600):
            while app.live is None or app.live.scheduler.statistics.bound < 200:
                await asyncio.sleep(0.1)
        made.check_nodes()
        bound = Counter(
            event["involvedObject"]["name"]
            for event in made.events()
            if event["reason"] == "Scheduled"
        )
        assert set(bound.values()) == {1}


async def test_a_server_that_is_gone_for_thirty_seconds_is_waited_for() -> None:
    async with ticking(*nodes(10)) as made:
        app = await made.start(**clock_of(made))
        made.create(*(make_pod(f"before{index}") for index in range(30)))
        await asyncio.sleep(0.01)
        port = made.server.port
        await made.server.stop()
        made.create(*(make_pod(f"during{index}") for index in range(30)))
        await asyncio.sleep(30)
        assert app.not_ready() != ""
        made.server.port = port
        await made.server.start()
        await all_bound(made, 60)
        async with asyncio.timeout(120):
            while app.not_ready():
                await asyncio.sleep(0.1)
        made.check_nodes()


def whole_gangs(made: Stage, gangs: int, size: int) -> None:
    """Every gang is bound, all of it."""
    members = Counter(key.split("-")[0] for key in made.placements())
    assert members == {f"default/g{index}": size for index in range(gangs)}


@pytest.mark.parametrize("seed", range(4))
async def test_killed_at_any_instant_while_binding_gangs_it_leaves_whole_gangs(seed: int) -> None:
    gangs, size, kills = 30, 4, 25

    chance = random.Random(seed)
    async with ticking(*nodes(gangs * size // 4, cpu=4)) as made:
        made.server.faults.latency = 0.002
        app = await made.start(**clock_of(made))
        for kill in range(kills):
            for index in range(kill, gangs, kills):
                pods = (make_pod(f"g{index}-{i}", gang=f"g{index}") for i in range(size))
                made.create(make_gang(f"g{index}", size), *pods)
            for _ in range(chance.randrange(40)):
                await asyncio.sleep(chance.random() * 0.002)
            await made.kill(app)
            made.check_nodes()
            app = await made.start(**clock_of(made))
        await all_bound(made, gangs * size)
        whole_gangs(made, gangs, size)
        made.check_nodes()


async def test_two_schedulers_race_for_the_same_pods_and_each_is_bound_once() -> None:
    async with ticking(*nodes(20)) as made:
        made.server.faults.latency = 0.005
        apps = [await made.start(**clock_of(made)) for _ in range(2)]
        gangs = [make_gang(f"g{index}", 4) for index in range(10)]
        made.create(
            *gangs, *(make_pod(f"g{g}-{i}", gang=f"g{g}") for g in range(10) for i in range(4))
        )
        made.create(*(make_pod(f"p{index}") for index in range(100)))
        await all_bound(made, 140)
        async with asyncio.timeout(600):
            while any(app.cluster.writing for app in apps):
                await asyncio.sleep(0.1)
        for app in apps:
            assert app.live is not None
            assert app.live.scheduler.unconfirmed == 0
            placed = app.live.scheduler.snapshot.placed
            seen = {key: node for key, (_, node) in placed.items()}
            assert seen == made.placements()


ELECTION = LeaderElection(resource_name="sched", resource_namespace="kube-system")


def electing() -> Any:
    return replace(default_profiles(), leader_election=ELECTION)


async def leader_of(made: Stage) -> Any:
    async with asyncio.timeout(120):
        while True:
            for app in made.apps:
                if app.leads():
                    return app
            await asyncio.sleep(0.1)


async def test_a_leader_that_cannot_renew_its_lease_stops_at_once_and_the_standby_takes_over() -> (
    None
):
    async with ticking(*nodes(50)) as made:
        options = {"leader_elect": True, **clock_of(made)}
        first = await made.start(electing(), **options)
        assert await leader_of(made) is first
        second = await made.start(electing(), **options)
        made.create(*(make_pod(f"a{index}") for index in range(50)))
        await all_bound(made, 50)
        assert not second.leads()
        # Only the leader renews by patching; the standby reads.
        made.server.faults.fail(None, "patch", "leases", code=503)
        assert await made.exit_status(first) == 1
        stopped = bindings(made)
        made.create(*(make_pod(f"b{index}") for index in range(50)))
        await asyncio.sleep(1)
        assert bindings(made) == stopped
        made.server.faults.clear()
        assert await leader_of(made) is second
        await all_bound(made, 100)
        assert bindings(made) == 100
        made.check_nodes()


async def test_a_standby_decides_and_writes_nothing() -> None:
    async with ticking(*nodes(2)) as made:
        made.create(make_pod("p"), make_pod("never", cpu=64), VolcanoQueue(ObjectMeta(name="q")))
        made.server.faults.fail(None, "create", "leases", code=503)
        options = {"leader_elect": True, **clock_of(made)}
        app = await made.start(electing(), **options)
        await asyncio.sleep(60)
        assert app.live.scheduler.statistics.cycles == 0
        written = {verb for verb, _, resource, _ in made.server.calls if resource != "leases"}
        assert written == {"list", "watch"}
        made.server.faults.clear()
        await all_bound(made, 1)


async def test_a_leader_that_stops_gives_its_lease_back_and_the_standby_leads_within_seconds() -> (
    None
):
    async with ticking(*nodes(5)) as made:
        options = {"leader_elect": True, **clock_of(made)}
        first = await made.start(electing(), **options)
        assert await leader_of(made) is first
        second = await made.start(electing(), **options)
        assert await made.stop(first) == 0
        began = asyncio.get_running_loop().time()
        assert await leader_of(made) is second
        assert asyncio.get_running_loop().time() - began < 5
        made.create(make_pod("p"))
        await all_bound(made, 1)


async def test_bookmarks_move_the_version_on_so_that_a_quiet_watch_can_be_resumed() -> None:
    settings = WatchSettings(bookmark_every=5)
    async with ticking(*nodes(4), watches=settings) as made:
        app = await made.start(**clock_of(made))
        pods = [make_pod(f"p{index}") for index in range(30)]
        made.create(*pods)
        await all_bound(made, 30)
        await asyncio.sleep(20)
        made.server.compact()
        made.server.end_watches()
        await asyncio.sleep(5)
        watched = [one for one in app.cache.reflectors if not one.kind.poll_seconds]
        assert {reflector.relists for reflector in watched} == {1}


async def test_a_kind_that_is_installed_later_is_picked_up() -> None:
    group = ServedCluster().resources.of_kind("scheduling.sigs.k8s.io", "PodGroup")
    assert group is not None
    cluster = ServedCluster(without=("scheduling.sigs.k8s.io",))
    async with ticking(*nodes(4), cluster=cluster) as made:
        app = await made.start(**clock_of(made))
        assert app.not_ready() == ""
        made.create(*(make_pod(f"g-{index}", gang="g") for index in range(3)))
        await asyncio.sleep(5)
        assert made.placements() == {}
        made.cluster.resources.add(group)
        await asyncio.sleep(60)
        made.create(make_gang("g", 3))
        await all_bound(made, 3)


def with_devices(pods: int) -> list[ApiObject]:
    """Two machines with eight GPUs and eight NICs each, and pods that want one of each."""
    found = load_manifests([str(EXAMPLES / "gpu-nic-pcie-root")]).objects
    kept = [obj for obj in found if not isinstance(obj, Job)]
    (job,) = (obj for obj in found if isinstance(obj, Job))
    template = job.spec.template
    made = [Pod(ObjectMeta(name=f"p{n}", namespace="default"), template.spec) for n in range(pods)]
    return [*kept, *made]


def named(name: str) -> ProfileSet:
    """Return the default profile for pods of one scheduler."""
    profiles = default_profiles()
    only = replace(profiles.profiles[0], scheduler_name=name)
    return replace(profiles, profiles=(only,), any_scheduler=False)


@pytest.mark.parametrize("seed", range(3))
async def test_schedulers_that_race_for_devices_give_none_of_them_twice(seed: int) -> None:
    chance = random.Random(seed)
    async with ticking(*with_devices(0)) as made:
        made.server.faults.latency = 0.004
        # Each has pods of its own, and both begin with the first device.
        for name in ("one", "two"):
            await made.start(named(name), **clock_of(made))
        for index, pod in enumerate(with_devices(16)[-16:]):
            assert isinstance(pod, Pod)
            spec = structs.replace(pod.spec, scheduler_name=("one", "two")[index % 2])
            made.create(structs.replace(pod, spec=spec))
            if chance.random() < 0.3:
                await asyncio.sleep(chance.random() * 0.02)
        await all_bound(made, 16)
        made.check_nodes()
        users = [
            reference.name
            for claim in made.cluster.list(ResourceClaim)
            for reference in claim.status.reserved_for
        ]
        assert sorted(users) == sorted(f"p{index}" for index in range(16))
        told = [event["message"] for event in made.events()]
        assert any("just before" in message for message in told)


@pytest.mark.parametrize("seed", range(2))
async def test_killed_at_any_instant_while_devices_are_given_it_gives_none_twice(seed: int) -> None:
    chance = random.Random(seed)
    async with ticking(*with_devices(16)) as made:
        made.server.faults.latency = 0.002
        for _ in range(12):
            app = await made.start(**clock_of(made))
            for _ in range(chance.randrange(30)):
                await asyncio.sleep(chance.random() * 0.002)
            await made.kill(app)
            made.check_nodes()
        await made.start(**clock_of(made))
        await all_bound(made, 16)
        made.check_nodes()


async def test_a_watch_without_any_word_is_begun_anew_and_nothing_is_wrong() -> None:
    settings = WatchSettings(bookmark_every=10_000)
    async with ticking(*nodes(2), watches=settings) as made:
        app = await made.start(**clock_of(made))
        watches = sum(count for (verb, *_), count in made.server.calls.items() if verb == "watch")
        await asyncio.sleep(200)
        again = sum(count for (verb, *_), count in made.server.calls.items() if verb == "watch")
        assert again >= 2 * watches
        assert app.not_ready() == ""
        watched = [one for one in app.cache.reflectors if not one.kind.poll_seconds]
        assert {reflector.relists for reflector in watched} == {1}
        made.create(make_pod("p"))
        await all_bound(made, 1)


def phase_of(made: Stage, group: str) -> str:
    found = made.cluster.get(PodGroup, group)
    return found.status.phase if found is not None else ""


async def test_what_a_server_forbids_right_after_its_start_is_asked_for_again() -> None:
    async with ticking(*with_devices(0), *nodes(4)) as made:
        app = await made.start(**clock_of(made))
        port = made.server.port
        await made.server.stop()
        made.create(make_gang("g", 4), *(make_pod(f"g{index}", gang="g") for index in range(4)))
        made.create(*with_devices(4)[-4:])
        await asyncio.sleep(5)
        for verb in ("list", "watch", "create", "patch"):
            made.server.faults.fail(40, verb, code=403)
        made.server.port = port
        await made.server.start()
        await all_bound(made, 8)
        async with asyncio.timeout(600):
            while app.not_ready() or phase_of(made, "default/g") != "Running":
                await asyncio.sleep(0.1)
        told = {event["reason"] for event in made.events()}
        # A pod may be seen again before its claim is, and says so.
        assert told - {"FailedScheduling"} == {"Scheduled"}
