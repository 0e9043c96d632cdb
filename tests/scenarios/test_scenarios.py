"""Whole scenarios through ``bayplan simulate``, as a user runs them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bayplan.cli import cli

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared" / "scenarios"
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


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared scenarios are not beside the project")
def test_the_shared_scenario_gives_its_expected_placements() -> None:
    folder = SHARED / "koordinator-prefer-gather"
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
