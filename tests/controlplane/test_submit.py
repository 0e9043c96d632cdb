"""Batch scripts for Slurm on a real API server: what is submitted is taken, and goes as a whole."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.controlplane.installation import upstream_definitions
from tests.controlplane.live_cluster import LiveCluster
from tests.controlplane.plane import ControlPlane, wait_until
from tests.controlplane.process import Scheduler
from tests.controlplane.story_builders import nodes

from bayplan.cli import cli

SERVICES = "/api/v1/namespaces/default/services"
SCRIPT = """\
#!/bin/bash
#SBATCH --job-name=train --nodes=2 --gpus-per-node=1 --mem=100M --time=1:00:00
#SBATCH --exclude=node-9
srun hostname
"""
KINDS = {
    "Job": "/apis/batch/v1/namespaces/default/jobs",
    "PyTorchJob": "/apis/kubeflow.org/v1/namespaces/default/pytorchjobs",
}


def submit(plane: ControlPlane, folder: Path, script: str, *words: str) -> str:
    (folder / "job.sh").write_text(script)
    where = ["--kubeconfig", str(plane.kubeconfig), "--image", "busybox", *words]
    done = CliRunner().invoke(cli, ["submit", *where, str(folder / "job.sh")])
    assert done.exit_code == 0, (done.output, done.exception)
    return done.stdout


@pytest.mark.parametrize(
    ("kind", "script"),
    [
        ("Job", SCRIPT),
        ("Job", "#!/bin/sh\n#SBATCH -J many -a 1-9:2%2 --no-requeue\necho $SLURM_ARRAY_TASK_ID\n"),
        ("PyTorchJob", SCRIPT),
    ],
)
def test_the_server_knows_every_field(
    plane: ControlPlane, real: LiveCluster, tmp_path: Path, kind: str, script: str
) -> None:
    if kind == "PyTorchJob" and "pytorchjobs.kubeflow.org" not in upstream_definitions():
        pytest.skip("no definition of Kubeflow's on this machine")
    name = script.partition("-J ")[2].split()[0] if "-J " in script else "train"
    try:
        said = submit(plane, tmp_path, script, "--kind", kind)
        assert said == f"Submitted {kind} default/{name}\n"
        assert real.client.get(f"{KINDS[kind]}/{name}").code == 200
    finally:
        real.client.delete(f"{KINDS[kind]}/{name}", propagationPolicy="Background")


def test_its_pods_start_together_and_go_with_it(
    plane: ControlPlane, real: LiveCluster, tmp_path: Path
) -> None:
    scheduler = Scheduler(real.kubeconfig, tmp_path)
    scheduler.start()
    try:
        real.apply(nodes(2))
        submit(plane, tmp_path, SCRIPT.replace(" --gpus-per-node=1", ""))
        wait_until(lambda: len(real.placements()) == 2, "both pods have nodes")
        assert len(set(real.placements().values())) == 2
        (service,) = [one for one in real.items(SERVICES) if one["metadata"]["name"] == "train"]
        assert service["metadata"]["ownerReferences"][0]["name"] == "train"
        real.client.delete(f"{KINDS['Job']}/train", propagationPolicy="Background")
        wait_until(
            lambda: all(one["metadata"]["name"] != "train" for one in real.items(SERVICES)),
            "the service goes with its job",
        )
    finally:
        scheduler.stop()
        real.client.delete(f"{KINDS['Job']}/train", propagationPolicy="Background")
    assert scheduler.problems() == []
