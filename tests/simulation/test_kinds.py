"""The examples of the kinds of workloads: each is placed as the gangs that it is, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from tests.paths import ROOT

from bayplan.api import ApiObject, Node
from bayplan.cli.commands import cli
from bayplan.cluster.manifests import load_manifests
from bayplan.profiles.loading import default_profiles
from bayplan.simulation.simulation import Simulation

FOLDER = ROOT / "configs" / "examples" / "kinds"
EXAMPLES = sorted(path for path in FOLDER.iterdir() if path.stem != "nodes")
PARTS = {"leaderworkerset": 2, "sparkapplication": 1}
"""Examples that are several gangs: how many pods of each are placed if only one fits."""


def placed(path: Path, nodes: int) -> tuple[int, int]:
    """Return how many pods get a node, and how many there are."""
    loaded: list[ApiObject] = load_manifests([str(FOLDER / "nodes.yaml"), str(path)]).objects
    known = [obj for obj in loaded if isinstance(obj, Node)][:nodes]
    simulation = Simulation(default_profiles())
    simulation.create([*known, *(obj for obj in loaded if not isinstance(obj, Node))])
    simulation.run()
    return len(simulation.placements()), len(simulation.pods())


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_placed_whole(path: Path) -> None:
    bound, pods = placed(path, 4)
    assert bound == pods > 1


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_of_an_example_that_does_not_fit_nothing_is_placed(path: Path) -> None:
    bound, pods = placed(path, 2)
    assert bound == PARTS.get(path.stem, 0) < pods


@pytest.mark.parametrize("nodes", [4, 2])
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_explained_as_what_it_is(path: Path, nodes: int, tmp_path: Path) -> None:
    documents = list(yaml.safe_load_all((FOLDER / "nodes.yaml").read_text()))[:nodes]
    (tmp_path / "nodes.yaml").write_text(yaml.safe_dump_all(documents))
    content = list(yaml.safe_load_all(path.read_text()))[-1]
    if content["kind"] == "Pod":
        content = {"kind": "podgroup", "metadata": {"name": "prefill"}}
    target = f"{content['kind']}/{content['metadata']['name']}"
    files = ["-f", str(tmp_path), "-f", str(path)]
    result = CliRunner().invoke(cli, ["explain", *files, target])
    assert result.exit_code == 0, result.output
    assert ("is pending" in result.output) == (nodes == 2)
