"""nvidia-smi tables of our own making: what is read, and what is honestly unknown."""

from __future__ import annotations

import pytest

from bayplan.errors import InputError
from bayplan.topology.smi import parse_smi

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
