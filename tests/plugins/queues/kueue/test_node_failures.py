"""Nodes of admitted workloads that fail: what Workloads say before their pods are made again."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.plugins.queues.kueue.kueue_builders import cluster_queue, flavor, local_queue
from tests.plugins.queues.kueue.queued_job_builders import GPU, started, workload_of
from tests.plugins.queues.kueue.test_topology_assignment import HOST, gathered, stated, topology

from bayplan.api import ApiObject, Node, Pod
from bayplan.api.node import Taint
from bayplan.testing import Cluster, make_node


def world(*names: str) -> Cluster:
    """Return nodes with a GPU each in racks by their first letter, and a job of two in one rack."""
    nodes: list[ApiObject] = [
        make_node(name, gpu=1, labels={"rack": name[0], HOST: name, "pool": "gpu"})
        for name in names
    ]
    chosen = flavor("f", topologyName="t", nodeLabels={"pool": "gpu"})
    queues = [chosen, cluster_queue("cq", {"f": {GPU: 8}}), local_queue("lq", "cq")]
    cluster = started(*nodes, topology("rack", HOST), *queues, gathered("j", 2))
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


def tainted(cluster: Cluster, name: str) -> None:
    node = cluster.api.get(Node, name)
    assert node is not None
    taints = (Taint(key="broken", effect="NoSchedule"),)
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
