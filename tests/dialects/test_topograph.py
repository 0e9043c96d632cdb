"""topograph's network models as clusters."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.paths import ROOT, SHARED

from bayplan.api import ClusterNetworkTopology, Node
from bayplan.cluster.manifests import load_manifests
from bayplan.dialects.topograph import cluster_of
from bayplan.errors import InputError
from bayplan_benchmarks.nearness import models, run_jobs

SHARED = SHARED / "fixtures" / "topograph"
MODEL = """
switches:
  core: {switches: [spine-1, spine-2]}
  spine-1: {labels: {zone: z1}, switches: [leaf-1, leaf-2]}
  spine-2: {switches: [leaf-3]}
blocks:
- {switch: leaf-1, nodes: ["n[01-03]"], annotations: {accelerator.test/domain: nvl-1}}
- {switch: leaf-2, nodes: ["n[04,06]", Extra], annotations: {accelerator.test/domain: nvl-1}}
- {switch: leaf-3, nodes: ["n[10-11]"], annotations: {accelerator.test/domain: nvl-2}}
"""


def load(tmp_path: Path, text: str) -> tuple[list[Node], ClusterNetworkTopology]:
    path = tmp_path / "model.yaml"
    path.write_text(text)
    objects = load_manifests([str(path)]).objects
    network = objects[-1]
    assert isinstance(network, ClusterNetworkTopology)
    return [obj for obj in objects if isinstance(obj, Node)], network


def test_a_model_becomes_nodes_and_layers(tmp_path: Path) -> None:
    nodes, network = load(tmp_path, MODEL)
    names = [node.metadata.name for node in nodes]
    assert names == ["n01", "n02", "n03", "n04", "n06", "extra", "n10", "n11"]
    assert nodes[0].metadata.labels["fabric.topograph.run/tier-0"] == "leaf-1"
    assert nodes[0].metadata.labels["fabric.topograph.run/tier-2"] == "core"
    assert nodes[0].metadata.labels["zone"] == "z1"
    layers = [layer.topology_layer for layer in network.spec.network_topology_spec]
    # One accelerator domain spans both leaves of spine-1, so its layer lies between them.
    assert layers == [
        "CoreLayer",
        "SpineLayer",
        "AcceleratorLayer",
        "LeafLayer",
        "NodeTopologyLayer",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "switches: {a: {switches: [b]}, b: {switches: [a]}}\nblocks: [{switch: a, nodes: [n]}]",
            "the switches form a cycle: a -> b -> a",
        ),
        (
            "switches: {a: {switches: [c]}, b: {switches: [c]}}\nblocks: []",
            'switch "c" is below "a" and below "b"',
        ),
        ("switches: {}\nblocks: [{switch: a, nodes: [n]}]", 'there is no switch "a"'),
        ("switches: {a: {}}\nblocks: [{switch: a, nodes: ['n[3-1]']}]", "is not a rising range"),
        ("switches: {a: {}}\nblocks: [{switch: a, nodes: ['n[x]']}]", "expected a range such as"),
        ("switches: {a: {}}\nblocks: [{switch: a, nodes: [n, n]}]", 'node "n" is in two blocks'),
        ("switches: {a: {}}\nblocks: [{switch: a, nodes: 7}]", "expected a list of names"),
        ("switches: []\nblocks: []", "expected a mapping"),
    ],
)
def test_a_model_that_contradicts_itself_is_refused(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(InputError) as caught:
        load(tmp_path, text)
    assert message in str(caught.value)
    assert "model.yaml:" in str(caught.value)


@pytest.mark.skipif(not SHARED.is_dir(), reason="topograph's models are not beside the project")
@pytest.mark.parametrize(
    ("name", "nodes", "depth"),
    [
        ("small-tree", 6, 4),
        ("medium", 8, 5),
        ("large", 96, 5),
        ("nvl72", 72, 5),
        ("dual-xclr-regular", 96, 6),
        ("dual-xclr-irregular", 255, 6),
    ],
)
def test_topographs_own_models_load(name: str, nodes: int, depth: int) -> None:
    objects = load_manifests([str(SHARED / f"{name}.yaml")]).objects
    assert len(objects) == nodes + 1
    network = objects[-1]
    assert isinstance(network, ClusterNetworkTopology)
    assert len(network.spec.network_topology_spec) == depth


@pytest.mark.parametrize("seed", [1, 2])
def test_random_gangs_are_whole_and_as_near_as_can_be(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    for name, objects in models(64):
        found = run_jobs(objects, 25, seed)
        assert found.broken == 0, name
        assert found.nearest == found.placed > 0, name


def test_a_model_without_blocks_is_not_a_model() -> None:
    assert len(cluster_of({"switches": {}, "blocks": []})) == 1
