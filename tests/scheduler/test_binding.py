"""The binding cycle: Permit, PreBind, Bind, PostBind, and what happens when one of them fails."""

from __future__ import annotations

from typing import Any

import pytest
from tests.scheduler.fake_cluster import FakeCluster
from tests.scheduler.parts import profiles_of, queue_pod, state_of

from bayplan import Args, NodeRow, Plugin, PodInfo, Preparation, Wait, hookimpl
from bayplan.api import Pod
from bayplan.api.gang import Gang
from bayplan.cluster.protocol import Bind, Event, PatchPodStatus
from bayplan.errors import Conflict
from bayplan.plugin.decision import Decision, Outcome
from bayplan.scheduler.binding import BindingCycle
from bayplan.scheduler.node_demand import NodeDemand
from bayplan.scheduler.observer import Observer
from bayplan.scheduler.queued_unit import Place
from bayplan.scheduler.scheduler import Scheduler
from bayplan.testing import make_node, make_pod

KEY = "default/p"


class Notes(Observer):
    """Notes what is bound and given up."""

    def __init__(self) -> None:
        self.bindings: list[tuple[str, str, int, int, float]] = []
        self.ended: list[Decision] = []

    def bound(self, pod: PodInfo, node: str, cycle: int, attempts: int, seconds: float) -> None:
        self.bindings.append((pod.name, node, cycle, attempts, seconds))

    def given_up(self, decision: Decision) -> None:
        self.ended.append(decision)


class Journal(Plugin[Args]):
    """Notes every pod that is unreserved, and is a base for plugins that do more."""

    unreserved: list[str] = []

    @hookimpl
    def unreserve(self, pod: PodInfo) -> None:
        self.unreserved.append(pod.name)


def journal(**hooks: Any) -> type[Journal]:
    """Return a journal with further hooks: functions of the plugin and the hook's arguments."""
    content = {name: hookimpl(function) for name, function in hooks.items()}
    return type("Journal", (Journal,), {"unreserved": [], **content})


class Desk:
    """A binding cycle on the node "n", and the pods that it hands back as newer versions."""

    def __init__(self, *plugins: type[Plugin[Any]]) -> None:
        self.cluster = FakeCluster()
        self.notes = Notes()
        self.state = state_of(self.cluster, *plugins, nodes=(make_node("n"),), observer=self.notes)
        self.redelivered: list[Pod] = []
        demand = NodeDemand(self.state)
        self.binding = BindingCycle(self.state, demand, self.redelivered.append)

    def place(self, *pods: Pod) -> Decision:
        """Queue pods, and run the cycle of their unit and what follows from it."""
        for pod in pods:
            queue_pod(self.state, pod)
        return self.cycle()

    def cycle(self) -> Decision:
        """Run the cycle of the next unit, and what follows from it."""
        queued = self.state.queue.pop(self.state.now)
        assert queued is not None
        unit, profile = self.state.unit(queued), self.state.profiles.first
        result = profile.cycle.run(unit, 7, self.state.now)
        if result.decision.outcome is Outcome.WAITING:
            self.binding.wait(queued, unit, profile, result)
        else:
            assert result.decision.outcome is Outcome.PLACED
            self.binding.bind(queued, profile, result)
        return result.decision

    def gang(self, min_member: int) -> None:
        self.state.gangs.define(Gang("default/job", min_member), "PodGroup")

    def used(self) -> int:
        """Return the milli-CPU taken on the node."""
        return self.state.snapshot.nodes.used("cpu").item(0)

    def binding_of(self) -> list[str]:
        return [write.pod.removeprefix("default/") for write in self.cluster.unanswered(Bind)]

    def events(self) -> list[tuple[str, str]]:
        return [(event.reason, event.message) for event in self.cluster.of(Event)]

    def place_of(self, unit: str = KEY) -> Place:
        return self.state.queue.units[unit].place


def job(index: int) -> Pod:
    return make_pod(f"job-{index}", "1", None, gang="job")


# Bind ------------------------------------------------------------------------------------------


def test_a_placed_pod_is_assumed_until_its_binding_is_answered() -> None:
    desk = Desk()
    desk.place(make_pod("p", "1", None))
    assert desk.cluster.of(Bind) == [Bind(KEY, "", "n")]
    assert list(desk.state.assumed) == [KEY]
    assert KEY not in desk.state.queue
    assert desk.used() == 1000
    assert desk.events() == []
    desk.cluster.now = 4.0
    desk.cluster.answer(Bind)
    assert desk.events() == [("Scheduled", "Successfully assigned default/p to n")]
    assert desk.notes.bindings == [("p", "n", 7, 1, 4.0)]
    assert desk.state.statistics.bound == 1


