"""What goes wrong around the whole live scheduler: when it starts, ends, reloads or writes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace
from tests.live.stage import Stage, stage

from bayplan import Args, Handle, Plugin, PodInfo, hookimpl
from bayplan.api import ApiObject
from bayplan.cluster.kubernetes.reflector import ReflectorHealth
from bayplan.live.app import LiveApp
from bayplan.profiles.loading import Profile, ProfileSet, default_profiles
from bayplan.profiles.settings import LeaderElection
from bayplan.testing import make_gang, make_node, make_pod

PATCHES = ("patch", "", "pods/status", True)


@asynccontextmanager
async def ticking(*objects: ApiObject) -> AsyncIterator[Stage]:
    """A stage whose time passes by itself."""
    async with stage(objects) as made:
        ticker = asyncio.create_task(made.tick())
        try:
            yield made
        finally:
            ticker.cancel()
            await asyncio.gather(ticker, return_exceptions=True)


async def start(made: Stage, elect: bool = False, **options: Any) -> LiveApp:
    """Start a scheduler in the loop's time and wait until it schedules."""
    election = LeaderElection(resource_name="sched", resource_namespace="kube-system")
    profiles = replace(default_profiles(), leader_election=election)
    clock = asyncio.get_running_loop().time
    app = await made.start(profiles, leader_elect=elect, clock=clock, **options)
    if elect:
        await happens(lambda: app.leads())
    return app


async def happens(true: Callable[[], object], seconds: float = 600.0, every: float = 0.05) -> None:
    """Wait until a condition holds, in virtual time."""
    async with asyncio.timeout(seconds):
        while not true():
            await asyncio.sleep(every)


def scheduled_condition(made: Stage, key: str) -> str | None:
    """Return what a pod is told about why it has no node."""
    found = (c.message for c in made.pods()[key].status.conditions if c.type == "PodScheduled")
    return next(found, None)


# The start -------------------------------------------------------------------------------


async def test_more_pods_than_are_taken_in_at_once_never_lead_to_an_overloaded_node() -> None:
    selector = {"nodeSelector": {"kubernetes.io/hostname": "n"}}
    async with stage([make_node("n", cpu=4), make_node("big", cpu=4000, pods=3000)]) as made:
        # The pod that has the node comes long after the one that would have it.
        made.create(make_pod("waiting", cpu=4, memory=None, spec=selector))
        made.advance_to(10)
        fillers = (make_pod(f"f{n}", cpu=1, memory=None, node="big") for n in range(1500))
        made.create(*fillers)
        made.advance_to(20)
        made.create(make_pod("placed", cpu=4, memory=None, node="n"))
        app = await made.start()
        await made.run_out(40)
        assert "default/waiting" not in made.placements()
        app.reload()
        await made.run_out(60)
        assert "default/waiting" not in made.placements()
        made.check_nodes()


# Statuses --------------------------------------------------------------------------------


async def test_a_status_that_cannot_be_written_does_not_keep_a_pod_from_its_node() -> None:
    async with ticking(make_node("small", cpu=1)) as made:
        await start(made)
        made.server.faults.fail(None, "patch", "pods/status", code=500)
        made.create(make_pod("p", cpu=4))
        await happens(lambda: made.server.faults.happened)
        made.create(make_node("n", cpu=8))
        await happens(made.placements)
        assert made.placements() == {"default/p": "n"}


@pytest.mark.parametrize(("code", "times"), [(409, 1), (403, 1), (401, 2)])
async def test_a_condition_whose_writing_was_refused_is_written_later(
    code: int, times: int
) -> None:
    async with ticking(make_node("small", cpu=1)) as made:
        await start(made)
        made.server.faults.fail(times, "patch", "pods/status", code=code)
        made.create(make_pod("p", cpu=4))
        await happens(lambda: made.server.faults.happened == times)
        await happens(lambda: scheduled_condition(made, "default/p"), every=5.0)
        assert "Insufficient cpu" in (scheduled_condition(made, "default/p") or "")


async def test_members_that_come_one_by_one_cost_a_few_writes_each() -> None:
    size = 60

    async with ticking(make_node("n", cpu=4)) as made:
        await start(made)
        made.create(make_gang("g", size))
        for index in range(size - 1):
            made.create(make_pod(f"p{index}", gang="g"))
            await asyncio.sleep(0.05)
        await asyncio.sleep(5)
        # They come within three seconds, and each is told at most once in each of them.
        assert size - 1 <= made.server.calls[PATCHES] <= 5 * size
        message = scheduled_condition(made, "default/p0")
        assert message is not None
        assert f"waiting for members: {size - 1} of {size} exist" in message


# The end ---------------------------------------------------------------------------------


@pytest.mark.parametrize("elect", [False, True], ids=["alone", "elected"])
async def test_a_scheduler_that_is_stopped_while_it_binds_a_gang_binds_all_of_it(
    elect: bool,
) -> None:
    size = 200

    async with ticking(*(make_node(f"n{index}", cpu=80) for index in range(10))) as made:
        app = await start(made, elect)
        made.server.faults.latency = 0.05
        made.create(make_gang("g", size))
        made.create(*(make_pod(f"p{index}", gang="g") for index in range(size)))
        await happens(made.placements, every=0.001)
        assert len(made.placements()) < size
        assert await made.stop(app) == 0
        assert len(made.placements()) == size


