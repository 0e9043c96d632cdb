"""The embedded cluster does what an API server does for its clients."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from bayplan.api import Node, Pod, PodCondition
from bayplan.cluster.embedded.clock import VirtualClock
from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.cluster.protocol import Bind, Evict, PatchPodStatus, WatchEvent, WatchType
from bayplan.errors import AlreadyExists, ClusterError, Conflict, InputError, NotFound
from bayplan.testing import make_node, make_object, make_pod


class Watcher:
    """Collects what a watch delivers."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self.events: list[WatchEvent] = []
        cluster.watch(self.events.append)

    def seen(self) -> list[tuple[str, str]]:
        return [(e.type.value, e.obj.metadata.name) for e in self.events if e.obj is not None]


def submit(cluster: MemoryCluster, write: Bind | Evict | PatchPodStatus) -> ClusterError | None:
    answers: list[ClusterError | None] = []
    cluster.submit(write, answers.append)
    return answers[0]


def test_a_watch_lists_what_is_there_and_then_every_change() -> None:
    cluster = MemoryCluster()
    cluster.create(make_node("a"))
    watcher = Watcher(cluster)
    cluster.create(make_node("b"))
    cluster.delete(Node, "a")
    cluster.deliver()
    assert watcher.seen() == [("ADDED", "a"), ("ADDED", "b"), ("DELETED", "a")]


def test_an_update_that_changes_nothing_is_not_written() -> None:
    cluster = MemoryCluster()
    first = cluster.create(make_node("a"))
    watcher = Watcher(cluster)
    assert cluster.update(first) == first
    cluster.deliver()
    assert watcher.seen() == [("ADDED", "a")]


def test_versions_grow_and_guard_updates() -> None:
    cluster = MemoryCluster()
    first = cluster.create(make_node("a"))
    second = cluster.update(replace(first, spec=replace(first.spec, unschedulable=True)))
    assert int(second.metadata.resource_version) > int(first.metadata.resource_version)
    with pytest.raises(Conflict, match="changed meanwhile"):
        cluster.update(first)


def test_a_name_is_taken_once() -> None:
    cluster = MemoryCluster()
    cluster.create(make_node("a"))
    with pytest.raises(AlreadyExists):
        cluster.create(make_node("a"))
    with pytest.raises(NotFound):
        cluster.update(make_node("b"))


def test_a_pod_is_bound_once() -> None:
    cluster = MemoryCluster()
    cluster.create(make_node("a"))
    pod = cluster.create(make_pod("p"))
    bind = Bind(pod.key, pod.metadata.uid, "a")
    assert submit(cluster, bind) is None
    assert isinstance(submit(cluster, bind), Conflict)
    bound = cluster.get(Pod, pod.key)
    assert bound is not None
    assert bound.spec.node_name == "a"
    assert [(c.type, c.status) for c in bound.status.conditions] == [("PodScheduled", "True")]


@pytest.mark.parametrize(
    ("uid", "node", "error"), [("other", "a", Conflict), ("", "nowhere", NotFound)]
)
def test_a_binding_of_the_wrong_pod_or_node_is_refused(
    uid: str, node: str, error: type[ClusterError]
) -> None:
    cluster = MemoryCluster()
    cluster.create(make_node("a"))
    cluster.create(make_pod("p"))
    assert isinstance(submit(cluster, Bind("default/p", uid, node)), error)


def test_priority_comes_from_the_class_or_the_global_default() -> None:
    cluster = MemoryCluster()
    for name, value, default in (("high", 1000, False), ("usual", 10, True)):
        cluster.create(
            make_object(
                {
                    "apiVersion": "scheduling.k8s.io/v1",
                    "kind": "PriorityClass",
                    "metadata": {"name": name},
                    "value": value,
                    "globalDefault": default,
                }
            )
        )
    named = cluster.create(make_pod("a", spec={"priorityClassName": "high"}))
    usual = cluster.create(make_pod("b"))
    system = cluster.create(make_pod("c", spec={"priorityClassName": "system-node-critical"}))
    assert [p.spec.priority for p in (named, usual, system)] == [1000, 10, 2000001000]
    with pytest.raises(InputError, match='no PriorityClass with name "none"'):
        cluster.create(make_pod("d", spec={"priorityClassName": "none"}))


