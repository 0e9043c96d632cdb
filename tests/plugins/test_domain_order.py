"""Which of several domains that can hold a gang gets it: the fullest one, by each system's rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from bayplan.api import ApiObject, Node, Pod
from bayplan.testing import Cluster, make_gang, make_network, make_node, make_object, make_pod

RACK, SPINE = "example.com/rack", "example.com/spine"


def node(name: str, rack: str, free: int, spine: str = "s", total: int = 8) -> list[ApiObject]:
    """Return a node, and a pod that has what is not free of its GPUs."""
    made: Node = make_node(name, cpu=64, gpu=total, labels={RACK: rack, SPINE: spine})
    if free == total:
        return [made]
    return [made, make_pod(f"on-{name}", "1", node=name, gpu=total - free)]


def network() -> ApiObject:
    return make_network(SpineLayer=SPINE, RackLayer=RACK)


def koordinator(count: int, *rules: tuple[str, str]) -> list[ApiObject]:
    layers = {RACK: "RackLayer", SPINE: "SpineLayer"}
    gather = ", ".join(
        f'{{"layer": "{layers[label]}", "strategy": "{strategy}"}}' for strategy, label in rules
    )
    spec = {
        "gang.scheduling.koordinator.sh/network-topology-spec": f'{{"gatherStrategy": [{gather}]}}'
    }
    return [network(), make_gang("job", count, spec), *members(count, gang="job")]


def kai(count: int, **constraint: str) -> list[ApiObject]:
    levels = [{"nodeLabel": SPINE}, {"nodeLabel": RACK}]
    topology = {"kind": "Topology", "apiVersion": "kai.scheduler/v1alpha1"}
    meta = {"name": "job", "namespace": "default"}
    group = {"kind": "PodGroup", "apiVersion": "scheduling.run.ai/v2alpha2", "metadata": meta}
    spec = {"minMember": count, "topologyConstraint": {"topology": "net", **constraint}}
    return [
        make_object({**topology, "metadata": {"name": "net"}, "spec": {"levels": levels}}),
        make_object({**group, "spec": spec}),
        *members(count, annotations={"pod-group-name": "job"}),
    ]


def kueue(count: int, level: str = RACK) -> list[ApiObject]:
    topology = {"kind": "Topology", "apiVersion": "kueue.x-k8s.io/v1beta1"}
    levels = [{"nodeLabel": SPINE}, {"nodeLabel": RACK}]
    asked = {"kueue.x-k8s.io/podset-required-topology": level}
    annotations = {
        **asked,
        "kueue.x-k8s.io/pod-group-name": "job",
        "kueue.x-k8s.io/pod-group-total-count": str(count),
    }
    labels = {"kueue.x-k8s.io/pod-group-name": "job"}
    return [
        make_object({**topology, "metadata": {"name": "net"}, "spec": {"levels": levels}}),
        *members(count, annotations=annotations, labels=labels),
    ]


def members(count: int, **more: Any) -> list[Pod]:
    return [make_pod(f"p{index}", "1", gpu=1, **more) for index in range(count)]


def used(nodes: Sequence[Sequence[ApiObject]], job: Sequence[ApiObject]) -> Mapping[str, int]:
    """Return how many members each node gets."""
    cluster = Cluster([*(obj for one in nodes for obj in one), *job])
    placed = cluster.schedule()
    found: dict[str, int] = {}
    for pod, name in placed.items():
        if pod.startswith("p"):
            found[name] = found.get(name, 0) + 1
    assert sum(found.values()) == sum(isinstance(one, Pod) for one in job), cluster.message("p0")
    return found


@pytest.mark.parametrize(
    "job",
    [
        koordinator(2, ("MustGather", RACK)),
        kai(2, requiredTopologyLevel=RACK),
        kai(2, preferredTopologyLevel=RACK),
        kueue(2),
    ],
    ids=["koordinator", "kai-required", "kai-preferred", "kueue"],
)
def test_an_empty_rack_is_not_broken_into_while_another_one_that_is_begun_has_room(
    job: Sequence[ApiObject],
) -> None:
    assert used([node("n1", "r1", 8), node("n2", "r2", 4)], job) == {"n2": 2}


@pytest.mark.parametrize(
    "job", [koordinator(2, ("MustGather", RACK)), kai(2, requiredTopologyLevel=RACK), kueue(2)]
)
def test_in_a_rack_the_node_with_the_least_left_is_taken(job: Sequence[ApiObject]) -> None:
    assert used([node("n1", "r1", 8), node("n2", "r1", 4)], job) == {"n2": 2}


def test_kai_packs_the_fuller_upper_domain_before_the_fuller_lower_one() -> None:
    nodes = [
        *(node(f"a{index}", f"r{index}", 1, "s1", 1) for index in range(3)),
        *(node(f"b{index}", "r9", 1, "s2", 1) for index in range(2)),
    ]
    assert used(nodes, kai(1, preferredTopologyLevel=RACK)) == {"b0": 1}


def test_koordinator_and_kueue_take_the_fuller_lower_domain_first() -> None:
    nodes = [
        *(node(f"b{index}", "r9", 1, "s1", 1) for index in range(2)),
        *(node(f"c{index}", f"r{index}", 1, "s2", 1) for index in range(3)),
    ]
    for job in (koordinator(1, ("MustGather", RACK)), kueue(1)):
        assert used(nodes, job) == {"c0": 1}


def test_kueue_and_kai_take_the_rack_with_the_least_free_and_koordinator_the_least_offered() -> (
    None
):
    """Koordinator counts no more places on a node than the job has members."""
    nodes = [node("a", "r1", 16, total=16), *(node(f"b{i}", "r2", 3) for i in range(3))]
    for job in (kai(6, requiredTopologyLevel=RACK), kueue(6)):
        assert used(nodes, job) == {"b0": 3, "b1": 3}
    assert used(nodes, koordinator(6, ("MustGather", RACK))) == {"a": 6}
