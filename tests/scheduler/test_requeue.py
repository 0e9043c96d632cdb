"""What the queue asks plugins: gates, order, and which events help a refused unit."""

from __future__ import annotations

from typing import Any

import pytest
from tests.scheduler.fake_cluster import FakeCluster
from tests.scheduler.parts import place_pod, profiles_of, queue_pod, state_of

from bayplan import Args, ClusterEvent, NodeRow, Plugin, PodInfo, Unit, hookimpl
from bayplan.api.gang import Gang
from bayplan.cluster.protocol import Event
from bayplan.scheduler.nominator import Nomination
from bayplan.scheduler.queued_unit import QueuedUnit
from bayplan.scheduler.requeue import RequeueRules
from bayplan.scheduler.scheduler import Scheduler
from bayplan.scheduler.state import SchedulerState
from bayplan.testing import make_node, make_pod

ANY_NODE = ClusterEvent.NODE_LABELS | ClusterEvent.NODE_TAINTS


class Closed(Plugin[Args]):
    """Holds back pods named "closed", and raises for those named "bad"."""

    requeue_on = ANY_NODE

    @hookimpl
    def pre_enqueue(self, pod: PodInfo) -> str | None:
        if pod.name == "bad":
            raise ValueError("boo")
        return "not yet" if pod.name == "closed" else None


class Hinted(Plugin[Args]):
    """Refuses every node, and notes what it is asked about events; ``helps`` is the answer."""

    requeue_on = ANY_NODE | ClusterEvent.POD_REMOVED | ClusterEvent.POD_CHANGED
    asked: list[tuple[str, ClusterEvent, str | None]] = []
    helps: bool | Exception = False

    @hookimpl
    def filter_node(self, node: NodeRow) -> str:
        return "closed"

    @hookimpl
    def requeue_hint(self, pod: PodInfo, event: ClusterEvent, subject: PodInfo | None) -> bool:
        self.asked.append((pod.name, event, subject.name if subject is not None else None))
        if isinstance(self.helps, Exception):
            raise self.helps
        return self.helps


def hinted(helps: bool | Exception = False) -> type[Hinted]:
    """Return a plugin of its own."""
    return type("Hinted", (Hinted,), {"asked": [], "helps": helps})


def rules_of(state: SchedulerState) -> RequeueRules:
    return RequeueRules(
        state.profiles, state.gangs, state.nominator, state.recorder, state.snapshot
    )


def refused(state: SchedulerState, *plugins: str) -> QueuedUnit:
    """Return the unit of a pod that these plugins refused."""
    queue_pod(state, make_pod("p"))
    unit = state.queue.pop(0.0)
    assert unit is not None
    state.queue.refuse(unit, set(plugins), 0.0)
    return unit


# Gates and order -------------------------------------------------------------------------------


def test_the_first_plugin_that_refuses_a_pod_holds_it_back() -> None:
    class Later(Plugin[Args]):
        """Refuses every pod."""

        @hookimpl
        def pre_enqueue(self, pod: PodInfo) -> str:
            return "never"

    rules = rules_of(state_of(FakeCluster(), Closed, Later))
    assert rules.gate(PodInfo(make_pod("closed"))) == ("not yet", "Closed")
    assert rules.gate(PodInfo(make_pod("open"))) == ("never", "Later")


def test_a_gate_that_raises_holds_its_pod_back_under_the_plugins_name() -> None:
    rules = rules_of(state_of(FakeCluster(), Closed))
    assert rules.gate(PodInfo(make_pod("open"))) is None
    refusal = rules.gate(PodInfo(make_pod("bad")))
    assert refusal is not None
    assert refusal.plugin == "Closed"
    assert refusal.reason.startswith('plugin "Closed" failed in pre_enqueue: ValueError: boo')