def test_a_binding_refused_by_the_api_server_gives_back_the_node_and_queues_the_pod() -> None:
    plugin = journal()
    desk = Desk(plugin)
    desk.place(make_pod("p", "1", None))
    desk.cluster.answer(Bind, Conflict("the pod changed"))
    assert desk.used() == 0
    assert plugin.unreserved == ["p"]
    assert desk.state.assumed == {}
    assert desk.events() == [
        ("FailedScheduling", "binding to n was refused: the pod changed"),
    ]
    assert desk.place_of() is Place.BACKOFF
    assert desk.state.queue.next_time() == 1.0
    assert desk.notes.bindings == []


def test_the_delay_grows_with_every_refused_binding() -> None:
    desk = Desk()
    desk.place(make_pod("p"))
    desk.cluster.answer(Bind, Conflict("no"))
    desk.cluster.now = 1.0
    desk.cycle()
    desk.cluster.answer(Bind, Conflict("no"))
    assert desk.state.queue.next_time() == 3.0


def test_a_newer_version_that_came_during_the_binding_is_handed_back_when_it_is_refused() -> None:
    desk = Desk()
    desk.place(make_pod("p"))
    newer = make_pod("p", labels={"app": "web"})
    desk.state.assumed[KEY].newer = newer
    assert desk.redelivered == []
    desk.cluster.answer(Bind, Conflict("no"))
    assert desk.redelivered == [newer]


def test_a_newer_version_is_forgotten_when_the_binding_worked() -> None:
    desk = Desk()
    desk.place(make_pod("p"))
    desk.state.assumed[KEY].newer = make_pod("p", labels={"app": "web"})
    desk.cluster.answer(Bind)
    assert desk.redelivered == []


def test_the_scheduler_binds_the_newer_version_after_a_refusal() -> None:
    cluster = FakeCluster()
    scheduler = Scheduler(cluster, profiles_of())
    cluster.show(make_node("n", cpu=8), make_pod("p", "1", None))
    scheduler.step()
    assert scheduler.unconfirmed == 1
    cluster.show(make_pod("p", "2", None))
    cluster.answer(Bind, Conflict("the pod changed"))
    assert scheduler.unconfirmed == 0
    assert scheduler.snapshot.nodes.used("cpu").tolist() == [0]
    cluster.now = 1.0
    scheduler.step()
    assert [write.pod for write in cluster.of(Bind)] == [KEY, KEY]
    assert scheduler.snapshot.nodes.used("cpu").tolist() == [2000]


def test_a_pod_that_is_gone_is_not_queued_again() -> None:
    desk = Desk()
    desk.place(make_pod("p"))
    del desk.state.pods[KEY]
    desk.cluster.answer(Bind, Conflict("no"))
    assert desk.used() == 0
    assert KEY not in desk.state.queue


def test_a_refusal_does_not_count_when_the_watch_showed_the_pod_on_its_node() -> None:
    desk = Desk()
    desk.place(make_pod("p", "1", None))
    del desk.state.assumed[KEY]
    desk.cluster.answer(Bind, Conflict("it is bound"))
    assert desk.used() == 1000
    assert desk.events() == []


def test_a_refused_member_is_pending_again_and_the_others_stay() -> None:
    desk = Desk()
    desk.gang(2)
    desk.place(job(0), job(1))
    assert desk.binding_of() == ["job-0", "job-1"]
    desk.cluster.answer(Bind, Conflict("no"))
    desk.cluster.answer(Bind)
    members = desk.state.gangs["default/job"]
    assert (list(members.pending), list(members.bound)) == (["default/job-0"], ["default/job-1"])
    assert desk.used() == 1000


def test_members_that_found_no_node_are_refused_while_the_others_are_bound() -> None:
    class Two(Plugin[Args]):
        """Two pods a node."""

        @hookimpl
        def filter_node(self, node: NodeRow) -> str | None:
            return "full" if len(node.pods) >= 2 else None

    desk = Desk(Two)
    desk.gang(2)
    desk.place(job(0), job(1), job(2))
    assert desk.binding_of() == ["job-0", "job-1"]
    assert desk.place_of("default/job") is Place.UNSCHEDULABLE
    assert [patch.pod for patch in desk.cluster.of(PatchPodStatus)] == ["default/job-2"]


