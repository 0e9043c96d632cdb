"""Nodes of admitted workloads that fail: what Workloads say before their pods are made again."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.plugins.queues.kueue.kueue_builders import cluster_queue, flavor, local_queue
from tests.plugins.queues.kueue.queued_job_builders import GPU, started, workload_of
from tests.plugins.queues.kueue.test_topology_assignment import HOST, gathered, stated, topology

from bayplan.api import ApiObject, Node, Pod, Toleration
from bayplan.api.node import Taint
from bayplan.api.pod import TaintEffect
from bayplan.testing import Cluster, make_node


def world(*names: str, tolerations: tuple[Toleration, ...] = ()) -> Cluster:
    """Return nodes with a GPU each in racks by their first letter, and a job of two in one rack."""
    nodes: list[ApiObject] = [
        make_node(name, gpu=1, labels={"rack": name[0], HOST: name, "pool": "gpu"})
        for name in names
    ]
    chosen = flavor("f", topologyName="t", nodeLabels={"pool": "gpu"})
    queues = [chosen, cluster_queue("cq", {"f": {GPU: 8}}), local_queue("lq", "cq")]
    cluster = started(*nodes, topology("rack", HOST), *queues, gathered("j", 2, *tolerations))
    cluster.advance(10.0)
    assert hosts(cluster) == ["a1", "a2"]
    return cluster


def hosts(cluster: Cluster) -> list[str]:
    """Return the nodes that the Workload of the job names."""
    return [name for (name,) in stated(cluster, "j")[1]]


def placed(cluster: Cluster) -> list[str]:
    return sorted(pod.spec.node_name for pod in cluster.api.list(Pod))


def reasons(cluster: Cluster) -> list[str]:
    found = workload_of(cluster, "j").status.conditions
    return [one.reason for one in found if one.type == "Requeued"]


def tainted(cluster: Cluster, name: str, effect: TaintEffect = "NoSchedule") -> None:
    node = cluster.api.get(Node, name)
    assert node is not None
    taints = (Taint(key="broken", effect=effect),)
    cluster.api.update(replace(node, spec=replace(node.spec, taints=taints)))


def test_another_node_of_the_domain_takes_the_place_of_one_that_is_gone() -> None:
    cluster = world("a1", "a2", "a3", "b1")
    cluster.api.delete(Node, "a1")
    cluster.advance(0.5)
    assert hosts(cluster) == ["a2", "a3"]
    cluster.advance(120.0)
    assert placed(cluster) == hosts(cluster) == ["a2", "a3"]
    assert reasons(cluster) == []


def test_where_the_domain_has_no_other_node_the_job_starts_again_in_another() -> None:
    cluster = world("a1", "a2", "b1", "b2")
    cluster.api.delete(Node, "a1")
    cluster.advance(120.0)
    assert placed(cluster) == hosts(cluster) == ["b1", "b2"]
    assert reasons(cluster) == ["NodeFailures"]


@pytest.mark.parametrize("spare", [True, False], ids=["a spare node", "none"])
def test_a_tainted_node_counts_as_failed_once_a_pod_of_it_ends(spare: bool) -> None:
    cluster = world("a1", "a2", "b1", "a3" if spare else "b2")
    tainted(cluster, "a1")
    cluster.advance(60.0)
    assert placed(cluster) == hosts(cluster) == ["a1", "a2"]
    (pod,) = [one for one in cluster.api.list(Pod) if one.spec.node_name == "a1"]
    cluster.api.delete(Pod, pod.key)
    cluster.advance(120.0)
    assert placed(cluster) == hosts(cluster) == (["a2", "a3"] if spare else ["b1", "b2"])
    assert reasons(cluster) == ([] if spare else ["NodeFailures"])


@pytest.mark.parametrize("spare", [True, False], ids=["a spare node", "none"])
def test_no_pod_comes_back_to_a_node_that_it_tolerates_for_a_time(spare: bool) -> None:
    for_a_time = Toleration("broken", "Exists", effect="NoExecute", toleration_seconds=5)
    names = ("a1", "a2", "b1", "a3" if spare else "b2")
    cluster = world(*names, tolerations=(for_a_time,))
    tainted(cluster, "a1", "NoExecute")
    cluster.advance(4.0)
    assert placed(cluster) == ["a1", "a2"]
    cluster.advance(120.0)
    assert placed(cluster) == hosts(cluster) == (["a2", "a3"] if spare else ["b1", "b2"])
    assert reasons(cluster) == ([] if spare else ["NodeFailures"])


def test_a_node_that_is_tolerated_without_end_stays_in_use() -> None:
    for_ever = Toleration("broken", "Exists", effect="NoExecute")
    cluster = world("a1", "a2", "a3", tolerations=(for_ever,))
    tainted(cluster, "a1", "NoExecute")
    cluster.advance(60.0)
    assert placed(cluster) == hosts(cluster) == ["a1", "a2"]
