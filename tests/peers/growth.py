"""Pods and gangs for which clusters grow, and what becomes of them."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.controlplane.installation import path_of
from tests.controlplane.live_cluster import PODS, Content
from tests.controlplane.plane import BASH, wait_until
from tests.controlplane.story_builders import asking
from tests.peers.real_peers import SCHEDULER, Peers

from bayplan.dialects.kai.shares import INDEX_ANNOTATION, RESERVATIONS

NODES = "/api/v1/nodes"
GPU = "nvidia.com/gpu"
STAND_INS = "/api/v1/namespaces/bayplan-stand-ins/pods"
CLASS = "autoscaling.x-k8s.io/provisioning-class-name"


@contextmanager
def queue(peers: Peers, name: str, gpus: int) -> Iterator[None]:
    """Make a queue that may have so many GPUs, for the time of a story."""
    content = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": name,
            "namespace": "bayplan-system",
            "labels": {"bayplan.dev/queue": name},
        },
        "data": {"maxCapacity": f"{{{GPU}: {gpus}}}"},
    }
    client = peers.cluster.client
    assert client.post(path_of(content, name=False), content).code == 201
    try:
        yield
    finally:
        client.delete(path_of(content))


def pod_of_gpus(
    name: str, count: int, of: str, selector: Mapping[str, str] | None = None
) -> Content:
    """Return a pod of a queue that asks for GPUs."""
    made = asking(name, schedulerName=SCHEDULER)
    made["metadata"]["labels"] = {"bayplan.dev/queue": of}
    made["spec"]["containers"][0]["resources"]["limits"] = {GPU: str(count)}
    made["spec"]["nodeSelector"] = dict(selector or {})
    return made


def reason(peers: Peers, name: str) -> str:
    """Return why a pod is not scheduled, in the word that autoscalers read."""
    pod = peers.cluster.client.get(f"{PODS}/{name}").json
    conditions = pod["status"].get("conditions", ())
    return next((one["reason"] for one in conditions if one["type"] == "PodScheduled"), "")


def gang(name: str, count: int, selector: Mapping[str, str], **annotations: str) -> list[Content]:
    """Return a gang of pods of eight GPUs."""
    group = {
        "apiVersion": "scheduling.sigs.k8s.io/v1alpha1",
        "kind": "PodGroup",
        "metadata": {"name": name, "namespace": "default", "annotations": dict(annotations)},
        "spec": {"minMember": count},
    }
    pods = []
    for index in range(count):
        made = asking(f"{name}-{index}", schedulerName=SCHEDULER, nodeSelector=dict(selector))
        made["metadata"]["labels"] = {"pod-group.scheduling.sigs.k8s.io": name}
        made["metadata"]["annotations"] = {
            key: text for key, text in annotations.items() if key == CLASS
        }
        made["spec"]["containers"][0]["resources"]["limits"] = {GPU: "8"}
        pods.append(made)
    return [group, *pods]


def replica(name: str, gpus: int, selector: Mapping[str, str]) -> Content:
    """Return a ReplicaSet of one pod."""
    made = asking(name, schedulerName=SCHEDULER, nodeSelector=dict(selector))
    made["spec"]["containers"][0]["resources"]["limits"] = {GPU: str(gpus)}
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": made["spec"]}
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    meta = {"name": name, "namespace": "default"}
    return {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": meta, "spec": spec}


def half(name: str, selector: Mapping[str, str]) -> Content:
    """Return a pod of half a GPU, in KAI's words."""
    made = asking(name, schedulerName=SCHEDULER, nodeSelector=dict(selector))
    made["metadata"]["annotations"] = {"gpu-fraction": "0.5"}
    return made


def message(peers: Peers, name: str) -> str:
    pod = peers.cluster.client.get(f"{PODS}/{name}").json
    conditions = pod["status"].get("conditions", ())
    return next((one["message"] for one in conditions if one["type"] == "PodScheduled"), "")


def on_nodes(peers: Peers, prefix: str) -> dict[str, str]:
    return {k: v for k, v in peers.cluster.placements().items() if k.startswith(prefix)}


def tell_gpus(peers: Peers) -> None:
    """Say of each reservation pod which GPU it got, as its image does."""
    path = f"/api/v1/namespaces/{RESERVATIONS}/pods"
    for one in peers.cluster.items(path):
        said = one["metadata"].get("annotations", {})
        if INDEX_ANNOTATION not in said:
            change = {"metadata": {"annotations": {INDEX_ANNOTATION: "0"}}}
            peers.cluster.client.patch(f"{path}/{one['metadata']['name']}", change)


class Killed:
    """A controller whose process is killed, and begun again as it was."""

    def __init__(self, peers: Peers, name: str) -> None:
        folder = peers.plane.folder / "peers"
        self._folder, self._pid = folder, folder / "run" / f"{name}.pid"
        self._log = folder / "run" / f"{name}.log"
        process = Path("/proc") / self._pid.read_text().strip()
        self._command = process.joinpath("cmdline").read_bytes().split(b"\0")[:-1]
        lines = process.joinpath("environ").read_bytes().split(b"\0")
        self._environment = dict(line.split(b"=", 1) for line in lines if b"=" in line)

    def again(self) -> None:
        """Kill it and begin it again, as a process that outlives this one's care."""
        self.end()
        begin = 'log=$1 pid=$2; shift 2; "$@" >>"$log" 2>&1 & echo $! >"$pid"'
        arguments = [BASH, "-c", begin, BASH, self._log, self._pid, *self._command]
        subprocess.run(arguments, env=self._environment, cwd=self._folder, check=True)

    def end(self) -> None:
        """Kill it, and wait until it is gone."""
        process = Path("/proc") / self._pid.read_text().strip()
        with suppress(ProcessLookupError):
            os.kill(int(process.name), signal.SIGKILL)
        wait_until(lambda: _has_ended(process), f"{process.name} ends")


def _has_ended(process: Path) -> bool:
    """Tell whether a process is gone, though nobody may have asked how it ended."""
    try:
        return process.joinpath("stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True
