"""Each published nvidia-smi table: what it shows is read, and what it does not show stays unknown.

Expected values are what a person reads in the table.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from tests.paths import SHARED

from bayplan.topology.machine.levels import UNKNOWN, Level
from bayplan.topology.machine.model import Machine, PartKind
from bayplan.topology.machine.readers.smi import read_smi

TABLES = SHARED / "fixtures" / "nvidia-smi-topo"
PATHS = sorted(TABLES.glob("*.txt"))
CUBE_MESH = {"NV1": "01 02 13 26 37 45 46 57", "NV2": "03 04 12 15 23 47 56 67"}
"""The NVLinks of a DGX-1 with V100."""

pytestmark = pytest.mark.skipif(
    not TABLES.is_dir(), reason="the shared fixtures are not beside the project"
)


def table(name: str) -> Machine:
    return read_smi(TABLES / f"{name}.txt")


def device(machine: Machine, name: str) -> int:
    """Return the index of a device in the matrices, by its name in the table."""
    names = [gpu.name for gpu in machine.gpus] + [nic.label for nic in machine.nics]
    return names.index(name)


def row(machine: Machine, name: str) -> str:
    """Return a row as nvidia-smi prints it, without affinities."""
    size = len(machine) + len(machine.nics)
    return " ".join(machine.label(device(machine, name), other) for other in range(size))


def cell(machine: Machine, a: str, b: str) -> str:
    return machine.label(device(machine, a), device(machine, b))


def links(machine: Machine) -> dict[str, str]:
    """Return the pairs of GPUs by their NVLinks, such as {"NV12": "01 23"}."""
    found: dict[str, list[str]] = {}
    for a, b in np.argwhere(np.triu(machine.nvlinks)).tolist():
        found.setdefault(f"NV{machine.nvlinks[a, b]}", []).append(f"{a}{b}")
    return {name: " ".join(pairs) for name, pairs in sorted(found.items())}


def nvlink_groups(machine: Machine) -> list[list[int]]:
    """Return the GPUs that NVLinks connect, single GPUs left out."""
    graph: nx.Graph[int] = nx.Graph()
    graph.add_edges_from((int(a), int(b)) for a, b in np.argwhere(machine.nvlinks))
    return sorted(sorted(group) for group in nx.connected_components(graph))


def near(machine: Machine) -> list[str]:
    """Return for each GPU the NICs it is nearest to, and how near."""
    return [
        " ".join(
            [
                *(machine.nics[nic].name for nic in machine.near_nics(gpu.index)),
                machine.nic_distance(gpu.index).name,
            ]
        )
        for gpu in machine.gpus
    ]


def cpus(machine: Machine) -> list[str]:
    return [gpu.cpus for gpu in machine.gpus]


def names(machine: Machine) -> list[str]:
    return [nic.name for nic in machine.nics]


def numa_of_nics(machine: Machine) -> list[int | None]:
    return [nic.numa for nic in machine.nics]


def under(machine: Machine, a: int, b: int) -> str:
    """Return the PCIe level that two GPUs have besides their NVLinks."""
    plain = int(machine.levels[a, b])
    return "?" if plain == UNKNOWN else Level(plain).name


def is_switched(machine: Machine) -> bool:
    """Tell whether all NVLinks go through NVSwitches."""
    return bool(machine.nvlinks.any()) and not bool(machine.direct.any())


def notes(machine: Machine) -> str:
    return "\n".join(machine.notes)


def mlx5(*numbers: int) -> list[str]:
    return [f"mlx5_{number}" for number in numbers]


def all_to_all(machine: Machine, count: int) -> bool:
    """Tell whether each pair of GPUs has this many NVLinks."""
    expected = np.full((len(machine), len(machine)), count)
    np.fill_diagonal(expected, 0)
    return bool((machine.nvlinks == expected).all())


# All of them -----------------------------------------------------------------------------


def test_every_table_has_a_test_of_its_own() -> None:
    tests = [name for name in globals() if name.startswith("test_")]
    alone = [
        path.stem
        for path in PATHS
        if not any(name.startswith(f"test_{path.stem}_") for name in tests)
    ]
    assert not alone


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_every_shown_cell_is_reproduced(path: Path) -> None:
    machine = read_smi(path)
    size = len(machine) + len(machine.nics)
    labels = {gpu.name for gpu in machine.gpus} | {nic.label for nic in machine.nics}
    rows = 0
    for line in path.read_text(encoding="utf-8").splitlines():
        tokens = line.removeprefix("# ").split()
        if len(tokens) > size and tokens[0] in labels and "X" in tokens:
            rows += 1
            shown = " ".join(tokens[1 : size + 1]).replace("SOC", "SYS")
            assert row(machine, tokens[0]) == shown, tokens[0]
    assert rows >= min(len(machine), 4)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_matrices_are_symmetric_and_nothing_is_faster_than_its_links(path: Path) -> None:
    machine = read_smi(path)
    for matrix in (machine.levels, machine.nvlinks, machine.direct, machine.bandwidth):
        assert (matrix == matrix.T).all()
    apart = ~np.eye(len(machine), dtype=bool)
    assert (machine.bandwidth[apart] > 0).all()
    linked = machine.nvlinks > 0
    assert (machine.bandwidth[linked] == (machine.nvlinks * machine.link.wire)[linked]).all()


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_the_tree_has_the_numa_nodes_that_the_table_shows_and_no_more(path: Path) -> None:
    machine = read_smi(path)
    places = machine.graph.nodes(data=True)
    shown = [place["numa"] for _, place in places if place["kind"] is PartKind.NUMA]
    numbers = [node for node in shown if node is not None]
    assert sorted(numbers) == sorted({*machine.numa_of, *numa_of_nics(machine)} - {None})
    assert sum(place["kind"] is PartKind.SOCKET for _, place in places) == 1


@pytest.mark.parametrize(
    "name", ["dgx_h200_8gpu_12nic", "h200_8gpu_8nic_scrambled", "titanv_8gpu_pix_phb_sys"]
)
def test_the_tree_says_the_same_levels_as_a_whole_table(name: str) -> None:
    machine = table(name)
    tree = machine.graph
    devices = [*(gpu.name for gpu in machine.gpus), *(nic.name for nic in machine.nics)]
    for a, b in itertools.combinations(range(len(devices)), 2):
        way = nx.shortest_path(tree.subgraph(set(tree) - {"NVSwitch"}), devices[a], devices[b])
        kinds = [tree.nodes[place]["kind"] for place in way]
        level = Level(int(machine.levels[a, b]))
        assert level is level_of(kinds), (devices[a], devices[b])


def level_of(kinds: list[PartKind]) -> Level:
    """Return the level of a way through the tree."""
    for kind, level in (
        (PartKind.SOCKET, Level.SYS),
        (PartKind.NUMA, Level.NODE),
        (PartKind.ROOT, Level.PHB),
    ):
        if kind in kinds:
            return level
    return Level.PIX if kinds.count(PartKind.SWITCH) == 1 else Level.PXB


# NVIDIA A100, A800 -----------------------------------------------------------------------


def test_a100_4gpu_nv4_mesh_3nic_keeps_numa_apart_where_cpus_are_empty() -> None:
    machine = table("a100_4gpu_nv4_mesh_3nic")
    assert links(machine) == {"NV4": "01 02 03 12 13 23"}
    assert machine.direct[0, 3] == 4
    assert machine.bandwidth[0, 3] == 100
    assert cpus(machine) == ["0", "0", "", ""]
    assert machine.numa_of == (0, 0, 1, 1)
    assert near(machine) == ["mlx5_0 mlx5_1 mlx5_2 NODE"] * 4
    assert row(machine, "NIC0") == "NODE NODE NODE NODE X PIX PHB"
    # NODE from both NUMA nodes: neither is the NIC's, and GPUs are not SYS to each other.
    assert numa_of_nics(machine) == [None, None, None]
    assert under(machine, 0, 2) == "?"
    assert "the PCIe level of 6 pairs of GPUs is not shown" in notes(machine)


def test_a100_8gpu_nonic_24c_has_no_nic_and_half_of_its_pcie_levels() -> None:
    machine = table("a100_8gpu_nonic_24c")
    assert len(machine) == 8
    assert not machine.nics
    assert all_to_all(machine, 12)
    assert is_switched(machine)
    assert machine.bandwidth[0, 7] == 300
    assert cpus(machine) == ["0-23"] * 4 + ["24-47"] * 4
    assert machine.numa_of == (0, 0, 0, 0, 1, 1, 1, 1)
    assert near(machine) == ["NET"] * 8
    assert under(machine, 0, 1) == "?"
    assert under(machine, 0, 4) == "SYS"
    assert "the PCIe level of 12 pairs of GPUs is not shown" in notes(machine)


def test_a100_sxm4_8gpu_10nic_finds_nics_whose_order_is_not_that_of_gpus() -> None:
    machine = table("a100_sxm4_8gpu_10nic")
    assert all_to_all(machine, 12)
    assert is_switched(machine)
    assert names(machine) == mlx5(*range(10))
    assert near(machine) == [
        "mlx5_2 mlx5_3 PXB",
        "mlx5_2 mlx5_3 PXB",
        "mlx5_0 mlx5_1 PXB",
        "mlx5_0 mlx5_1 PXB",
        "mlx5_8 mlx5_9 PXB",
        "mlx5_8 mlx5_9 PXB",
        "mlx5_4 mlx5_5 PXB",
        "mlx5_4 mlx5_5 PXB",
    ]
    assert cell(machine, "NIC0", "NIC1") == "PIX"
    assert cell(machine, "NIC2", "NIC3") == "PXB"
    # NIC6 and NIC7 are SYS from every GPU: not for GPU traffic, and of no NUMA node that is known.
    assert machine.compute_nics == (0, 1, 2, 3, 4, 5, 8, 9)
    assert numa_of_nics(machine) == [0, 0, 0, 0, 1, 1, None, None, 1, 1]
    assert cpus(machine) == ["0-63,128-191"] * 4 + ["64-127,192-254"] * 4
    assert machine.numa_of == (0, 0, 0, 0, 1, 1, 1, 1)
    assert under(machine, 0, 2) == "SYS"
    assert under(machine, 0, 1) == "?"
    assert "the PCIe level of 4 pairs of GPUs is not shown" in notes(machine)


def test_a100_sxm4_8gpu_4nic_half_without_nic_leaves_four_gpus_without() -> None:
    machine = table("a100_sxm4_8gpu_4nic_half_without_nic")
    assert all_to_all(machine, 12)
    assert is_switched(machine)
    assert names(machine) == ["mlx5_0", "mlx5_1", "NIC2", "NIC3"]
    assert "the legend does not name NIC2, NIC3" in notes(machine)
    assert near(machine)[:4] == ["mlx5_0 mlx5_1 PXB"] * 2 + ["NIC2 NIC3 PXB"] * 2
    assert [machine.nic_distance(gpu).name for gpu in range(4, 8)] == ["SYS"] * 4
    assert cell(machine, "NIC0", "NIC1") == "PXB"
    assert cell(machine, "NIC2", "NIC3") == "PIX"
    assert cpus(machine) == ["0-31,64-95"] * 4 + ["32-63,96-127"] * 4
    assert machine.numa_of == (0, 0, 0, 0, 1, 1, 1, 1)
    # One NUMA node, and yet SYS: GPU0 is at NIC0, from which GPU2 is SYS.
    assert under(machine, 0, 2) == "SYS"


def test_a100pcie_6gpu_nvlink_bridge_cross_socket_has_a_bridge_between_numa_nodes() -> None:
    machine = table("a100pcie_6gpu_nvlink_bridge_cross_socket")
    assert links(machine) == {"NV12": "03 12 45"}
    assert nvlink_groups(machine) == [[0, 3], [1, 2], [4, 5]]
    assert machine.direct[0, 3] == 12
    assert machine.bandwidth[0, 3] == 300
    assert machine.numa_of == (0, 0, 0, 1, 1, 1)
    assert cpus(machine) == ["0-27,56-83"] * 3 + ["28-55,84-111"] * 3
    assert row(machine, "GPU0") == "X NODE NODE NV12 SYS SYS NODE"
    assert near(machine) == ["mlx5_0 NODE"] * 3 + ["mlx5_0 SYS"] * 3
    assert numa_of_nics(machine) == [0]
    assert under(machine, 0, 3) == "SYS"
    assert under(machine, 1, 2) == "?"
    assert "the PCIe level of 2 pairs of GPUs is not shown" in notes(machine)


def test_a800_8gpu_8nic_partial_is_read_though_nic_rows_are_cut_off() -> None:
    machine = table("a800_8gpu_8nic_partial")
    assert all_to_all(machine, 8)
    assert is_switched(machine)
    assert machine.bandwidth[0, 7] == 200
    assert near(machine) == [
        "NIC0 NIC1 PIX",
        "NIC0 NIC1 PIX",
        "NIC2 NIC3 PIX",
        "NIC2 NIC3 PIX",
        "NIC4 NIC5 PIX",
        "NIC4 NIC5 PIX",
        "NIC6 NIC7 PIX",
        "NIC6 NIC7 PIX",
    ]
    assert cpus(machine) == ["0-61"] * 4 + ["62-123"] * 4
    assert machine.numa_of == (0, 0, 0, 0, 1, 1, 1, 1)
    assert numa_of_nics(machine) == [0, 0, 0, 0, 1, 1, 1, 1]
    assert "the rows of NIC3, NIC4, NIC5, NIC6, NIC7 are missing" in notes(machine)
    assert "the legend does not name NIC0" in notes(machine)
    # What no row shows follows from GPU4, to which NIC4 is PIX and NIC6 is NODE.
    assert cell(machine, "NIC4", "NIC6") == "NODE"
    assert cell(machine, "NIC3", "NIC4") == "SYS"


def test_aws_p4d_a100_8gpu_nonic_does_not_invent_the_nics_that_are_not_listed() -> None:
    machine = table("aws_p4d_a100_8gpu_nonic")
    assert all_to_all(machine, 12)
    assert is_switched(machine)
    assert not machine.nics
    assert near(machine) == ["NET"] * 8
    assert cpus(machine) == ["0-23,48-71"] * 4 + ["24-47,72-95"] * 4
    assert machine.numa_of == (0, 0, 0, 0, 1, 1, 1, 1)
    assert under(machine, 4, 7) == "?"


def test_dgx_a100_40gb_12nic_has_numa_nodes_out_of_order_and_storage_ports() -> None:
    machine = table("dgx_a100_40gb_12nic")
    assert all_to_all(machine, 12)
    assert is_switched(machine)
    assert machine.bandwidth[0, 7] == 300
    assert machine.numa_of == (3, 3, 1, 1, 7, 7, 5, 5)
    assert cpus(machine)[::2] == [
        "48-63,176-191",
        "16-31,144-159",
        "112-127,240-255",
        "80-95,208-223",
    ]
    assert cpus(machine)[1::2] == cpus(machine)[::2]
    assert near(machine)[::2] == [
        "mlx5_0 mlx5_1 PXB",
        "mlx5_2 mlx5_3 PXB",
        "mlx5_6 mlx5_7 PXB",
        "mlx5_8 mlx5_9 PXB",
    ]
    assert near(machine)[1::2] == near(machine)[::2]
    assert [machine.nics[nic].name for nic in machine.compute_nics] == mlx5(0, 1, 2, 3, 6, 7, 8, 9)
    assert cell(machine, "mlx5_4", "mlx5_5") == "PIX"
    assert cell(machine, "mlx5_10", "mlx5_11") == "PIX"
    assert cell(machine, "mlx5_0", "mlx5_1") == "PXB"
    assert numa_of_nics(machine) == [3, 3, 1, 1, None, None, 7, 7, 5, 5, None, None]
    # The output of topo -c below the table is no part of it.
    assert len(machine) == 8


def test_levante_a100_4gpu_2nic_topo_mp_is_read_from_comments_and_claims_no_nvlink() -> None:
    machine = table("levante_a100_4gpu_2nic_topo_mp")
    assert len(machine) == 4
    assert not machine.nvlinks.any()
    assert row(machine, "GPU1") == "SYS X SYS SYS PIX SYS"
    assert row(machine, "GPU2") == "SYS SYS X SYS SYS PIX"
    assert machine.numa_of == (3, 1, 7, 5)
    assert cpus(machine) == ["48-63,176-191", "16-31,144-159", "112-127,240-255", "80-95,208-223"]
    assert near(machine) == ["mlx5_0 mlx5_1 SYS", "mlx5_0 PIX", "mlx5_1 PIX", "mlx5_0 mlx5_1 SYS"]
    assert numa_of_nics(machine) == [1, 7]
    assert "assumed" in notes(machine)


def test_nvlink_bridge_4gpu_2pairs_4numa_has_each_gpu_on_its_own_numa_node() -> None:
    machine = table("nvlink_bridge_4gpu_2pairs_4numa")
    assert links(machine) == {"NV12": "01 23"}
    assert machine.direct[2, 3] == 12
    assert machine.bandwidth[0, 1] == 300
    assert row(machine, "GPU1") == "NV12 X SYS SYS"
    assert machine.numa_of == (0, 1, 2, 3)
    assert cpus(machine) == ["0-23", "24-47", "48-71", "72-95"]
    assert not machine.nics
    assert under(machine, 0, 1) == "SYS"


# NVIDIA H100, H200, B200, GB200 ----------------------------------------------------------


def test_h100_8gpu_nonic_52c_is_one_nvlink_group_on_two_numa_nodes() -> None:
    machine = table("h100_8gpu_nonic_52c")
    assert all_to_all(machine, 18)
    assert is_switched(machine)
    assert nvlink_groups(machine) == [[0, 1, 2, 3, 4, 5, 6, 7]]
    assert machine.bandwidth[3, 4] == 450
    assert cpus(machine) == ["0-51"] * 4 + ["52-103"] * 4
    assert machine.numa_of == (0, 0, 0, 0, 1, 1, 1, 1)
    assert not machine.nics
    assert "the PCIe level of 12 pairs of GPUs is not shown" in notes(machine)


def test_h100_8gpu_vm_1nic_is_read_though_the_first_tab_of_the_header_is_gone() -> None:
    machine = table("h100_8gpu_vm_1nic")
    assert all_to_all(machine, 18)
    assert is_switched(machine)
    assert row(machine, "GPU3") == "NV18 NV18 NV18 X NV18 NV18 NV18 NV18 SYS"
    assert cpus(machine) == ["0-103"] * 4 + ["104-207"] * 4
    assert machine.numa_of == (0, 0, 0, 0, 1, 1, 1, 1)
    assert near(machine) == ["NIC0 SYS"] * 8
    assert numa_of_nics(machine) == [None]
    assert "the legend does not name NIC0" in notes(machine)


def test_dgx_h100_8gpu_12nic_partial_knows_the_near_nics_of_every_gpu() -> None:
    machine = table("dgx_h100_8gpu_12nic_partial")
    assert all_to_all(machine, 18)
    assert is_switched(machine)
    assert machine.bandwidth[0, 7] == 450
    assert near(machine) == [f"NIC{nic} PXB" for nic in (0, 3, 4, 5, 6, 9, 10, 11)]
    assert cell(machine, "NIC1", "NIC2") == "PIX"
    assert cpus(machine) == ["0-55,112-167"] * 4 + ["56-111,168-223"] * 4
    assert machine.numa_of == (0, 0, 0, 0, 1, 1, 1, 1)
    assert numa_of_nics(machine) == [0] * 6 + [1] * 6
    assert under(machine, 0, 1) == "NODE"
    assert under(machine, 0, 4) == "SYS"
    # The row of NIC7 is cut off; to every GPU it is what NIC8 is.
    assert cell(machine, "NIC7", "NIC8") == "?"
    assert cell(machine, "NIC6", "NIC9") == "NODE"
    assert "the rows of NIC6, NIC7, NIC8, NIC9, NIC10, NIC11 are missing" in notes(machine)
    assert "the legend does not name NIC0" in notes(machine)
    # Bus ids in the publication's prose are none of the table's.
    assert {gpu.bus_id for gpu in machine.gpus} == {""}


def test_dgx_h200_8gpu_12nic_leaves_nothing_unknown() -> None:
    machine = table("dgx_h200_8gpu_12nic")
    assert all_to_all(machine, 18)
    assert is_switched(machine)
    assert names(machine) == mlx5(*range(12))
    assert near(machine) == [f"mlx5_{nic} PXB" for nic in (0, 3, 4, 5, 6, 9, 10, 11)]
    assert machine.compute_nics == (0, 3, 4, 5, 6, 9, 10, 11)
    assert cell(machine, "NIC1", "NIC2") == "PIX"
    assert cell(machine, "NIC7", "NIC8") == "PIX"
    assert row(machine, "NIC7") == " ".join(
        ["SYS"] * 4 + ["NODE"] * 4 + ["SYS"] * 6 + ["NODE", "X", "PIX", "NODE", "NODE", "NODE"]
    )
    assert cpus(machine) == ["0-55,112-167"] * 4 + ["56-111,168-223"] * 4
    assert machine.numa_of == (0, 0, 0, 0, 1, 1, 1, 1)
    assert not (machine.levels == UNKNOWN).any()
    assert all(note.startswith("assumed") for note in machine.notes)


def test_h200_8gpu_8nic_scrambled_pairs_gpus_and_nics_by_level_not_by_number() -> None:
    machine = table("h200_8gpu_8nic_scrambled")
    assert all_to_all(machine, 18)
    assert near(machine) == [f"mlx5_{nic} PIX" for nic in (4, 1, 0, 3, 6, 7, 5, 2)]
    assert row(machine, "GPU7") == (
        "NV18 NV18 NV18 NV18 NV18 NV18 NV18 X SYS SYS PIX SYS SYS NODE NODE NODE"
    )
    assert numa_of_nics(machine) == [0, 0, 1, 0, 0, 1, 1, 1]
    assert cpus(machine) == ["0-63,128-191"] * 4 + ["64-127,192-255"] * 4
    assert machine.numa_of == (0, 0, 0, 0, 1, 1, 1, 1)
    assert not (machine.levels == UNKNOWN).any()


def test_b200_8gpu_12nic_gpu2_lost_nvlink_partial_keeps_gpu2_out_of_the_fabric() -> None:
    machine = table("b200_8gpu_12nic_gpu2_lost_nvlink_partial")
    assert (len(machine), len(machine.nics)) == (8, 12)
    assert row(machine, "GPU2").startswith("NODE NODE X NODE SYS SYS SYS SYS NODE NODE PXB NODE")
    assert not machine.nvlinks[2].any()
    assert nvlink_groups(machine) == [[0, 1, 3, 4, 5, 6, 7]]
    assert set(links(machine)) == {"NV18"}
    assert is_switched(machine)
    assert machine.bandwidth[0, 2] < machine.bandwidth[0, 1]
    assert near(machine)[:6] == [f"NIC{nic} PXB" for nic in range(6)]
    # NIC6 and NIC7 may be those of GPU6 and GPU7, whose rows are cut off.
    assert near(machine)[6:] == ["NET", "NET"]
    assert {6, 7} <= set(machine.compute_nics)
    assert cpus(machine) == ["0-55,112-167"] * 4 + ["56-111,168-223"] * 2 + ["", ""]
    assert machine.numa_of == (0, 0, 0, 0, 1, 1, None, None)
    # Rows of GPU6 and GPU7 are cut off. GPU2 is SYS from GPU6 and NODE from NIC0; of NIC6 nothing
    # is shown that would tell.
    assert cell(machine, "GPU6", "NIC0") == "SYS"
    assert cell(machine, "GPU6", "NIC6") == "?"
    assert cell(machine, "GPU7", "NIC7") == "?"
    assert "the header is missing" in notes(machine)
    assert "the NUMA node of GPU6, GPU7 is not shown" in notes(machine)
    assert "the rows of GPU6, GPU7, NIC0" in notes(machine)
    assert "1 pair of GPUs assumed to be connected by NVSwitch, though not shown" in notes(machine)


def test_gb200_4gpu_8nic_has_every_nic_at_sys_and_takes_the_numa_node_of_the_cpu() -> None:
    machine = table("gb200_4gpu_8nic")
    assert all_to_all(machine, 18)
    assert is_switched(machine)
    assert names(machine) == mlx5(*range(8))
    assert row(machine, "GPU0") == "X NV18 NV18 NV18 " + " ".join(["SYS"] * 8)
    assert [machine.nic_distance(gpu).name for gpu in range(4)] == ["SYS"] * 4
    assert cell(machine, "NIC2", "NIC3") == "PIX"
    assert cell(machine, "NIC6", "NIC7") == "PIX"
    assert cpus(machine) == ["0-71", "0-71", "72-143", "72-143"]
    # Not 2, 10, 18 and 26: those are the nodes of the GPUs' own memory.
    assert machine.numa_of == (0, 0, 1, 1)
    assert numa_of_nics(machine) == [None] * 8
    assert under(machine, 0, 1) == "?"
    assert under(machine, 0, 2) == "SYS"
    # 18 links may be of NVLink 4 or 5, which the table does not tell.
    assert "assumed from the links" in notes(machine)


# NVIDIA P100, V100 -----------------------------------------------------------------------


def test_dgx1_p100_has_soc_for_sys_a_glued_header_and_nics_out_of_order() -> None:
    machine = table("dgx1_p100")
    assert links(machine) == {"NV1": "01 02 03 04 12 13 15 23 26 37 45 46 47 56 57 67"}
    assert machine.direct[0, 4] == 1
    assert machine.bandwidth[0, 4] == 20
    assert names(machine) == ["mlx5_0", "mlx5_2", "mlx5_1", "mlx5_3"]
    assert row(machine, "GPU0") == "X NV1 NV1 NV1 NV1 SYS SYS SYS PIX SYS PHB SYS"
    assert near(machine) == [
        "mlx5_0 PIX",
        "mlx5_0 PIX",
        "mlx5_1 PIX",
        "mlx5_1 PIX",
        "mlx5_2 PIX",
        "mlx5_2 PIX",
        "mlx5_3 PIX",
        "mlx5_3 PIX",
    ]
    assert cell(machine, "mlx5_0", "mlx5_1") == "PHB"
    assert cpus(machine) == ["1-1"] * 8
    assert machine.numa_of == (None,) * 8
    assert "the NUMA node of GPU0" in notes(machine)
    assert under(machine, 0, 2) == "PHB"
    assert under(machine, 0, 4) == "SYS"


def test_dgx2_v100_16gpu_10nic_partial_knows_nics_of_the_four_rows_shown_only() -> None:
    machine = table("dgx2_v100_16gpu_10nic_partial")
    assert (len(machine), len(machine.nics)) == (16, 10)
    assert all_to_all(machine, 6)
    assert is_switched(machine)
    assert machine.bandwidth[0, 15] == 150
    assert row(machine, "GPU0").endswith("NV6 PIX PXB NODE NODE SYS SYS SYS SYS SYS SYS")
    assert near(machine) == ["mlx5_0 PIX"] * 2 + ["mlx5_1 PIX"] * 2 + ["NET"] * 12
    assert row(machine, "GPU4").endswith("NV6 " + " ".join(["?"] * 10))
    assert cpus(machine) == ["0-23,48-71"] * 4 + [""] * 12
    assert machine.numa_of == (None,) * 16
    assert cell(machine, "mlx5_0", "mlx5_1") == "PXB"
    assert cell(machine, "mlx5_0", "mlx5_4") == "SYS"
    assert cell(machine, "mlx5_2", "mlx5_3") == "?"
    # 54 of 120 pairs are in the four rows.
    assert "66 pairs of GPUs assumed to be connected by NVSwitch, though not shown" in notes(
        machine
    )
    assert "the rows of GPU4, GPU5" in notes(machine)
    assert "the level of 120 pairs of GPU and NIC is not known" in notes(machine)


def test_v100_sxm2_16gb_8gpu_2nic_alt_numbering_is_another_cube_mesh() -> None:
    machine = table("v100_sxm2_16gb_8gpu_2nic_alt_numbering")
    assert links(machine) == {"NV1": "01 03 12 25 34 47 56 67", "NV2": "02 07 13 16 23 45 46 57"}
    assert machine.nvlinks.sum(axis=0).tolist() == [6] * 8
    assert machine.direct[0, 7] == 2
    assert machine.bandwidth[0, 7] == 50
    assert near(machine) == [
        "mlx5_0 NODE",
        "mlx5_0 NODE",
        "mlx5_0 PIX",
        "mlx5_0 PIX",
        "mlx5_1 NODE",
        "mlx5_1 NODE",
        "mlx5_1 PIX",
        "mlx5_1 PIX",
    ]
    assert cell(machine, "mlx5_0", "mlx5_1") == "SYS"
    assert cpus(machine) == ["0-23,48-71"] * 4 + ["24-47,72-95"] * 4
    assert machine.numa_of == (0, 0, 0, 0, 1, 1, 1, 1)
    assert numa_of_nics(machine) == [0, 1]
    assert under(machine, 0, 2) == "NODE"
    assert under(machine, 0, 7) == "SYS"
    assert under(machine, 0, 1) == "?"


def test_v100_sxm2_32gb_8gpu_1nic_is_the_cube_mesh_with_a_nic_on_one_socket() -> None:
    machine = table("v100_sxm2_32gb_8gpu_1nic")
    assert links(machine) == CUBE_MESH
    assert machine.bandwidth[0, 3] == 50
    assert near(machine) == ["NIC0 NODE"] * 4 + ["NIC0 SYS"] * 4
    assert numa_of_nics(machine) == [0]
    assert cpus(machine) == ["0-19,40-59"] * 4 + ["20-39,60-79"] * 4
    assert machine.numa_of == (0, 0, 0, 0, 1, 1, 1, 1)
    assert under(machine, 0, 4) == "SYS"
    assert under(machine, 0, 1) == "?"
    assert "the PCIe level of 12 pairs of GPUs is not shown" in notes(machine)
    assert "the legend does not name NIC0" in notes(machine)


def test_v100_vm_8gpu_phb_does_not_guess_a_numa_node() -> None:
    machine = table("v100_vm_8gpu_phb")
    assert links(machine) == CUBE_MESH
    assert row(machine, "GPU0") == "X NV1 NV1 NV2 NV2 PHB PHB PHB"
    assert not machine.nics
    assert cpus(machine) == ["0-63"] * 8
    assert machine.numa_of == (None,) * 8
    assert "every GPU is near NUMA nodes 0-1: its own is not known" in notes(machine)
    assert under(machine, 0, 1) == "?"
    assert "the PCIe level of 16 pairs of GPUs is not shown" in notes(machine)


# PCIe ------------------------------------------------------------------------------------


def test_dual_gpu_nv1_has_one_link_and_no_more_is_known_of_it() -> None:
    machine = table("dual_gpu_nv1")
    assert links(machine) == {"NV1": "01"}
    assert machine.direct[0, 1] == 1
    assert cpus(machine) == ["0-15", "0-15"]
    assert machine.numa_of == (0, 0)
    assert not machine.nics
    assert under(machine, 0, 1) == "?"
    assert "the PCIe level of 1 pair of GPUs is not shown" in notes(machine)
    assert "assumed from the links" in notes(machine)


def test_dual_gpu_nv2_has_a_numa_column_that_says_nothing() -> None:
    machine = table("dual_gpu_nv2")
    assert links(machine) == {"NV2": "01"}
    assert machine.direct[0, 1] == 2
    assert cpus(machine) == ["0-23", "0-23"]
    assert machine.numa_of == (None, None)
    assert "the NUMA node of GPU0, GPU1 is not shown" in notes(machine)


def test_dual_gpu_phb_has_no_nvlink() -> None:
    machine = table("dual_gpu_phb")
    assert row(machine, "GPU0") == "X PHB"
    assert not machine.nvlinks.any()
    assert cpus(machine) == ["0-11", "0-11"]
    assert machine.numa_of == (None, None)
    assert "the NUMA node of GPU0, GPU1 is not shown" in notes(machine)


def test_epyc_4gpu_5nic_probe_gives_bus_ids_and_names_of_ports() -> None:
    machine = table("epyc_4gpu_5nic_probe")
    assert not machine.nvlinks.any()
    assert row(machine, "GPU0") == "X NODE SYS SYS NODE NODE NODE NODE SYS"
    assert row(machine, "GPU3") == "SYS SYS NODE X SYS SYS SYS SYS NODE"
    assert cell(machine, "NIC0", "NIC1") == "PIX"
    assert [gpu.bus_id for gpu in machine.gpus] == [
        "0000:4a:00.0",
        "0000:61:00.0",
        "0000:ca:00.0",
        "0000:e1:00.0",
    ]
    assert [(nic.name, nic.bus_id, nic.numa) for nic in machine.nics] == [
        ("roceo12399", "0000:22:00.0", 0),
        ("roceo12409", "0000:22:00.1", 0),
        ("rocep13s0f0", "0000:0d:00.0", 0),
        ("rocep55s0f0", "0000:37:00.0", 0),
        ("rocep181s0f0", "0000:b5:00.0", 1),
    ]
    assert near(machine)[0] == "roceo12399 roceo12409 rocep13s0f0 rocep55s0f0 NODE"
    assert near(machine)[2:] == ["rocep181s0f0 NODE"] * 2
    assert cpus(machine) == ["0,2,4,6,8,10"] * 2 + ["1,3,5,7,9,11"] * 2
    assert machine.numa_of == (0, 0, 1, 1)
    assert not (machine.levels == UNKNOWN).any()


def test_l40_4gpu_2nic_has_its_nic_on_the_second_socket() -> None:
    machine = table("l40_4gpu_2nic")
    assert not machine.nvlinks.any()
    assert row(machine, "GPU0") == "X NODE SYS SYS SYS SYS"
    assert row(machine, "GPU2") == "SYS SYS X NODE NODE NODE"
    assert near(machine) == ["mlx5_0 mlx5_1 SYS"] * 2 + ["mlx5_0 mlx5_1 NODE"] * 2
    assert cell(machine, "NIC0", "NIC1") == "PIX"
    assert numa_of_nics(machine) == [1, 1]
    assert cpus(machine) == ["0-127,256-383"] * 2 + ["128-255,384-511"] * 2
    assert machine.numa_of == (0, 0, 1, 1)
    assert not (machine.levels == UNKNOWN).any()
    assert "assumed, as nothing shows it: PCIe 3" in notes(machine)


def test_p40_8gpu_pix_pxb_soc_is_two_switches_below_a_third() -> None:
    machine = table("p40_8gpu_pix_pxb_soc")
    assert row(machine, "GPU0") == "X PIX PIX PIX PXB PXB PXB PXB SYS"
    assert row(machine, "GPU7") == "PXB PXB PXB PXB PIX PIX PIX X SYS"
    assert not machine.nvlinks.any()
    assert near(machine) == ["mlx5_0 SYS"] * 8
    assert numa_of_nics(machine) == [None]
    assert cpus(machine) == ["0-13"] * 8
    assert machine.numa_of == (None,) * 8
    assert "the NUMA node of GPU0" in notes(machine)


def test_pcie_4gpu_phb_is_one_host_bridge() -> None:
    machine = table("pcie_4gpu_phb")
    assert row(machine, "GPU2") == "PHB PHB X PHB"
    assert not machine.nvlinks.any()
    assert not machine.nics
    assert cpus(machine) == ["0-47"] * 4
    assert machine.numa_of == (0, 0, 0, 0)


def test_rtx4090_8gpu_2nic_sys_is_told_apart_by_numa_alone() -> None:
    machine = table("rtx4090_8gpu_2nic_sys")
    assert row(machine, "GPU0") == "X " + " ".join(["SYS"] * 9)
    assert row(machine, "GPU6") == "SYS SYS SYS SYS SYS SYS X SYS PHB PHB"
    assert not machine.nvlinks.any()
    assert [machine.nic_distance(gpu).name for gpu in range(8)] == ["SYS"] * 6 + ["PHB", "SYS"]
    assert cell(machine, "NIC0", "NIC1") == "PIX"
    assert numa_of_nics(machine) == [1, 1]
    assert cpus(machine) == ["0-55,112-167"] * 4 + ["56-111,168-223"] * 4
    assert machine.numa_of == (0, 0, 0, 0, 1, 1, 1, 1)
    assert "the legend does not name NIC0, NIC1" in notes(machine)


def test_sr680a_v3_8gpu_11nic_probe_does_not_believe_bus_ids_that_two_devices_share() -> None:
    machine = table("sr680a_v3_8gpu_11nic_probe")
    assert row(machine, "GPU5") == (
        "SYS SYS SYS SYS NODE X NODE NODE SYS SYS SYS SYS SYS SYS NODE PIX NODE NODE NODE"
    )
    assert not machine.nvlinks.any()
    ports = (25, 42, 59, 76, 155, 171, 193, 203)
    assert near(machine) == [f"rocep{port}s0f0 PIX" for port in ports]
    assert cell(machine, "NIC4", "NIC5") == "PIX"
    assert machine.compute_nics == (0, 1, 2, 3, 6, 7, 8, 9)
    assert numa_of_nics(machine) == [0] * 6 + [1] * 5
    assert cpus(machine) == ["0-55"] * 4 + ["56-111"] * 4
    assert machine.numa_of == (0, 0, 0, 0, 1, 1, 1, 1)
    assert "two devices have bus id 0000:ab:00.0: bus ids are ignored" in notes(machine)
    assert {gpu.bus_id for gpu in machine.gpus} | {nic.bus_id for nic in machine.nics} == {""}


def test_titanv_8gpu_pix_phb_sys_is_four_switches_on_two_sockets() -> None:
    machine = table("titanv_8gpu_pix_phb_sys")
    assert row(machine, "GPU0") == "X PIX PHB PHB SYS SYS SYS SYS"
    assert row(machine, "GPU6") == "SYS SYS SYS SYS PHB PHB X PIX"
    assert not machine.nvlinks.any()
    assert not machine.nics
    assert cpus(machine) == ["0-13,28-41"] * 4 + ["14-27,42-55"] * 4
    assert machine.numa_of == (None,) * 8
    assert re.search(r"the NUMA node of GPU0.* is not shown", notes(machine))
