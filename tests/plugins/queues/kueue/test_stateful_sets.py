"""The Workload of a StatefulSet, whose pods come one after the other."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace
from tests.plugins.queues.kueue.queued_job_builders import GPU, LABEL, one_queue, started
from tests.plugins.queues.kueue.test_part_workloads import placed, sets_of
from tests.plugins.queues.kueue.test_pod_workloads import charged, only, queued, stated

from bayplan.api import (
    ApiObject,
    KueueWorkload,
    OwnerReference,
    Pod,
    StatefulSet,
    WorkloadPriorityClass,
)
from bayplan.api.meta import ObjectMeta
from bayplan.testing import Cluster, make_node, make_object

PRIORITY = "kueue.x-k8s.io/priority-class"
SERIAL, PARALLEL = "OrderedReady", "Parallel"


def stateful_set(
    replicas: int = 3,
    gpu: int = 1,
    policy: str = SERIAL,
    queue: str = "lq",
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
) -> ApiObject:
    container = {"name": "c", "image": "i", "resources": {"limits": {GPU: str(gpu)}}}
    app = {"labels": {"app": "s"}, "annotations": annotations or {}}
    return make_object(
        {
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "metadata": {
                "name": "s",
                "namespace": "default",
                "uid": "u",
                "labels": {LABEL: queue, **(labels or {})},
            },
            "spec": {
                "replicas": replicas,
                "podManagementPolicy": policy,
                "selector": {"matchLabels": app["labels"]},
                "template": {"metadata": app, "spec": {"containers": [container]}},
            },
        }
    )


def run(*objects: ApiObject, quota: int = 4) -> Cluster:
    cluster = started(make_node("n", gpu=8), *one_queue(quota), *objects)
    cluster.advance(60.0)
    return cluster


def scaled(cluster: Cluster, replicas: int) -> None:
    found = cluster.api.get(StatefulSet, "default/s")
    assert found is not None
    cluster.api.update(replace(found, spec=replace(found.spec, replicas=replicas)))
    # Its pods end one after the other, each in its grace.
    cluster.advance(200.0)


def pods(cluster: Cluster) -> list[Pod]:
    return [pod for pod in cluster.api.list(Pod) if pod.metadata.name.startswith("s-")]


def test_a_set_has_one_workload_as_kueue_names_and_writes_it() -> None:
    cluster = run(stateful_set())
    one = only(cluster)
    assert one.metadata.name.rpartition("-")[0] == "statefulset-s"
    assert sets_of(one) == {"main": 3}
    assert one.metadata.labels["kueue.x-k8s.io/job-uid"] == "u"
    assert one.metadata.annotations == {
        "kueue.x-k8s.io/is-group-workload": "true",
        "kueue.x-k8s.io/job-owner-gvk": "apps/v1, Kind=StatefulSet",
        "kueue.x-k8s.io/job-owner-name": "s",
    }
    (owner,) = one.metadata.owner_references
    assert (owner.kind, owner.name, owner.uid, owner.controller) == ("StatefulSet", "s", "u", None)
    assert charged(cluster) == 3
    assert placed(cluster) == ["s-0", "s-1", "s-2"]


def test_a_topology_is_asked_for_by_the_ordinals_of_its_pods() -> None:
    asked = {"kueue.x-k8s.io/podset-preferred-topology": "rack"}
    (main,) = only(run(stateful_set(annotations=asked))).spec.pod_sets
    assert main.topology_request is not None
    assert main.topology_request.pod_index_label == "apps.kubernetes.io/pod-index"


def test_its_first_pod_waits_until_there_is_quota_for_all() -> None:
    cluster = run(queued("other", 2), stateful_set())
    assert placed(cluster) == ["other"]
    assert charged(cluster) == 2
    assert "couldn't assign flavors" in cluster.message("default/s-0")
    cluster.api.delete(Pod, "default/other")
    cluster.advance(60.0)
    assert placed(cluster) == ["s-0", "s-1", "s-2"]
    assert charged(cluster) == 3


def test_pods_that_come_together_are_placed_as_they_fit() -> None:
    cluster = run(stateful_set(policy=PARALLEL, gpu=3), quota=9)
    assert len(placed(cluster)) == 2
    assert charged(cluster) == 9


def test_its_pods_tell_their_queue_before_they_are_admitted_and_follow_it() -> None:
    cluster = run(stateful_set(queue="other"))
    (pod,) = pods(cluster)
    assert pod.metadata.labels[LABEL] == "other"
    found = cluster.api.get(StatefulSet, "default/s")
    assert found is not None
    meta = replace(found.metadata, labels={LABEL: "lq"})
    cluster.api.update(replace(found, metadata=meta))
    cluster.advance(60.0)
    assert {pod.metadata.labels[LABEL] for pod in pods(cluster)} == {"lq"}
    assert only(cluster).spec.queue_name == "lq"
    assert placed(cluster) == ["s-0", "s-1", "s-2"]


def test_its_pods_carry_the_marks_by_which_kueues_manager_knows_them() -> None:
    pod = pods(run(stateful_set()))[0]
    assert pod.metadata.annotations["kueue.x-k8s.io/role-hash"] == "main"
    assert pod.metadata.labels["kueue.x-k8s.io/managed"] == "true"
    assert pod.metadata.labels["kueue.x-k8s.io/podset"] == "main"


def test_scaled_to_zero_its_workload_is_on_hold_and_comes_back_with_its_pods() -> None:
    cluster = run(stateful_set())
    uid = only(cluster).metadata.uid
    scaled(cluster, 0)
    assert stated(only(cluster))["QuotaReserved"] == ("False", "OnHold")
    assert charged(cluster) == 0
    scaled(cluster, 2)
    assert placed(cluster) == ["s-0", "s-1"]
    assert sets_of(only(cluster)) == {"main": 2}
    assert only(cluster).metadata.uid == uid
    assert charged(cluster) == 2


def test_a_set_that_waits_and_is_scaled_to_zero_is_on_hold() -> None:
    cluster = run(stateful_set(gpu=2))
    scaled(cluster, 0)
    assert stated(only(cluster))["QuotaReserved"] == ("False", "OnHold")
    assert cluster.api.list(Pod) == []


def test_a_rolling_update_goes_on_with_the_quota_that_the_set_has() -> None:
    cluster = run(stateful_set(), quota=3)
    found = cluster.api.get(StatefulSet, "default/s")
    assert found is not None
    before = {pod.metadata.uid for pod in pods(cluster)}
    (container,) = found.spec.template.spec.containers
    spec = replace(found.spec.template.spec, containers=(replace(container, image="new"),))
    template = replace(found.spec.template, spec=spec)
    cluster.api.update(replace(found, spec=replace(found.spec, template=template)))
    cluster.advance(120.0)
    assert placed(cluster) == ["s-0", "s-1", "s-2"]
    assert before.isdisjoint(pod.metadata.uid for pod in pods(cluster))
    assert charged(cluster) == 3


def test_a_set_that_is_preempted_waits_with_all_of_it() -> None:
    flavor, queue, local = one_queue(4)
    rules: Any = queue
    preemption = replace(rules.spec.preemption, within_cluster_queue="LowerPriority")
    queue = replace(rules, spec=replace(rules.spec, preemption=preemption))
    urgent = WorkloadPriorityClass(7, ObjectMeta(name="urgent"))
    cluster = started(make_node("n", gpu=8), flavor, queue, local, urgent, stateful_set())
    cluster.advance(60.0)
    cluster.add(queued("other", 2, labels={PRIORITY: "urgent"}))
    cluster.advance(60.0)
    assert placed(cluster) == ["other"]
    assert charged(cluster) == 2
    cluster.api.delete(Pod, "default/other")
    cluster.advance(60.0)
    assert placed(cluster) == ["s-0", "s-1", "s-2"]


def test_its_workload_goes_with_the_set() -> None:
    cluster = run(stateful_set())
    cluster.api.delete(StatefulSet, "default/s")
    cluster.advance(60.0)
    assert cluster.api.list(KueueWorkload) == []
    assert charged(cluster) == 0


def test_a_set_without_a_queue_is_left_alone() -> None:
    cluster = run(stateful_set(queue=""))
    assert placed(cluster) == ["s-0", "s-1", "s-2"]
    assert cluster.api.list(KueueWorkload) == []


def test_a_set_that_a_leader_owns_is_no_workload_by_itself_while_that_is_away() -> None:
    # LeaderWorkerSet gives the set of a group's workers the labels of its own, and the queue.
    leader = OwnerReference("Pod", "leader", "gone", "v1", controller=True)
    made = stateful_set(policy=PARALLEL)
    meta = replace(made.metadata, owner_references=(leader,))
    cluster = run(replace(made, metadata=meta))
    names = [one.metadata.name for one in cluster.api.list(KueueWorkload)]
    assert [name for name in names if name.startswith("statefulset")] == []