def test_a_member_that_came_after_the_decision_gets_a_cycle_of_its_own() -> None:
    desk = Desk(journal(permit=lambda self, pod: Wait(30)))
    desk.gang(1)
    desk.place(job(0))
    queue_pod(desk.state, job(1))
    desk.state.permits.allow("default/job")
    desk.binding.settle_permits()
    assert desk.binding_of() == ["job-0"]
    assert desk.place_of("default/job") is Place.ACTIVE


def test_the_first_bind_plugin_with_annotations_has_them_written() -> None:
    class Late(Plugin[Args]):
        """Comes too late."""

        @hookimpl
        def bind(self, pod: PodInfo) -> dict[str, str]:
            return {"by": "late"}

    desk = Desk(journal(bind=lambda self, pod, node: {"by": f"first on {node.name}"}), Late)
    desk.place(make_pod("p"))
    (write,) = desk.cluster.of(Bind)
    assert write.annotations == {"by": "first on n"}


def test_no_pod_of_a_unit_is_bound_when_bind_raises_for_one() -> None:
    def bind(self: Any, pod: PodInfo) -> None:
        if pod.name == "job-1":
            raise ValueError("boo")

    plugin = journal(bind=bind)
    desk = Desk(plugin)
    desk.gang(2)
    decision = desk.place(job(0), job(1))
    assert desk.cluster.of(Bind) == []
    assert plugin.unreserved == ["job-1", "job-0"]
    assert desk.used() == 0
    assert decision.outcome is Outcome.ERROR
    assert desk.place_of("default/job") is Place.BACKOFF
    assert [patch.condition.reason for patch in desk.cluster.of(PatchPodStatus)] == [
        "SchedulerError",
        "SchedulerError",
    ]


def test_post_bind_runs_when_the_api_server_has_answered_and_may_fail() -> None:
    seen: list[str] = []

    def post_bind(self: Any, pod: PodInfo) -> None:
        seen.append(pod.name)
        raise ValueError("boo")

    desk = Desk(journal(post_bind=post_bind))
    desk.place(make_pod("p"))
    assert seen == []
    desk.cluster.answer(Bind)
    assert seen == ["p"]
    assert [reason for reason, _ in desk.events()] == ["PluginError", "Scheduled"]


# PreBind ---------------------------------------------------------------------------------------


def test_a_refusal_in_pre_bind_gives_back_the_nodes_of_the_whole_unit() -> None:
    def pre_bind(self: Any, pod: PodInfo) -> str | None:
        return "no device" if pod.name == "job-1" else None

    desk = Desk(journal(pre_bind=pre_bind))
    desk.gang(2)
    decision = desk.place(job(0), job(1))
    assert desk.cluster.of(Bind) == []
    assert desk.used() == 0
    assert (decision.outcome, decision.message) == (Outcome.UNSCHEDULABLE, "no device")
    assert decision.refused_by == {"Journal"}
    assert desk.notes.ended == [decision]
    assert desk.place_of("default/job") is Place.UNSCHEDULABLE


def prepares(ready: Any = None, seconds: float = 30.0) -> type[Journal]:
    """Return a plugin that writes an event before a pod is bound, and waits until it is ready."""

    def pre_bind(self: Any, pod: PodInfo) -> Preparation:
        return Preparation([Event(pod.key, "Normal", "Preparing", "")], ready, seconds)

    return journal(pre_bind=pre_bind)


def test_the_binding_is_written_when_everything_is_prepared() -> None:
    desk = Desk(prepares(lambda: True))
    desk.place(make_pod("p"))
    assert desk.cluster.of(Bind) == []
    assert desk.used() == 1000
    desk.cluster.answer(Event)
    assert desk.binding_of() == ["p"]


def test_labels_of_preparations_are_set_with_the_binding() -> None:
    def pre_bind(self: Any, pod: PodInfo) -> Preparation:
        return Preparation((), lambda: True, labels={"group": "g", "old": None})

    desk = Desk(journal(pre_bind=pre_bind))
    desk.place(make_pod("p"))
    (write,) = desk.cluster.of(Bind)
    assert write.labels == {"group": "g", "old": None}


