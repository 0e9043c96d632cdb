"""Preemption carried out: nodes held, victims evicted, and giving up when one is refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest
from msgspec.structs import replace
from tests.scheduler.fake_cluster import FakeCluster
from tests.scheduler.parts import place_pod, queue_pod, state_of

from bayplan import Preemption, Unit
from bayplan.api import Pod
from bayplan.api.gang import Gang
from bayplan.cluster.protocol import Event, Evict
from bayplan.errors import NotFound, TooManyDisruptions
from bayplan.plugin.base import Eviction, PreemptionTrial
from bayplan.plugin.decision import Decision
from bayplan.scheduler.evictor import COOLDOWN_SECONDS, NOMINATION_SECONDS, Evictor
from bayplan.scheduler.nominator import Nomination
from bayplan.snapshot import PodInfo
from bayplan.testing import make_node, make_pod

UNIT = "default/p"


class Desk:
    """An evictor at work for the pod "p", on two nodes of four cores.

    ``assumed`` are pods, by key, whose placement can still be cancelled.
    """

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        nodes = (make_node("a", cpu=4), make_node("b", cpu=4))
        self.state = state_of(self.cluster, nodes=nodes)
        self.assumed: set[str] = set()
        self.evictor = Evictor(self.state, lambda pod: pod.key in self.assumed)
        self.pod = queue_pod(self.state, make_pod("p", "1", None, priority=10))
        self.unit = Unit(UNIT, [self.pod])

    def victim(self, name: str, grace: int | None = None) -> PodInfo:
        """Return a pod on node "a"."""
        spec = {"terminationGracePeriodSeconds": grace} if grace is not None else None
        return place_pod(self.state, make_pod(name, "1", None, node="a", spec=spec))

    def preempt(self, *victims: PodInfo, guarded: Iterable[str] = ()) -> None:
        keys = frozenset(f"default/{name}" for name in guarded)
        self.evictor.preempt(self.unit, Preemption(victims, {UNIT: "a"}, "", "", keys), "")

    def evicting(self) -> list[str]:
        """Return whose eviction is on its way, by name."""
        return [write.pod.removeprefix("default/") for write in self.cluster.unanswered(Evict)]

    def events(self) -> list[tuple[str, str]]:
        return [(event.pod, event.reason) for event in self.cluster.of(Event)]

    def nomination(self) -> Nomination | None:
        return self.state.nominator.get(UNIT)


@pytest.fixture
def desk() -> Desk:
    return Desk()


# Evicting --------------------------------------------------------------------------------------


def test_the_nodes_are_held_while_the_victims_end(desk: Desk) -> None:
    desk.preempt(desk.victim("v"), desk.victim("w"))
    assert desk.evicting() == ["v", "w"]
    made = desk.nomination()
    assert made is not None
    assert (made.nodes, made.victims) == ({UNIT: "a"}, {"default/v", "default/w"})
    assert desk.state.snapshot.placed[UNIT] == (desk.pod, "a")
    assert (UNIT, "Nominated") in desk.events()
    (told,) = [event.message for event in desk.cluster.of(Event) if event.reason == "Nominated"]
    assert "which preempts default/v, default/w, until 2 pods have ended" in told


def test_an_evicted_victim_is_recorded_and_told(desk: Desk) -> None:
    desk.preempt(desk.victim("v"))
    desk.cluster.now = 5.0
    assert list(desk.evictor.evicted) == []
    desk.cluster.answer(Evict)
    assert list(desk.evictor.evicted) == [
        Eviction("default/v", 5.0, UNIT, message=f"preempted for {UNIT}")
    ]
    event = desk.cluster.of(Event)[-1]
    assert (event.pod, event.reason, event.node) == ("default/v", "Preempted", "a")


def test_a_victim_that_is_gone_already_counts_as_evicted(desk: Desk) -> None:
    desk.preempt(desk.victim("v"))
    desk.cluster.answer(Evict, NotFound("gone"))
    assert [one.pod for one in desk.evictor.evicted] == ["default/v"]
    assert desk.nomination() is not None


def test_a_victim_that_ends_already_is_waited_for_and_not_evicted(desk: Desk) -> None:
    pod = make_pod("v", node="a")
    meta = replace(pod.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
    ending: Pod = replace(pod, metadata=meta)
    desk.preempt(place_pod(desk.state, ending))
    assert desk.evicting() == []
    made = desk.nomination()
    assert made is not None
    assert made.victims == {"default/v"}


def test_a_victim_whose_placement_can_be_cancelled_is_not_evicted(desk: Desk) -> None:
    desk.assumed.add("default/v")
    desk.preempt(desk.victim("v"))
    assert desk.evicting() == []
    made = desk.nomination()
    assert made is not None
    assert made.victims == set()


def test_a_victim_that_only_has_a_nominated_node_loses_it(desk: Desk) -> None:
    other = queue_pod(desk.state, make_pod("other", "1", None))
    desk.state.nominator.add(Nomination(other.key, [other], {other.key: "a"}, 60.0, set()))
    desk.preempt(other)
    assert desk.evicting() == []
    assert desk.state.nominator.get(other.key) is None
    ended = next(event for event in desk.cluster.of(Event) if event.reason == "NotNominated")
    assert ended.pod == "default/other"
    assert ended.message.endswith("its nodes were taken by default/p, of higher priority")


def test_pods_with_a_budget_are_evicted_first_and_one_by_one(desk: Desk) -> None:
    victims = [desk.victim(name) for name in ("v", "g1", "g2")]
    desk.preempt(*victims, guarded=["g1", "g2"])
    assert desk.evicting() == ["g1"]
    desk.cluster.answer(Evict)
    assert desk.evicting() == ["g2"]
    desk.cluster.answer(Evict)
    assert desk.evicting() == ["v"]


def test_nobody_else_is_evicted_when_the_nomination_ended_meanwhile(desk: Desk) -> None:
    desk.preempt(desk.victim("g1"), desk.victim("g2"), guarded=["g1", "g2"])
    desk.evictor.release(UNIT)
    desk.cluster.answer(Evict)
    assert desk.evicting() == []
    assert [one.pod for one in desk.evictor.evicted] == ["default/g1"]


# Refusals --------------------------------------------------------------------------------------


def test_a_refused_eviction_ends_the_nomination_and_leaves_the_others_alone(desk: Desk) -> None:
    victims = [desk.victim(name) for name in ("v", "g1", "g2")]
    desk.preempt(*victims, guarded=["g1", "g2"])
    desk.cluster.answer(Evict, TooManyDisruptions("the budget forbids it"))
    assert desk.evicting() == []
    assert list(desk.evictor.evicted) == []
    assert desk.nomination() is None
    assert UNIT not in desk.state.snapshot.placed
    assert ("default/g1", "EvictionRefused") in desk.events()
    assert (UNIT, "NotNominated") in desk.events()


def test_a_pod_whose_eviction_was_refused_is_in_cooldown_for_a_while(desk: Desk) -> None:
    desk.preempt(desk.victim("v"))
    desk.cluster.now = 10.0
    desk.cluster.answer(Evict, TooManyDisruptions("no"))
    assert desk.evictor.in_cooldown("default/v")
    assert not desk.evictor.in_cooldown("default/w")
    assert desk.evictor.next_times() == [10.0 + COOLDOWN_SECONDS]
    desk.cluster.now = 9.9 + COOLDOWN_SECONDS
    desk.evictor.tick()
    assert desk.evictor.in_cooldown("default/v")
    desk.cluster.now = 10.0 + COOLDOWN_SECONDS
    assert not desk.evictor.in_cooldown("default/v")
    desk.evictor.tick()
    assert desk.evictor.next_times() == []


def test_the_end_of_a_cooldown_wakes_units_that_found_no_victims(desk: Desk) -> None:
    queue = desk.state.queue
    desk.preempt(desk.victim("v"))
    desk.cluster.answer(Evict, TooManyDisruptions("no"))
    unit = queue.pop(desk.cluster.now + 10.0)
    assert unit is not None
    queue.refuse(unit, set(), 20.0)
    desk.cluster.now = COOLDOWN_SECONDS
    assert queue.pop(desk.cluster.now) is None
    desk.evictor.tick()
    assert queue.pop(desk.cluster.now) is unit


def test_a_refusal_of_an_earlier_nomination_leaves_the_present_one(desk: Desk) -> None:
    desk.preempt(desk.victim("v"))
    desk.evictor.release(UNIT)
    desk.preempt(desk.victim("w"))
    desk.cluster.answer(Evict, TooManyDisruptions("no"))
    made = desk.nomination()
    assert made is not None
    assert made.victims == {"default/w"}


def test_the_decision_says_which_eviction_was_refused(desk: Desk) -> None:
    decision = Decision(UNIT, 1, 0.0, message="0/2 nodes are available. preemption: evicts v.")
    decision.preemption = (
        PreemptionTrial("a", ["default/v"], chosen=True),
        PreemptionTrial("b", refusal="no victims"),
    )
    desk.state.remember(decision)
    desk.preempt(desk.victim("v"))
    desk.cluster.answer(Evict, TooManyDisruptions("the budget forbids it"))
    why = "the eviction of default/v was refused: the budget forbids it"
    assert decision.message == f"0/2 nodes are available. preemption: {why}."
    first, second = decision.preemption
    assert (first.chosen, first.refusal) == (False, why)
    assert second.refusal == "no victims"


# How long nodes are held -----------------------------------------------------------------------


def test_nodes_are_held_for_the_grace_of_the_victims_and_a_minute_at_least(desk: Desk) -> None:
    desk.preempt(desk.victim("v", grace=3600))
    assert desk.evictor.next_times() == [3660.0]


@pytest.mark.parametrize(("wait", "seconds"), [(None, NOMINATION_SECONDS), (90.0, 90.0)])
def test_nodes_are_held_for_as_long_as_the_gang_waits(
    desk: Desk, wait: float | None, seconds: float
) -> None:
    desk.unit.gang = Gang("default/job", 1, wait=wait)
    desk.preempt()
    assert desk.evictor.next_times() == [seconds]


def test_a_nomination_whose_time_is_over_gives_its_nodes_back_and_lets_others_go_first(
    desk: Desk,
) -> None:
    desk.preempt(desk.victim("v", grace=0))
    desk.cluster.now = NOMINATION_SECONDS
    desk.evictor.tick()
    assert desk.nomination() is None
    assert (UNIT, "NotNominated") in desk.events()
    assert desk.state.queue.pop(desk.cluster.now) is None
    assert desk.state.queue.next_time() == NOMINATION_SECONDS + 10.0


def test_releasing_any_pod_ends_the_nomination_of_its_unit_without_a_word(desk: Desk) -> None:
    desk.preempt(desk.victim("v"))
    before = desk.events()
    desk.evictor.release("default/unknown")
    assert desk.nomination() is not None
    desk.evictor.release(UNIT)
    assert desk.nomination() is None
    assert desk.events() == before


# Gangs that are not strict ---------------------------------------------------------------------


def part_of(desk: Desk, nodes: Mapping[str, str]) -> None:
    desk.evictor.nominate_part(desk.unit, nodes)


def test_members_keep_the_nodes_that_they_found_but_no_longer_for_it(desk: Desk) -> None:
    part_of(desk, {UNIT: "a"})
    desk.cluster.now = 100.0
    part_of(desk, {UNIT: "b"})
    made = desk.nomination()
    assert made is not None
    assert (made.nodes, made.until) == ({UNIT: "b"}, NOMINATION_SECONDS)


def test_a_nomination_that_waits_for_victims_is_not_replaced_by_a_part(desk: Desk) -> None:
    desk.preempt(desk.victim("v"))
    part_of(desk, {UNIT: "b"})
    made = desk.nomination()
    assert made is not None
    assert made.nodes == {UNIT: "a"}
