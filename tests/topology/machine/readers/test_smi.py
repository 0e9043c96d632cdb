"""nvidia-smi tables of our own: what is read from them, and what stays unknown."""

from __future__ import annotations

import networkx as nx
import pytest

from bayplan.errors import InputError
from bayplan.topology.machine.levels import Level
from bayplan.topology.machine.model import PartKind
from bayplan.topology.machine.policies import pair_scores
from bayplan.topology.machine.readers.smi import parse_smi
from bayplan.topology.machine.select import Constraints, Selection, SelectionRequest, select

WHOLE = """
\tGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNV12\tSYS\tSYS\tPIX\tSYS\t0-15\t0\t\tN/A
GPU1\tNV12\t X \tSYS\tSYS\tNODE\tSYS\t0-15\t0\t\tN/A
GPU2\tSYS\tSYS\t X \tNV12\tSYS\tPXB\t16-31\t1\t\tN/A
GPU3\tSYS\tSYS\tNV12\t X \tSYS\tNODE\t16-31\t1\t\tN/A
NIC0\tPIX\tNODE\tSYS\tSYS\t X \tSYS
NIC1\tSYS\tSYS\tPXB\tNODE\tSYS\t X

NIC Legend:

  NIC0: mlx5_2
  NIC1: mlx5_0
"""


def test_a_whole_table_gives_levels_numa_and_nics() -> None:
    machine = parse_smi(WHOLE)
    assert [machine.label(0, other) for other in range(6)] == [
        "X",
        "NV12",
        "SYS",
        "SYS",
        "PIX",
        "SYS",
    ]
    assert machine.numa_of == (0, 0, 1, 1)
    assert [gpu.cpus for gpu in machine.gpus] == ["0-15", "0-15", "16-31", "16-31"]
    assert [machine.nics[nic].name for nic in machine.near_nics(0)] == ["mlx5_2"]
    assert [machine.nics[nic].name for nic in machine.near_nics(3)] == ["mlx5_0"]
    assert machine.bandwidth[0, 1] == 300


def test_the_level_under_an_nvlink_follows_from_the_nics() -> None:
    # GPU0 has NIC0 at PIX and GPU1 has it at NODE, so they are NODE to each other.
    assert parse_smi(WHOLE).levels[0, 1] == 6


def test_a_table_cut_in_the_middle_keeps_what_is_there() -> None:
    lines = WHOLE.splitlines()[:4]
    machine = parse_smi("\n".join(lines)[:-30])
    assert len(machine) == 4
    assert machine.label(0, 2) == "SYS"
    assert any("rows of GPU2, GPU3, NIC0, NIC1 are missing" in note for note in machine.notes)
    assert any("the row of GPU1 ends after" in note for note in machine.notes)


def test_directions_that_differ_count_as_the_worse() -> None:
    text = "\tGPU0\tGPU1\nGPU0\tX\tNV4\nGPU1\tNODE\tX\n"
    machine = parse_smi(text)
    assert machine.label(0, 1) == "NODE"
    assert "GPU0 to GPU1 is NV4 one way and NODE the other: NODE counts" in machine.notes


def test_a_glued_header_is_cut_apart() -> None:
    text = "GPU0GPU1mlx5_0\tCPU Affinity\nGPU0 X SOC PIX 0-3\nGPU1 SOC X SOC 4-7\nmlx5_0 PIX SOC X"
    machine = parse_smi(text)
    assert [gpu.name for gpu in machine.gpus] == ["GPU0", "GPU1"]
    assert machine.label(0, 1) == "SYS"
    assert [nic.name for nic in machine.nics] == ["mlx5_0"]


def test_more_links_than_a_gpu_has_mean_an_nvswitch() -> None:
    rows = [" ".join("X" if a == b else "NV18" for b in range(4)) for a in range(4)]
    text = "GPU0 GPU1 GPU2 GPU3\n" + "\n".join(f"GPU{a} {row}" for a, row in enumerate(rows))
    machine = parse_smi(text)
    assert not machine.direct.any()
    assert machine.bandwidth[0, 3] == 450
    assert "NVSwitch" in machine.graph


