"""Suspended jobs that wait for Kueue's quota: admitted whole, and suspended again."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from tests.plugins.queues.kueue.kueue_builders import (
    check,
    cluster_queue,
    cohort,
    flavor,
    local_queue,
)
from tests.plugins.queues.kueue.queued_job_builders import (
    GPU,
    conditions,
    job,
    on_nodes,
    one_queue,
    running,
    started,
    workload_of,
)

from bayplan.api import (
    KINDS,
    ApiObject,
    ClusterQueue,
    Job,
    KueueWorkload,
    Node,
    ObjectMeta,
    OwnerReference,
    Pod,
    Topology,
    WorkloadPriorityClass,
)
from bayplan.api.kueue import AdmissionCheckState, PriorityClassRef
from bayplan.api.objects import decode_part
from bayplan.cluster.embedded.controllers import WorkloadControllers
from bayplan.cluster.protocol import PatchFields
from bayplan.queues.held_jobs import HeldJobs
from bayplan.testing import Cluster, make_node


def test_a_job_runs_once_its_queue_has_quota() -> None:
    cluster = started(make_node("n1", gpu=8), *one_queue(3), job("a"), job("b"))
    assert running(cluster) == {"a"}
    assert on_nodes(cluster) == {"a": 2}
    assert conditions(cluster, "a") == {"QuotaReserved": "True", "Admitted": "True"}
    assert conditions(cluster, "b") == {"QuotaReserved": "False", "Admitted": "False"}
    (refusal, _) = workload_of(cluster, "b").status.conditions
    assert refusal.message.endswith("quota for nvidia.com/gpu in flavor f, 1 more needed")
    cluster.api.delete(Job, "default/a")
    cluster.advance(60.0)
    assert running(cluster) == {"b"}
    assert on_nodes(cluster) == {"b": 2}
    assert len(cluster.api.list(KueueWorkload)) == 1


def test_a_job_that_waits_has_a_workload_before_there_is_any_queue() -> None:
    cluster = started(make_node("n1", gpu=8), job("a"))
    assert conditions(cluster, "a") == {"QuotaReserved": "False", "Admitted": "False"}
    cluster.add(*one_queue(3))
    cluster.advance(60.0)
    assert running(cluster) == {"a"}


def test_a_workload_is_named_as_kueue_names_it() -> None:
    cluster = started(make_node("n1", gpu=8), *one_queue(3), job("a"))
    found = workload_of(cluster, "a")
    assert found.metadata.name.startswith("job-a-")
    assert len(found.metadata.name) == len("job-a-") + 5
    owner = found.metadata.owner_references[0]
    assert (owner.kind, owner.api_version, owner.controller) == ("Job", "batch/v1", True)
    assert found.metadata.labels["kueue.x-k8s.io/job-uid"] == owner.uid


RACK = {"kueue.x-k8s.io/podset-required-topology": "rack"}


def in_racks() -> list[ApiObject]:
    """Return two racks of two nodes with a GPU each, and a queue for them all."""
    levels = [{"nodeLabel": "rack"}, {"nodeLabel": "kubernetes.io/hostname"}]
    topology = decode_part(Topology, {"metadata": {"name": "dc"}, "spec": {"levels": levels}})
    nodes = [
        make_node(f"{rack}{index}", gpu=1, labels={"rack": rack, "pool": "gpu"})
        for rack in "ab"
        for index in range(2)
    ]
    return [*nodes, topology, *one_queue(4, nodeLabels={"pool": "gpu"}, topologyName="dc")]


def gathered(name: str, pods: int, annotations: dict[str, str] = RACK, **spec: Any) -> Job:
    """Return a job whose pods ask for one rack."""
    made = job(name, pods, **spec)
    template = made.spec.template
    meta = replace(template.metadata, annotations=annotations)
    return replace(made, spec=replace(made.spec, template=replace(template, metadata=meta)))


def test_a_job_is_admitted_only_where_its_topology_has_room() -> None:
    cluster = started(*in_racks(), gathered("wide", 3), job("small", 1))
    assert running(cluster) == {"small"}
    wide = workload_of(cluster, "wide")
    assert wide.status.admission is None
    refusal = wide.status.conditions[0]
    assert refusal.reason == "TopologyPlacementFailed"
    assert refusal.message.endswith("no domain has room for 3 of them, the best, rack/b, for 2")
    cluster.add(make_node("b2", gpu=1, labels={"rack": "b", "pool": "gpu"}))
    cluster.advance(60.0)
    assert running(cluster) == {"small", "wide"}
    assert on_nodes(cluster) == {"small": 1, "wide": 3}


def test_a_gathered_job_waits_for_a_rack_though_as_many_nodes_are_free() -> None:
    cluster = started(*in_racks(), gathered("a", 1), gathered("b", 2), gathered("c", 2))
    assert running(cluster) == {"a", "b"}
    cluster.api.delete(Job, "default/a")
    cluster.advance(60.0)
    assert running(cluster) == {"b", "c"}
    assert on_nodes(cluster) == {"b": 2, "c": 2}


def test_a_gathered_job_that_may_run_with_fewer_pods_gets_those_of_a_rack() -> None:
    least = {"kueue.x-k8s.io/job-min-parallelism": "2"}
    made = gathered("wide", 4)
    made = replace(made, metadata=replace(made.metadata, annotations=least))
    cluster = started(*in_racks(), made)
    cluster.advance(30.0)
    assert on_nodes(cluster) == {"wide": 2}


def test_a_gathered_job_preempts_what_is_in_its_rack() -> None:
    preemption = {"withinClusterQueue": "LowerPriority"}
    queue = cluster_queue("cq", {"f": {GPU: 4}}, preemption=preemption)
    objects = [one for one in in_racks() if not isinstance(one, ClusterQueue)]
    cluster = started(*objects, queue, gathered("a", 2), gathered("b", 2))
    assert running(cluster) == {"a", "b"}
    cluster.add(gathered("urgent", 2, priority=10))
    cluster.advance(120.0)
    assert "urgent" in running(cluster)
    assert on_nodes(cluster)["urgent"] == 2
    assert len(running(cluster)) == 2


def test_slices_that_a_job_cannot_have_keep_it_from_its_quota() -> None:
    halves = {
        "kueue.x-k8s.io/podset-slice-required-topology": "rack",
        "kueue.x-k8s.io/podset-slice-size": "2",
    }
    cluster = started(*in_racks(), gathered("odd", 3, halves))
    assert running(cluster) == set()
    message = workload_of(cluster, "odd").status.conditions[0].message
    assert message.endswith("3 pods are not whole slices of 2 at rack")
    cluster.add(gathered("even", 4, halves))
    cluster.advance(60.0)
    assert running(cluster) == {"even"}


def test_an_elastic_job_grows_within_its_rack() -> None:
    made = gathered("grows", 1)
    elastic = {"kueue.x-k8s.io/elastic-job": "true"}
    made = replace(made, metadata=replace(made.metadata, annotations=elastic))
    cluster = started(*in_racks(), made)
    assert on_nodes(cluster) == {"grows": 1}
    for size, placed in ((2, 2), (3, 2)):
        fields = {"/spec/parallelism": size, "/spec/completions": size}
        cluster.api.submit(PatchFields(Job, "default/grows", "", fields))
        cluster.advance(60.0)
        assert on_nodes(cluster) == {"grows": placed}
    last = max(cluster.api.list(KueueWorkload), key=lambda one: one.spec.pod_sets[0].count)
    assert (last.spec.pod_sets[0].count, last.status.admission) == (3, None)


def test_a_job_is_admitted_only_where_all_its_pods_fit() -> None:
    nodes = [make_node("n1", gpu=1), make_node("n2", gpu=1)]
    cluster = started(*nodes, *one_queue(100), job("wide", pods=3), job("small", pods=1))
    assert running(cluster) == {"small"}
    assert "would not get nodes" in workload_of(cluster, "wide").status.conditions[0].message
    cluster.add(make_node("n3", gpu=4))
    cluster.advance(60.0)
    assert running(cluster) == {"small", "wide"}
    assert on_nodes(cluster) == {"small": 1, "wide": 3}


def test_pods_that_are_still_to_come_keep_their_room() -> None:
    nodes = [make_node("n1", gpu=4), make_node("n2", gpu=4)]
    jobs = [job(name, pods=4) for name in "abc"]
    cluster = started(*nodes, *one_queue(100), *jobs)
    assert running(cluster) == {"a", "b"}
    assert on_nodes(cluster) == {"a": 4, "b": 4}


def test_templates_get_what_the_flavor_adds() -> None:
    taint = {"key": "spot", "value": "true", "effect": "NoSchedule"}
    toleration = {"key": "spot", "operator": "Exists"}
    extra = {"nodeLabels": {"kind": "b"}, "nodeTaints": [taint], "tolerations": [toleration]}
    spot = make_node("n2", gpu=4, labels={"kind": "b"})
    spot = replace(spot, spec=decode_part(type(spot.spec), {"taints": [taint]}))
    nodes = [make_node("n1", gpu=4, labels={"kind": "a"}), spot]
    cluster = started(*nodes, *one_queue(4, **extra), job("a"))
    assert set(cluster.placements().values()) == {"n2"}
    (found,) = cluster.api.list(Job)
    assert found.spec.template.spec.node_selector == {"kind": "b"}
    assert [one.key for one in found.spec.template.spec.tolerations] == ["spot"]


def test_a_preempted_job_is_suspended_and_gets_its_template_back() -> None:
    preemption = {"withinClusterQueue": "LowerPriority"}
    queues = [
        flavor("f", nodeLabels={"kind": "a"}),
        cluster_queue("cq", {"f": {GPU: 2}}, preemption=preemption),
        local_queue("lq", "cq"),
    ]
    node = make_node("n1", gpu=4, labels={"kind": "a"})
    cluster = started(node, *queues, job("low"))
    assert on_nodes(cluster) == {"low": 2}
    cluster.add(job("high", priority=10))
    cluster.advance(120.0)
    assert running(cluster) == {"high"}
    assert on_nodes(cluster) == {"high": 2}
    low = cluster.api.get(Job, "default/low")
    assert low is not None
    assert low.spec.template.spec.node_selector == {}
    said = {one.type: one for one in workload_of(cluster, "low").status.conditions}
    assert said["Evicted"].reason == "Preempted"
    assert said["QuotaReserved"].status == "False"
    cluster.api.delete(Job, "default/high")
    cluster.advance(120.0)
    assert on_nodes(cluster) == {"low": 2}


def test_a_queue_takes_back_what_it_lent_to_a_job() -> None:
    lender = cluster_queue("a", {"f": {GPU: 2}}, "co", preemption={"reclaimWithinCohort": "Any"})
    queues = [lender, cluster_queue("b", {"f": {GPU: 2}}, "co"), cohort("co"), flavor("f")]
    locals_ = [local_queue("la", "a"), local_queue("lb", "b")]
    cluster = started(make_node("n1", gpu=4), *queues, *locals_, job("x", 4, "lb"))
    assert on_nodes(cluster) == {"x": 4}
    cluster.add(job("y", 2, "la"))
    cluster.advance(120.0)
    assert running(cluster) == {"y"}
    assert on_nodes(cluster) == {"y": 2}


def test_a_job_that_was_not_suspended_is_until_it_has_quota() -> None:
    cluster = started(make_node("n1", gpu=8), *one_queue(2), job("a"), job("b", suspend=False))
    assert running(cluster) == {"a"}
    assert on_nodes(cluster) == {"a": 2}


def test_what_ran_before_anybody_asked_goes_on() -> None:
    cluster = started(make_node("n1", gpu=8), job("a", suspend=False), job("b", suspend=False))
    assert on_nodes(cluster) == {"a": 2, "b": 2}
    cluster.add(*one_queue(4), job("c"))
    cluster.advance(60.0)
    assert running(cluster) == {"a", "b"}
    assert conditions(cluster, "b")["Admitted"] == "True"
    assert conditions(cluster, "c")["QuotaReserved"] == "False"


def test_a_job_runs_with_fewer_pods_where_it_says_so() -> None:
    least = {"kueue.x-k8s.io/job-min-parallelism": "2"}
    shrinks = job("a", 5, annotations=least, completions=10)
    cluster = started(make_node("n1", gpu=8), *one_queue(3), shrinks)
    assert on_nodes(cluster) == {"a": 3}
    (found,) = cluster.api.list(Job)
    assert found.spec.parallelism == 3


def test_a_deactivated_workload_stops_its_job() -> None:
    cluster = started(make_node("n1", gpu=8), *one_queue(3), job("a"))
    found = workload_of(cluster, "a")
    key, uid = found.key, found.metadata.uid
    cluster.api.submit(PatchFields(KueueWorkload, key, uid, {"/spec/active": False}))
    cluster.advance(60.0)
    assert running(cluster) == set()
    assert on_nodes(cluster) == {}
    assert conditions(cluster, "a")["QuotaReserved"] == "False"
    cluster.api.submit(PatchFields(KueueWorkload, key, uid, {"/spec/active": True}))
    cluster.advance(60.0)
    assert on_nodes(cluster) == {"a": 2}


def test_a_job_waits_for_its_admission_checks() -> None:
    checks = {"admissionChecks": [{"name": "budget"}]}
    queue = cluster_queue("cq", {"f": {GPU: 3}}, admissionChecksStrategy=checks)
    others = [check(), flavor("f"), queue, local_queue("lq", "cq"), job("a")]
    cluster = started(make_node("n1", gpu=8), *others)
    found = workload_of(cluster, "a")
    assert running(cluster) == set()
    assert [(c.name, c.state) for c in found.status.admission_checks] == [("budget", "Pending")]
    ready = AdmissionCheckState("budget", "Ready", last_transition_time="2000-01-01T00:00:05Z")
    cluster.api.update(replace(found, status=replace(found.status, admission_checks=(ready,))))
    cluster.advance(60.0)
    assert on_nodes(cluster) == {"a": 2}


def checked(cluster: Cluster, **update: Any) -> None:
    """Let an admission check let a job go, with what it asks for in its pods."""
    found = workload_of(cluster, "a")
    ready = AdmissionCheckState(
        "budget",
        "Ready",
        last_transition_time="2000-01-01T00:00:05Z",
        pod_set_updates=({"name": "main", **update},),
    )
    cluster.api.update(replace(found, status=replace(found.status, admission_checks=(ready,))))
    cluster.advance(10.0)


def with_check() -> list[ApiObject]:
    checks = {"admissionChecks": [{"name": "budget"}]}
    queue = cluster_queue("cq", {"f": {GPU: 3}}, admissionChecksStrategy=checks)
    return [
        check(),
        flavor("f"),
        queue,
        local_queue("lq", "cq"),
        make_node("n", gpu=4, labels={"pool": "x"}),
    ]


def test_pods_have_the_labels_of_their_queues_and_what_checks_ask_for() -> None:
    cluster = started(*with_check(), job("a", 2))
    checked(cluster, annotations={"budget": "7"}, nodeSelector={"pool": "x"})
    pods = cluster.api.list(Pod)
    assert [pod.spec.node_name for pod in pods] == ["n", "n"]
    for pod in pods:
        assert pod.metadata.annotations["budget"] == "7"
        assert pod.spec.node_selector == {"pool": "x"}
        names = {"podset": "main", "local-queue-name": "lq", "cluster-queue-name": "cq"}
        own = {key: pod.metadata.labels[f"kueue.x-k8s.io/{key}"] for key in names}
        assert own == names
    found = workload_of(cluster, "a")
    cluster.api.update(replace(found, spec=replace(found.spec, active=False)))
    cluster.advance(60.0)
    (stopped,) = cluster.api.list(Job)
    meta = stopped.spec.template.metadata
    assert stopped.spec.suspend
    assert (meta.labels, meta.annotations) == ({}, {})
    assert stopped.spec.template.spec.node_selector == {}


def test_a_check_that_contradicts_a_template_keeps_the_job_and_is_reported() -> None:
    template = {
        "metadata": {"annotations": {"budget": "6"}},
        "spec": {"containers": [{"name": "c", "resources": {"limits": {GPU: 1}}}]},
    }
    cluster = started(*with_check(), job("a", 2, template=template))
    checked(cluster, annotations={"budget": "7"})
    assert running(cluster) == set()
    (event,) = [one for _, one in cluster.api.events if one.reason == "FailedToStart"]
    assert event.message == 'annotation "budget": "6" and "7" exclude each other'


def test_a_scheduler_that_starts_anew_admits_nothing_twice() -> None:
    cluster = started(make_node("n1", gpu=8), *one_queue(3), job("a"), job("b"))
    types = (Node, *(kind.type for kind in KINDS.values() if kind.type not in (Node, Pod)), Pod)
    again = started(*(one for type_ in types for one in cluster.api.list(type_)))
    assert running(again) == {"a"}
    assert on_nodes(again) == {"a": 2}
    again.api.delete(Job, "default/a")
    again.advance(60.0)
    assert on_nodes(again) == {"b": 2}


def test_a_job_whose_pods_do_not_get_ready_gives_its_quota_back() -> None:
    policy = {"timeout": "60s", "requeuingStrategy": {"backoffBaseSeconds": 600}}
    cluster = Cluster((), plugins={"Queues": {"kueue": {"waitForPodsReady": policy}}})
    # Without a kubelet no pod gets ready.
    WorkloadControllers(cluster.api)
    cluster.add(make_node("n1", gpu=2), *one_queue(2), job("a"), job("b"))
    cluster.advance(50.0)
    assert running(cluster) == {"a"}
    said = {one.type: one for one in workload_of(cluster, "a").status.conditions}
    assert (said["PodsReady"].status, said["PodsReady"].reason) == ("False", "WaitForStart")
    cluster.advance(50.0)
    assert running(cluster) == {"b"}
    said = {one.type: one for one in workload_of(cluster, "a").status.conditions}
    assert (said["Evicted"].reason, said["Requeued"].status) == ("PodsReadyTimeout", "False")
    cluster.api.delete(Job, "default/b")
    cluster.advance(500.0)
    assert running(cluster) == set()
    cluster.advance(100.0)
    assert running(cluster) == {"a"}


def test_a_job_whose_pods_are_ready_stays() -> None:
    args = {"kueue": {"waitForPodsReady": {"timeout": "60s"}}}
    cluster = started(make_node("n1", gpu=2), *one_queue(2), job("a"), args=args)
    cluster.advance(600.0)
    assert conditions(cluster, "a")["PodsReady"] == "True"
    assert running(cluster) == {"a"}


def test_kueues_own_controllers_keep_their_workloads() -> None:
    objects = [make_node("n1", gpu=8), *one_queue(3), job("a")]
    owner = OwnerReference("Job", "w", "w", "batch/v1", controller=True)
    foreign = KueueWorkload(replace(job("w").metadata, labels={}, owner_references=(owner,)))
    cluster = started(foreign, *objects)
    assert running(cluster) == set()
    assert len(cluster.api.list(KueueWorkload)) == 1


def test_pods_of_a_deleted_job_keep_its_quota_until_they_end() -> None:
    cluster = started(make_node("n1", gpu=8), *one_queue(2), job("a"), job("b"))
    cluster.api.delete(Job, "default/a")
    cluster.advance(1.0)
    assert on_nodes(cluster) == {"a": 2}
    cluster.advance(60.0)
    assert on_nodes(cluster) == {"b": 2}


def test_workloads_have_the_events_of_their_admission_and_preemption() -> None:
    preemption = {"withinClusterQueue": "LowerPriority"}
    queue = cluster_queue("cq", {"f": {GPU: 2}}, preemption=preemption)
    objects = [flavor("f"), queue, local_queue("lq", "cq"), make_node("n", gpu=8)]
    cluster = started(*objects, job("low"))
    cluster.add(job("high", priority=3))
    cluster.advance(120.0)
    names = {workload_of(cluster, name).key: name for name in ("low", "high")}
    found: dict[str, list[str]] = {"low": [], "high": []}
    for _, event in cluster.api.events:
        if event.about == "Workload":
            found[names[event.pod]].append(event.reason)
    assert found["low"][:4] == ["QuotaReserved", "Admitted", "EvictedDueToPreempted", "Preempted"]
    assert found["high"] == [
        "PreemptedWorkload",
        "WaitingForPreemptedWorkloads",
        "QuotaReserved",
        "Admitted",
    ]


@pytest.mark.parametrize("suspend", [True, False])
@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        (
            "kueue.x-k8s.io/job-min-parallelism",
            "many",
            "metadata.annotations[kueue.x-k8s.io/job-min-parallelism]: Invalid value: "
            "expected a number from 1 to 2",
        ),
        (
            "kueue.x-k8s.io/admission-gated-by",
            "example.com/budget",
            "kueue.x-k8s.io/admission-gated-by: waits for example.com/budget",
        ),
    ],
)
def test_a_job_that_may_not_be_queued_is_held_with_the_reason(
    suspend: bool, name: str, value: str, why: str
) -> None:
    made = job("a", 2, suspend=suspend, annotations={name: value})
    cluster = started(make_node("n", gpu=4), *one_queue(4), made)
    cluster.advance(30.0)
    assert running(cluster) == set()
    assert cluster.api.list(KueueWorkload) == []
    (held,) = HeldJobs(cluster.scheduler.snapshot).all()
    assert held.why == why
    (now,) = cluster.api.list(Job)
    cluster.api.update(replace(now, metadata=replace(now.metadata, annotations={})))
    cluster.advance(30.0)
    assert running(cluster) == {"a"}
    assert on_nodes(cluster) == {"a": 2}


@pytest.mark.parametrize("restart", [True, False])
def test_a_running_job_goes_on_whatever_is_changed_of_it(restart: bool) -> None:
    cluster = started(make_node("n", gpu=4), *one_queue(4), job("a", 2))
    (now,) = cluster.api.list(Job)
    gate = {"kueue.x-k8s.io/admission-gated-by": "example.com/budget"}
    cluster.api.update(replace(now, metadata=replace(now.metadata, annotations=gate)))
    cluster.advance(30.0)
    if restart:
        types = [kind.type for kind in KINDS.values()]
        cluster = started(*(one for type_ in types for one in cluster.api.list(type_)))
        cluster.advance(30.0)
    assert running(cluster) == {"a"}
    assert on_nodes(cluster) == {"a": 2}


def test_the_workload_of_a_job_names_its_class_and_follows_another_one_while_it_waits() -> None:
    classes = [WorkloadPriorityClass(n, ObjectMeta(name=f"p{n}")) for n in (1, 2)]
    cluster = started(make_node("n", gpu=8), *one_queue(1), *classes, job("j", pods=2))
    for number in (1, 2):
        made = cluster.api.get(Job, "default/j")
        assert made is not None
        labels = {**made.metadata.labels, "kueue.x-k8s.io/priority-class": f"p{number}"}
        cluster.api.update(replace(made, metadata=replace(made.metadata, labels=labels)))
        cluster.advance(5.0)
        spec = workload_of(cluster, "j").spec
        ref = PriorityClassRef("kueue.x-k8s.io", "WorkloadPriorityClass", f"p{number}")
        assert (spec.priority_class_ref, spec.priority) == (ref, number)
