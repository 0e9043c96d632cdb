"""Repacking empties the nodes that an autoscaler can then remove, whole racks first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.examples import examples
from tests.plugins.autoscaling.growing_clusters import GPU, Growing, group

from bayplan.api import ApiObject, Node, Pod
from bayplan.testing import make_node, make_object, make_pod

HOUR = 3600.0
RACKS = make_object(
    {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Topology",
        "metadata": {"name": "racks"},
        "spec": {"levels": [{"nodeLabel": "rack"}, {"nodeLabel": "kubernetes.io/hostname"}]},
    }
)


def work(name: str, gpus: int, **meta: Any) -> ApiObject:
    """Return a ReplicaSet of one pod."""
    main = {"name": "main", "image": "x", "resources": {"limits": {GPU: str(gpus)}}}
    template = {"metadata": {"labels": {"app": name}, **meta}, "spec": {"containers": [main]}}
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": name}}, "template": template}
    head = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": name}}
    return make_object(head | {"spec": spec})


class Racks(Growing):
    """Racks of nodes with 8 GPUs each; the first letter of a node names its rack.

    :param used: the GPUs of the pods on each node.
    """

    def __init__(self, used: Mapping[str, Sequence[int]], **repack: Any) -> None:
        repack = {"movesPerHour": 60, "minRuntime": "10m", "frees": "Nodes", **repack}
        args = {"repack": repack, "packs": "GPUs"}
        groups = [group(rack, most=4, rack=rack) for rack in sorted({name[0] for name in used})]
        super().__init__(*groups, plugins={"GPUFragmentation": args})
        self.add(RACKS)
        for name in used:
            labels = {"rack": name[0], "bayplan.dev/node-group": name[0]}
            self.add(make_node(name, cpu="64", gpu=8, labels=labels))
        self.autoscaler.begin()
        for node, sizes in used.items():
            self.fill(node, *(work(f"{node}-{n}", gpus) for n, gpus in enumerate(sizes)))

    def fill(self, node: str, *objects: ApiObject) -> None:
        """Let a node have pods, whatever else is free."""
        for closed in (True, False):
            for one in self.cluster.api.list(Node):
                others = one.metadata.name != node
                spec = replace(one.spec, unschedulable=closed and others)
                self.cluster.api.update(replace(one, spec=spec))
            if closed:
                self.add(*objects)
                self.passes(1)

    def by_work(self) -> dict[str, str]:
        """Return the node of each ReplicaSet's pod."""
        return {pod.rpartition("-")[0]: node for pod, node in self.on_nodes().items()}


def moved(world: Racks) -> list[str]:
    """Return the nodes that were emptied, in order."""
    found = [one.reason for one in world.cluster.scheduler.evictor.evicted]
    assert all(one.startswith("repack: it fits on ") for one in found)
    nodes = [one.rpartition("it frees ")[2].partition(",")[0] for one in found]
    return list(dict.fromkeys(nodes))


def test_a_whole_rack_is_emptied_before_a_node_of_another_that_holds_less() -> None:
    """Rack a holds four GPUs in all; that b1 holds only one does not make it the first."""
    world = Racks({"a1": [2], "a2": [2], "b1": [1], "b2": [6]})
    world.passes(2 * HOUR)
    assert moved(world) == ["a1", "a2"]
    assert world.nodes() == ["b1", "b2"]
    assert len(world.on_nodes()) == 4


def test_a_node_that_one_job_holds_fast_is_filled_and_not_emptied() -> None:
    world = Racks({"a1": [], "b1": [2], "a2": [2]})
    world.add(make_pod("bare", node="a1", gpu=1))
    world.passes(2 * HOUR)
    assert moved(world) == ["b1", "a2"]
    assert world.nodes() == ["a1"]


@pytest.mark.parametrize(
    "annotation",
    ["cluster-autoscaler.kubernetes.io/safe-to-evict=false", "karpenter.sh/do-not-disrupt=true"],
)
def test_a_pod_that_is_not_to_be_evicted_keeps_its_node(annotation: str) -> None:
    name, _, value = annotation.partition("=")
    world = Racks({"a1": [], "a2": [4]})
    world.fill("a1", work("kept", 1, annotations={name: value}))
    world.passes(2 * HOUR)
    assert world.nodes() == ["a1"]
    assert world.by_work()["kept"] == "a1"


def test_nothing_moves_where_no_node_becomes_empty() -> None:
    world = Racks({"a1": [5], "a2": [5], "b1": [5]})
    world.passes(2 * HOUR)
    assert moved(world) == []


def test_a_node_with_more_pods_than_may_move_in_an_hour_is_left() -> None:
    world = Racks({"a1": [1, 1, 1], "a2": [4]}, movesPerHour=2)
    world.passes(5 * HOUR)
    assert moved(world) == []


def test_emptying_goes_on_once_more_pods_may_move() -> None:
    world = Racks({"a1": [1], "a2": [1, 1, 1], "b1": [1, 1, 1, 1]}, movesPerHour=3)
    world.passes(5 * HOUR)
    assert moved(world) == ["a1", "a2"]


@examples(10)
@given(
    st.dictionaries(
        st.sampled_from([f"{rack}{n}" for rack in "abc" for n in range(3)]),
        st.lists(st.sampled_from((1, 2, 4)), max_size=2),
        min_size=2,
        max_size=7,
    )
)
def test_moves_come_to_rest_and_every_move_empties_a_node(used: dict[str, list[int]]) -> None:
    world = Racks(dict(used), minRuntime="1m")
    world.passes(3 * HOUR)
    count = len(world.cluster.scheduler.evictor.evicted)
    emptied = moved(world)
    held = set(world.on_nodes().values())
    assert held.isdisjoint(emptied), "what was emptied stays empty"
    assert len(world.on_nodes()) == sum(map(len, used.values()))
    world.passes(3 * HOUR)
    assert len(world.cluster.scheduler.evictor.evicted) == count
    assert {node.metadata.name for node in world.cluster.api.list(Node)} >= held
    assert all(pod.spec.node_name for pod in world.cluster.api.list(Pod))