def test_an_empty_cpu_affinity_does_not_shift_the_numa_node() -> None:
    text = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\tX\tSYS\t0\t0\nGPU1\tSYS\tX\t\t1\n"
    machine = parse_smi(text)
    assert machine.numa_of == (0, 1)
    assert machine.gpus[1].cpus == ""


def test_a_text_without_a_table_is_refused() -> None:
    with pytest.raises(InputError, match=r"hosts: holds no GPU matrix; expected what nvidia-smi"):
        parse_smi("127.0.0.1 localhost\n", "m", "hosts")


# What a terminal, a driver or a copy does to a table ----------------------------------------


def test_a_header_that_is_underlined_for_a_terminal_is_read() -> None:
    underlined = WHOLE.replace("\tGPU0\t", "\t\x1b[4mGPU0\t", 1).replace(
        "GPU NUMA ID", "GPU NUMA ID\x1b[0m"
    )
    machine = parse_smi(underlined)
    assert [gpu.name for gpu in machine.gpus] == ["GPU0", "GPU1", "GPU2", "GPU3"]
    assert [nic.name for nic in machine.nics] == ["mlx5_2", "mlx5_0"]
    assert machine.notes == parse_smi(WHOLE).notes


def test_rows_say_which_columns_are_gpus_where_the_header_is_missing() -> None:
    machine = parse_smi(WHOLE.replace(WHOLE.splitlines()[1], ""))
    assert [gpu.name for gpu in machine.gpus] == ["GPU0", "GPU1", "GPU2", "GPU3"]
    assert [nic.label for nic in machine.nics] == ["NIC0", "NIC1"]
    assert machine.label(3, 5) == "NODE"


def test_a_nics_row_shows_gpus_without_a_row() -> None:
    machine = parse_smi("GPU0 X SYS SYS PIX\nNIC0 PIX SYS SYS X\n")
    assert (len(machine), len(machine.nics)) == (3, 1)
    assert machine.label(0, 3) == "PIX"


def test_a_cell_that_is_not_a_level_is_named_and_the_rest_is_read() -> None:
    machine = parse_smi(WHOLE.replace("GPU1\tNV12\t X \tSYS", "GPU1\tNVX\t X \tNODE"))
    assert 'GPU1 to GPU0 is "NVX", which is not a level: unknown' in machine.notes
    assert machine.label(0, 1) == "NV12"
    assert machine.label(1, 4) == "NODE"
    assert machine.numa_of == (0, 0, 1, 1)
    assert not any("ends after" in note for note in machine.notes)


@pytest.mark.parametrize(
    "cell", ["NV0", "NV19", "NV1800", "NV99999999999999999999", "NV" + "9" * 5000]
)
def test_more_nvlinks_than_there_are_on_any_gpu_are_not_believed(cell: str) -> None:
    machine = parse_smi(f"\tGPU0\tGPU1\nGPU0\tX\t{cell}\nGPU1\t{cell}\tX\n")
    assert machine.label(0, 1) == "?"
    assert f'GPU0 to GPU1 is "{cell[:20]}", which is not a level: unknown' in machine.notes


@pytest.mark.parametrize("number", ["9" * 5, "9" * 5000])
def test_a_numa_node_that_no_machine_has_is_not_believed(number: str) -> None:
    machine = parse_smi(WHOLE.replace("0-15\t0", f"0-15\t{number}"))
    assert machine.numa_of == (None, None, 1, 1)
    assert "the NUMA node of GPU0, GPU1 is not shown" in machine.notes