def test_queue_sort_gets_the_unit_with_its_gang_and_its_arrival() -> None:
    seen: list[tuple[Unit, float]] = []

    class Order(Plugin[Args]):
        """Notes what it sorts."""

        @hookimpl
        def queue_sort(self, unit: Unit, added: float) -> tuple[float, ...]:
            seen.append((unit, added))
            return (7.0, 8.0)

    state = state_of(FakeCluster(), Order)
    gang = Gang("default/job", 2)
    state.gangs.define(gang, "PodGroup")
    pod = PodInfo(make_pod("job-0", gang="job"))
    queued = QueuedUnit("default/job", 3.0, ready={pod.key: pod})
    assert rules_of(state).sort_key(queued) == (7.0, 8.0)
    assert seen == [(Unit("default/job", [pod], gang), 3.0)]


def test_the_first_plugin_of_the_profile_sorts() -> None:
    class Second(Plugin[Args]):
        """Sorts otherwise."""

        @hookimpl
        def queue_sort(self, added: float) -> tuple[float, ...]:
            return (added,)

    pod = PodInfo(make_pod("p", priority=5))
    rules = rules_of(state_of(FakeCluster(), Second))
    assert rules.sort_key(QueuedUnit(pod.key, 3.0, {pod.key: pod})) == (-5.0, 3.0)


def test_a_queue_sort_that_raises_counts_as_order_of_priority() -> None:
    class Order(Plugin[Args]):
        """Raises."""

        @hookimpl
        def queue_sort(self, unit: Unit) -> tuple[float, ...]:
            raise ValueError("boo")

    cluster = FakeCluster()
    state = state_of(cluster, Order)
    pod = PodInfo(make_pod("p", priority=5))
    assert rules_of(state).sort_key(QueuedUnit(pod.key, 3.0, {pod.key: pod})) == (-5.0, 3.0)
    assert [event.reason for event in cluster.of(Event)] == ["PluginError"]


# Events ----------------------------------------------------------------------------------------


def test_an_event_is_heard_when_a_plugin_that_refused_names_it() -> None:
    rules = rules_of(state_of(FakeCluster(), Closed))
    assert rules.listens(frozenset({"Closed"}), ClusterEvent.NODE_TAINTS)
    assert not rules.listens(frozenset({"Closed"}), ClusterEvent.POD_PLACED)
    assert not rules.listens(frozenset({"Unknown"}), ClusterEvent.NODE_TAINTS)
    assert rules.listens(frozenset(), ClusterEvent.POD_PLACED)


def test_without_a_hint_every_event_of_the_plugin_helps() -> None:
    state = state_of(FakeCluster(), Closed)
    unit = refused(state, "Closed")
    rules = rules_of(state)
    assert rules.helps(unit, ClusterEvent.NODE_LABELS, None)
    assert not rules.helps(unit, ClusterEvent.POD_PLACED, None)


def test_a_unit_that_no_plugin_refused_is_helped_by_any_event() -> None:
    state = state_of(FakeCluster(), Closed)
    assert rules_of(state).helps(refused(state), ClusterEvent.POD_PLACED, None)


@pytest.mark.parametrize("helps", [True, False])
def test_a_hint_decides_and_gets_the_pod_that_the_event_is_about(helps: bool) -> None:
    plugin = hinted(helps)
    state = state_of(FakeCluster(), plugin)
    unit, subject = refused(state, "Hinted"), PodInfo(make_pod("gone"))
    assert rules_of(state).helps(unit, ClusterEvent.POD_REMOVED, subject) is helps
    assert plugin.asked == [("p", ClusterEvent.POD_REMOVED, "gone")]


def test_one_plugin_that_is_helped_is_enough() -> None:
    plugin = hinted(False)
    state = state_of(FakeCluster(), plugin, Closed)
    unit = refused(state, "Hinted", "Closed")
    assert rules_of(state).helps(unit, ClusterEvent.NODE_LABELS, None)


def test_a_hint_is_not_asked_about_events_that_its_plugin_does_not_name() -> None:
    plugin = hinted(True)
    state = state_of(FakeCluster(), plugin)
    assert not rules_of(state).helps(refused(state, "Hinted"), ClusterEvent.POD_PLACED, None)
    assert plugin.asked == []


