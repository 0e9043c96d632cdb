"""The definitions of other projects, on a real API server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.chart.cluster import DEFINITIONS, clear_definitions, definitions
from tests.controlplane.plane import ControlPlane
from tests.live.deployed import CRDS as OWN
from tests.live.deployed import documents
from tests.paths import SHARED

from bayplan.cli import cli
from bayplan.schemas.upstream import SYSTEMS

UPSTREAM = SHARED / "peers" / "crds"


@pytest.fixture
def plane(empty_plane: ControlPlane) -> Iterator[ControlPlane]:
    """A cluster without any definition."""
    yield empty_plane
    clear_definitions(empty_plane.client)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of all projects, under the names that they have there."""
    if not UPSTREAM.exists():
        pytest.skip(f"there is no {UPSTREAM}")
    folder = tmp_path_factory.mktemp("projects")
    for line in (UPSTREAM / "INDEX.tsv").read_text().splitlines()[1:]:
        name, *_, path = line.split("\t")
        (folder / Path(path).name).write_text((UPSTREAM / name).read_text())
    return folder


def crds(plane: ControlPlane, *arguments: object) -> Result:
    given = ["crds", *map(str, arguments), "--kubeconfig", str(plane.kubeconfig)]
    done = CliRunner().invoke(cli, given)
    assert done.exit_code == 0, (done.output, done.exception)
    return done


def specs(plane: ControlPlane) -> dict[str, Any]:
    return {one["metadata"]["name"]: one["spec"] for one in definitions(plane.client)}


def test_definitions_of_all_systems_are_created_once_and_never_changed(
    plane: ControlPlane, files: Path
) -> None:
    (theirs,) = documents(OWN / "volcano-queues.yaml")
    assert plane.client.post(DEFINITIONS, theirs).code == 201
    before = specs(plane)
    names = {name for system in SYSTEMS.values() for name, _ in system.paths()}

    tried = crds(plane, "install", *SYSTEMS, "--from", files, "--dry-run")
    assert "podgroups.scheduling.volcano.sh would be created (v1beta1)" in tried.output
    assert specs(plane) == before

    done = crds(plane, "install", *SYSTEMS, "--from", files)
    assert "queues.scheduling.volcano.sh is there; left as it is" in done.output
    after = specs(plane)
    assert after.keys() == names
    assert after["queues.scheduling.volcano.sh"] == before["queues.scheduling.volcano.sh"]
    again = crds(plane, "install", *SYSTEMS, "--from", files)
    assert again.output.count("is there; left as it is") == len(names)
    assert specs(plane) == after

    shown = crds(plane, "list").output
    assert "absent" not in shown
    assert "v1beta1, v1beta2" in shown


def test_a_list_says_what_a_cluster_lacks(plane: ControlPlane, files: Path) -> None:
    crds(plane, "install", "volcano", "--from", files)
    lines = crds(plane, "list").output.splitlines()
    (hypernodes,) = (line for line in lines if "hypernodes" in line)
    assert hypernodes.split() == ["hypernodes.topology.volcano.sh", "v1alpha1"]
    assert sum("absent" in line for line in lines) == 19
