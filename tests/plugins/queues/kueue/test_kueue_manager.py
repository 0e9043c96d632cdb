"""Kueue's own manager: while it is at work bayplan leaves the queues to it, and then takes over."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from tests.plugins.queues.kueue.kueue_builders import cluster_queue, flavor, local_queue
from tests.plugins.queues.kueue.queued_job_builders import (
    GPU,
    LABEL,
    job,
    on_nodes,
    running,
    started,
    workload_of,
)

from bayplan.api import ApiObject, ClusterQueue, Job, KueueWorkload, Pod
from bayplan.api.kueue import KueueWorkloadStatus
from bayplan.api.lease import Lease
from bayplan.api.objects import decode_part
from bayplan.api.pod import PodCondition
from bayplan.testing import Cluster, make_node, make_pod
from bayplan_plugins.queues.kueue.conditions import condition

LEASE = "kueue-system/c1f6bfd2.kueue.x-k8s.io"
IN_USE = "kueue.x-k8s.io/resource-in-use"


def queue(quota: int = 4, **spec: Any) -> list[ApiObject]:
    """Return a queue that Kueue's manager has taken into use, and eight GPUs."""
    made = cluster_queue("cq", {"f": {GPU: quota}}, **spec)
    made = replace(made, metadata=replace(made.metadata, finalizers=(IN_USE,)))
    return [make_node("n", gpu=8), flavor("f"), made, local_queue("lq", "cq")]


def lease(holder: str = "manager-1", renewed: int = 0) -> Lease:
    namespace, _, name = LEASE.partition("/")
    time = f"2026-01-01T00:00:{renewed:02}.000000Z"
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": time}
    return decode_part(Lease, {"metadata": {"name": name, "namespace": namespace}, "spec": spec})


def kueues(owner: ApiObject, count: int = 2, kind: str = "Job", **status: Any) -> KueueWorkload:
    """Return the Workload that Kueue's manager made of a job: pending, or as its status says."""
    container = {"name": "c", "resources": {"limits": {GPU: 1}}}
    meta = owner.metadata
    reference = {"kind": kind, "name": meta.name, "uid": meta.uid, "controller": True}
    metadata = {
        "name": f"{kind.lower()}-{meta.name}-12345",
        "namespace": "default",
        "uid": f"workload-of-{meta.name}",
        "labels": {"kueue.x-k8s.io/job-uid": meta.uid},
        "ownerReferences": [{**reference, "apiVersion": "batch/v1"}],
        "creationTimestamp": "2025-01-01T00:00:00Z",
    }
    pod_set = {"name": "main", "count": count, "template": {"spec": {"containers": [container]}}}
    spec = {"queueName": "lq", "podSets": [pod_set]}
    content = {"metadata": metadata, "spec": spec, "status": status}
    return decode_part(KueueWorkload, content)


def admitted(count: int = 2) -> dict[str, Any]:
    usage = {"flavors": {GPU: "f"}, "resourceUsage": {GPU: count}, "count": count}
    admission = {"clusterQueue": "cq", "podSetAssignments": [{"name": "main", **usage}]}
    conditions = [{"type": one, "status": "True"} for one in ("QuotaReserved", "Admitted")]
    return {"admission": admission, "conditions": conditions}


def owned(name: str, pods: int = 2, **spec: Any) -> Job:
    made = job(name, pods, **spec)
    return replace(made, metadata=replace(made.metadata, uid=f"uid-of-{name}"))


def finished() -> dict[str, Any]:
    return {"conditions": [{"type": "Finished", "status": "True", "reason": "Succeeded"}]}


def told(cluster: Cluster) -> list[str]:
    """Return the events of the ClusterQueue."""
    return [event.reason for _, event in cluster.api.events if event.about == "ClusterQueue"]


def note(cluster: Cluster) -> str:
    (report,) = cluster.scheduler.queues.reports()
    return next(iter(report.notes), "")


# While it is at work -----------------------------------------------------------------------