def test_a_hint_that_raises_lets_the_unit_be_tried_and_is_reported() -> None:
    cluster = FakeCluster()
    state = state_of(cluster, hinted(ValueError("boo")))
    assert rules_of(state).helps(refused(state, "Hinted"), ClusterEvent.NODE_LABELS, None)
    (event,) = cluster.of(Event)
    assert (event.pod, event.reason) == ("default/p", "PluginError")


def test_a_unit_that_waits_for_its_victims_is_not_woken_by_other_pods() -> None:
    state = state_of(FakeCluster(), Closed, nodes=(make_node("n"),))
    unit, subject = refused(state, "Unknown"), PodInfo(make_pod("other"))
    unit.refused_by = frozenset()
    made = Nomination("default/p", list(unit.pods.values()), {"default/p": "n"}, 60.0, {"x/victim"})
    state.nominator.add(made)
    rules = rules_of(state)
    assert not rules.helps(unit, ClusterEvent.POD_REMOVED, subject)
    assert rules.helps(unit, ClusterEvent.NODE_ADDED, None)
    state.nominator.victim_ended("x/victim")
    assert rules.helps(unit, ClusterEvent.POD_REMOVED, subject)


# Several events at once ------------------------------------------------------------------------


def scheduler_that_refused(plugin: type[Plugin[Any]], cluster: FakeCluster) -> Scheduler:
    """Return a scheduler whose pod "p" was refused by a plugin, beside a pod "placed" on "n"."""
    scheduler = Scheduler(cluster, profiles_of(plugin))
    cluster.show(make_node("n"), make_pod("placed", node="n"), make_pod("p"))
    while scheduler.step():
        pass
    assert scheduler.decisions["default/p"].refused_by == {"Hinted"}
    return scheduler


def test_labels_and_taints_that_change_at_once_are_two_events() -> None:
    plugin, cluster = hinted(), FakeCluster()
    scheduler_that_refused(plugin, cluster)
    cluster.show(make_node("n", labels={"disk": "ssd"}, taints=["team=a:NoSchedule"]))
    assert plugin.asked == [
        ("p", ClusterEvent.NODE_LABELS, None),
        ("p", ClusterEvent.NODE_TAINTS, None),
    ]


def test_a_placed_pod_that_changes_is_two_events_about_it() -> None:
    plugin, cluster = hinted(), FakeCluster()
    scheduler_that_refused(plugin, cluster)
    cluster.show(make_pod("placed", node="n", labels={"app": "web"}))
    assert sorted((event.value, subject) for _, event, subject in plugin.asked) == [
        (ClusterEvent.POD_REMOVED.value, "placed"),
        (ClusterEvent.POD_CHANGED.value, "placed"),
    ]


def test_a_unit_that_the_first_event_wakes_is_not_asked_about_the_second() -> None:
    plugin, cluster = hinted(helps=True), FakeCluster()
    scheduler = scheduler_that_refused(plugin, cluster)
    cluster.show(make_node("n", labels={"disk": "ssd"}, taints=["team=a:NoSchedule"]))
    assert plugin.asked == [("p", ClusterEvent.NODE_LABELS, None)]
    assert scheduler.next_time() == 1.0


def test_the_state_broadcasts_a_union_event_by_event() -> None:
    plugin = hinted()
    state = state_of(FakeCluster(), plugin, nodes=(make_node("n"),))
    refused(state, "Hinted")
    subject = place_pod(state, make_pod("placed", node="n"))
    state.broadcast(ClusterEvent.POD_REMOVED | ClusterEvent.POD_CHANGED, subject)
    state.broadcast(ClusterEvent.NONE)
    assert [event for _, event, _ in plugin.asked] == list(
        ClusterEvent.POD_REMOVED | ClusterEvent.POD_CHANGED
    )