async def test_a_scheduler_that_is_stopped_while_it_reloads_ends() -> None:
    async with ticking(make_node("n")) as made:
        app = await start(made)
        made.server.faults.fail(None, "list", "storageclasses", code=503)
        app.reload()
        await happens(lambda: made.server.faults.happened)
        app.stop()
        assert await made.exit_status(app) == 0


async def test_a_leader_that_loses_its_lease_while_it_reloads_ends() -> None:
    async with ticking(make_node("n")) as made:
        app = await start(made, elect=True)
        for verb in ("list", "patch", "get"):
            made.server.faults.fail(None, verb, code=503)
        app.reload()
        assert await made.exit_status(app) == 1


# A reload --------------------------------------------------------------------------------


class Unmakeable(Plugin[Args]):
    def __init__(self, args: Args, handle: Handle) -> None:
        super().__init__(args, handle)
        raise RuntimeError("boom")

    @hookimpl
    def pre_enqueue(self, pod: PodInfo) -> str | None:
        return "never"


def with_unmakeable() -> ProfileSet:
    def add(profile: Profile) -> Profile:
        gates = (*profile.points["pre_enqueue"], ("Unmakeable", 1))
        return replace(
            profile,
            plugins={**profile.plugins, "Unmakeable": Unmakeable},
            args={**profile.args, "Unmakeable": Args()},
            points={**profile.points, "pre_enqueue": gates},
        )

    profiles = default_profiles()
    return replace(profiles, profiles=tuple(add(one) for one in profiles.profiles))


async def test_a_reload_with_a_plugin_that_cannot_be_made_keeps_the_profile_it_had(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with ticking(make_node("n")) as made:
        loads = [default_profiles]
        app = await start(made, load=lambda: loads[-1]())
        assert app.live is not None
        before = app.live.scheduler
        loads.append(with_unmakeable)
        app.reload()
        await happens(lambda: "profiles not reloaded" in caplog.text)
        made.create(make_pod("p"))
        await happens(made.placements)
        assert app.live.scheduler is before


# Single answers --------------------------------------------------------------------------


async def test_a_leader_survives_that_its_lease_is_once_refused_as_changed() -> None:
    async with ticking(make_node("n")) as made:
        app = await start(made, elect=True)
        made.server.faults.fail(1, "patch", "leases", code=409)
        await happens(lambda: made.server.faults.happened)
        await asyncio.sleep(30)
        assert not made.has_ended(app)
        assert app.leads()
        made.create(make_pod("p"))
        await happens(made.placements)


async def test_pods_that_are_not_found_for_a_moment_are_not_taken_for_gone() -> None:
    async with ticking(make_node("n", cpu=1)) as made:
        app = await start(made)
        made.create(make_pod("p"))
        await happens(made.placements)
        faults = made.server.faults
        faults.fail(4, "watch", "pods", code=404)
        faults.fail(2, "list", "pods", code=404)
        made.server.end_watches()
        await happens(lambda: faults.happened)
        # Would the first be forgotten, the node would be given to the second.
        made.create(make_pod("second"))
        await asyncio.sleep(60)
        assert app.live is not None
        assert app.live.scheduler.snapshot.placed.keys() == {"default/p"}
        assert made.placements() == {"default/p": "n"}
        assert app.not_ready() == ""


# The API server --------------------------------------------------------------------------


def lines_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.name == "bayplan.cluster"]


async def test_an_api_server_that_is_gone_and_comes_back_is_told_in_two_lines(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("bayplan"), "propagate", True)
    caplog.set_level(logging.INFO, "bayplan")

    async with ticking(make_node("n")) as made:
        app = await start(made)
        health = [r for r in app.cache.reflectors if r.health is ReflectorHealth.FOLLOWING]
        followed, polled = len(health), len([r for r in health if r.kind.poll_seconds])
        caplog.clear()
        await made.server.stop()
        await happens(lambda: len(app.cache.problems()) == followed)
        await asyncio.sleep(60)
        await made.server.start()
        await happens(lambda: not app.cache.problems())
    assert followed > 10
    lost, back = lines_of(caplog)
    # What is asked for now and then notices later.
    assert lost.startswith(f"{followed - polled} kinds are not followed for now: ")
    assert back == f"the API server answers again: {followed} kinds are followed"


async def test_an_api_server_that_never_answers_is_told_in_one_line(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("bayplan"), "propagate", True)
    caplog.set_level(logging.INFO, "bayplan")

    async with stage([make_node("n")]) as made:
        await made.server.stop()
        app = made.make()
        made.run(app)
        await asyncio.sleep(60)
        await made.server.start()
        followed = len(app.cache.reflectors)
    [lost] = [line for line in lines_of(caplog) if "not followed" in line]
    assert lost.startswith(f"{followed} kinds are not followed for now: ")


async def test_a_watch_that_breaks_and_goes_on_is_not_worth_a_line(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("bayplan"), "propagate", True)
    caplog.set_level(logging.INFO, "bayplan")

    async with ticking(make_node("n")) as made:
        app = await start(made)
        caplog.clear()
        await happens(lambda: made.server.end_watches() > 10)
        made.create(make_pod("p"))
        await happens(lambda: "default/p" in made.placements())
        await happens(lambda: not app.cache.problems())
    assert lines_of(caplog) == []
