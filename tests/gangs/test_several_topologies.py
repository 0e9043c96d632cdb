"""Sub-groups of one job in domains of different networks: each by the labels of its own."""

from __future__ import annotations

from typing import Any

import pytest
from tests.gangs.test_owned import add
from tests.gangs.test_owned_topology import REQUIRED, TOPOLOGY, template, training

from bayplan.api import ApiObject, Pod
from bayplan.testing import Cluster, make_node, make_object, make_pod, make_pods_of


def topology(name: str, *labels: str) -> ApiObject:
    return make_object(
        {
            "apiVersion": "kai.scheduler/v1alpha1",
            "kind": "Topology",
            "metadata": {"name": name},
            "spec": {"levels": [{"nodeLabel": label} for label in labels]},
        }
    )


def crossed(cpu: int, *, racks: int = 2, feeds: int = 2, zone: str = "z") -> Cluster:
    """Return a node for each rack and each feed of power, which cross."""
    cluster = Cluster()
    for rack in range(racks):
        for feed in range(feeds):
            labels = {"rack": f"r{rack}", "feed": f"f{feed}", "zone": zone}
            cluster.add(make_node(f"r{rack}-f{feed}", cpu, labels=labels))
    cluster.add(topology("net", "zone", "rack"), topology("power", "feed"))
    return cluster


def job(whole: Any = None, **sub_groups: tuple[str, str]) -> list[ApiObject]:
    """Return a PodGroup with two pods of one core in each sub-group, in a topology and level."""
    groups = [
        {
            "name": name,
            "minMember": 2,
            "topologyConstraint": {"topology": network, "requiredTopologyLevel": level},
        }
        for name, (network, level) in sub_groups.items()
    ]
    spec: dict[str, Any] = {"minMember": 2 * len(groups), "subGroups": groups}
    if whole is not None:
        spec["topologyConstraint"] = whole
    group = make_object(
        {
            "apiVersion": "scheduling.run.ai/v2alpha2",
            "kind": "PodGroup",
            "metadata": {"name": "job", "namespace": "default"},
            "spec": spec,
        }
    )
    pods = [
        make_pod(
            f"{name}-{number}",
            1,
            None,
            labels={"kai.scheduler/subgroup-name": name},
            annotations={"pod-group-name": "job"},
        )
        for name in sub_groups
        for number in range(2)
    ]
    return [group, *pods]


def domains(cluster: Cluster, group: str, label: str) -> set[str]:
    """Return the domains that the pods of a sub-group have."""
    cluster.schedule()
    nodes = [
        one.spec.node_name for one in cluster.api.list(Pod) if one.metadata.name.startswith(group)
    ]
    assert nodes
    assert all(nodes), f"{group} waits"
    found = (cluster.snapshot.node(name) for name in nodes)
    return {node.metadata.labels[label] for node in found if node is not None}


@pytest.mark.parametrize("whole", [None, {"topology": "net", "requiredTopologyLevel": "zone"}])
def test_each_sub_group_is_in_one_domain_of_its_own_network(whole: Any) -> None:
    cluster = crossed(2)
    cluster.add(*job(whole, decode=("net", "rack"), prefill=("power", "feed")))
    assert len(domains(cluster, "decode", "rack")) == 1
    assert len(domains(cluster, "prefill", "feed")) == 1


def test_domains_of_both_networks_have_to_fit_together() -> None:
    # Each node takes one pod: the rack of one group leaves the other two nodes of each feed.
    cluster = crossed(1, racks=3)
    cluster.add(*job(decode=("net", "rack"), prefill=("power", "feed")))
    (rack,) = domains(cluster, "decode", "rack")
    (feed,) = domains(cluster, "prefill", "feed")
    assert {f"{rack}-f0", f"{rack}-f1"}.isdisjoint(
        one.spec.node_name for one in cluster.api.list(Pod) if "prefill" in one.metadata.name
    )
    assert feed in ("f0", "f1")
    cluster = crossed(1)
    cluster.add(*job(decode=("net", "rack"), prefill=("power", "feed")))
    cluster.schedule()
    assert cluster.placements() == {}


def test_a_level_of_another_network_is_told() -> None:
    cluster = crossed(2)
    cluster.add(*job(decode=("net", "rack"), prefill=("power", "rack")))
    cluster.schedule()
    assert cluster.placements() == {}
    assert 'no network layer "rack"' in cluster.message("prefill-0")


def test_templates_of_one_owner_may_name_different_networks() -> None:
    cluster = crossed(2)
    masters = template(**{TOPOLOGY: "power", REQUIRED: "feed"})
    workers = template(**{TOPOLOGY: "net", REQUIRED: "rack"})
    above = add(cluster, training(masters, workers))
    cluster.add(*make_pods_of(above))
    assert len(domains(cluster, "x-worker", "rack")) == 1
    assert len(domains(cluster, "x-master", "feed")) == 1
