"""The scheduler on an embedded cluster that fails in every way a real one does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from bayplan import Args, ClusterEvent, Plugin, PodInfo, hookimpl
from bayplan.api import Node, Pod, PodGroup
from bayplan.cluster.protocol import Bind, PatchPodStatus
from bayplan.errors import ClusterError, Conflict, NotFound
from bayplan.testing import (
    Cluster,
    assert_pending,
    assert_placed,
    make_gang,
    make_node,
    make_pod,
)


def used(cluster: Cluster, resource: str = "cpu") -> list[int]:
    column: list[int] = cluster.snapshot.nodes.used(resource).tolist()
    return column


def messages(cluster: Cluster, pod: str) -> list[str]:
    return [event.message for _, event in cluster.api.events if event.pod == f"default/{pod}"]


def test_a_pod_is_bound_and_its_room_is_taken() -> None:
    cluster = Cluster([make_node("n", cpu=4)])
    cluster.add(make_pod("p", "1500m", None))
    assert_placed(cluster, p="n")
    assert used(cluster) == [1500]
    assert messages(cluster, "p") == ["Successfully assigned default/p to n"]


def test_a_pending_pod_runs_when_room_appears() -> None:
    cluster = Cluster([make_node("n", cpu=1)])
    cluster.add(make_pod("old", "1", None), make_pod("new", "1", None, priority=-1))
    assert_pending(cluster, "new", "0/1 nodes are available: 1 Insufficient cpu.")
    cluster.remove("old")
    assert cluster.advance(2) == {"new": "n"}


@pytest.mark.parametrize(
    "event",
    [
        lambda c: c.add(make_node("late", cpu=8)),
        lambda c: c.api.update(make_node("n", cpu=8)),
        lambda c: c.remove("old"),
    ],
    ids=["node added", "node grows", "pod removed"],
)
def test_every_event_that_makes_room_wakes_the_pod(event: Callable[[Cluster], object]) -> None:
    cluster = Cluster([make_node("n", cpu=1)])
    cluster.add(make_pod("old", "1", None, node="n"), make_pod("new", "1", None))
    cluster.schedule()
    event(cluster)
    assert "new" in cluster.advance(2)


def test_an_event_that_cannot_help_costs_no_cycle() -> None:
    cluster = Cluster([make_node("n", cpu=1)])
    cluster.add(make_pod("big", "4", None))
    cluster.schedule()
    cycles = cluster.scheduler.statistics.cycles
    cluster.add(make_pod("placed", "1", None, node="n"))
    cluster.advance(30)
    assert cluster.scheduler.statistics.cycles == cycles


def test_the_same_refusal_is_told_once() -> None:
    cluster = Cluster([make_node("n", cpu=1)])
    cluster.add(make_pod("big", "4", None))
    cluster.advance(1000)
    assert cluster.scheduler.statistics.cycles > 2
    assert len(messages(cluster, "big")) == 1


@pytest.mark.parametrize("error", [Conflict("changed"), NotFound("gone"), ClusterError("500")])
def test_a_binding_that_fails_is_undone_and_tried_again(error: ClusterError) -> None:
    cluster = Cluster([make_node("n")])
    cluster.api.faults.fail_next(Bind, error)
    cluster.add(make_pod("p"))
    assert cluster.schedule() == {}
    assert used(cluster) == [0]
    assert "binding to n was refused" in messages(cluster, "p")[0]
    assert cluster.advance(2) == {"p": "n"}


def test_a_failed_binding_of_one_member_is_repaired_alone() -> None:
    cluster = Cluster([make_node("n", cpu=8)])
    cluster.api.faults.fail_next(Bind, Conflict("changed"))
    cluster.add(make_gang("job", 3), *(make_pod(f"job-{i}", gang="job") for i in range(3)))
    assert len(cluster.schedule()) == 2
    assert len(cluster.advance(5)) == 3


def test_a_status_that_cannot_be_written_stops_nothing() -> None:
    cluster = Cluster([make_node("n", cpu=1)])
    cluster.api.faults.fail_next(PatchPodStatus, ClusterError("500"))
    cluster.add(make_pod("big", "4", None), make_pod("small", "1", None))
    assert_placed(cluster, small="n")


def test_nothing_is_lost_when_the_watch_breaks() -> None:
    cluster = Cluster([make_node("a", cpu=2), make_node("b", cpu=2)])
    cluster.add(make_pod("one", "2", None), make_pod("gone", "2", None), make_gang("old", 1))
    cluster.schedule()
    cluster.api.break_watch()
    cluster.api.delete(Pod, "default/gone", grace=0)
    cluster.api.delete(PodGroup, "default/old")
    cluster.api.create(make_node("c", cpu=2))
    cluster.api.create(make_pod("two", "2", None))
    cluster.api.create(make_pod("three", "2", None))
    assert "two" not in cluster.schedule()
    cluster.api.resume_watch()
    assert sorted(cluster.schedule()) == ["one", "three", "two"]
    assert used(cluster) == [2000, 2000, 2000]
    assert not cluster.snapshot.objects(PodGroup)


def test_a_node_that_vanishes_takes_its_pods_and_no_others() -> None:
    cluster = Cluster([make_node("a", cpu=1), make_node("b", cpu=1)])
    cluster.add(make_pod("one", "1", None), make_pod("two", "1", None))
    assert_placed(cluster, one="a", two="b")
    cluster.api.vanish_node("a")
    assert cluster.schedule() == {"two": "b"}
    assert cluster.snapshot.nodes.names == ["b"]
    cluster.add(make_node("a", cpu=1), make_pod("again", "1", None))
    assert_placed(cluster, again="a")


def test_pods_of_a_node_that_is_not_known_yet_count_when_it_comes() -> None:
    cluster = Cluster([make_pod("early", "1", None, node="late"), make_node("n", cpu=1)])
    cluster.add(make_node("late", cpu=1))
    cluster.add(make_pod("p", "1", None))
    assert_placed(cluster, p="n")


def test_finished_pods_give_their_room_back() -> None:
    cluster = Cluster([make_node("n", cpu=1)])
    cluster.add(make_pod("done", "1", None))
    cluster.schedule()
    pod = cluster.api.get(Pod, "default/done")
    assert pod is not None
    cluster.api.update(replace(pod, status=replace(pod.status, phase="Succeeded")))
    cluster.add(make_pod("next", "1", None))
    assert cluster.schedule()["next"] == "n"


def test_a_terminating_pod_keeps_its_room_until_it_is_gone() -> None:
    cluster = Cluster([make_node("n", cpu=1)])
    cluster.add(make_pod("old", "1", None))
    cluster.schedule()
    cluster.api.delete(Pod, "default/old")
    cluster.add(make_pod("new", "1", None))
    assert_pending(cluster, "new", "Insufficient cpu")
    # The grace period is 30 s.
    assert "new" not in cluster.advance(29)
    assert cluster.advance(5) == {"new": "n"}


def test_a_pod_made_anew_under_its_old_name_is_another_pod() -> None:
    cluster = Cluster([make_node("n", cpu=3)])
    cluster.add(make_pod("p", "3", None))
    cluster.schedule()
    cluster.api.delete(Pod, "default/p", grace=0)
    cluster.api.create(make_pod("p", "1", None))
    assert_placed(cluster, p="n")
    assert used(cluster) == [1000]


def test_relabelling_a_node_moves_no_pod_and_wakes_those_it_helps() -> None:
    cluster = Cluster([make_node("n")])
    cluster.add(make_pod("p", spec={"nodeSelector": {"disk": "ssd"}}))
    assert_pending(cluster, "p", "1 node(s) didn't match Pod's node affinity/selector")
    cluster.api.update(make_node("n", labels={"disk": "ssd"}))
    assert cluster.advance(2) == {"p": "n"}


def test_an_unready_node_takes_no_pods() -> None:
    node = make_node("n")
    conditions = ({"type": "Ready", "status": "False"},)
    from bayplan.api.node import NodeCondition

    status = replace(node.status, conditions=tuple(NodeCondition(**c) for c in conditions))
    cluster = Cluster([replace(node, status=status)])
    cluster.add(make_pod("p"))
    assert_pending(cluster, "p", "node(s) had untolerated taint(s)")


def test_gated_pods_are_told_so_and_run_when_the_gates_go() -> None:
    cluster = Cluster([make_node("n")])
    cluster.add(make_pod("p", spec={"schedulingGates": [{"name": "quota"}]}))
    assert_pending(cluster, "p", "waiting for scheduling gates: [quota]")
    pod = cluster.api.get(Pod, "default/p")
    assert pod is not None
    cluster.api.update(replace(pod, spec=replace(pod.spec, scheduling_gates=())))
    assert_placed(cluster, p="n")


def test_two_profiles_share_one_cluster() -> None:
    from bayplan.profiles.loading import ProfileSet, default_profiles

    first = default_profiles().profiles[0]
    profiles = ProfileSet((first, replace(first, scheduler_name="other")))
    cluster = Cluster([make_node("n", cpu=2)], profiles)
    cluster.add(
        make_pod("a", "1", None),
        make_pod("b", "1", None, spec={"schedulerName": "other"}),
        make_pod("c", "1", None, spec={"schedulerName": "strange"}),
    )
    assert cluster.schedule() == {"a": "n", "b": "n"}
    assert used(cluster) == [2000]


def test_nodes_of_one_score_are_taken_in_natural_order() -> None:
    cluster = Cluster([make_node(f"node-{i}", cpu=1) for i in (10, 9, 2, 1)])
    cluster.add(*(make_pod(f"p-{i}", "1", None) for i in range(4)))
    assert_placed(cluster, p_0="node-1", p_1="node-2", p_2="node-9", p_3="node-10")


def test_a_node_that_reports_nonsense_offers_nothing() -> None:
    from bayplan.api import Quantity

    node = make_node("n")
    amounts = {**node.status.allocatable, "cpu": Quantity("-4")}
    cluster = Cluster([replace(node, status=replace(node.status, allocatable=amounts))])
    cluster.add(make_pod("p"))
    assert_pending(cluster, "p", "Insufficient cpu")
    assert cluster.api.get(Node, "n") is not None


class Licence(Plugin[Args]):
    """Refuses everything until a pod named "server" runs, and knows that nothing else helps."""

    requeue_on = ClusterEvent.POD_PLACED

    @hookimpl
    def pre_filter(self, pod: PodInfo) -> str | None:
        running = "default/server" in self.handle.snapshot.placed
        return None if running or pod.name == "server" else "no licence server"

    @hookimpl
    def requeue_hint(self, subject: PodInfo | None) -> bool:
        return subject is not None and subject.name == "server"


def test_a_hint_decides_which_event_wakes_a_pod() -> None:
    cluster = Cluster([make_node("n")], plugins=[Licence])
    cluster.add(make_pod("p"))
    assert_pending(cluster, "p", "0/1 nodes are available: no licence server.")
    cycles = cluster.scheduler.statistics.cycles
    cluster.add(make_pod("other", node="n"))
    cluster.advance(20)
    assert cluster.scheduler.statistics.cycles == cycles
    cluster.add(make_pod("server", node="n"))
    assert cluster.advance(20)["p"] == "n"
