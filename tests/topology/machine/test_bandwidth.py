"""What follows from the name of a GPU, and what its links carry."""

from __future__ import annotations

import pytest

from bayplan.topology.machine.bandwidth import Bandwidth, model_of, nic_bandwidth, nvlink


@pytest.mark.parametrize(
    ("name", "generation", "pcie"),
    [
        ("NVIDIA H200", 4, 5),
        ("NVIDIA H20-3e", 4, 5),
        ("NVIDIA GH200 480GB", 4, 5),
        ("NVIDIA GB200", 5, 6),
        ("NVIDIA-NVIDIA A100-SXM4-80GB", 3, 4),
        ("Tesla V100S-PCIE-32GB", 2, 3),
        ("Quadro RTX 8000", 2, 3),
        ("NVIDIA L40S", 0, 4),
        ("NVIDIA RTX 6000 Ada Generation", 0, 4),
        ("NVIDIA A10", 0, 4),
        ("NVIDIA RTX A4000", 0, 4),
        ("Tesla T4", 0, 3),
        ("NVIDIA T400 4GB", 0, 3),
    ],
)
def test_a_model_is_known_by_whole_words_of_its_name(name: str, generation: int, pcie: int) -> None:
    found = model_of(name)
    assert found is not None
    assert (found.nvlink, found.pcie) == (generation, pcie)


@pytest.mark.parametrize("name", ["", "NVIDIA H2000", "NVIDIA A4000X", "Radeon"])
def test_a_name_that_only_begins_like_a_model_is_not_known(name: str) -> None:
    assert model_of(name) is None


@pytest.mark.parametrize("name", ["NVIDIA A40", "NVIDIA RTX A6000", "NVIDIA GeForce RTX 3090"])
def test_bridges_of_workstation_gpus_are_slower_than_those_of_an_a100(name: str) -> None:
    found = model_of(name)
    assert found is not None
    assert nvlink(found.nvlink, 4) == Bandwidth(56.25, 48)
    assert nvlink(3, 4) == Bandwidth(100, 80)


def test_a_nic_whose_rate_is_not_known_counts_as_edr() -> None:
    assert nic_bandwidth(400).wire == 50
    assert nic_bandwidth(0) == nic_bandwidth(100) == Bandwidth(12.5, 12.5)
