"""What is written about pods: events and PodScheduled conditions, each once."""

from __future__ import annotations

import logging
from collections.abc import Set

import pytest
from tests.scheduler.fake_cluster import FakeCluster
from tests.scheduler.one_queue import OneQueue

from bayplan import Unit
from bayplan.api import PodCondition
from bayplan.cluster.protocol import Event, PatchPodStatus
from bayplan.errors import ClusterError, PluginError
from bayplan.plugin.decision import Decision, PodDecision
from bayplan.plugin.events import ClusterEvent
from bayplan.scheduler.permits import PermitWait
from bayplan.scheduler.queue import UnitQueue
from bayplan.scheduler.queued_unit import Gate, QueuedUnit
from bayplan.scheduler.recorder import Recorder
from bayplan.snapshot import PodInfo
from bayplan.testing import make_pod

POD = PodInfo(make_pod("p"))
UNIT = Unit(POD.key, [POD])


class Desk:
    """A recorder on a fake cluster."""

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.recorder = Recorder(self.cluster)

    def refuse(self, message: str, node: str | None = None) -> None:
        nominated = {POD.key: node} if node is not None else {}
        self.recorder.refused(UNIT, decision(message), "Unschedulable", nominated)

    def events(self) -> list[tuple[str, str]]:
        return [(event.reason, event.message) for event in self.cluster.of(Event)]

    def conditions(self) -> list[PodCondition]:
        return [patch.condition for patch in self.cluster.of(PatchPodStatus)]


class Gates(OneQueue, UnitQueue):
    """A queue in which every pod is held back until it is in ``open``."""

    def __init__(self) -> None:
        self.open: set[str] = set()
        self.text = "waiting for more members"
        super().__init__(self, lambda pod: pod.gang or pod.key)

    def gate(self, pod: PodInfo) -> Gate | None:
        return None if pod.name in self.open else Gate(self.text, "Gang")

    def reads_at_gate(self, plugin: str, kinds: Set[type]) -> bool:
        return True

    def sort_key(self, queued: QueuedUnit) -> tuple[float, ...]:
        return (queued.added,)

    def listens(self, plugins: frozenset[str], event: ClusterEvent) -> bool:
        return True

    def waits_for_victims(self, queued: QueuedUnit) -> bool:
        return False

    def helps(self, queued: QueuedUnit, event: ClusterEvent, subject: PodInfo | None) -> bool:
        return True


@pytest.fixture
def desk() -> Desk:
    return Desk()


def decision(message: str, **pods: str) -> Decision:
    own = {f"default/{name}": PodDecision(name, 1, message=text) for name, text in pods.items()}
    return Decision("default/p", 1, 0.0, message=message, pods=own)


# Refusals --------------------------------------------------------------------------------------


def test_a_refused_pod_gets_a_condition_and_a_warning(desk: Desk) -> None:
    desk.refuse("0/1 nodes are available")
    (condition,) = desk.conditions()
    assert (condition.type, condition.status) == ("PodScheduled", "False")
    assert (condition.reason, condition.message) == ("Unschedulable", "0/1 nodes are available")
    assert desk.events() == [("FailedScheduling", "0/1 nodes are available")]
    assert desk.cluster.of(Event)[0].type == "Warning"
    assert desk.recorder.pending_reasons == 1


def test_the_same_refusal_is_written_once(desk: Desk) -> None:
    desk.refuse("too small")
    desk.refuse("too small")
    assert len(desk.cluster.writes) == 2
    desk.refuse("too busy")
    assert [message for _, message in desk.events()] == ["too small", "too busy"]


def test_a_pod_without_a_message_of_its_unit_gets_its_own(desk: Desk) -> None:
    desk.recorder.refused(UNIT, decision("", p="of the pod"), "Unschedulable")
    desk.recorder.refused(UNIT, decision("of the unit", p="of the pod"), "Unschedulable")
    assert [message for _, message in desk.events()] == ["of the pod", "of the unit"]


def test_another_nominated_node_is_written_although_the_message_is_the_same(desk: Desk) -> None:
    desk.refuse("wait", "a")
    desk.refuse("wait", "b")
    nodes = [patch.nominated_node for patch in desk.cluster.of(PatchPodStatus)]
    assert nodes == ["a", "b"]


def test_a_condition_that_could_not_be_written_is_written_again(desk: Desk) -> None:
    desk.refuse("too small")
    desk.cluster.answer(PatchPodStatus, ClusterError("500"))
    desk.refuse("too small")
    assert len(desk.conditions()) == 2


def test_a_late_failure_does_not_drop_a_newer_reason(desk: Desk) -> None:
    desk.refuse("too small")
    desk.refuse("too busy")
    desk.cluster.answer(PatchPodStatus, ClusterError("500"))
    desk.refuse("too busy")
    assert len(desk.conditions()) == 2


def test_what_was_recorded_of_a_forgotten_pod_is_written_again(desk: Desk) -> None:
    desk.refuse("too small")
    desk.recorder.forget(POD.key)
    assert desk.recorder.pending_reasons == 0
    desk.refuse("too small")
    assert len(desk.conditions()) == 2


def test_a_bound_pod_is_reported_with_its_node_and_has_no_reason_any_more(desk: Desk) -> None:
    desk.refuse("too small")
    desk.recorder.bound(POD, "n")
    event = desk.cluster.of(Event)[-1]
    assert (event.type, event.reason, event.node) == ("Normal", "Scheduled", "n")
    assert event.message == "Successfully assigned default/p to n"
    assert desk.recorder.pending_reasons == 0


