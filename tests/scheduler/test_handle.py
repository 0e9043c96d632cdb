"""What a plugin sees of the scheduler: what the profile has to be made for, and guarded writes."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
from tests.scheduler.fake_cluster import FakeCluster
from tests.scheduler.parts import NAME, Order, place_pod, profiles_of, queue_pod, state_of

from bayplan import Args, DeviceOpinion, NodeRow, Placement, Plugin, PodInfo, Unit, hookimpl
from bayplan.api.gang import Gang
from bayplan.cluster.protocol import Event, Evict
from bayplan.errors import ClusterError, Conflict, TooManyDisruptions
from bayplan.plugin.base import Preemption, Refusal
from bayplan.scheduler.evictor import Evictor
from bayplan.scheduler.handle import PluginHandle
from bayplan.scheduler.observer import Observer
from bayplan.scheduler.state import SchedulerState
from bayplan.testing import make_node, make_pod

WRITE = Event("default/p", "Normal", "Noted", "")


class Small(Plugin[Args]):
    """Takes one pod on each node, and none ever on the node "bad"."""

    @hookimpl
    def filter_node(self, node: NodeRow) -> str | Refusal | None:
        if node.name == "bad":
            return Refusal(("broken",), resolvable=False)
        return "full" if node.pods else None

    @hookimpl
    def may_give_up(self) -> list[PodInfo]:
        return [POD]

    @hookimpl
    def serves(self) -> frozenset[str]:
        return frozenset({"example.com/crumbs"})

    @hookimpl
    def device_score(self) -> float:
        return 3


class Desk:
    """A handle of the plugin "Small" on the nodes "a" and "bad"."""

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        nodes = (make_node("a", cpu=4), make_node("bad", cpu=4))
        self.state = state_of(self.cluster, Small, nodes=nodes)
        self.evictor = Evictor(self.state, lambda pod: False)
        self.handle = PluginHandle(self.state, self.evictor, NAME, "Small", self.cluster)


@pytest.fixture
def desk() -> Desk:
    return Desk()


POD = PodInfo(make_pod("p"))
UNIT = Unit(POD.key, [POD])


@pytest.mark.parametrize(
    "call",
    [
        lambda handle: handle.offers(UNIT),
        lambda handle: handle.place(UNIT, Placement("", None)),
        lambda handle: handle.free_slots(POD),
        lambda handle: handle.refusals(POD),
        lambda handle: handle.queueing,
        lambda handle: handle.fit_message(POD),
    ],
    ids=["offers", "place", "free_slots", "refusals", "queueing", "fit_message"],
)
def test_what_needs_the_other_plugins_says_so_while_they_are_made(
    call: Callable[[PluginHandle], object],
) -> None:
    cluster = FakeCluster()
    state = SchedulerState(cluster, profiles_of(Small), 10, Observer())
    handle = PluginHandle(state, Evictor(state, lambda pod: False), NAME, "Small", cluster)
    with pytest.raises(RuntimeError, match="the plugins of the profile are still being made"):
        call(handle)


def test_the_rest_works_while_the_plugins_are_made() -> None:
    cluster = FakeCluster()
    cluster.now = 3.0
    state = SchedulerState(cluster, profiles_of(Small), 10, Observer())
    handle = PluginHandle(state, Evictor(state, lambda pod: False), NAME, "Small", cluster)
    assert handle.now == 3.0
    assert handle.snapshot is state.snapshot
    assert handle.gang("default/job").gang is None
    handle.submit(WRITE)
    assert cluster.writes == [WRITE]


# Writes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [None, Conflict("no")])
def test_the_answer_to_a_write_is_passed_on(desk: Desk, error: ClusterError | None) -> None:
    answers: list[ClusterError | None] = []
    desk.handle.submit(WRITE, answers.append)
    assert answers == []
    desk.cluster.answer(Event, error)
    assert answers == [error]


def test_a_write_whose_answer_nobody_wants_is_submitted_as_well(desk: Desk) -> None:
    desk.handle.submit(WRITE)
    assert desk.cluster.of(Event) == [WRITE]
    assert desk.cluster.unanswered(Event) == []


def test_an_answer_that_raises_is_logged_under_the_plugins_name(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    def done(error: ClusterError | None) -> None:
        raise ValueError("boo")

    desk.handle.submit(WRITE, done)
    with caplog.at_level(logging.ERROR, "bayplan.plugins"):
        desk.cluster.answer(Event)
    (record,) = caplog.records
    assert record.getMessage().startswith('plugin "Small" failed in submit: ValueError: boo')


# The scheduler's state -------------------------------------------------------------------------


def test_gangs_are_shown_with_their_members(desk: Desk) -> None:
    gang = Gang("default/job", 1)
    desk.state.gangs.define(gang, "PodGroup")
    pod = queue_pod(desk.state, make_pod("job-0", gang="job"))
    members = desk.handle.gang("default/job")
    assert (members.gang, list(members.pending)) == (gang, [pod.key])


def test_a_unit_waits_while_it_is_in_the_queue(desk: Desk) -> None:
    queue_pod(desk.state, make_pod("p"))
    assert desk.handle.is_waiting(POD.key)
    desk.state.queue.remove(POD.key)
    assert not desk.handle.is_waiting(POD.key)


def test_the_first_unit_is_the_one_that_is_tried_next(desk: Desk) -> None:
    low = Unit("default/low", [queue_pod(desk.state, make_pod("low"))])
    high = Unit("default/high", [queue_pod(desk.state, make_pod("high", priority=5))])
    assert desk.handle.is_first(high)
    assert not desk.handle.is_first(low)
    assert not desk.handle.is_first(UNIT)


def test_nominated_pods_and_pods_in_cooldown_are_known(desk: Desk) -> None:
    pod = queue_pod(desk.state, make_pod("p"))
    victim = place_pod(desk.state, make_pod("v", node="a"))
    preemption = Preemption([victim], {pod.key: "a"}, "")
    desk.evictor.preempt(Unit(pod.key, [pod]), preemption, "preempt")
    assert desk.handle.is_nominated(pod)
    assert not desk.handle.is_nominated(victim)
    assert not desk.handle.in_eviction_cooldown(victim)
    desk.cluster.answer(Evict, TooManyDisruptions("no"))
    assert desk.handle.in_eviction_cooldown(victim)
    assert not desk.handle.is_nominated(pod)


# The other plugins -----------------------------------------------------------------------------


def test_refusals_say_which_nodes_no_eviction_frees(desk: Desk) -> None:
    place_pod(desk.state, make_pod("v", node="a"))
    (found,) = desk.handle.refusals(POD)
    assert found.mask.tolist() == [True, True]
    assert found.unresolvable.tolist() == [False, True]
    assert desk.handle.fit_message(POD) == "0/2 nodes are available: 1 broken, 1 full."


def test_a_node_that_is_refused_has_no_slots(desk: Desk) -> None:
    free, none = desk.handle.free_slots(POD).tolist()
    assert free > 0
    assert none == 0


def test_a_unit_is_placed_only_within_the_trial(desk: Desk) -> None:
    (offered,) = desk.handle.offers(UNIT).candidates
    with desk.handle.snapshot.trial():
        assert desk.handle.place(UNIT, offered) == {POD.key: "a"}
        assert POD.key in desk.handle.snapshot.placed
        assert desk.handle.place(Unit("q", [PodInfo(make_pod("q"))]), offered) is None
    assert POD.key not in desk.handle.snapshot.placed


def test_other_plugins_are_asked_by_what_they_answer(desk: Desk) -> None:
    handle = desk.handle
    assert handle.queueing is None
    assert [pod.key for pod in handle.may_give_up()] == [POD.key]
    assert handle.serves(POD) == {"example.com/crumbs"}
    row = NodeRow(handle.snapshot.nodes, 0)
    assert handle.device_score(POD, row, [], dict) == DeviceOpinion(3.0, "Small")
    assert isinstance(desk.state.profiles.first.runtime.plugins["Order"], Order)