def test_a_gap_between_gpus_is_refused() -> None:
    text = "\tGPU0\tGPU2\nGPU0\tX\tPIX\nGPU2\tPIX\tX\n"
    with pytest.raises(
        InputError, match=r"m\.txt: has GPU2 but not GPU1: GPUs count from 0 without"
    ):
        parse_smi(text, source="m.txt")


def test_a_table_of_thousands_of_devices_is_refused() -> None:
    names = "\t".join(f"GPU{gpu}" for gpu in range(2000))
    with pytest.raises(InputError, match=r"m\.txt: holds a table of more than 256 devices"):
        parse_smi(f"\t{names}\nGPU0\tX\tPIX\n", source="m.txt")


@pytest.mark.parametrize("name", ["rdmap0s6-rdma", "hfi1_0", "irdma-cvl01tf2", "Mellanox"])
def test_a_nic_may_have_any_name(name: str) -> None:
    text = f"\tGPU0\t{name}\tCPU Affinity\nGPU0\tX\tPIX\t0-3\n{name}\tPIX\tX\n"
    machine = parse_smi(text)
    assert [nic.name for nic in machine.nics] == [name]
    assert machine.label(0, 1) == "PIX"
    assert machine.gpus[0].cpus == "0-3"


@pytest.mark.parametrize("name", ["GPU0", "NVSwitch"])
def test_a_nic_with_another_device_s_name_is_refused_with_the_file(name: str) -> None:
    with pytest.raises(InputError, match=f'm.txt: "{name}" '):
        parse_smi(WHOLE.replace("NIC0: mlx5_2", f"NIC0: {name}"), source="m.txt")


def test_a_second_table_is_noted_and_not_read() -> None:
    machine = parse_smi(WHOLE + WHOLE.replace("NV12", "NV4"))
    assert machine.label(0, 1) == "NV12"
    assert "a second table begins at GPU0: only the first is read" in machine.notes


# What is shown counts -------------------------------------------------------------------------


def switched(**cells: str) -> str:
    """Return a table of four GPUs on NVSwitches; ``a01`` is the cell of GPU0's row for GPU1."""
    rows = []
    for a in range(4):
        row = ["X" if a == b else cells.get(f"a{a}{b}", "NV18") for b in range(4)]
        rows.append(" ".join([f"GPU{a}", *row]))
    return "\n".join(["GPU0 GPU1 GPU2 GPU3", *rows])


@pytest.mark.parametrize(
    ("cells", "shown"),
    [
        ({"a01": "SYS", "a10": "SYS"}, "SYS"),
        ({"a01": "SYS"}, "SYS"),
        ({"a01": "NV9"}, "NV9"),
    ],
)
def test_an_nvswitch_does_not_connect_what_is_shown_otherwise(
    cells: dict[str, str], shown: str
) -> None:
    machine = parse_smi(switched(**cells))
    assert machine.label(0, 1) == machine.label(1, 0) == shown
    assert machine.label(0, 2) == machine.label(1, 3) == "NV18"
    assert not any("though not shown" in note for note in machine.notes)
    alone = select(machine, (0, 1), SelectionRequest(2, constraints=Constraints(nvlink=True)))
    assert isinstance(alone, Selection) == shown.startswith("NV")


def test_an_nvswitch_connects_gpus_whose_pair_is_not_shown() -> None:
    machine = parse_smi("\n".join(switched().splitlines()[:3]))
    assert machine.label(2, 3) == "NV18"
    assert any("1 pair of GPUs assumed to be connected by NVSwitch" in n for n in machine.notes)


def test_hami_scores_a_pair_that_differs_by_direction_0() -> None:
    scores = pair_scores(parse_smi(WHOLE.replace("GPU1\tNV12", "GPU1\tNODE")))
    assert scores[0, 1] == scores[1, 0] == 0
    assert scores[2, 3] > 1200
    fewer = pair_scores(parse_smi(WHOLE.replace("GPU1\tNV12", "GPU1\tNV4")))
    assert fewer[0, 1] == 420


