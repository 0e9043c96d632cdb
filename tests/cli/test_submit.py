"""bayplan submit: what it prints can be simulated, and a server gets all of it or nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result
from tests.cluster.apiserver.faces import Face, serving

from bayplan.api import Job, Namespace, ObjectMeta, Pod, Service
from bayplan.cli import cli
from bayplan.cluster.manifests import load_manifests
from bayplan.profiles.loading import default_profiles
from bayplan.simulation import Simulation
from bayplan.testing import make_node

SCRIPT = """\
#!/bin/bash
#SBATCH --job-name=train --nodes=4
#SBATCH --gpus-per-node=8 --cpus-per-task=12 --mem=100G
#SBATCH --output=train.log
srun python3 train.py
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "job.sh"
    path.write_text(SCRIPT)
    return path


def submit(*words: str | Path) -> Result:
    return CliRunner().invoke(cli, ["submit", "--image", "pytorch", *map(str, words)])


@pytest.mark.parametrize(("nodes", "placed"), [(4, 4), (3, 0)])
@pytest.mark.parametrize("kind", ["Job", "PyTorchJob"])
def test_the_pods_of_all_nodes_start_together(
    script: Path, tmp_path: Path, kind: str, nodes: int, placed: int
) -> None:
    done = submit("--dry-run", "--kind", kind, script)
    assert done.exit_code == 0
    assert "kubectl logs" in done.stderr
    (tmp_path / "job.yaml").write_text(done.stdout)
    simulation = Simulation(default_profiles())
    simulation.create([make_node(f"n-{i}", 96, "1Ti", gpu=8) for i in range(nodes)])
    simulation.create(load_manifests([str(tmp_path / "job.yaml")]).objects)
    simulation.run()
    assert len(simulation.placements()) == placed
    assert len(set(simulation.placements().values())) == placed


def kubeconfig_of(face: Face, folder: Path) -> list[str]:
    face.server.write_kubeconfig(folder / "kubeconfig")
    return ["--kubeconfig", str(folder / "kubeconfig")]


def test_a_server_gets_the_job_and_what_goes_with_it(script: Path, tmp_path: Path) -> None:
    with serving() as face:
        where = kubeconfig_of(face, tmp_path)
        done = submit(*where, script)
        assert (done.exit_code, done.stdout) == (0, "Submitted Job default/train\n")
        (job,) = face.do(lambda server: server.cluster.list(Job))
        (service,) = face.do(lambda server: server.cluster.list(Service))
        (owner,) = service.metadata.owner_references
        assert (owner.kind, owner.uid) == ("Job", job.metadata.uid)
        again = submit(*where, script)
        assert again.exit_code != 0
        assert "name it otherwise by --job-name" in str(again.exception)
        assert submit(*where, "-J", "other", script).stdout == "Submitted Job default/other\n"


def in_namespace(folder: Path, namespace: str) -> None:
    """Let the kubeconfig's context name a namespace."""
    path = folder / "kubeconfig"
    content = yaml.safe_load(path.read_text())
    content["contexts"][0]["context"]["namespace"] = namespace
    path.write_text(yaml.safe_dump(content))


def test_jobs_are_submitted_and_listed_in_the_namespace_of_the_context(
    script: Path, tmp_path: Path
) -> None:
    with serving() as face:
        where = kubeconfig_of(face, tmp_path)
        face.do(lambda server: server.cluster.create(Namespace(ObjectMeta(name="team"))))
        in_namespace(tmp_path, "team")
        assert submit(*where, script).stdout == "Submitted Job team/train\n"

        def jobs(*words: str) -> list[str]:
            done = CliRunner().invoke(cli, ["jobs", *where, "-o", "json", *words])
            assert done.exit_code == 0, done.output
            return [one["job"] for one in json.loads(done.stdout)]

        assert jobs() == jobs("-A") == jobs("-t", "Pending") == ["team/train"]
        assert jobs("-n", "default") == jobs("--state", "Running", "--state", "Ended") == []
        in_namespace(tmp_path, "../team")
        done = CliRunner().invoke(cli, ["jobs", *where])
        assert done.exit_code == 2
        assert '"../team" is not the name of a namespace' in done.output


def test_what_the_server_refuses_leaves_nothing(script: Path, tmp_path: Path) -> None:
    with serving() as face:
        where = kubeconfig_of(face, tmp_path)
        done = submit(*where, "--namespace", "nowhere", script)
        assert done.exit_code != 0
        assert "nowhere" in str(done.exception)
        assert face.do(lambda server: server.cluster.list(Job)) == []
        assert face.do(lambda server: server.cluster.list(Pod)) == []


def test_options_of_the_command_count_and_come_before_the_script(script: Path) -> None:
    done = submit("--dry-run", "-N", "1", "--no-requeue", script, "-N", "2")
    assert done.exit_code == 0
    (job,) = done.stdout.split("\n---\n")
    assert "completionMode" not in job
    assert "podFailurePolicy" not in job
    assert "        - -N\n        - '2'\n" in job


def test_options_without_a_counterpart_are_refused_with_a_word(script: Path) -> None:
    done = submit("--dry-run", "--dependency", "afterok:1", script)
    assert str(done.exception) == (
        "--dependency: no counterpart: an Argo Workflow has steps that wait"
    )


@pytest.mark.parametrize("option", ["namespace", "scheduler"])
@pytest.mark.parametrize("text", ["a/../b", ""])
def test_what_is_no_name_never_becomes_part_of_a_path(script: Path, option: str, text: str) -> None:
    done = submit("--dry-run", f"--{option}={text}", script)
    assert done.exit_code == 2
    assert f'"{text}" is not the name of a {option}' in done.output
