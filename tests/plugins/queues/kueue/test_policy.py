"""Pods that wait for Kueue's quota: admission through the scheduler."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from tests.plugins.queues.kueue.kueue_builders import (
    cluster_queue,
    cohort,
    flavor,
    local_queue,
    workload,
)

from bayplan.api import ApiObject, OwnerReference, Pod
from bayplan.api.kueue import LocalQueue, WorkloadPriorityClass
from bayplan.api.meta import ObjectMeta
from bayplan.api.objects import decode_part
from bayplan.api.times import seconds_of
from bayplan.testing import Cluster, make_gang, make_node, make_pod

GPU = "nvidia.com/gpu"
LABEL = "kueue.x-k8s.io/queue-name"


def pod(name: str, queue: str, gpu: int = 1, priority_class: str = "", **more: Any) -> Pod:
    labels = {LABEL: queue}
    if priority_class:
        labels["kueue.x-k8s.io/priority-class"] = priority_class
    return make_pod(name, None, None, labels, gpu=gpu, **more)


def run(*objects: ApiObject, args: dict[str, Any] | None = None) -> Cluster:
    cluster = Cluster(objects, plugins={"Queues": args or {}})
    cluster.schedule()
    cluster.advance(120.0)
    return cluster


def one_queue(quota: int) -> list[ApiObject]:
    return [flavor("f"), cluster_queue("cq", {"f": {GPU: quota}}), local_queue("lq", "cq")]


def test_pods_wait_for_quota_and_run_once_it_is_free() -> None:
    pods = [pod(f"p{index}", "lq") for index in range(4)]
    cluster = run(make_node("n1", gpu=8), *one_queue(2), *pods)
    assert set(cluster.placements()) == {"p0", "p1"}
    message = cluster.message("default/p2")
    assert message.startswith('waiting for admission by ClusterQueue "cq": ')
    assert "insufficient unused quota for nvidia.com/gpu in flavor f" in message
    assert "asks for the same" in cluster.message("default/p3")
    cluster.api.delete(Pod, "default/p0")
    cluster.advance(120.0)
    assert set(cluster.placements()) == {"p1", "p2"}


def test_pods_run_on_the_nodes_of_their_flavor() -> None:
    nodes = [make_node(name, gpu=4, labels={"kind": name}) for name in ("slow", "fast")]
    flavors = [flavor(name, nodeLabels={"kind": name}) for name in ("fast", "slow")]
    quotas = {"fast": {GPU: 1}, "slow": {GPU: 2}}
    pods = [pod(f"p{index}", "lq") for index in range(4)]
    queues = [cluster_queue("cq", quotas), local_queue("lq", "cq")]
    cluster = run(*nodes, *flavors, *queues, *pods)
    assert cluster.placements() == {"p0": "fast", "p1": "slow", "p2": "slow"}


def test_a_queue_takes_back_what_it_lent() -> None:
    lender = cluster_queue("a", {"f": {GPU: 2}}, "co", preemption={"reclaimWithinCohort": "Any"})
    queues = [lender, cluster_queue("b", {"f": {GPU: 2}}, "co"), cohort("co"), flavor("f")]
    borrowers = [pod(f"b{index}", "lb") for index in range(4)]
    locals_ = [local_queue("la", "a"), local_queue("lb", "b")]
    cluster = run(make_node("n1", gpu=4), *queues, *locals_, *borrowers)
    assert len(cluster.placements()) == 4
    cluster.add(*[pod(f"a{index}", "la") for index in range(3)])
    cluster.advance(300.0)
    assert set(cluster.placements()) == {"a0", "a1", "b2", "b3"}
    reasons = [one.reason for one in cluster.scheduler.evictor.evicted]
    assert len(reasons) == 2
    assert all("due to reclamation within the cohort" in reason for reason in reasons)


def test_a_group_is_admitted_as_a_whole_and_only_where_it_fits() -> None:
    nodes = [make_node("n1", gpu=3), make_node("n2", gpu=3)]
    groups = [pod(f"{group}{index}", "lq", 2, gang=group) for group in "gh" for index in range(2)]
    cluster = run(*nodes, *one_queue(100), make_gang("g", 2), make_gang("h", 2), *groups)
    assert set(cluster.placements()) == {"g0", "g1"}
    assert "its pods would not get nodes" in cluster.message("default/h0")
    cluster.api.delete(Pod, "default/g0")
    cluster.api.delete(Pod, "default/g1")
    cluster.advance(120.0)
    assert set(cluster.placements()) == {"h0", "h1"}


def test_nobody_is_preempted_for_a_pod_that_would_not_fit() -> None:
    preemption = {"withinClusterQueue": "LowerPriority"}
    queues = [flavor("f"), cluster_queue("cq", {"f": {GPU: 4}}, preemption=preemption)]
    running = [pod(f"p{index}", "lq", node=f"n{index}") for index in range(4)]
    nodes = [make_node(f"n{index}", gpu=1) for index in range(4)]
    wide = pod("wide", "lq", 2, priority=10)
    cluster = run(*nodes, *queues, local_queue("lq", "cq"), *running, wide)
    assert len(cluster.placements()) == 4
    assert not cluster.scheduler.evictor.evicted


def test_pods_that_run_already_count_with_the_flavor_of_their_node() -> None:
    nodes = [make_node("n1", gpu=4, labels={"kind": "b"}), make_node("n2", gpu=4)]
    flavors = [flavor("a", nodeLabels={"kind": "a"}), flavor("b", nodeLabels={"kind": "b"})]
    queues = [cluster_queue("cq", {"a": {GPU: 0}, "b": {GPU: 2}}), local_queue("lq", "cq")]
    running = [pod(f"r{index}", "lq", node="n1") for index in range(2)]
    cluster = run(*nodes, *flavors, *queues, *running, pod("p", "lq"))
    assert set(cluster.placements()) == {"r0", "r1"}


def test_priority_classes_order_workloads() -> None:
    high = WorkloadPriorityClass(100, ObjectMeta(name="high"))
    first, last = pod("a", "lq"), pod("z", "lq", priority_class="high")
    cluster = run(make_node("n1", gpu=8), *one_queue(1), high, first, last)
    assert set(cluster.placements()) == {"z"}


def test_a_stopped_queue_evicts_its_pods() -> None:
    cluster = run(make_node("n1", gpu=8), *one_queue(2), pod("p", "lq"))
    assert set(cluster.placements()) == {"p"}
    stopped = cluster_queue("cq", {"f": {GPU: 2}}, stopPolicy="HoldAndDrain")
    cluster.api.update(stopped)
    cluster.advance(120.0)
    assert not cluster.placements()
    assert "The ClusterQueue is stopped" in cluster.scheduler.evictor.evicted[0].reason


@pytest.mark.parametrize(
    ("queue", "message"),
    [
        ("none", 'waiting for LocalQueue "none", which does not exist'),
        ("lost", 'waiting for ClusterQueue "gone", which does not exist'),
    ],
)
def test_missing_queues_are_waited_for(queue: str, message: str) -> None:
    cluster = run(
        make_node("n1", gpu=8), *one_queue(2), local_queue("lost", "gone"), pod("p", queue)
    )
    assert message in cluster.message("default/p")


def test_kueues_own_controllers_are_left_to_admit() -> None:
    pods = [pod(f"p{index}", "lq") for index in range(4)]
    objects = [make_node("n1", gpu=8), *one_queue(2), *pods]
    assert len(run(*objects, args={"kueue": None}).placements()) == 4
    owner = OwnerReference("Job", "j", "j", "batch/v1", controller=True)
    made = workload("w", "lq")
    made = replace(made, metadata=replace(made.metadata, owner_references=(owner,)))
    assert len(run(*objects, made).placements()) == 4


def test_pods_beyond_those_that_were_admitted_wait() -> None:
    group = [pod(f"g{index}", "lq", gang="g") for index in range(2)]
    cluster = run(make_node("n1", gpu=8), *one_queue(2), make_gang("g", 2), *group)
    cluster.add(pod("g2", "lq", gang="g"))
    cluster.advance(120.0)
    assert set(cluster.placements()) == {"g0", "g1"}
    assert "admitted with 2 pods, and has 3" in cluster.message("default/g2")
    cluster.api.delete(Pod, "default/g0")
    cluster.advance(120.0)
    assert set(cluster.placements()) == {"g1", "g2"}


def test_a_queue_that_opens_again_admits() -> None:
    stopped = cluster_queue("cq", {"f": {GPU: 2}}, stopPolicy="Hold")
    queues = [flavor("f"), stopped, local_queue("lq", "cq")]
    cluster = run(make_node("n1", gpu=8), *queues, pod("p", "lq"))
    assert "is stopped" in cluster.message("default/p")
    cluster.api.update(cluster_queue("cq", {"f": {GPU: 2}}))
    cluster.advance(120.0)
    assert set(cluster.placements()) == {"p"}


def test_a_queue_tells_what_it_may_have() -> None:
    queues = [cluster_queue(name, {"f": {GPU: 2}}, "co") for name in "ab"]
    locals_ = [local_queue(f"l{name}", name) for name in "ab"]
    pods = [pod(f"p{index}", "la") for index in range(3)]
    cluster = run(make_node("n1", gpu=8), flavor("f"), *queues, *locals_, *pods)
    reports = {one.name: one for one in cluster.scheduler.queues.reports()}
    assert reports["a"].resources["f/" + GPU].used == 3
    assert reports["a"].resources["f/" + GPU].fair == 4
    assert reports["b"].resources["f/" + GPU].fair == 1


def test_a_gated_group_is_let_go_once_it_is_admitted() -> None:
    taint = {"key": "spot", "value": "true", "effect": "NoSchedule"}
    spec = {"nodeLabels": {"kind": "b"}, "tolerations": [{"key": "spot", "operator": "Exists"}]}
    spot = make_node("n2", gpu=4, labels={"kind": "b"})
    spot = replace(spot, spec=decode_part(type(spot.spec), {"taints": [taint]}))
    queues = [flavor("f", **spec), cluster_queue("cq", {"f": {GPU: 3}}), local_queue("lq", "cq")]
    gate = {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}
    pods = [
        pod(f"{group}{index}", "lq", gang=group, spec=gate) for group in "gh" for index in range(2)
    ]
    groups = [make_gang("g", 2), make_gang("h", 2)]
    cluster = run(make_node("n1", gpu=4), spot, *queues, *groups, *pods)
    assert cluster.placements() == {"g0": "n2", "g1": "n2"}
    gates = {one.metadata.name: bool(one.spec.scheduling_gates) for one in cluster.api.list(Pod)}
    assert gates == {"g0": False, "g1": False, "h0": True, "h1": True}


def consumed(cluster: Cluster, name: str) -> tuple[float, float]:
    """Return the GPUs that a LocalQueue used over time, and how old that is, in seconds."""
    found = cluster.api.get(LocalQueue, f"default/{name}")
    assert found is not None
    assert found.status.fair_sharing is not None
    usage = found.status.fair_sharing.admission_fair_sharing_status
    assert usage is not None
    age = cluster.api.unix_time - seconds_of(usage.last_update)
    return float(usage.consumed_resources[GPU].amount), age


def test_usage_over_time_grows_and_decays_while_nothing_happens() -> None:
    scope = {"admissionMode": "UsageBasedAdmissionFairSharing"}
    sharing = {"usageHalfLifeTime": "1h", "usageSamplingInterval": "5m"}
    queues = [flavor("f"), cluster_queue("cq", {"f": {GPU: 4}}, admissionScope=scope)]
    args = {"kueue": {"admissionFairSharing": sharing}}
    cluster = run(make_node("n", gpu=4), *queues, local_queue("lq", "cq"), args=args)
    cluster.add(pod("p", "lq", 4))
    cluster.advance(600)
    before, _ = consumed(cluster, "lq")
    cluster.advance(3600)
    used, age = consumed(cluster, "lq")
    assert used == pytest.approx(4 - (4 - before) / 2, abs=0.01)
    assert age <= 300
    cluster.remove("p")
    cluster.advance(600)
    before, _ = consumed(cluster, "lq")
    cluster.advance(7200)
    left, age = consumed(cluster, "lq")
    assert left == pytest.approx(before / 4, abs=0.01)
    assert age <= 300