def test_a_write_of_a_preparation_that_fails_is_an_error() -> None:
    desk = Desk(prepares())
    decision = desk.place(make_pod("p"))
    desk.cluster.answer(Event, Conflict("it changed"))
    assert desk.cluster.of(Bind) == []
    assert desk.used() == 0
    assert (decision.outcome, decision.message) == (Outcome.ERROR, "it changed")
    assert desk.place_of() is Place.BACKOFF


def test_a_preparation_that_refuses_is_tried_again_without_an_event() -> None:
    desk = Desk(prepares(lambda: "the volume is gone"))
    decision = desk.place(make_pod("p"))
    desk.cluster.answer(Event)
    assert (decision.outcome, decision.message) == (Outcome.UNSCHEDULABLE, "the volume is gone")
    assert desk.used() == 0
    assert desk.place_of() is Place.BACKOFF


def test_a_plugin_that_raises_while_it_is_waited_for_is_named() -> None:
    def ready() -> bool:
        raise ValueError("boo")

    desk = Desk(prepares(ready))
    decision = desk.place(make_pod("p"))
    desk.cluster.answer(Event)
    assert decision.outcome is Outcome.ERROR
    assert decision.message.startswith('plugin "Journal" failed in pre_bind: ValueError: boo')


def test_a_unit_that_loses_its_node_while_it_is_prepared_is_not_bound() -> None:
    desk = Desk(prepares())
    decision = desk.place(make_pod("p"))
    desk.state.snapshot.delete_node("n")
    desk.state.snapshot.sync()
    desk.cluster.answer(Event)
    assert desk.cluster.of(Bind) == []
    assert (decision.outcome, decision.message) == (Outcome.ERROR, "node n is gone")
    assert desk.place_of() is Place.BACKOFF


# Permit ----------------------------------------------------------------------------------------


@pytest.fixture
def held() -> Desk:
    """A pod that waits at Permit."""
    desk = Desk(journal(permit=lambda self, pod: Wait(30)))
    desk.place(make_pod("p", "1", None))
    return desk


def test_a_unit_at_permit_keeps_its_nodes_and_is_told(held: Desk) -> None:
    assert held.cluster.of(Bind) == []
    assert held.used() == 1000
    ((reason, message),) = held.events()
    assert reason == "WaitingOnPermit"
    assert message.endswith("for at most 30s; assumed on node n")
    assert not held.binding.settle_permits()


def test_a_permitted_unit_is_bound(held: Desk) -> None:
    held.state.permits.allow(KEY)
    assert held.binding.settle_permits()
    assert held.binding_of() == ["p"]
    assert not held.binding.settle_permits()


def test_a_rejected_unit_gives_its_nodes_back(held: Desk) -> None:
    held.state.permits.reject(KEY, "the quota is used up", "Journal")
    assert held.binding.settle_permits()
    assert held.used() == 0
    assert held.place_of() is Place.UNSCHEDULABLE
    (decision,) = held.notes.ended
    assert (decision.message, decision.refused_by) == ("the quota is used up", {"Journal"})


def test_a_cancelled_unit_gives_its_nodes_back_and_is_tried_again(held: Desk) -> None:
    held.binding.cancel_unit("default/other")
    assert held.used() == 1000
    held.binding.cancel_unit(KEY)
    assert held.used() == 0
    assert len(held.state.permits) == 0
    assert held.place_of() is Place.BACKOFF


def test_a_preemptor_takes_the_node_of_a_unit_at_permit(held: Desk) -> None:
    pod = held.state.pods[KEY]
    assert held.binding.cancel_placement(pod)
    assert held.used() == 0
    assert not held.binding.cancel_placement(pod)


def test_a_preemptor_takes_the_node_of_a_unit_that_is_prepared() -> None:
    desk = Desk(prepares())
    decision = desk.place(make_pod("p"))
    assert desk.binding.cancel_placement(desk.state.pods[KEY])
    assert desk.used() == 0
    assert decision.message == "its node was taken by a pod of higher priority"
    desk.cluster.answer(Event)
    assert desk.cluster.of(Bind) == []


def test_a_pod_whose_binding_is_written_has_to_be_evicted() -> None:
    desk = Desk()
    desk.place(make_pod("p"))
    assert not desk.binding.cancel_placement(desk.state.pods[KEY])
    assert desk.used() == 1000