# Positions ------------------------------------------------------------------------------------


def kinds_above(text: str, device: str) -> list[str]:
    """Return the kinds of the parts above a device, from its switch to its NUMA node."""
    graph = parse_smi(text).graph
    return [
        graph.nodes[name]["kind"].value
        for name in nx.shortest_path(graph, device, "socket ?")[1:-1]
        if graph.nodes[name]["kind"] is not PartKind.GPU
    ]


def test_pix_is_one_switch_and_pxb_several() -> None:
    pix = "\tGPU0\tGPU1\nGPU0\tX\tPIX\nGPU1\tPIX\tX\n"
    assert kinds_above(pix, "GPU0") == ["switch", "root", "numa"]
    assert kinds_above(pix.replace("PIX", "PXB"), "GPU0") == ["switch", "switch", "root", "numa"]
    assert kinds_above(pix.replace("PIX", "PHB"), "GPU0") == ["root", "numa"]


def test_two_devices_on_the_switch_of_a_third_are_pix() -> None:
    machine = parse_smi("\tGPU0\tGPU1\tNIC0\nGPU0\tX\tNV4\tPIX\nGPU1\tNV4\tX\tPIX\n")
    assert machine.levels[0, 1] == Level.PIX


def test_a_nic_s_own_numa_node_is_read_from_a_probe() -> None:
    probe = WHOLE.replace("PIX", "SYS").replace("NODE", "SYS").replace("PXB", "SYS")
    assert [nic.numa for nic in parse_smi(probe).nics] == [None, None]
    listed = "---NUMA---\n0000:19:00.0|1\n0000:2a:00.0|-1\n"
    assert [nic.numa for nic in parse_smi(probe + listed).nics] == [1, None]


# NICs that may be near ------------------------------------------------------------------------


def test_a_nic_whose_level_is_not_known_may_be_nearer_than_a_far_one() -> None:
    far = parse_smi("\tGPU0\tGPU1\tNIC0\tNIC1\nGPU0\tX\tPHB\tSYS\n")
    assert far.label(0, 3) == "?"
    assert far.near_nics(0) == ()
    assert far.nic_distance(0) is Level.NET
    near = parse_smi("\tGPU0\tGPU1\tNIC0\tNIC1\nGPU0\tX\tPHB\tPXB\n")
    assert near.near_nics(0) == (0,)


def test_a_nic_is_for_storage_only_where_all_of_its_levels_are_known() -> None:
    rows = "GPU0\tX\tNODE\tPIX\tNODE\nGPU1\tNODE\tX\tNODE\tNODE\n"
    header = "\tGPU0\tGPU1\tNIC0\tNIC1\n"
    assert parse_smi(header + rows).compute_nics == (0,)
    assert parse_smi(header + rows.replace("NODE\tNODE\n", "NODE\t?\n")).compute_nics == (0, 1)


# Bandwidth ------------------------------------------------------------------------------------


def test_the_gpus_model_sets_the_speed_of_links() -> None:
    unknown, known = parse_smi(switched()), parse_smi(switched(), model="NVIDIA-B200")
    assert (unknown.link.wire, known.link.wire) == (25, 50)
    assert known.bandwidth[0, 3] == 900
    assert {gpu.model for gpu in known.gpus} == {"NVIDIA-B200"}
    assert "assumed from the model: 22 GB/s between sockets" in known.notes


def test_an_unknown_model_is_noted() -> None:
    machine = parse_smi(switched(), model="Voodoo2")
    assert 'the GPU "Voodoo2" is not known: its links are assumed' in machine.notes
    assert machine.link.wire == 25


def test_assumed_bandwidths_are_noted() -> None:
    notes = parse_smi(WHOLE).notes
    assert notes == (
        "assumed from the links: NVLink 3 (25 GB/s a link), PCIe 4, 16 GB/s between sockets",
    )
