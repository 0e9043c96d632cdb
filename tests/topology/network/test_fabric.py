"""The network between machines: one bandwidth for any two GPUs, by the layers on the way."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.machine_builders import gb200_tray, machine_from_yaml
from tests.paths import SHARED

from bayplan.topology.machine.model import Machine
from bayplan.topology.machine.readers.machinefile import known_machine
from bayplan.topology.machine.readers.smi import read_smi
from bayplan.topology.network.fabric import Fabric, GpuPath, LayerLink, out_of_machine
from bayplan.topology.network.tree import (
    NODE_LAYER,
    Layer,
    NetworkTree,
    NodeSet,
    TopologyError,
    build_tree,
    chain_of,
    tree_of_sets,
)

TABLES = SHARED / "fixtures" / "nvidia-smi-topo"
LAYERS = [Layer("Spine", ("spine",)), Layer("Block", ("block",))]

FAR_NIC = """
name: far-nic
gpu: NVIDIA A100
cpu: skylake
numa:
- id: 0
  roots: [{gpus: [0], nics: [{name: mlx5_0, rate: 400}]}]
- id: 1
  socket: 1
  roots: [{gpus: [1]}]
"""


def network(*places: str) -> NetworkTree:
    """Return a network; ``s1/b1`` is a node in both domains, ``-`` one outside the network."""
    keys = ("spine", "block")
    inside = [dict(zip(keys, place.split("/"), strict=False)) for place in places]
    return build_tree(LAYERS, [own if len(own) == len(keys) else {} for own in inside])


def node_bandwidth(found: Fabric, node: str, gpus: Sequence[int]) -> float:
    """Return the bandwidth from some GPUs of a node to the network, in GB/s."""
    return out_of_machine(found._machines[node], gpus)


def fabric(
    places: Sequence[str],
    links: Mapping[str, LayerLink],
    of: Machine | Sequence[Machine] | None = None,
) -> Fabric:
    """Return nodes n0, n1 ... at these positions; each is a DGX H100 by default."""
    names = [f"n{index}" for index in range(len(places))]
    if of is None:
        of = known_machine("dgx-h100")
    machines = [of] * len(names) if isinstance(of, Machine) else of
    return Fabric(dict(zip(names, machines, strict=True)), network(*places), names, links)


# Within a machine -------------------------------------------------------------------------------


def test_within_a_machine_the_path_is_that_of_the_machine() -> None:
    found = fabric(["s1/b1"], {}, known_machine("dgx-1v"))
    assert found.path("n0", 0, "n0", 3) == GpuPath(50, 0, "NVL")
    assert found.path("n0", 0, "n0", 1) == GpuPath(25, 0, "NVL")
    # GPU0 and GPU7 have no NVLink; they are on two sockets of a Skylake machine.
    assert found.path("n0", 0, "n0", 7).over == "SYS"
    assert fabric(["s1/b1"], {}).path("n0", 0, "n0", 7) == GpuPath(450, 0, "NVS")


def test_the_network_limits_nothing_within_a_machine() -> None:
    slow = LayerLink(0.001, 1000)
    found = fabric(["s1/b1"], {NODE_LAYER: slow, "Block": slow, "Spine": slow})
    assert found.path("n0", 1, "n0", 2) == GpuPath(450, 0, "NVS")


# Between machines -------------------------------------------------------------------------------

THREE_LAYERS = {
    NODE_LAYER: LayerLink(40, 1),
    "Block": LayerLink(20, 2),
    "Spine": LayerLink(5, 4),
}


@pytest.mark.parametrize(
    ("other", "bandwidth", "latency"),
    [(1, 40, 2 * 1), (2, 20, 2 * (1 + 2)), (3, 5, 2 * (1 + 2 + 4))],
    ids=["same block", "same spine", "another spine"],
)
def test_a_path_passes_the_layers_up_to_what_both_nodes_are_in(
    other: int, bandwidth: float, latency: float
) -> None:
    found = fabric(["s1/b1", "s1/b1", "s1/b2", "s2/b3"], THREE_LAYERS)
    assert found.path("n0", 0, f"n{other}", 0) == GpuPath(bandwidth, latency, "NET")


def test_two_blocks_of_one_name_are_two_domains() -> None:
    found = fabric(["s1/b1", "s2/b1"], THREE_LAYERS)
    assert found.path("n0", 0, "n1", 0) == GpuPath(5, 14, "NET")


def test_layers_without_a_link_limit_nothing() -> None:
    found = fabric(["s1/b1", "s2/b2"], {"Block": LayerLink(latency=3)})
    assert found.path("n0", 0, "n1", 0) == GpuPath(400 / 8, 6, "NET")


def test_a_node_outside_the_network_is_reached_over_all_layers() -> None:
    found = fabric(["s1/b1", "-", "-"], THREE_LAYERS)
    assert found.path("n0", 0, "n1", 0) == GpuPath(5, 1 + 2 + 4 + 1, "NET")
    assert found.path("n1", 0, "n2", 0) == GpuPath(40, 2, "NET")


def test_sets_of_nodes_are_a_network_too() -> None:
    sets = [
        NodeSet("row", 2, sets=("rack-a", "rack-b")),
        NodeSet("rack-a", 1, nodes=("n0", "n1")),
        NodeSet("rack-b", 1, nodes=("n2",)),
    ]
    names = ["n0", "n1", "n2"]
    machines = dict.fromkeys(names, known_machine("dgx-h100"))
    links = {"tier-1": LayerLink(12, 3), NODE_LAYER: LayerLink(30, 1)}
    found = Fabric(machines, tree_of_sets(sets, names), names, links)
    assert found.path("n0", 0, "n1", 0) == GpuPath(30, 2, "NET")
    assert found.path("n0", 0, "n2", 0) == GpuPath(12, 8, "NET")


PLACES = st.sampled_from(["s1/b1", "s1/b2", "s2/b1", "s2/b3", "-"])


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.lists(PLACES, min_size=3, max_size=6), st.lists(st.floats(1, 60), min_size=3))
def test_any_two_gpus_have_one_answer(places: list[str], speeds: list[float]) -> None:
    layers = (NODE_LAYER, "Block", "Spine")
    links = {layer: LayerLink(speed, speed) for layer, speed in zip(layers, speeds, strict=False)}
    kinds = [known_machine(name) for name in ("dgx-h100", "dgx-1v", "l40s-pcie")]
    machines = [kinds[index % 3] for index in range(len(places))]
    found = fabric(places, links, machines)
    ends = [(f"n{index}", gpu) for index in range(len(places)) for gpu in (0, 7)]
    ways = {(a, b): found.path(*a, *b) for a in ends for b in ends}
    for (a, b), way in ways.items():
        assert way == ways[b, a]
        assert way.bandwidth > 0
        assert way.latency >= 0
    # A detour over a third node is never faster: the network is a tree.
    for a, b, c in itertools.permutations(ends, 3):
        if len({a[0], b[0], c[0]}) == 3:
            direct, around = ways[a, b], min(ways[a, c].bandwidth, ways[c, b].bandwidth)
            assert direct.bandwidth >= around
            around = ways[a, c].latency + ways[c, b].latency
            assert direct.latency <= around * (1 + 1e-12)


# NICs -------------------------------------------------------------------------------------------


def test_the_slower_of_two_nics_counts() -> None:
    machines = [known_machine("dgx-h100"), known_machine("dgx-1v")]
    assert fabric(["s1/b1"] * 2, {}, machines).path("n0", 0, "n1", 0).bandwidth == 100 / 8


def test_a_nic_of_another_socket_is_reached_through_the_sockets() -> None:
    found = fabric(["s1/b1"] * 2, {}, machine_from_yaml(FAR_NIC))
    assert found.path("n0", 1, "n1", 0).bandwidth == 10, "what NCCL reckons between Skylakes"


def test_beyond_pxb_the_pcie_link_of_the_gpu_counts() -> None:
    # The NIC of GPU0 is at PHB: data passes the host, over PCIe 4 as NCCL reckons with it.
    found = fabric(["s1/b1"] * 2, {}, machine_from_yaml(FAR_NIC))
    assert found.path("n0", 0, "n1", 0).bandwidth == 24
    assert node_bandwidth(found, "n0", [0, 1]) == 24


@pytest.mark.parametrize("nvswitch", ["", "nvswitch: {links: 12}"])
def test_nvlink_is_not_on_the_way_to_a_nic(nvswitch: str) -> None:
    found = fabric(["s1/b1"] * 2, {}, machine_from_yaml(FAR_NIC + nvswitch))
    assert found.path("n0", 1, "n1", 1).bandwidth == 10


def test_a_machine_without_nics_reaches_nobody() -> None:
    alone = machine_from_yaml("{name: m, gpu: A100, numa: [{id: 0, roots: [{gpus: [0]}]}]}")
    found = fabric(["s1/b1"] * 2, {}, alone)
    assert found.path("n0", 0, "n1", 0).bandwidth == 0
    assert node_bandwidth(found, "n0", [0]) == 0


@pytest.mark.skipif(not TABLES.is_dir(), reason="the shared fixtures are not beside the project")
def test_a_nic_of_unknown_rate_counts_as_the_slowest_in_use() -> None:
    table = read_smi(TABLES / "dgx_h200_8gpu_12nic.txt")
    found = fabric(["s1/b1"] * 2, {}, table)
    assert found.path("n0", 0, "n1", 3).bandwidth == 100 / 8
    assert node_bandwidth(found, "n0", range(8)) == 8 * 100 / 8


def test_gpus_share_the_nics_out_of_a_node() -> None:
    found = fabric(["s1/b1"] * 2, {}, [known_machine("dgx-h100"), known_machine("dgx-1v")])
    assert node_bandwidth(found, "n0", range(8)) == 8 * 50
    assert node_bandwidth(found, "n0", [2, 5]) == 2 * 50
    assert node_bandwidth(found, "n1", [0, 1]) == 12.5, "they share a NIC"
    assert node_bandwidth(found, "n1", [0, 2]) == 25
    assert node_bandwidth(found, "n0", []) == 0
    tray = fabric(["s1/b1"], {}, known_machine("gb200-nvl72"))
    assert node_bandwidth(tray, "n0", [0, 1]) == 50, "no NIC is near: the nearest counts once"


# NVLink between machines ------------------------------------------------------------------------


def test_gpus_of_one_nvlink_domain_need_no_network() -> None:
    found = fabric(["s1/b1", "s2/b2"], {"Spine": LayerLink(1, 9)}, gb200_tray("uuid.1"))
    way = found.path("n0", 0, "n1", 3)
    assert (way.bandwidth, way.latency) == (18 * 50, 0)
    assert "uuid.1" in way.over


def test_one_gpu_of_an_nvlink_domain_has_its_ports_too() -> None:
    text = "{name: m, gpu: H100, nvlinkDomain: u.1, numa: [{id: 0, roots: [{gpus: [0]}]}], %s}"
    alone = machine_from_yaml(text % "nvswitch: {links: 18}")
    assert fabric(["s1/b1"] * 2, {}, alone).path("n0", 0, "n1", 0).bandwidth == 18 * 25


@pytest.mark.parametrize("domains", [("uuid.1", "uuid.2"), ("uuid.1", ""), ("", "")])
def test_other_domains_are_reached_over_nics(domains: tuple[str, str]) -> None:
    machines = [gb200_tray(domain) for domain in domains]
    way = fabric(["s1/b1"] * 2, {}, machines).path("n0", 0, "n1", 0)
    assert way.over == "NET"
    assert way.bandwidth == 50


# Models that cannot be used ---------------------------------------------------------------------


def test_a_link_for_an_unknown_layer_is_refused() -> None:
    with pytest.raises(ValueError, match='there is no network layer "Rack"'):
        fabric(["s1/b1"], {"Rack": LayerLink(1), "Block": LayerLink(1)})


@pytest.mark.parametrize("figure", [-1.0, float("nan")])
def test_an_impossible_bandwidth_or_latency_is_refused(figure: float) -> None:
    with pytest.raises(ValueError, match="expected a number of 0 or more"):
        LayerLink(bandwidth=figure)
    with pytest.raises(ValueError, match="expected a number of 0 or more"):
        LayerLink(latency=figure)


def test_a_node_that_is_not_in_the_network_has_no_path_over_it() -> None:
    dgx = known_machine("dgx-h100")
    found = Fabric({"n0": dgx, "n1": dgx}, network("s1/b1"), ["n0"], {})
    with pytest.raises(KeyError, match="n1"):
        found.path("n0", 0, "n1", 0)
    assert found.path("n1", 0, "n1", 1) == GpuPath(450, 0, "NVS")


@pytest.mark.parametrize("name", ["cluster", "Block", "s1"])
def test_a_node_may_have_any_name(name: str) -> None:
    dgx = known_machine("dgx-h100")
    names = [name, "other"]
    found = Fabric(dict.fromkeys(names, dgx), network("s1/b1", "s1/b2"), names, THREE_LAYERS)
    assert found.path(name, 0, "other", 0) == GpuPath(20, 6, "NET")


def test_a_node_whose_machine_is_not_known_has_no_path() -> None:
    found = Fabric({"n0": known_machine("dgx-h100")}, network("s1/b1", "s1/b1"), ["n0", "n1"], {})
    with pytest.raises(KeyError, match="n1"):
        found.path("n0", 0, "n1", 0)


def test_sets_that_contain_each_other_are_no_network() -> None:
    sets = [NodeSet("a", 2, sets=("b",)), NodeSet("b", 1, sets=("a",))]
    with pytest.raises(TopologyError, match="the sets contain each other: a -> b -> a"):
        tree_of_sets(sets, [])


@pytest.mark.parametrize(
    ("parents", "message"),
    [
        ({"Block": "Spine"}, 'layer "Block" has the parent "Spine", which is not defined'),
        ({"Spine": "Block", "Block": "Spine"}, "the layers form a cycle: Spine -> Block -> Spine"),
        ({"Spine": ""}, 'the layer "Block" is not defined'),
        (
            {"Spine": "", "Block": "Spine", "Rack": "Spine"},
            'layer "Rack" is not on the way from "Block" to "Spine"',
        ),
    ],
)
def test_layers_that_are_not_one_chain_are_refused(parents: dict[str, str], message: str) -> None:
    with pytest.raises(TopologyError) as caught:
        chain_of(parents, "Block")
    assert message in str(caught.value)


def test_the_graph_is_a_tree_of_layers_and_read_only() -> None:
    import networkx as nx

    graph = fabric(["s1/b1", "s1/b2", "s2/b3", "-"], THREE_LAYERS).graph
    assert nx.is_arborescence(graph)
    carried = {node: data["link"] for _, node, data in graph.edges(data=True)}
    assert {node: carried[node] for node in ("n0", "n1", "n2", "n3")} == dict.fromkeys(
        ("n0", "n1", "n2", "n3"), THREE_LAYERS[NODE_LAYER]
    )
    assert sum(link == THREE_LAYERS["Spine"] for link in carried.values()) == 2
    assert sum(link == THREE_LAYERS["Block"] for link in carried.values()) == 3
    assert not any(math.isinf(link.bandwidth) for link in carried.values())
    with pytest.raises(nx.NetworkXError):
        graph.add_edge("n0", "n1")