def test_eviction_marks_the_pod_and_honours_its_grace_period() -> None:
    cluster = MemoryCluster()
    cluster.create(make_node("a"))
    spec = {"terminationGracePeriodSeconds": 20}
    pod = cluster.create(make_pod("p", node="a", spec=spec))
    assert submit(cluster, Evict(pod.key, pod.metadata.uid, "room for another")) is None
    ending = cluster.get(Pod, pod.key)
    assert ending is not None
    assert ending.metadata.deletion_timestamp is not None
    reasons = {c.type: c.reason for c in ending.status.conditions}
    assert reasons["DisruptionTarget"] == "PreemptionByScheduler"
    cluster.clock.advance(19)
    assert cluster.get(Pod, pod.key) is not None
    cluster.clock.advance(20)
    assert cluster.get(Pod, pod.key) is None


def test_a_pending_pod_is_deleted_at_once() -> None:
    cluster = MemoryCluster()
    cluster.create(make_pod("p"))
    cluster.delete(Pod, "default/p")
    assert cluster.get(Pod, "default/p") is None


def test_a_status_patch_sets_one_condition_and_the_nomination() -> None:
    cluster = MemoryCluster()
    pod = cluster.create(make_pod("p"))
    condition = PodCondition("PodScheduled", "False", "Unschedulable", "no room")
    submit(cluster, PatchPodStatus(pod.key, pod.metadata.uid, condition, "a"))
    submit(cluster, PatchPodStatus(pod.key, pod.metadata.uid, condition))
    patched = cluster.get(Pod, pod.key)
    assert patched is not None
    assert [c.message for c in patched.status.conditions] == ["no room"]
    assert patched.status.nominated_node_name == "a"


def test_cordoned_nodes_carry_the_taint_until_they_are_opened() -> None:
    cluster = MemoryCluster()
    node = cluster.create(make_node("a", unschedulable=True))
    assert [t.key for t in node.spec.taints] == ["node.kubernetes.io/unschedulable"]
    opened = cluster.update(replace(node, spec=replace(node.spec, unschedulable=False)))
    assert opened.spec.taints == ()


def test_a_broken_watch_loses_events_and_resumes_with_everything() -> None:
    cluster = MemoryCluster()
    watcher = Watcher(cluster)
    cluster.break_watch()
    cluster.create(make_node("a"))
    cluster.deliver()
    assert watcher.events == []
    cluster.resume_watch()
    cluster.deliver()
    (event,) = watcher.events
    assert event.type is WatchType.RESYNC
    assert [obj.metadata.name for obj in event.objects] == ["a"]


def test_generated_names_follow_the_seed() -> None:
    template = make_pod("x")
    template = replace(template, metadata=replace(template.metadata, name="", generate_name="x-"))
    names = [MemoryCluster(seed).create(template).metadata.name for seed in (1, 1, 2)]
    assert names[0] == names[1] != names[2]


def test_time_runs_in_order_and_ties_by_arrival() -> None:
    cluster = MemoryCluster()
    seen: list[str] = []
    cluster.clock.call_at(5, lambda: seen.append("b"))
    cluster.clock.call_at(1, lambda: seen.append("a"))
    cluster.clock.call_at(5, lambda: seen.append("c"))
    cluster.clock.advance(4)
    assert seen == ["a"]
    cluster.clock.advance(9)
    assert seen == ["a", "b", "c"]
    assert cluster.now == 9


def test_idle_actions_run_in_their_order_and_keep_nobody_waiting() -> None:
    clock = VirtualClock()
    done: list[str] = []
    clock.call_later(2, lambda: done.append("idle"), idle=True)
    clock.call_later(3, lambda: done.append("work"))
    assert (clock.next_time(), clock.next_time(idle=False)) == (2, 3)
    clock.advance(3)
    assert done == ["idle", "work"]
    clock.call_later(1, lambda: done.append("later"), idle=True)
    assert clock.next_time(idle=False) is None