# Preemption ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("victims", "ending", "told"),
    [
        (["x/a"], 1, ", which preempts x/a, until 1 pod has ended"),
        (["x/a", "x/b"], 3, ", which preempts x/a, x/b, until 3 pods have ended"),
        (
            [f"x/{letter}" for letter in "abcdefg"],
            7,
            ", which preempts x/a, x/b, x/c, x/d, x/e and 2 more, until 7 pods have ended",
        ),
        ([], 2, " until 2 pods have ended"),
        ([], 0, ""),
    ],
)
def test_a_preemptor_is_told_whom_it_preempts_and_on_how_many_it_waits(
    desk: Desk, victims: list[str], ending: int, told: str
) -> None:
    desk.recorder.nominated(POD, "n", victims, ending)
    assert desk.events() == [("Nominated", f"n is nominated for default/p{told}")]


def test_the_end_of_a_nomination_clears_the_nominated_node(desk: Desk) -> None:
    desk.refuse("wait", "n")
    desk.recorder.nomination_ended(POD, "the eviction was refused")
    patch = desk.cluster.of(PatchPodStatus)[-1]
    assert patch.nominated_node == ""
    assert patch.condition.message == (
        "default/p no longer has a nominated node: the eviction was refused"
    )
    # The reason before is news again.
    desk.refuse("wait")
    assert [reason for reason, _ in desk.events()] == [
        "FailedScheduling",
        "NotNominated",
        "FailedScheduling",
    ]


def test_a_victim_is_told_which_unit_preempted_it_and_where(desk: Desk) -> None:
    desk.recorder.preempted(POD, "default/job", "n")
    assert desk.events() == [("Preempted", "Preempted by default/job on node n")]


# Permit ----------------------------------------------------------------------------------------


def test_a_pod_at_permit_is_told_who_holds_it_and_its_assumed_node_once(desk: Desk) -> None:
    wait = PermitWait(POD.key, ("Gate",), {POD.key: "n"}, 0.0, 30.0)
    desk.recorder.waiting_on_permit([POD], wait)
    desk.recorder.waiting_on_permit([POD], wait)
    assert desk.events() == [
        ("WaitingOnPermit", f"{wait}; assumed on node n"),
    ]
    assert [condition.reason for condition in desk.conditions()] == ["WaitingOnPermit"]


# Plugins that fail -----------------------------------------------------------------------------


def test_what_a_plugin_raised_is_written_once_for_each_pod(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    error, other = PluginError("Boo", "reserve", ValueError("boo")), PodInfo(make_pod("q"))
    with caplog.at_level(logging.DEBUG, "bayplan.plugins"):
        for pod in (POD, POD, other):
            desk.recorder.plugin_failed(pod, error)
    assert [(event.pod, event.reason) for event in desk.cluster.of(Event)] == [
        ("default/p", "PluginError"),
        ("default/q", "PluginError"),
    ]
    # The log has it once; later it is for debugging only.
    assert [record.levelno for record in caplog.records] == [
        logging.ERROR,
        logging.DEBUG,
        logging.DEBUG,
    ]
    assert caplog.records[0].exc_info is not None


# Gates -----------------------------------------------------------------------------------------


def test_a_gated_pod_is_told_why(desk: Desk) -> None:
    queue = Gates()
    queue.add(POD, 0.0)
    desk.recorder.gated(queue)
    assert desk.events() == []
    desk.recorder.gate_changed(POD.key)
    assert desk.recorder.changed_gates() == [POD.key]
    desk.recorder.gated(queue)
    assert desk.events() == [("FailedScheduling", "waiting for more members")]
    assert desk.recorder.changed_gates() == []


def test_a_pod_with_scheduling_gates_gets_the_condition_of_kubernetes_and_no_warning(
    desk: Desk,
) -> None:
    queue = Gates()
    gated = make_pod("p", spec={"schedulingGates": [{"name": "quota"}]})
    queue.add(PodInfo(gated), 0.0)
    desk.recorder.gate_changed(POD.key)
    desk.recorder.gated(queue)
    assert [condition.reason for condition in desk.conditions()] == ["SchedulingGated"]
    assert desk.events() == []


def test_a_gang_is_written_at_most_once_a_second(desk: Desk) -> None:
    queue, recorder = Gates(), desk.recorder
    members = [PodInfo(make_pod(f"job-{i}", gang="job")) for i in range(2)]
    for pod in members:
        queue.add(pod, 0.0)
    recorder.gate_changed("default/job")
    recorder.gated(queue)
    assert len(desk.conditions()) == 2
    queue.text = "waiting for one more member"
    queue.refresh_gates("default/job", 0.0)
    recorder.gate_changed("default/job")
    desk.cluster.now = 0.9
    recorder.gated(queue)
    assert len(desk.conditions()) == 2
    assert recorder.next_time() == 1.0
    desk.cluster.now = 1.0
    recorder.gated(queue)
    assert len(desk.conditions()) == 4
    assert recorder.next_time() is None


def test_a_single_pod_is_written_without_delay(desk: Desk) -> None:
    queue = Gates()
    queue.add(POD, 0.0)
    for text in ("first", "second"):
        queue.text = text
        queue.refresh_gates(POD.key, 0.0)
        desk.recorder.gate_changed(POD.key)
        desk.recorder.gated(queue)
    assert [message for _, message in desk.events()] == ["first", "second"]


def test_units_that_left_the_queue_or_are_not_gated_are_dropped(desk: Desk) -> None:
    queue = Gates()
    queue.open = {"p"}
    queue.add(POD, 0.0)
    desk.recorder.gate_changed("default/gone")
    desk.recorder.forget_gone(queue)
    assert desk.recorder.changed_gates() == []
    desk.recorder.gate_changed(POD.key)
    desk.recorder.forget_gone(queue)
    assert desk.recorder.changed_gates() == [POD.key]
    desk.recorder.gated(queue)
    assert desk.recorder.changed_gates() == []
    assert desk.cluster.writes == []
