"""The real cluster-autoscaler buys nodes for what bayplan says lacks them, and for nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.controlplane.installation import path_of
from tests.controlplane.live_cluster import PODS, Content
from tests.controlplane.process import Scheduler
from tests.controlplane.story_builders import asking
from tests.peers.real_peers import SCHEDULER, Peers

from bayplan.plugin.decision import NOT_READY

NODES = "/api/v1/nodes"
GPU = "nvidia.com/gpu"
_SCANS = 3


@pytest.fixture(scope="module")
def autoscaler(running: Peers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scheduler]:
    """cluster-autoscaler with its provider of simulated nodes, and bayplan as it is installed."""
    with (
        running.running("autoscaler", SCAN="1s", CA_FLAGS="--v=4"),
        running.scheduler(tmp_path_factory.mktemp("run")) as made,
    ):
        yield made


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
    yield
    client.delete(path_of(content))


def asking_gpus(name: str, count: int, of: str) -> Content:
    """Return a pod of a queue that asks for GPUs."""
    made = asking(name, schedulerName=SCHEDULER)
    made["metadata"]["labels"] = {"bayplan.dev/queue": of}
    made["spec"]["containers"][0]["resources"]["limits"] = {GPU: str(count)}
    return made


def bought(peers: Peers) -> list[str]:
    return [
        one["metadata"]["name"]
        for one in peers.cluster.items(NODES)
        if one["metadata"].get("labels", {}).get("peers/nodegroup") == "gpu"
    ]


def reason(peers: Peers, name: str) -> str:
    """Return why a pod is not scheduled, in the word that autoscalers read."""
    pod = peers.cluster.client.get(f"{PODS}/{name}").json
    conditions = pod["status"].get("conditions", ())
    return next((one["reason"] for one in conditions if one["type"] == "PodScheduled"), "")


def wait_for_scans(peers: Peers, count: int = _SCANS) -> None:
    """Wait until the autoscaler has looked at all pods a few times more."""
    began = peers.log("autoscaler").count("Starting main loop")
    peers.wait(
        lambda: peers.log("autoscaler").count("Starting main loop") > began + count,
        "the autoscaler looks again",
    )


def test_no_node_is_bought_for_a_pod_that_its_queue_holds_back(
    peers: Peers, autoscaler: Scheduler
) -> None:
    """Eight GPUs for two pods of eight: one node, and the second pod waits for the first."""
    with queue(peers, "eight", 8):
        peers.cluster.apply(asking_gpus(f"p{i}", 8, "eight") for i in range(2))
        peers.wait(lambda: len(peers.cluster.placements()) == 1, "one pod has a node")
        wait_for_scans(peers)
        assert len(bought(peers)) == 1
        (waiting,) = {"p0", "p1"} - peers.cluster.placements().keys()
        assert reason(peers, waiting) == NOT_READY


def test_nodes_are_bought_for_all_pods_that_lack_them(peers: Peers, autoscaler: Scheduler) -> None:
    """Pods that are equal are not tried one by one; each lacks a node of its own all the same."""
    with queue(peers, "many", 64):
        peers.cluster.apply(asking_gpus(f"p{i}", 8, "many") for i in range(3))
        peers.wait(lambda: len(peers.cluster.placements()) == 3, "all pods have nodes")
        assert len(bought(peers)) == 3