def renew(cluster: Cluster, seconds: int) -> None:
    for second in range(1, seconds // 5 + 1):
        cluster.api.update(lease(renewed=second))
        cluster.advance(5.0)


def test_where_the_manager_renews_its_lease_the_queues_are_left_to_it_and_say_so() -> None:
    waits = owned("waits")
    cluster = started(lease(), *queue(), waits, kueues(waits))
    renew(cluster, 120)
    assert running(cluster) == set()
    assert told(cluster) == ["LeftToKueue"]
    assert note(cluster) == (
        f"Kueue's manager holds the Lease {LEASE}: bayplan leaves the ClusterQueues to it"
    )
    line = cluster.scheduler.queues.jobs("kueue/cq")
    assert line is not None
    assert [one.job for one in line] == ["default/waits"]
    (unit,) = cluster.scheduler.queues.units_of_job("Job", "default/waits")[:1]
    about = cluster.scheduler.queues.position(unit)
    assert about is not None
    assert (about.queue.name, about.place, about.notes) == ("cq", 1, (note(cluster),))
    (workload,) = cluster.api.list(KueueWorkload)
    assert workload.status.conditions == ()


def test_a_manager_without_a_lease_that_does_its_work_is_not_disturbed() -> None:
    cluster = started(*queue())
    for index in range(8):
        new = owned(f"job{index}", 3)
        cluster.add(new)
        cluster.advance(2.0)
        cluster.add(kueues(new, 3))
        cluster.advance(20.0)
    assert running(cluster) == set()
    assert told(cluster) == ["LeftToKueue"]


def test_a_manager_that_has_nothing_to_do_is_at_work() -> None:
    cluster = started(*queue(), owned("ended"), kueues(owned("ended"), **finished()))
    cluster.api.delete(Job, "default/ended")
    cluster.advance(86_400.0)
    assert note(cluster).startswith("the ClusterQueues are of Kueue's manager")


def test_what_is_full_is_no_sign_that_the_manager_is_gone() -> None:
    first, second = owned("first", 3, suspend=False), owned("second", 3)
    objects = [first, kueues(first, 3, **admitted(3)), second, kueues(second, 3)]
    cluster = started(*queue(), *objects)
    cluster.advance(3600.0)
    assert "seems to be at work" in note(cluster)
    assert running(cluster) == {"first"}


def manager_pod(ready: str = "True", name: str = "kueue-controller-manager-1") -> Pod:
    labels = {"app.kubernetes.io/name": "kueue", "control-plane": "controller-manager"}
    made = make_pod(name, None, None, labels=labels, namespace="kueue-system", node="n")
    metadata = replace(made.metadata, uid=f"uid-of-{name}")
    conditions = (decode_part(PodCondition, {"type": "Ready", "status": ready}),)
    return replace(
        made, metadata=metadata, status=replace(made.status, phase="Running", conditions=conditions)
    )


def test_a_manager_whose_pod_gets_ready_gets_the_queues_before_its_first_workload() -> None:
    cluster = started(*queue(), owned("a"), args={})
    cluster.advance(60.0)
    assert running(cluster) == {"a"}, "its finalizer alone is of one that is gone"
    cluster.add(manager_pod("False"))
    cluster.advance(5.0)
    assert note(cluster) == ""
    cluster.api.update(manager_pod())
    cluster.advance(5.0)
    cluster.add(owned("b"))
    cluster.advance(5.0)
    assert running(cluster) == {"a"}
    assert note(cluster) == (
        "kueue-system/kueue-controller-manager-1 is a pod of Kueue's manager, and ready: "
        "bayplan leaves the ClusterQueues to it"
    )


def test_a_manager_whose_pod_is_ready_and_does_nothing_is_gone_until_another_one_gets_ready() -> (
    None
):
    cluster = started(*queue(), manager_pod(), owned("a"))
    cluster.advance(20.0)
    assert running(cluster) == set()
    cluster.advance(20.0)
    assert running(cluster) == {"a"}
    cluster.add(owned("b"))
    cluster.advance(5.0)
    assert running(cluster) == {"a", "b"}
    cluster.add(manager_pod(name="kueue-controller-manager-2"), owned("c"))
    cluster.advance(5.0)
    assert running(cluster) == {"a", "b"}
    assert "kueue-controller-manager-2 is a pod of Kueue's manager" in note(cluster)


# Once it is gone ---------------------------------------------------------------------------


def test_once_the_lease_is_not_renewed_pending_workloads_are_taken_over() -> None:
    waits = owned("waits")
    cluster = started(lease(), *queue(), waits, kueues(waits))
    renew(cluster, 60)
    cluster.advance(20.0)
    assert running(cluster) == set()
    cluster.advance(20.0)
    assert running(cluster) == {"waits"}
    assert on_nodes(cluster) == {"waits": 2}
    (workload,) = cluster.api.list(KueueWorkload)
    assert workload.metadata.uid == "workload-of-waits"
    assert workload.metadata.labels["app.kubernetes.io/managed-by"] == "bayplan"
    assert told(cluster) == ["LeftToKueue", "TakenOverFromKueue"]
    assert note(cluster) == ""


def test_a_lease_that_was_given_back_says_at_once_that_nobody_is_at_work() -> None:
    waits = owned("waits")
    cluster = started(lease(), *queue(), waits, kueues(waits))
    cluster.api.update(lease(holder=""))
    cluster.add(owned("new"))
    cluster.advance(5.0)
    assert running(cluster) == {"waits", "new"}


def test_workloads_of_a_manager_that_was_gone_before_bayplan_started_are_taken_over() -> None:
    waits = owned("waits")
    cluster = started(lease(holder=""), *queue(), waits, kueues(waits))
    assert running(cluster) == {"waits"}
    (workload,) = cluster.api.list(KueueWorkload)
    assert workload.metadata.labels["app.kubernetes.io/managed-by"] == "bayplan"


def test_a_manager_that_comes_back_gets_the_queues_back() -> None:
    waits = owned("waits")
    cluster = started(lease(holder=""), *queue(), waits, kueues(waits))
    assert running(cluster) == {"waits"}
    cluster.api.update(lease())
    cluster.add(owned("new"))
    cluster.advance(10.0)
    assert running(cluster) == {"waits"}
    assert "holds the Lease" in note(cluster)


def test_a_manager_that_goes_a_second_time_is_missed_by_jobs_whose_kind_it_took_before() -> None:
    waits = owned("waits")
    cluster = started(*queue(quota=8), waits, kueues(waits))
    cluster.advance(40.0)
    assert running(cluster) == {"waits"}, "its only Workload of a job is bayplan's by now"
    pod = make_pod("p", labels={LABEL: "lq"})
    pod = replace(pod, metadata=replace(pod.metadata, uid="uid-of-p"))
    cluster.add(pod, kueues(pod, 1, "Pod", **admitted(1)))
    cluster.advance(5.0)
    assert "seems to be at work" in note(cluster)
    cluster.add(owned("next"))
    cluster.advance(20.0)
    assert running(cluster) == {"waits"}
    cluster.advance(20.0)
    assert running(cluster) == {"waits", "next"}


def test_a_manager_that_admitted_a_workload_of_bayplan_is_missed_by_jobs_of_its_kind() -> None:
    first = owned("first")
    made = kueues(first)
    labels = {"app.kubernetes.io/managed-by": "bayplan"}
    made = replace(made, metadata=replace(made.metadata, labels=labels))
    pod = make_pod("p", labels={LABEL: "lq"})
    pod = replace(pod, metadata=replace(pod.metadata, uid="uid-of-p"))
    cluster = started(*queue(quota=8), first, made, pod, kueues(pod, 1, "Pod", **admitted(1)))
    assert "seems to be at work" in note(cluster)
    status = decode_part(KueueWorkloadStatus, admitted())
    cluster.api.update(replace(workload_of(cluster, "first"), status=status))
    cluster.advance(20.0)
    cluster.add(owned("next"))
    cluster.advance(25.0)
    assert running(cluster) == set()
    cluster.advance(15.0)
    assert running(cluster) == {"first", "next"}


def test_a_job_that_gets_no_workload_shows_that_the_manager_is_gone() -> None:
    cluster = started(*queue(), owned("ended"), kueues(owned("ended"), **finished()))
    cluster.api.delete(Job, "default/ended")
    cluster.advance(600.0)
    cluster.add(owned("new"))
    cluster.advance(20.0)
    assert running(cluster) == set()
    cluster.advance(20.0)
    assert running(cluster) == {"new"}
    cluster.add(owned("next"))
    cluster.advance(5.0)
    assert running(cluster) == {"new", "next"}, "it is known to be gone"


def test_a_workload_that_waits_although_there_is_room_shows_that_the_manager_is_gone() -> None:
    waits = owned("waits")
    cluster = started(*queue(), waits, kueues(waits))
    cluster.advance(20.0)
    assert running(cluster) == set()
    cluster.advance(20.0)
    assert running(cluster) == {"waits"}


def test_what_the_manager_admitted_keeps_its_quota_and_its_pods() -> None:
    """The quota is four GPUs: one job has three of them, the other waits for two."""
    first, second = owned("first", 3, suspend=False), owned("second")
    objects = [first, kueues(first, 3, **admitted(3)), second, kueues(second)]
    cluster = started(lease(), *queue(), *objects)
    before = {pod.metadata.uid for pod in cluster.api.list(Pod)}
    assert len(before) == 3
    cluster.advance(300.0)
    assert told(cluster)[-1] == "TakenOverFromKueue"
    assert running(cluster) == {"first"}
    assert {pod.metadata.uid for pod in cluster.api.list(Pod)} == before
    assert workload_of(cluster, "first").status.admission is not None
    for pod in cluster.api.list(Pod):
        cluster.api.update(replace(pod, status=replace(pod.status, phase="Succeeded")))
    cluster.advance(60.0)
    assert on_nodes(cluster)["second"] == 2
    assert before <= {pod.metadata.uid for pod in cluster.api.list(Pod)}


def test_a_job_that_ended_and_was_not_noted_shows_that_the_manager_is_gone() -> None:
    first, second = owned("first", 3, suspend=False), owned("second")
    objects = [first, kueues(first, 3, **admitted(3)), second, kueues(second)]
    cluster = started(*queue(), *objects)
    cluster.advance(300.0)
    for pod in cluster.api.list(Pod):
        cluster.api.update(replace(pod, status=replace(pod.status, phase="Succeeded")))
    cluster.advance(60.0)
    assert on_nodes(cluster)["second"] == 2


def test_a_workload_that_is_deleted_and_stays_shows_that_the_manager_is_gone() -> None:
    """Only its manager's finalizer keeps it: its pod is gone, and there is no job to tell."""
    before = make_pod("before", cpu=None, memory=None, gpu=1, labels={LABEL: "lq"})
    left = kueues(before, 1, kind="Pod", **admitted(1))
    deleted = replace(
        left.metadata, deletion_timestamp="2025-01-01T00:00:00Z", finalizers=(IN_USE,)
    )
    cluster = started(*queue(), replace(left, metadata=deleted))
    cluster.add(make_pod("next", cpu=None, memory=None, gpu=1, labels={LABEL: "lq"}))
    cluster.advance(20.0)
    assert len(cluster.api.list(KueueWorkload)) == 1
    cluster.advance(40.0)
    (own,) = cluster.api.list(KueueWorkload)
    assert own.metadata.name.startswith("pod-next-")
    assert own.status.admission is not None


def test_a_workload_whose_job_is_deleted_without_it_is_finished_and_let_go() -> None:
    left = kueues(owned("gone"), 4, **admitted(4))
    alone = replace(left.metadata, owner_references=(), finalizers=(IN_USE,))
    by_hand = replace(alone, name="by-hand", uid="by-hand", labels={})
    orphan, users = (replace(left, metadata=meta) for meta in (alone, by_hand))
    waiting = replace(users, status=KueueWorkloadStatus())
    cluster = started(lease(holder=""), *queue(8), orphan, waiting, owned("next", 4))
    cluster.advance(5.0)
    assert running(cluster) == {"next"}
    found = {one.metadata.name: one for one in cluster.api.list(KueueWorkload)}
    assert found["by-hand"].metadata.finalizers == (IN_USE,)
    assert found["by-hand"].status.admission is not None
    over = found[left.metadata.name]
    stated = condition(over, "Finished")
    assert stated is not None
    assert (stated.status, stated.reason) == ("True", "OwnerNotFound")
    assert stated.message == "The workload's owner no longer exists"
    assert over.metadata.finalizers == ()


def test_quota_of_jobs_that_bayplan_does_not_know_stays_theirs() -> None:
    unknown = owned("unknown")
    workload = kueues(unknown, 3, kind="Unheard", **admitted(3))
    cluster = started(lease(holder=""), *queue(), workload, owned("two"), owned("one", 1))
    cluster.advance(60.0)
    assert running(cluster) == {"one"}
    (report,) = cluster.scheduler.queues.reports()
    assert report.resources[f"f/{GPU}"].reserved == 4


def test_after_a_restart_it_is_known_that_bayplan_has_taken_over() -> None:
    before = started(lease(holder=""), *queue(), owned("a"))
    assert running(before) == {"a"}
    kept = before.api.list(KueueWorkload)
    cluster = started(*queue(), *before.api.list(Job), *kept, owned("b"))
    assert running(cluster) == {"a", "b"}


@pytest.mark.parametrize("gate", ["admission", "topology"])
def test_pods_at_gates_of_the_manager_go_on(gate: str) -> None:
    pod = make_pod(
        "p",
        cpu=None,
        memory=None,
        gpu=1,
        labels={LABEL: "lq", "kueue.x-k8s.io/managed": "true"},
        spec={"schedulingGates": [{"name": f"kueue.x-k8s.io/{gate}"}]},
    )
    cluster = started(lease(), *queue(), pod, kueues(pod, 1, kind="Pod"))
    renew(cluster, 30)
    assert cluster.placements() == {}
    cluster.advance(60.0)
    assert cluster.placements() == {"p": "n"}


# Where the profile says it -----------------------------------------------------------------


def test_a_profile_that_leaves_the_queues_to_kueue_shows_them_all_the_same() -> None:
    cluster = started(*queue(), owned("a"), args={"kueue": None})
    cluster.advance(600.0)
    assert running(cluster) == set()
    assert note(cluster) == (
        "the profile leaves the ClusterQueues to Kueue's manager (kueue: null)"
    )
    assert [one.metadata.name for one in cluster.api.list(ClusterQueue)] == ["cq"]
