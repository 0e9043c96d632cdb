"""Workloads of nothing that bayplan follows: of other frameworks, or of nobody."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.plugins.queues.kueue.kueue_builders import cluster_queue, flavor, local_queue
from tests.plugins.queues.kueue.queued_job_builders import (
    GPU,
    job,
    on_nodes,
    one_queue,
    running,
    started,
)

from bayplan.api import ClusterQueue, Job, KueueWorkload
from bayplan.api.objects import decode_part
from bayplan.cluster.protocol import PatchFields, PatchStatus
from bayplan.testing import Cluster, make_node, make_pod

WIDGET = {"apiVersion": "example.com/v1", "kind": "Widget", "name": "w", "uid": "widget"}


def lone(
    name: str = "w", count: int = 2, owned: bool = False, gpu: int = 1, **spec: Any
) -> KueueWorkload:
    """Return a Workload of nobody, or of a Widget whose own controller made it."""
    container = {"name": "c", "resources": {"requests": {GPU: gpu}, "limits": {GPU: gpu}}}
    pods = {"name": "main", "count": count, "template": {"spec": {"containers": [container]}}}
    owners = [{**WIDGET, "controller": True}] if owned else []
    meta = {"name": name, "namespace": "default", "ownerReferences": owners}
    given = {"queueName": "lq", "podSets": [pods], "active": True, **spec}
    return decode_part(KueueWorkload, {"metadata": meta, "spec": given})


def run(*objects: Any, quota: int = 4) -> Cluster:
    return started(make_node("n", gpu=8), *one_queue(quota), *objects)


def workload(cluster: Cluster, name: str = "w") -> KueueWorkload:
    found = cluster.api.get(KueueWorkload, f"default/{name}")
    assert found is not None
    return found


def states(cluster: Cluster, name: str = "w") -> dict[str, str]:
    return {one.type: one.status for one in workload(cluster, name).status.conditions}


def used(cluster: Cluster) -> int:
    """Return how many GPUs the queue says that it has given out."""
    cluster.advance(5.0)
    (queue,) = cluster.api.list(ClusterQueue)
    (usage,) = queue.status.flavors_reservation
    return int(usage.resources[0].total.amount)


@pytest.mark.parametrize("owned", [False, True])
def test_it_is_admitted_as_others_and_charged_until_it_ends_or_is_deleted(owned: bool) -> None:
    cluster = run(lone(owned=owned), lone("other", owned=owned))
    assert states(cluster)["Admitted"] == "True"
    (assigned,) = workload(cluster).status.admission.pod_set_assignments
    assert (assigned.flavors, assigned.count) == ({GPU: "f"}, 2)
    assert used(cluster) == 4
    conditions = [
        *msgspec.to_builtins(workload(cluster).status.conditions),
        {"type": "Finished", "status": "True", "reason": "Succeeded", "message": ""},
    ]
    ended = decode_part(KueueWorkload, {"metadata": {}, "status": {"conditions": conditions}})
    status = msgspec.structs.replace(workload(cluster).status, conditions=ended.status.conditions)
    cluster.api.submit(PatchStatus(KueueWorkload, "default/w", status))
    cluster.schedule()
    assert used(cluster) == 2
    cluster.api.delete(KueueWorkload, "default/other")
    cluster.schedule()
    assert used(cluster) == 0


def test_it_waits_for_quota_and_says_why() -> None:
    cluster = run(lone(count=3), lone("late", count=3))
    assert states(cluster)["Admitted"] == "True"
    why = workload(cluster, "late").status.conditions[0]
    assert why.reason == "WaitingForQuota"
    cluster.api.delete(KueueWorkload, "default/w")
    cluster.schedule()
    assert states(cluster, "late")["Admitted"] == "True"


def test_it_is_admitted_only_where_its_pods_would_get_nodes() -> None:
    cluster = run(lone(count=1, gpu=9), quota=20)
    assert states(cluster)["QuotaReserved"] == "False"
    assert workload(cluster).status.conditions[0].reason == "TopologyPlacementFailed"


def test_it_gives_way_to_a_job_of_higher_priority_and_comes_back() -> None:
    within = {"preemption": {"withinClusterQueue": "LowerPriority"}}
    queue = cluster_queue("cq", {"f": {GPU: 4}}, **within)
    objects = [flavor("f"), queue, local_queue("lq", "cq"), lone(count=3, owned=True)]
    cluster = started(make_node("n", gpu=8), *objects)
    cluster.add(job("j", pods=3, priority=5))
    cluster.schedule()
    cluster.advance(20.0)
    assert running(cluster) == {"j"}
    assert on_nodes(cluster) == {"j": 3}
    assert states(cluster)["Evicted"] == "True"
    assert states(cluster)["QuotaReserved"] == "False"
    cluster.api.delete(Job, "default/j")
    cluster.advance(60.0)
    assert states(cluster)["Admitted"] == "True"


def test_a_deactivated_one_loses_its_quota() -> None:
    cluster = run(lone())
    uid = workload(cluster).metadata.uid
    cluster.api.submit(PatchFields(KueueWorkload, "default/w", uid, {"/spec/active": False}))
    cluster.schedule()
    cluster.advance(5.0)
    assert states(cluster)["Evicted"] == "True"
    assert used(cluster) == 0


def test_those_of_other_frameworks_are_no_sign_of_kueues_manager() -> None:
    cluster = run(job("j"), lone(owned=True))
    assert running(cluster) == {"j"}
    cluster.add(lone("later", owned=True, count=1))
    cluster.schedule()
    assert not any("LeftToKueue" in str(one) for one in cluster.api.events)


def test_pods_beside_it_are_not_taken_for_its() -> None:
    cluster = run(lone(), make_pod("p", gpu=8))
    assert cluster.placements()["p"] == "n"


def test_one_with_more_pods_than_all_nodes_take_waits_and_costs_nothing() -> None:
    most = one_queue(4_000_000)
    cluster = started(make_node("n", gpu=8), *most, lone(count=1_000_000), lone("small"))
    assert states(cluster)["QuotaReserved"] == "False"
    assert states(cluster, "small")["Admitted"] == "True"
