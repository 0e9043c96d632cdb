"""Who follows docs/first-gang.md on an empty cluster sees what it shows."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.chart.helm import NAMESPACE, Helm
from tests.chart.test_release import Replica
from tests.cluster.apiserver.faces import Client
from tests.controlplane.plane import ControlPlane, wait_until
from tests.paths import ROOT
from tests.real_programs import HELM

PAGE = ROOT / "docs" / "first-gang.md"
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
STEP = re.compile(r"^\$ ([^\n]+)\n((?:(?!\$ )[^\n]*\n)*)", re.MULTILINE)
JOBS = "/apis/batch/v1/namespaces/default/jobs"
IN_POD = f"kubectl -n {NAMESPACE} exec deploy/bayplan-scheduler -- "
"""There is no kubelet that could start anything in a pod."""
DIFFERS = ((r"first-gang-(\d)-\w{5}", r"first-gang-\1-xxxxx"), (r"decided at \S+", "decided at _"))


def node(name: str, **amounts: str) -> dict[str, Any]:
    room = {"cpu": "16", "memory": "64Gi", "pods": "110", **amounts}
    ready = {"type": "Ready", "status": "True", "reason": "x", "message": "x"}
    status = {"capacity": room, "allocatable": room, "conditions": [ready]}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": status}


def start_pods(client: Client, namespace: str, count: int) -> None:
    """Say of pods that they run, as a kubelet does."""
    path = f"/api/v1/namespaces/{namespace}/pods"
    wait_until(lambda: len(client.get(path).json["items"]) == count, "the pods are made")
    for one in client.get(path).json["items"]:
        ready = [{"type": "Ready", "status": "True"}]
        status = {"phase": "Running", "conditions": ready}
        answer = client.patch(f"{path}/{one['metadata']['name']}/status", {"status": status})
        assert answer.code == 200, answer


def same(command: str, text: str) -> list[list[str]]:
    """Return the words of an output, without those that differ from run to run."""
    for pattern, instead in DIFFERS:
        text = re.sub(pattern, instead, text)
    lines = [line.split() for line in text.splitlines()]
    if command.startswith("kubectl get pods"):
        return [[line[0], line[6]] for line in lines[1:]]
    return lines


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_who_follows_the_first_gang_sees_what_it_shows(
    release: Helm, empty_plane: ControlPlane, tmp_path: Path
) -> None:
    client = empty_plane.client
    replica: Replica | None = None
    gpus = {"cpu": "190", "memory": "1990Gi", "nvidia.com/gpu": "8"}
    for made in (node("cpu-1"), *(node(f"gpu-{number}", **gpus) for number in range(1, 5))):
        assert client.post("/api/v1/nodes", made).code == 201
    folders = (str(HELM.parent), str(Path(sys.executable).parent), os.environ["PATH"])
    environment = {
        **os.environ,
        "PATH": os.pathsep.join(folders),
        "KUBECONFIG": str(empty_plane.kubeconfig),
        **dict.fromkeys(("HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"), str(tmp_path)),
    }
    steps = [step for block in BLOCK.findall(PAGE.read_text()) for step in STEP.findall(block)]
    assert len(steps) == 5
    try:
        for command, shown in steps:
            if "rollout status" in command:
                start_pods(client, NAMESPACE, 2)
                replica = Replica(empty_plane, tmp_path)
                replica.roll()
            if command.startswith("kubectl get pods"):
                wait_until(lambda: bound(client) == 4, "the gang is placed")
            said = follow(command, environment)
            if shown:
                assert same(command, said) == same(command, shown), command
    finally:
        if replica is not None:
            replica.stop()
        client.delete(f"{JOBS}/first-gang", propagationPolicy="Background")


def bound(client: Client) -> int:
    found = client.get("/api/v1/namespaces/default/pods").json["items"]
    return sum("nodeName" in one["spec"] for one in found)


def follow(command: str, environment: Mapping[str, str]) -> str:
    """Do what a page says, and return what that prints."""
    arguments = command.removeprefix(IN_POD).split()
    done = subprocess.run(arguments, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, (command, done.stderr)
    return done.stdout
