"""What the doctor says of a node."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from bayplan.cli import cli
from bayplan.live import node_doctor
from bayplan.live.doctor import Finding
from bayplan.live.node_doctor import (
    fabric_findings,
    kubelet_findings,
    machine_findings,
    nccl_findings,
)
from bayplan.topology.machine.readers.machinefile import known_machine, known_machines


def told(findings: object) -> list[tuple[str, str, str]]:
    return [(one.level, one.about, one.text) for one in findings]  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", known_machines())
def test_a_machine_of_the_catalog_is_as_the_catalog_says(name: str) -> None:
    found = told(machine_findings(known_machine(name), known_machine(name)))
    assert found[-1] == (
        "ok",
        f"as {known_machine(name).name}",
        "GPUs, NVLinks, NUMA nodes and NICs are as the catalog says",
    )


def test_links_gpus_and_nics_that_are_missing_are_named() -> None:
    whole = known_machine("dgx-h100")
    links = np.array(whole.nvlinks)
    links[0, 3] = links[3, 0] = 0
    broken = replace(whole, nvlinks=links, nics=whole.nics[1:])
    found = told(machine_findings(broken, whole))
    assert [text for level, _, text in found if level == "failure"] == [
        "NVLinks of 1 pair of GPUs differ, such as GPU0-GPU3: 0 in the place of "
        f"{whole.nvlinks[0, 3]}",
        f"{len(whole.nics) - 1} NICs in the place of {len(whole.nics)}",
    ]
    other = told(machine_findings(known_machine("gb200-nvl72"), whole))
    assert any("GPUs in the place of 8" in text for _, _, text in other)
    lost = (replace(whole.gpus[0], lost="fell off the bus"), *whole.gpus[1:])
    first, *_ = machine_findings(replace(whole, gpus=lost), None)
    assert (first.level, first.text.partition("; ")[2]) == ("failure", "GPU0 cannot be used")


def test_gpus_outside_of_the_nvlink_domain_of_the_others_are_named(tmp_path: Path) -> None:
    machine = known_machine("dgx-h100")
    assert told(fabric_findings(machine, tmp_path)) == []
    inside = tuple(replace(gpu, nvlink_domain="c.1") for gpu in machine.gpus)
    whole = replace(machine, gpus=inside)
    domain = ("ok", "fabric", "all GPUs are in the NVLink domain c.1")
    assert told(fabric_findings(whole, tmp_path)) == [domain]
    missing = tmp_path / "channels"
    warning = ("warning", "fabric", f"no IMEX channels in {missing}")
    assert told(fabric_findings(whole, missing)) == [domain, warning]
    alone = replace(machine, gpus=(machine.gpus[0], *inside[1:]))
    text = "GPUs are in 1 NVLink domain: c.1; GPU0 in none"
    assert told(fabric_findings(alone, tmp_path)) == [("failure", "fabric", text)]


def test_a_kubelet_without_policies_does_not_keep_cpus_near_gpus() -> None:
    assert [one.level for one in kubelet_findings({})] == ["warning"] * 3
    good = {
        "topologyManagerPolicy": "single-numa-node",
        "cpuManagerPolicy": "static",
        "memoryManagerPolicy": "Static",
    }
    assert [one.level for one in kubelet_findings(good)] == ["ok"] * 3


def test_settings_that_turn_a_fast_way_of_nccl_off_are_named() -> None:
    config = "# of this node\nNCCL_P2P_DISABLE = 1 # slow\nNCCL_IB_HCA=mlx5\n"
    assert told(nccl_findings({}, config)) == [("warning", "NCCL", "NCCL_P2P_DISABLE=1")]
    # The environment comes first.
    found = told(nccl_findings({"NCCL_P2P_DISABLE": "0", "HOME": "/"}, config))
    assert found == [("ok", "NCCL", "NCCL_IB_HCA=mlx5, NCCL_P2P_DISABLE=0")]


def test_a_node_without_a_driver_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setattr(node_doctor, "KUBELET", node_doctor.Path("/nonexistent/config.yaml"))
    done = CliRunner().invoke(cli, ["doctor", "--node", "-o", "json"])
    if done.exit_code == 0:
        pytest.skip("this machine has GPUs")
    found = [Finding(**one) for one in json.loads(done.stdout)]
    assert [(one.level, one.about) for one in found[:2]] == [
        ("failure", "GPUs"),
        ("warning", "kubelet"),
    ]
    assert "driver" in found[0].remedy
    wrong = CliRunner().invoke(cli, ["doctor", "--machine", "dgx-h100"])
    assert wrong.exit_code == 2
