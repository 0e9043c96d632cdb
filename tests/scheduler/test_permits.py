"""Permit: who holds a placed unit back, what lets it go, and what its pods are told."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from bayplan import (
    Args,
    ClusterEvent,
    Handle,
    NodeRow,
    Plugin,
    PodInfo,
    Unit,
    Wait,
    hookimpl,
)
from bayplan.api import Node, Pod, PodCondition
from bayplan.live.observers import CycleLog
from bayplan.plugin.decision import Outcome
from bayplan.scheduler.permits import PermitWait
from bayplan.testing import (
    Cluster,
    assert_pending,
    assert_placed,
    make_gang,
    make_node,
    make_pod,
)

OPEN = "example.com/open"


class Gate(Plugin[Args]):
    """Holds pods until a node says that the gate is open, and notes what it is asked."""

    requeue_on = ClusterEvent.NODE_OTHER
    seconds: float = 30
    asked: list[str] = []
    made: list[Gate] = []

    def __init__(self, args: Args, handle: Handle) -> None:
        super().__init__(args, handle)
        self.made.append(self)

    @hookimpl
    def permit(self, pod: PodInfo, node: NodeRow) -> Wait | str | None:
        self.asked.append(pod.name)
        answer = node.annotations.get(OPEN)
        if answer == "boo":
            raise ValueError("boo")
        if answer not in (None, "yes"):
            return answer
        return None if answer == "yes" else Wait(self.seconds)

    @hookimpl
    def unreserve(self, pod: PodInfo) -> None:
        self.asked.append(f"unreserve {pod.name}")


@pytest.fixture
def gate() -> type[Gate]:
    return fresh("Gate")


def fresh(name: str, **attributes: Any) -> type[Gate]:
    """Return a gate of its own."""
    return type(name, (Gate,), {"asked": [], "made": [], **attributes})


def condition(cluster: Cluster, pod: str) -> PodCondition:
    found = cluster.api.get(Pod, f"default/{pod}")
    assert found is not None
    (only,) = [one for one in found.status.conditions if one.type == "PodScheduled"]
    return only


def annotate(cluster: Cluster, node: str, **annotations: str) -> None:
    """Set annotations of a node, and have everything take its course."""
    found = cluster.api.get(Node, node)
    assert found is not None
    notes = {OPEN: annotations["open"]}
    meta = replace(found.metadata, annotations=notes)
    cluster.api.update(replace(found, metadata=meta))
    cluster.schedule()


def one_pod(*plugins: type[Plugin[Any]]) -> Cluster:
    """Return a cluster of one node, and a pod that has had its cycle there."""
    cluster = Cluster([make_node("n", cpu=1)], plugins=plugins)
    cluster.add(make_pod("p", "1", None))
    cluster.schedule()
    return cluster


def gang_of_two(plugin: type[Plugin[Any]]) -> Cluster:
    """Return a cluster in which a gang has had its cycle."""
    cluster = Cluster([make_node("n")], plugins=[plugin])
    cluster.add(make_gang("job", 2), make_pod("job-0", gang="job"), make_pod("job-1", gang="job"))
    cluster.schedule()
    return cluster


# From outside ------------------------------------------------------------------------------


def test_a_plugin_that_allows_a_unit_lets_it_be_bound(gate: type[Gate]) -> None:
    cluster = one_pod(gate)
    assert cluster.placements() == {}
    assert gate.made[0].handle.allow("default/p")
    assert cluster.schedule() == {"p": "n"}
    assert cluster.decision("p").outcome is Outcome.PLACED
    assert cluster.decision("p").message == ""


def test_a_unit_waits_for_every_plugin_that_holds_it() -> None:
    first, second = fresh("First"), fresh("Second")
    cluster = one_pod(first, second)
    assert '"First", "Second"' in cluster.message("p")
    assert first.made[0].handle.allow("default/p")
    assert cluster.schedule() == {}
    assert "First" not in cluster.message("p")
    assert not first.made[0].handle.allow("default/p")
    assert second.made[0].handle.allow("default/p")
    assert cluster.schedule() == {"p": "n"}


def test_pods_of_a_gang_are_allowed_one_by_one(gate: type[Gate]) -> None:
    cluster = gang_of_two(gate)
    handle = gate.made[0].handle
    first = cluster.scheduler.snapshot.placed["default/job-0"][0]
    assert handle.allow(first)
    assert cluster.schedule() == {}
    assert handle.allow("default/job-1")
    assert cluster.schedule() == {"job-0": "n", "job-1": "n"}


@pytest.mark.parametrize("by_unit", [True, False])
def test_a_unit_is_allowed_as_a_whole(gate: type[Gate], by_unit: bool) -> None:
    cluster = gang_of_two(gate)
    pods = [cluster.scheduler.snapshot.placed[f"default/job-{index}"][0] for index in range(2)]
    assert gate.made[0].handle.allow(Unit("default/job", pods) if by_unit else "default/job")
    assert len(cluster.schedule()) == 2


def test_a_rejected_unit_gives_everything_back_and_is_told_why(gate: type[Gate]) -> None:
    cluster = gang_of_two(gate)
    assert gate.made[0].handle.reject("default/job-1", "no budget left")
    assert_pending(cluster, "job-0", "no budget left")
    assert_pending(cluster, "job-1", "no budget left")
    assert cluster.snapshot.nodes.used("cpu").tolist() == [0]
    assert {"unreserve job-0", "unreserve job-1"} <= set(gate.asked)
    assert cluster.decision("job").refused_by == {"Gate"}
    assert cluster.scheduler.waiting("default/job") is None


def test_any_plugin_may_reject(gate: type[Gate]) -> None:
    other = fresh("Other", requeue_on=ClusterEvent.NONE)
    cluster = one_pod(gate, other)
    other.made[0].handle.allow("default/p")
    cluster.schedule()
    assert other.made[0].handle.reject("default/p", "changed my mind")
    assert_pending(cluster, "p", "changed my mind")


def test_nobody_is_allowed_or_rejected_who_does_not_wait(gate: type[Gate]) -> None:
    cluster = one_pod(gate)
    handle = gate.made[0].handle
    pod = PodInfo(make_pod("other"))
    for whom in ("default/other", pod, Unit("default/other", [pod])):
        assert not handle.allow(whom)
        assert not handle.reject(whom, "no")
    assert handle.allow("default/p")
    cluster.schedule()
    assert not handle.allow("default/p")
    assert not handle.reject("default/p", "too late")
    assert cluster.schedule() == {"p": "n"}


def test_another_thread_may_allow(gate: type[Gate]) -> None:
    cluster = one_pod(gate)
    thread = threading.Thread(target=gate.made[0].handle.allow, args=("default/p",))
    thread.start()
    thread.join()
    assert cluster.scheduler.next_time() == cluster.api.now
    assert cluster.schedule() == {"p": "n"}


class LastOneOpens(Plugin[Args]):
    """Holds pods back until three units wait, then lets all of them go from its own hook."""

    waiting: list[Unit] = []

    @hookimpl
    def permit(self, unit: Unit) -> Wait | None:
        self.waiting.append(unit)
        if len(self.waiting) < 3:
            return Wait(60)
        for other in self.waiting:
            self.handle.allow(other)
        return None


def test_a_hook_may_allow_other_units() -> None:
    plugin = type("LastOneOpens", (LastOneOpens,), {"waiting": [], "requeue_on": ClusterEvent.NONE})
    cluster = Cluster([make_node("n")], plugins=[plugin])
    cluster.add(make_pod("a"), make_pod("b"))
    assert cluster.schedule() == {}
    cluster.add(make_pod("c"))
    assert cluster.schedule() == {"a": "n", "b": "n", "c": "n"}


def test_the_scheduler_allows_for_every_plugin() -> None:
    cluster = one_pod(fresh("First"), fresh("Second"))
    assert cluster.scheduler.allow("default/p")
    assert_placed(cluster, p="n")


# By events ---------------------------------------------------------------------------------


def test_a_gate_that_opens_lets_go_without_waiting_for_the_deadline(gate: type[Gate]) -> None:
    cluster = one_pod(gate)
    annotate(cluster, "n", open="yes")
    assert cluster.api.now == 0
    assert cluster.placements() == {"p": "n"}


def test_a_gate_that_closes_for_good_refuses(gate: type[Gate]) -> None:
    cluster = one_pod(gate)
    annotate(cluster, "n", open="closed for today")
    assert_pending(cluster, "p", "closed for today")
    assert cluster.snapshot.nodes.used("cpu").tolist() == [0]


def test_an_event_that_the_plugin_did_not_name_does_not_ask_it(gate: type[Gate]) -> None:
    cluster = one_pod(gate)
    cluster.add(make_node("other"), make_gang("job", 1))
    cluster.schedule()
    assert gate.asked == ["p"]


@pytest.mark.parametrize("helps", [True, False])
def test_a_hint_decides_whether_an_event_asks_again(helps: bool) -> None:
    seen: list[tuple[str, ClusterEvent]] = []

    class Hinted(Gate):
        """A gate with a hint."""

        asked: list[str] = []

        @hookimpl
        def requeue_hint(self, pod: PodInfo, event: ClusterEvent) -> bool:
            seen.append((pod.name, event))
            return helps

    cluster = one_pod(Hinted)
    annotate(cluster, "n", open="yes")
    assert seen == [("p", ClusterEvent.NODE_OTHER)]
    assert ("p" in cluster.placements()) is helps


def test_a_hint_that_raises_is_told_and_asks_again(gate: type[Gate]) -> None:
    class Hintless(Gate):
        """A gate whose hint is broken."""

        @hookimpl
        def requeue_hint(self) -> bool:
            raise ValueError("no idea")

    cluster = one_pod(Hintless)
    annotate(cluster, "n", open="yes")
    assert cluster.placements() == {"p": "n"}
    (told,) = {event.message for _, event in cluster.api.events if event.reason == "PluginError"}
    assert 'plugin "Hintless" failed in requeue_hint: ValueError: no idea' in told
    assert "test_permits.py:" in told


def test_a_member_that_is_permitted_now_is_not_asked_once_more(gate: type[Gate]) -> None:
    cluster = Cluster([make_node("a", cpu=1), make_node("b", cpu=1)], plugins=[gate])
    cluster.add(make_gang("job", 2))
    cluster.add(*(make_pod(f"job-{index}", "1", None, gang="job") for index in range(2)))
    cluster.schedule()
    annotate(cluster, "a", open="yes")
    assert gate.asked == ["job-0", "job-1", "job-0", "job-1"]
    annotate(cluster, "b", open="yes")
    assert gate.asked[4:] == ["job-1"]
    assert len(cluster.placements()) == 2


def test_asking_again_does_not_prolong_the_wait(gate: type[Gate]) -> None:
    cluster = one_pod(gate)
    cluster.advance(20)
    annotate(cluster, "n", open="")
    found = cluster.api.get(Node, "n")
    assert found is not None
    cluster.api.update(replace(found, metadata=replace(found.metadata, annotations={})))
    gate.seconds = 1000
    cluster.advance(9)
    assert cluster.decision("p").outcome is not Outcome.PLACED


def test_a_plugin_that_raises_when_asked_again_fails_its_unit_alone(gate: type[Gate]) -> None:
    cluster = Cluster([make_node("a", cpu=1), make_node("b", cpu=1)], plugins=[gate])
    cluster.add(make_pod("bad", "1", None), make_pod("good", "1", None))
    cluster.schedule()
    annotate(cluster, "a", open="boo")
    assert 'plugin "Gate" failed in permit: ValueError: boo' in cluster.message("bad")
    assert "test_permits.py:" in cluster.message("bad")
    annotate(cluster, "b", open="yes")
    assert cluster.placements() == {"good": "b"}


# By time -----------------------------------------------------------------------------------


def test_the_first_deadline_ends_the_wait() -> None:
    cluster = one_pod(fresh("Long", seconds=100.0), fresh("Short", seconds=5.0))
    cluster.advance(4.9)
    assert cluster.scheduler.waiting("default/p") is not None
    cluster.advance(0.1)
    assert "rejected due to timeout after waiting 5s at plugin Short" in cluster.message("p")
    assert cluster.decision("p").refused_by == {"Short"}


def test_a_plugin_that_has_allowed_has_no_deadline_any_more() -> None:
    long, short = fresh("Long", seconds=100.0), fresh("Short", seconds=5.0)
    cluster = one_pod(long, short)
    short.made[0].handle.allow("default/p")
    cluster.advance(50)
    wait = cluster.scheduler.waiting("default/p")
    assert wait is not None
    assert wait.plugins == ("Long",)
    assert wait.deadline == 100


def test_an_order_that_comes_in_time_counts_at_the_deadline(gate: type[Gate]) -> None:
    cluster = one_pod(gate)
    gate.made[0].handle.allow("default/p")
    cluster.api.clock.advance(30)
    cluster.scheduler.tick()
    assert cluster.schedule() == {"p": "n"}


def test_a_wait_of_no_time_is_a_refusal(gate: type[Gate]) -> None:
    gate.seconds = 0
    cluster = one_pod(gate)
    cluster.advance(0.5)
    assert cluster.placements() == {}
    assert "after waiting 0s at plugin Gate" in cluster.message("p")


# What is told ------------------------------------------------------------------------------


def test_a_waiting_pod_is_told_who_holds_it_where_and_for_how_long(gate: type[Gate]) -> None:
    cluster = one_pod(gate)
    found = condition(cluster, "p")
    message = 'Waiting on permit from plugin "Gate" for at most 30s; assumed on node n'
    assert (found.status, found.reason, found.message) == ("False", "WaitingOnPermit", message)
    told = [event for _, event in cluster.api.events if event.pod == "default/p"]
    assert [(e.type, e.reason, e.message) for e in told] == [("Normal", "WaitingOnPermit", message)]
    cluster.scheduler.allow("default/p")
    cluster.schedule()
    assert condition(cluster, "p").status == "True"


def test_what_a_unit_waits_for_is_data(gate: type[Gate]) -> None:
    cluster = Cluster([make_node("n")], plugins=[gate])
    cluster.advance(7)
    cluster.add(make_gang("job", 2), make_pod("job-0", gang="job"), make_pod("job-1", gang="job"))
    cluster.schedule()
    nodes = {"default/job-0": "n", "default/job-1": "n"}
    wait = PermitWait("default/job", ("Gate",), nodes, 7, 37)
    assert cluster.scheduler.waiting("default/job") == wait
    assert cluster.scheduler.waiting("default/job-1") == wait
    assert cluster.scheduler.waiting("default/other") is None
    with pytest.raises(AttributeError, match="immutable"):
        wait.since = 0  # type: ignore[misc]


def test_a_unit_that_waits_is_not_to_be_tried(gate: type[Gate]) -> None:
    cluster = one_pod(gate)
    assert cluster.scheduler.pending_unit("default/p") is None
    cluster.advance(30)
    assert cluster.scheduler.pending_unit("default/p") is not None


def test_a_unit_that_waits_is_not_before_others() -> None:
    class HoldsFirst(Plugin[Args]):
        """Holds the pod named first."""

        @hookimpl
        def permit(self, pod: PodInfo) -> Wait | None:
            return Wait(30) if pod.name == "first" else None

    cluster = Cluster([make_node("n", cpu=1)], plugins=[HoldsFirst])
    cluster.add(make_pod("first", "1", None), make_pod("second", "1", None))
    cluster.schedule()
    second = cluster.scheduler.pending_unit("default/second")
    assert second is not None
    assert cluster.scheduler.queue.is_first(second.key)


@pytest.fixture
def lines() -> Iterator[list[logging.LogRecord]]:
    """Return what is logged, whatever other tests did to the logger."""
    found: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = found.append  # type: ignore[method-assign]
    logger = logging.getLogger("bayplan")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield found
    logger.removeHandler(handler)
    logger.setLevel(before)


def test_the_log_tells_of_a_wait_and_of_its_end(
    gate: type[Gate], lines: list[logging.LogRecord]
) -> None:
    cluster = Cluster([make_node("n")], plugins=[gate], observer=CycleLog())
    cluster.add(make_pod("p"))
    cluster.advance(30)
    waits, ended = lines
    assert waits.getMessage() == 'Waiting on permit from plugin "Gate" for at most 30s'
    assert vars(waits)["unit"] == "default/p"
    assert vars(waits)["nodes"] == "default/p=n"
    why = "rejected due to timeout after waiting 30s at plugin Gate"
    assert ended.getMessage() == f"not bound: {why}"


# What happens meanwhile --------------------------------------------------------------------


def test_a_pod_that_goes_while_it_waits_leaves_nothing_behind(gate: type[Gate]) -> None:
    cluster = one_pod(gate)
    handle = gate.made[0].handle
    handle.allow("default/p")
    cluster.remove("p")
    assert cluster.scheduler.waiting("default/p") is None
    assert cluster.schedule() == {}
    assert cluster.scheduler.next_time() is None
    assert cluster.snapshot.nodes.used("cpu").tolist() == [0]


def test_a_pod_that_is_approved_by_annotation_is_decided_anew() -> None:
    class Approval(Plugin[Args]):
        """Holds pods that nobody has approved."""

        @hookimpl
        def permit(self, pod: PodInfo) -> Wait | None:
            return None if pod.annotations.get("example.com/approved") else Wait(600)

    cluster = one_pod(Approval)
    found = cluster.api.get(Pod, "default/p")
    assert found is not None
    approved = replace(found.metadata, annotations={"example.com/approved": "yes"})
    cluster.api.update(replace(found, metadata=approved))
    assert cluster.advance(2) == {"p": "n"}


def test_a_higher_priority_takes_the_place_of_a_unit_that_waits() -> None:
    class HoldsLow(Plugin[Args]):
        """Holds pods of no priority."""

        @hookimpl
        def permit(self, pod: PodInfo) -> Wait | None:
            return None if pod.priority else Wait(600)

    cluster = one_pod(HoldsLow)
    cluster.add(make_pod("high", "1", None, priority=10))
    assert cluster.advance(10) == {"high": "n"}
    assert cluster.scheduler.waiting("default/p") is None
    assert_pending(cluster, "p", "Insufficient cpu")
