"""The Workload objects of pods and of groups of pods, and what becomes of them."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from tests.plugins.queues.kueue.kueue_builders import check as active_check
from tests.plugins.queues.kueue.kueue_builders import cluster_queue, workload
from tests.plugins.queues.kueue.queued_job_builders import GPU, LABEL, one_queue, started

from bayplan.api import (
    ApiObject,
    KueueWorkload,
    ObjectMeta,
    Pod,
    PriorityClass,
    WorkloadPriorityClass,
)
from bayplan.api.kueue import ClusterQueue, PriorityClassRef
from bayplan.api.objects import decode_part
from bayplan.cluster.protocol import WatchEvent
from bayplan.testing import Cluster, make_gang, make_node, make_pod

GATE = {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}
GROUP = "kueue.x-k8s.io/pod-group-name"
TOTAL = "kueue.x-k8s.io/pod-group-total-count"
MANAGED = "kueue.x-k8s.io/managed"


def queued(name: str, gpu: int = 1, **more: Any) -> Pod:
    return make_pod(name, None, None, {LABEL: "lq", **more.pop("labels", {})}, gpu=gpu, **more)


def member(name: str, total: int = 2, group: str = "g", gpu: int = 1, **more: Any) -> Pod:
    labels = {GROUP: group, **more.pop("labels", {})}
    made = queued(name, gpu, labels=labels, **more)
    marks = {**made.metadata.annotations, TOTAL: str(total)}
    return replace(made, metadata=replace(made.metadata, annotations=marks))


def annotated(pod: Pod, **marks: str) -> Pod:
    wanted = {f"kueue.x-k8s.io/{name.replace('_', '-')}": text for name, text in marks.items()}
    meta = replace(pod.metadata, annotations={**pod.metadata.annotations, **wanted})
    return replace(pod, metadata=meta)


def run(*objects: ApiObject, quota: int = 4) -> Cluster:
    return started(make_node("n", gpu=8), *one_queue(quota), *objects)


def only(cluster: Cluster) -> KueueWorkload:
    (found,) = cluster.api.list(KueueWorkload)
    return found


def stated(found: KueueWorkload) -> dict[str, tuple[str, str]]:
    return {one.type: (one.status, one.reason) for one in found.status.conditions}


def ends(cluster: Cluster, name: str, phase: str = "Succeeded", message: str = "") -> None:
    pod = cluster.api.get(Pod, f"default/{name}")
    assert pod is not None
    cluster.api.update(replace(pod, status=replace(pod.status, phase=phase, message=message)))
    cluster.advance(5.0)


def charged(cluster: Cluster) -> int:
    queue = cluster.api.get(ClusterQueue, "cq")
    assert queue is not None
    (flavor,) = queue.status.flavors_reservation
    return int(flavor.resources[0].total.amount)


# What they say -------------------------------------------------------------------------------


@pytest.mark.parametrize("labelled", [True, False], ids=["of workloads", "of pods"])
def test_a_workload_names_the_class_by_which_it_has_its_priority(labelled: bool) -> None:
    classes = [
        WorkloadPriorityClass(7, ObjectMeta(name="urgent")),
        PriorityClass(5, ObjectMeta(name="high")),
    ]
    label = {"kueue.x-k8s.io/priority-class": "urgent"} if labelled else {}
    made = queued("p", labels=label, priority=5)
    made = replace(made, spec=replace(made.spec, priority_class_name="high"))
    group, kind, name, value = (
        ("kueue.x-k8s.io", "WorkloadPriorityClass", "urgent", 7)
        if labelled
        else ("scheduling.k8s.io", "PriorityClass", "high", 5)
    )
    spec = only(run(*classes, made)).spec
    assert (spec.priority_class_ref, spec.priority) == (PriorityClassRef(group, kind, name), value)


def test_without_a_label_the_class_of_workloads_that_is_called_default_counts() -> None:
    classes = [
        WorkloadPriorityClass(7, ObjectMeta(name="default")),
        PriorityClass(5, ObjectMeta(name="high")),
    ]
    made = queued("p", priority=5)
    made = replace(made, spec=replace(made.spec, priority_class_name="high"))
    spec = only(run(*classes, made)).spec
    assert spec.priority == 7
    assert spec.priority_class_ref is not None
    assert spec.priority_class_ref.name == "default"


def test_the_workload_of_a_pod_is_as_kueue_writes_it() -> None:
    pod = replace(queued("p"), metadata=replace(queued("p").metadata, uid="test-uid"))
    cluster = run(pod)
    found = only(cluster)
    assert found.metadata.name.startswith("pod-p-")
    (owner,) = found.metadata.owner_references
    assert (owner.kind, owner.name, owner.controller) == ("Pod", "p", True)
    assert found.metadata.labels["kueue.x-k8s.io/job-uid"] == "test-uid"
    (pod_set,) = found.spec.pod_sets
    assert (pod_set.name, pod_set.count) == ("main", 1)
    assert pod_set.template.spec.node_name == ""
    assert found.spec.queue_name == "lq"
    assert stated(found)["Admitted"] == ("True", "Admitted")


def test_the_workload_of_a_group_has_its_name_all_owners_and_a_pod_set_for_each_role() -> None:
    cluster = run(member("a", 3), member("b", 3), member("big", 3, gpu=2))
    found = only(cluster)
    assert found.metadata.name == "g"
    assert found.metadata.annotations["kueue.x-k8s.io/is-group-workload"] == "true"
    owners = {one.name: one.controller for one in found.metadata.owner_references}
    assert owners == {"a": False, "b": False, "big": False}
    assert sorted(one.count for one in found.spec.pod_sets) == [1, 2]
    assert [one.name for one in found.spec.pod_sets] == sorted(o.name for o in found.spec.pod_sets)
    assert len(cluster.placements()) == 3


def test_the_roles_that_kueues_webhook_wrote_name_the_pod_sets() -> None:
    roles = [annotated(member(name), role_hash=f"role-{name}") for name in "ab"]
    assert [one.name for one in only(run(*roles)).spec.pod_sets] == ["role-a", "role-b"]


def test_admitted_pods_are_marked_so_that_kueues_manager_goes_on_with_them() -> None:
    cluster = run(queued("p"), member("a"), member("b"), quota=2)
    pods = {pod.metadata.name: pod.metadata for pod in cluster.api.list(Pod)}
    group, single = pods["a"], pods["p"]
    admitted = {name for name, meta in pods.items() if meta.labels.get(MANAGED) == "true"}
    assert admitted == set(cluster.placements())
    assert "kueue.x-k8s.io/role-hash" not in single.annotations
    assert ("kueue.x-k8s.io/role-hash" in group.annotations) == ("a" in admitted)


def test_a_gang_of_another_system_is_a_group_to_bayplan_alone() -> None:
    pods = [queued(name, gang="ring") for name in "ab"]
    cluster = run(make_gang("ring", 2), *pods)
    found = only(cluster)
    assert found.metadata.name.startswith("group-ring-")
    assert found.metadata.annotations == {}
    assert all(MANAGED not in pod.metadata.labels for pod in cluster.api.list(Pod))
    assert charged(cluster) == 2


def test_a_group_that_is_admitted_fast_gets_quota_for_all_its_pods_with_the_first() -> None:
    first = annotated(member("a", 3), pod_group_fast_admission="true")
    cluster = run(first)
    assert set(cluster.placements()) == {"a"}
    assert charged(cluster) == 3
    cluster.add(annotated(member("b", 3), pod_group_fast_admission="true"))
    cluster.advance(5.0)
    assert set(cluster.placements()) == {"a", "b"}
    assert charged(cluster) == 3
    owners = {one.name for one in only(cluster).metadata.owner_references}
    assert owners == {"a", "b"}


def test_a_name_that_another_job_has_taken_keeps_a_group_waiting_and_says_so() -> None:
    other = workload("g", "lq")
    reference = {
        "kind": "Job",
        "name": "j",
        "uid": "u",
        "controller": True,
        "apiVersion": "batch/v1",
    }
    own = {"app.kubernetes.io/managed-by": "bayplan"}
    meta = {"name": "g", "namespace": "default", "ownerReferences": [reference], "labels": own}
    other = replace(other, metadata=decode_part(type(other.metadata), meta))
    cluster = run(other, member("a"), member("b"))
    assert cluster.placements() == {}
    assert 'another job has a Workload "g"' in cluster.message("default/a")


def test_a_group_in_two_queues_waits_and_says_so() -> None:
    other = member("b")
    labels = {**other.metadata.labels, LABEL: "another"}
    cluster = run(member("a"), replace(other, metadata=replace(other.metadata, labels=labels)))
    assert cluster.placements() == {}
    assert "are in different queues: lq and another" in cluster.message("default/a")


def test_a_group_of_more_roles_than_a_workload_has_pod_sets_waits_and_says_so() -> None:
    pods = [annotated(member(f"p{n}", 19, gpu=0), role_hash=f"role-{n}") for n in range(19)]
    cluster = run(*pods)
    assert cluster.placements() == {}
    assert "a group has at most 18 roles" in cluster.message("default/p0")


def test_a_group_whose_indexes_exceed_its_number_waits_and_says_so() -> None:
    pods = [member("a"), member("b", labels={"kueue.x-k8s.io/pod-group-pod-index": "2"})]
    assert 'expected an index below 2, got "2"' in run(*pods).message("default/a")


def test_a_pod_of_a_group_that_it_does_not_name_waits_and_says_so() -> None:
    cluster = run(annotated(queued("p"), pod_group_total_count="2"))
    assert cluster.placements() == {}
    assert "expected kueue.x-k8s.io/pod-group-name beside it" in cluster.message("default/p")


def test_a_group_whose_name_no_workload_can_have_waits_and_says_so() -> None:
    cluster = run(*(member(name, group="a_b") for name in "ab"))
    assert cluster.placements() == {}
    assert '"a_b" is no name of a group' in cluster.message("default/a")


def test_a_pod_that_asks_for_two_topologies_waits_and_says_so() -> None:
    topologies = {"podset_required_topology": "rack", "podset_preferred_topology": "block"}
    cluster = run(annotated(queued("p"), **topologies))
    assert cluster.placements() == {}
    assert "exclude each other" in cluster.message("default/p")


def test_a_pod_that_is_gated_by_a_controller_waits_for_it() -> None:
    cluster = run(annotated(queued("p"), admission_gated_by="example.com/gate"))
    assert cluster.api.list(KueueWorkload) == []
    assert "waits for example.com/gate" in cluster.message("default/p")


# Who decides beside bayplan ------------------------------------------------------------------


def test_admission_checks_hold_pods_back_until_they_are_ready() -> None:
    rules = {"admissionChecks": [{"name": "budget"}]}
    queue = cluster_queue("cq", {"f": {GPU: 4}}, admissionChecksStrategy=rules)
    objects = [one for one in one_queue(4) if not isinstance(one, ClusterQueue)]
    cluster = started(
        make_node("n", gpu=8), active_check(), *objects, queue, queued("p", spec=GATE)
    )
    assert cluster.placements() == {}
    found = only(cluster)
    (check,) = found.status.admission_checks
    assert (check.name, check.state) == ("budget", "Pending")
    ready = replace(found.status, admission_checks=(replace(check, state="Ready"),))
    cluster.api.update(replace(found, status=ready))
    cluster.advance(5.0)
    assert cluster.placements() == {"p": "n"}


def test_a_pod_gets_what_its_checks_ask_for_and_the_labels_of_its_queues() -> None:
    rules = {"admissionChecks": [{"name": "budget"}]}
    queue = cluster_queue("cq", {"f": {GPU: 4}}, admissionChecksStrategy=rules)
    objects = [one for one in one_queue(4) if not isinstance(one, ClusterQueue)]
    cluster = started(
        make_node("n", gpu=8, labels={"pool": "a"}),
        active_check(),
        *objects,
        queue,
        queued("p", spec=GATE),
    )
    found = only(cluster)
    (check,) = found.status.admission_checks
    toleration = {"key": "new", "operator": "Exists", "effect": "NoSchedule"}
    update = {"name": "main", "nodeSelector": {"pool": "a"}, "tolerations": [toleration]}
    done = replace(check, state="Ready", pod_set_updates=(update,))
    cluster.api.update(replace(found, status=replace(found.status, admission_checks=(done,))))
    cluster.advance(5.0)
    assert cluster.placements() == {"p": "n"}
    pod = cluster.api.get(Pod, "default/p")
    assert pod is not None
    assert pod.spec.node_selector == {"pool": "a"}
    assert [one.key for one in pod.spec.tolerations if one.key == "new"] == ["new"]
    names = ("podset", "local-queue-name", "cluster-queue-name")
    labels = [pod.metadata.labels[f"kueue.x-k8s.io/{name}"] for name in names]
    assert labels == ["main", "lq", "cq"]


def test_a_workload_that_is_deactivated_stops_its_pods() -> None:
    cluster = run(queued("p"))
    found = only(cluster)
    cluster.api.update(replace(found, spec=replace(found.spec, active=False)))
    cluster.advance(60.0)
    assert cluster.placements() == {}
    assert cluster.api.list(KueueWorkload) == [], "it goes with its pod"


def test_a_deleted_workload_of_a_running_pod_is_made_again_with_its_quota() -> None:
    cluster = run(queued("p"))
    cluster.api.delete(KueueWorkload, only(cluster).key)
    cluster.advance(5.0)
    assert stated(only(cluster))["Admitted"][0] == "True"
    assert cluster.placements() == {"p": "n"}


def test_a_restart_goes_on_from_the_workloads() -> None:
    before = run(queued("p"), member("a"), member("b"), queued("late", 3))
    kept = [*before.api.list(KueueWorkload), *before.api.list(Pod)]
    cluster = run(*kept)
    assert set(cluster.placements()) == {"p", "a", "b"}
    assert charged(cluster) == 3
    uids = {one.key: one.metadata.uid for one in before.api.list(KueueWorkload)}
    assert {one.key: one.metadata.uid for one in cluster.api.list(KueueWorkload)} == uids


# How they end --------------------------------------------------------------------------------


def test_a_pod_that_ends_finishes_its_workload_and_frees_the_quota() -> None:
    cluster = run(queued("p", 4), queued("next", 4))
    ends(cluster, "p", message="done")
    found = {one.metadata.owner_references[0].name: one for one in cluster.api.list(KueueWorkload)}
    assert stated(found["p"])["Finished"] == ("True", "Succeeded")
    assert set(cluster.placements()) >= {"next"}
    assert charged(cluster) == 4
    cluster.api.delete(Pod, "default/p")
    cluster.advance(5.0)
    assert {one.metadata.owner_references[0].name for one in cluster.api.list(KueueWorkload)} == {
        "next"
    }


def test_pods_of_a_group_that_have_succeeded_give_their_quota_back() -> None:
    cluster = run(member("a"), member("b"))
    assert charged(cluster) == 2
    ends(cluster, "a")
    assert charged(cluster) == 1
    assert [one.count for one in only(cluster).status.reclaimable_pods] == [1]
    ends(cluster, "b")
    assert stated(only(cluster))["Finished"] == ("True", "Succeeded")
    assert charged(cluster) == 0


def test_a_group_waits_for_the_replacement_of_a_pod_that_failed() -> None:
    cluster = run(member("a"), member("b"))
    ends(cluster, "a", "Failed")
    assert stated(only(cluster))["WaitingForReplacementPods"] == ("True", "PodsFailed")
    assert charged(cluster) == 2
    cluster.add(member("c"))
    cluster.advance(5.0)
    assert set(cluster.placements()) >= {"b", "c"}
    assert stated(only(cluster))["WaitingForReplacementPods"] == ("False", "PodsReady")


@pytest.mark.parametrize("restarted", [False, True])
def test_a_pod_that_failed_is_replaced_after_the_others_have_succeeded(restarted: bool) -> None:
    cluster = run(member("a"), member("b"))
    ends(cluster, "a")
    ends(cluster, "b", "Failed")
    if restarted:
        kept = [*cluster.api.list(Pod), *cluster.api.list(KueueWorkload)]
        cluster = run(*kept)
    cluster.add(member("c"))
    cluster.advance(5.0)
    assert "c" in cluster.placements()
    ends(cluster, "c")
    assert stated(only(cluster))["Finished"] == ("True", "Succeeded")


def test_a_pod_beyond_the_number_of_its_group_is_deleted() -> None:
    cluster = run(member("a"), member("b"))
    ends(cluster, "a")
    cluster.add(member("excess"))
    cluster.advance(5.0)
    assert {pod.metadata.name for pod in cluster.api.list(Pod)} == {"a", "b"}
    told = [one.message for _, one in cluster.api.events if one.reason == "ExcessPodDeleted"]
    assert told == ["Excess pod deleted"]
    assert [one.count for one in only(cluster).spec.pod_sets] == [2]


def test_a_pod_beyond_the_number_of_its_group_is_never_let_go() -> None:
    cluster = run(member("a", 3), member("b", 3), member("c", 3))
    ends(cluster, "a")
    ends(cluster, "b", "Failed")
    # In the order of their names the later one would stay, once both were let go.
    cluster.add(member("y", 3, spec=GATE))
    cluster.advance(0.2)
    beyond = member("x", 3, spec=GATE)
    kept = replace(beyond.metadata, finalizers=("example.com/kept",))
    cluster.add(replace(beyond, metadata=kept))
    cluster.advance(5.0)
    assert "y" in cluster.placements()
    found = cluster.api.get(Pod, "default/x")
    assert found is not None
    assert found.metadata.deletion_timestamp
    assert found.spec.scheduling_gates


def test_a_group_with_too_many_pods_is_admitted_with_its_number() -> None:
    pods = [member(name, gpu=2) for name in "abc"]
    cluster = run(*pods, quota=4)
    assert {pod.metadata.name for pod in cluster.api.list(Pod)} == {"a", "b"}
    assert [one.count for one in only(cluster).spec.pod_sets] == [2]
    assert charged(cluster) == 4


def test_each_role_of_a_group_has_its_number() -> None:
    cluster = run(member("a"), member("b", gpu=2))
    ends(cluster, "b", "Failed")
    cluster.add(member("c"), member("d", gpu=2))
    cluster.advance(5.0)
    assert {pod.metadata.name for pod in cluster.api.list(Pod)} == {"a", "b", "d"}
    assert charged(cluster) == 3


def test_a_service_may_have_more_pods_than_its_number_while_it_is_updated() -> None:
    pods = [annotated(member(name), pod_group_serving="true") for name in "ab"]
    cluster = run(*pods)
    cluster.add(annotated(member("c"), pod_group_serving="true"))
    cluster.advance(5.0)
    assert {pod.metadata.name for pod in cluster.api.list(Pod)} == {"a", "b", "c"}


def test_a_group_of_which_one_pod_may_not_be_retried_ends_with_the_last_that_runs() -> None:
    pods = [annotated(member(name), retriable_in_group="false") for name in "ab"]
    cluster = run(*pods)
    for name in "ab":
        ends(cluster, name, "Failed")
    assert stated(only(cluster))["Finished"][0] == "True"
    assert charged(cluster) == 0


def test_a_gang_of_another_system_begins_again_after_its_end() -> None:
    cluster = run(make_gang("ring", 2), *[queued(name, gang="ring") for name in "ab"])
    for name in "ab":
        ends(cluster, name, "Failed")
    assert stated(only(cluster))["Finished"] == ("True", "Failed")
    assert charged(cluster) == 0
    cluster.add(*[queued(name, gang="ring") for name in "cd"])
    cluster.advance(60.0)
    assert set(cluster.placements()) >= {"c", "d"}
    assert charged(cluster) == 2


def test_pods_that_ended_while_nobody_was_there_lose_the_finalizer_and_finish() -> None:
    pod = queued("p", node="n", labels={MANAGED: "true"})
    ended = replace(pod, status=replace(pod.status, phase="Failed"))
    meta = replace(ended.metadata, finalizers=("kueue.x-k8s.io/managed",), uid="u")
    kept = run(replace(pod, metadata=meta))
    before = only(kept)
    cluster = Cluster((), plugins={"Queues": {}})
    cluster.add(make_node("n", gpu=8), *one_queue(4), before, replace(ended, metadata=meta))
    cluster.schedule()
    cluster.advance(5.0)
    found = cluster.api.get(Pod, "default/p")
    assert found is not None
    assert found.metadata.finalizers == ()
    assert stated(only(cluster))["Finished"] == ("True", "Failed")
    assert charged(cluster) == 0


def test_a_pod_without_a_gate_gets_no_node_before_its_workload_says_so() -> None:
    """Whoever comes next would not know why it runs."""
    cluster = started(make_node("n", gpu=8), *one_queue(4))
    seen: list[str] = []

    def note(event: WatchEvent) -> None:
        if isinstance(event.obj, KueueWorkload):
            status = {one.type: one.status for one in event.obj.status.conditions}
            seen.extend(["admitted"] if status.get("Admitted") == "True" else [])
        elif isinstance(event.obj, Pod) and event.obj.spec.node_name:
            seen.append("placed")

    cluster.api.watch(note)
    cluster.add(queued("p"))
    cluster.schedule()
    cluster.advance(5.0)
    assert cluster.placements() == {"p": "n"}
    assert seen.index("admitted") < seen.index("placed")


# Pods that their group still counts --------------------------------------------------------


def kept(name: str, total: int = 2, **more: Any) -> Pod:
    """Return a member with the finalizer that the admission policy gives it."""
    made = member(name, total, **more)
    return replace(made, metadata=replace(made.metadata, finalizers=(MANAGED,)))


def delete(cluster: Cluster, *names: str) -> None:
    for name in names:
        cluster.api.delete(Pod, f"default/{name}")
    cluster.advance(5.0)


def there(cluster: Cluster) -> set[str]:
    return {pod.metadata.name for pod in cluster.api.list(Pod)}


def test_a_pod_that_failed_stays_until_it_is_replaced() -> None:
    cluster = run(kept("a"), kept("b"))
    ends(cluster, "b")
    ends(cluster, "a", "Failed")
    delete(cluster, "a")
    assert there(cluster) == {"a", "b"}
    cluster.add(kept("c"))
    cluster.advance(5.0)
    assert there(cluster) == {"b", "c"}
    assert "c" in cluster.placements()


def test_a_pod_that_succeeded_counts_although_it_is_deleted() -> None:
    cluster = run(kept("a"), kept("b"))
    ends(cluster, "a")
    delete(cluster, "a")
    assert there(cluster) == {"a", "b"}
    assert "WaitingForReplacementPods" not in stated(only(cluster))
    ends(cluster, "b")
    cluster.advance(5.0)
    assert stated(only(cluster))["Finished"] == ("True", "Succeeded")
    assert there(cluster) == {"b"}
    (left,) = cluster.api.list(Pod)
    assert left.metadata.finalizers == ()


def test_pods_of_a_preempted_group_stay_until_they_are_replaced() -> None:
    classes = [WorkloadPriorityClass(7, ObjectMeta(name="urgent"))]
    within = {"preemption": {"withinClusterQueue": "LowerPriority"}}
    queue = cluster_queue("cq", {"f": {GPU: 2}}, **within)
    cluster = started(make_node("n", gpu=8), *one_queue(2), *classes)
    cluster.api.update(queue)
    cluster.add(kept("a"), kept("b"))
    cluster.advance(5.0)
    label = {"kueue.x-k8s.io/priority-class": "urgent"}
    cluster.add(queued("urgent", gpu=2, labels=label))
    cluster.advance(120.0)
    assert "urgent" in cluster.placements()
    assert there(cluster) == {"a", "b", "urgent"}
    told = [one.pod for _, one in cluster.api.events if one.reason == "Stopped"]
    assert told == ["default/a", "default/b"]
    cluster.add(kept("c"), kept("d"))
    cluster.advance(5.0)
    assert there(cluster) == {"c", "d", "urgent"}
    ends(cluster, "urgent")
    assert {"c", "d"} <= set(cluster.placements())


def test_a_group_that_its_user_deletes_goes() -> None:
    cluster = run(kept("a"), kept("b"))
    assert set(cluster.placements()) == {"a", "b"}
    ends(cluster, "a")
    ends(cluster, "b", "Failed")
    delete(cluster, "a", "b")
    assert there(cluster) == set()
    assert not cluster.api.list(KueueWorkload)


@pytest.mark.parametrize("restarted", [False, True])
def test_pods_of_a_group_go_with_its_workload(restarted: bool) -> None:
    cluster = run(kept("a"), kept("b"))
    ends(cluster, "a")
    ends(cluster, "b", "Failed")
    delete(cluster, "b")
    if restarted:
        left = [*cluster.api.list(Pod), *cluster.api.list(KueueWorkload)]
        cluster = run(*left)
        cluster.advance(5.0)
    assert "b" in there(cluster)
    cluster.api.delete(KueueWorkload, "default/g")
    cluster.advance(5.0)
    assert "b" not in there(cluster)


def test_without_the_last_queue_pods_wait_for_one_that_takes_its_place() -> None:
    cluster = run()
    cluster.api.delete(ClusterQueue, "cq")
    cluster.add(queued("p"))
    cluster.advance(5.0)
    assert not cluster.placements()
    cluster.add(one_queue(4)[1])
    cluster.advance(5.0)
    assert "p" in cluster.placements()
