"""Whole scenarios through ``bayplan simulate``, as a user runs them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from tests.paths import ROOT, SHARED

from bayplan.api import Node
from bayplan.cli import cli
from bayplan.testing import make_node

SCENARIOS = SHARED / "scenarios"
EXAMPLE = ROOT / "configs" / "examples" / "prefer-gather"


def simulate(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(cli, ["simulate", *arguments, "-o", "json"])
    assert result.exit_code == 0, result.output
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


def test_four_pods_gather_in_the_spine_that_fits_them_exactly() -> None:
    answer = simulate("-f", str(EXAMPLE))
    # spine-1 has four nodes; spine-0 would leave one over, spine-2 has three.
    assert answer["placements"] == {f"default/training-pod-{i}": f"node-{i + 5}" for i in range(4)}
    assert answer["pending"] == {}
    assert answer["stats"]["bound"] == 4


@pytest.mark.skipif(
    not SCENARIOS.is_dir(), reason="the shared scenarios are not beside the project"
)
def test_the_shared_scenario_gives_its_expected_placements() -> None:
    folder = SCENARIOS / "koordinator-prefer-gather"
    expected = json.loads((folder / "expected.json").read_text())
    assert simulate("-f", str(folder / "manifests"))["placements"] == expected["placements"]


def test_the_order_of_the_documents_does_not_matter(tmp_path: Path) -> None:
    documents = []
    for path in sorted(EXAMPLE.iterdir()):
        documents += path.read_text().split("\n---\n")
    (tmp_path / "reversed.yaml").write_text("\n---\n".join(reversed(documents)))
    assert simulate("-f", str(tmp_path))["placements"] == simulate("-f", str(EXAMPLE))["placements"]


def test_the_same_input_and_seed_give_the_same_bytes() -> None:
    def run() -> str:
        answer = simulate("-f", str(EXAMPLE), "-f", str(ROOT / "configs/examples/workloads"))
        for wall_clock in ("seconds", "podsPerSecond"):
            del answer["stats"][wall_clock]
        return json.dumps(answer)

    assert run() == run()


def test_another_seed_changes_generated_names_and_nothing_else() -> None:
    folder = str(ROOT / "configs/examples/workloads")
    one, other = simulate("-f", folder, "--seed", "1"), simulate("-f", folder, "--seed", "2")
    assert set(one["placements"]) != set(other["placements"])
    assert sorted(one["placements"].values()) == sorted(other["placements"].values())


def test_a_koordinator_profile_schedules_its_own_pods_only() -> None:
    profile = ROOT / "configs/examples/koordinator-profile/configmap.yaml"
    arguments = ["-f", str(EXAMPLE), "--config", str(profile)]
    assert len(simulate(*arguments)["placements"]) == 4
    workloads = str(ROOT / "configs/examples/workloads")
    pending = simulate(*arguments, "-f", workloads)["pending"]
    message = 'no profile schedules pods of schedulerName "default-scheduler"'
    assert {entry["message"] for entry in pending.values()} == {message}


PREEMPT = ROOT / "configs" / "examples" / "must-gather-preempt"


def check_preemption(folder: Path, expected: dict[str, Any]) -> None:
    """Compare what happens on the way and at the end with what a scenario expects."""
    answer = simulate("-f", str(folder))
    during, timeline = expected["during"], answer["timeline"]
    assert [entry["pod"] for entry in answer["evicted"]] == during["evicted"]
    assert {entry["for"] for entry in answer["evicted"]} == {"default/high-priority-training"}
    nominated = {e["pod"]: e["node"] for e in timeline if e["kind"] == "Nominated"}
    assert nominated == during["nominated"]
    told = [e["message"] for e in timeline if e["kind"] == "Unschedulable"]
    assert len(told) == len(nominated)
    for part in during["pod_condition"]["message_contains"]:
        assert all(part in message for message in told), part
    assert {pod: answer["placements"][pod] for pod in expected["placements"]} == expected[
        "placements"
    ]
    assert set(during["untouched"]) <= set(answer["placements"])
    assert answer["pending"] == {}
    # At ten seconds the victim still ends, and the places are held.
    early = simulate("-f", str(folder), "--until", "10s")
    held = {pod: entry["nominatedNode"] for pod, entry in early["pending"].items()}
    assert held == during["nominated"]


EXPECTED: dict[str, Any] = {
    "during": {
        "evicted": ["default/low-priority-pod-5"],
        "nominated": {f"default/hp-training-pod-{i}": f"node-{i + 5}" for i in range(4)},
        "untouched": ["default/low-priority-pod-0", "default/low-priority-pod-1"],
        "pod_condition": {"message_contains": ["desiredOfferSlot: 4", "SpineLayer/spine-1: 3"]},
    },
    "placements": {f"default/hp-training-pod-{i}": f"node-{i + 5}" for i in range(4)},
}


def test_one_eviction_makes_room_for_a_job_in_the_spine_that_fits_it() -> None:
    check_preemption(PREEMPT, EXPECTED)


@pytest.mark.skipif(
    not SCENARIOS.is_dir(), reason="the shared scenarios are not beside the project"
)
def test_the_shared_preemption_scenario_happens_as_expected() -> None:
    folder = SCENARIOS / "koordinator-must-gather-preempt"
    expected = json.loads((folder / "expected.json").read_text())
    check_preemption(folder / "manifests", expected)


def explain(*arguments: str) -> str:
    result = CliRunner().invoke(cli, ["explain", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_gang_is_explained_by_its_own_name() -> None:
    text = explain("default/high-priority-training", "-f", str(PREEMPT), "--until", "10s")
    assert "taken     SpineLayer/spine-1: would evict low-priority-pod-5" in text
    assert "not taken SpineLayer/spine-0: would evict low-priority-pod-0" in text
    assert "nominated: node-5" in text
    placed = explain("high-priority-training", "-f", str(PREEMPT))
    assert "chosen    SpineLayer/spine-1: offers 4 slots, 0 left over" in placed
    assert "taken     SpineLayer/spine-1: would evict low-priority-pod-5" in placed


TABLES = ROOT.parent / "shared" / "fixtures" / "nvidia-smi-topo"


@pytest.mark.skipif(
    not SCENARIOS.is_dir(), reason="the shared scenarios are not beside the project"
)
def test_the_shared_topology_pod_of_hami_gets_four_linked_gpus(tmp_path: Path) -> None:
    node = make_node("linked", "64", "512Gi", labels={"bayplan.dev/machine": "dgx-1v"})
    write_node(tmp_path, node, **{"hami.io/gpu": "8"})
    answer = simulate("-f", str(SCENARIOS / "hami-topology-pod" / "manifests"), "-f", str(tmp_path))
    (told,) = answer["annotations"].values()
    assert told["gpu.topology/bandwidth"] == "100"


@pytest.mark.skipif(not TABLES.is_dir(), reason="the shared tables are not beside the project")
def test_the_nics_of_a_published_scrambled_machine_are_those_beside_the_gpus(
    tmp_path: Path,
) -> None:
    table = (TABLES / "h200_8gpu_8nic_scrambled.txt").read_text()
    for name in ("scrambled-0", "scrambled-1"):
        node = make_node(name, "64", "512Gi")
        write_node(tmp_path, node, {"bayplan.dev/topology": table}, **{"nvidia.com/gpu": "8"})
    case = ROOT / "tests" / "scenarios" / "cases" / "gpu-scrambled-nics"
    (tmp_path / "job.yaml").write_text(
        "\n---\n".join(
            document
            for document in (case / "manifests.yaml").read_text().split("\n---\n")
            if "kind: Node" not in document
        )
    )
    answer = simulate("-f", str(tmp_path), "--config", str(case / "profile.yaml"))
    told = answer["annotations"]["default/rank-0"]
    assert told["bayplan.dev/nccl-env"] == "NCCL_IB_HCA==mlx5_0:1,mlx5_1:1,mlx5_3:1,mlx5_4:1"


def write_node(
    folder: Path, node: Node, annotations: Mapping[str, str] | None = None, **gpus: str
) -> None:
    """Write a node with GPUs as a manifest."""
    amounts = {name: quantity.text for name, quantity in node.status.allocatable.items()}
    content = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": node.metadata.name,
            "labels": dict(node.metadata.labels),
            "annotations": dict(annotations or {}),
        },
        "status": {"allocatable": {**amounts, **gpus}},
    }
    (folder / f"{node.metadata.name}.yaml").write_text(yaml.safe_dump(content))
