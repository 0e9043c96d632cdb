"""Kueue's manager admits; once it is gone for good, bayplan does."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.controlplane.live_cluster import PODS, Content
from tests.controlplane.process import BAYPLAN
from tests.controlplane.queue_builders import KUEUE, cluster_queue, suspended_job
from tests.controlplane.story_builders import asking, nodes
from tests.peers.real_peers import SCHEDULER, Peers

JOBS = "/apis/batch/v1/namespaces/default/jobs"
WORKLOADS = f"/apis/{KUEUE}/namespaces/default/workloads"
MANAGER = "Kueue's manager"
"""In what the log says of who admits."""
FRAMEWORKS = "batch/job, pod"


@pytest.fixture
def kueue(peers: Peers) -> Peers:
    """A cluster on which Kueue was installed: its kinds stay when it goes."""
    return peers


def job(name: str, count: int) -> list[Content]:
    return suspended_job(name, "q", count)


def admitted(peers: Peers) -> list[str]:
    """Return the jobs that have a Workload with a quota, and have not finished."""
    return sorted(
        one["metadata"]["ownerReferences"][0]["name"]
        for one in peers.cluster.items(WORKLOADS)
        if is_true(one, "QuotaReserved") and not is_true(one, "Finished")
    )


def is_true(content: Content, condition: str) -> bool:
    conditions = content.get("status", {}).get("conditions", ())
    return any(one["type"] == condition and one["status"] == "True" for one in conditions)


def placed(peers: Peers, name: str) -> int:
    """Return how many pods of a job have nodes."""
    label = "batch.kubernetes.io/job-name"
    pods = peers.cluster.items(PODS)
    mine = [pod for pod in pods if pod["metadata"].get("labels", {}).get(label) == name]
    return sum("nodeName" in pod["spec"] for pod in mine)


def finish(peers: Peers, name: str) -> None:
    """Let all pods of a job succeed."""
    label = "batch.kubernetes.io/job-name"
    for pod in peers.cluster.items(PODS):
        if pod["metadata"].get("labels", {}).get(label) == name:
            path = f"{PODS}/{pod['metadata']['name']}/status"
            assert peers.cluster.client.patch(path, {"status": {"phase": "Succeeded"}}).code == 200


def test_jobs_start_after_kueues_manager_was_stopped(kueue: Peers, tmp_path: Path) -> None:
    with kueue.scheduler(tmp_path, expected=MANAGER):
        with kueue.running("kueue", KUEUE_FRAMEWORKS=FRAMEWORKS):
            kueue.cluster.apply([*nodes(2), *cluster_queue("q"), *job("before", 3)])
            kueue.wait(lambda: placed(kueue, "before") == 3, "Kueue admits, bayplan places")
            assert admitted(kueue) == ["before"]
            finish(kueue, "before")
            kueue.wait(lambda: not admitted(kueue), "the job has finished")
        kueue.cluster.apply(job("after", 3))
        kueue.wait(lambda: placed(kueue, "after") == 3, "bayplan admits and places")
        shown = subprocess.run(
            [str(BAYPLAN), "queue", "show", "q", "--kubeconfig", str(kueue.kubeconfig)],
            capture_output=True,
            text=True,
        )
        assert shown.returncode == 0, shown.stderr
        assert "uses 3 of 6" in shown.stdout


def test_jobs_that_kueue_had_queued_and_admitted_go_on_after_it(
    kueue: Peers, tmp_path: Path
) -> None:
    """The quota is 6 cores: one job has 4 of them, the other waits for 3."""
    with kueue.scheduler(tmp_path, expected=MANAGER):
        with kueue.running("kueue", KUEUE_FRAMEWORKS=FRAMEWORKS):
            kueue.cluster.apply([*nodes(2), *cluster_queue("q"), *job("first", 4)])
            kueue.wait(lambda: placed(kueue, "first") == 4, "Kueue admits, bayplan places")
            kueue.cluster.apply(job("second", 3))
            kueue.wait(lambda: len(kueue.cluster.items(WORKLOADS)) == 2, "Kueue queues the second")
        before = {pod["metadata"]["uid"] for pod in kueue.cluster.items(PODS)}
        finish(kueue, "first")
        kueue.wait(lambda: placed(kueue, "second") == 3, "the second follows the first")
        after = {pod["metadata"]["uid"] for pod in kueue.cluster.items(PODS)}
        assert before <= after


def test_what_kueues_manager_kept_can_go_once_it_is_gone(kueue: Peers, tmp_path: Path) -> None:
    """Its finalizers would keep jobs' Workloads, pods and queues, and their namespace, for ever."""
    client = kueue.cluster.client
    single = asking("single", schedulerName=SCHEDULER, restartPolicy="Never")
    single["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "q"}
    with kueue.scheduler(tmp_path, expected=MANAGER):
        with kueue.running("kueue", KUEUE_FRAMEWORKS=FRAMEWORKS):
            kueue.cluster.apply([*nodes(2), *cluster_queue("q"), *job("first", 2), single])
            kueue.wait(lambda: placed(kueue, "first") == 2, "Kueue admits the job")
            kueue.wait(lambda: "nodeName" in pod_of(kueue, "single")["spec"], "and the pod")
            assert "kueue.x-k8s.io/managed" in pod_of(kueue, "single")["metadata"]["finalizers"]
        finish(kueue, "first")
        kueue.cluster.apply(job("second", 2))
        kueue.wait(lambda: placed(kueue, "second") == 2, "bayplan admits the next job")
        for path in (f"{JOBS}/first", f"{JOBS}/second"):
            assert client.delete(path, propagationPolicy="Background").code == 200
        assert client.delete(f"{PODS}/single").code == 200
        kueue.wait(lambda: kueue.cluster.items(WORKLOADS) == [], "no Workload is left")
        kueue.wait(lambda: "single" not in client.names(PODS), "nor the pod")
        for kind in ("clusterqueues", "resourceflavors"):
            path = f"/apis/{KUEUE}/{kind}"
            client.delete(f"{path}/q")
            kueue.wait(lambda path=path: client.names(path) == [], f"no {kind} are left")


def pod_of(peers: Peers, name: str) -> Content:
    found: Content = peers.cluster.client.get(f"{PODS}/{name}").json
    return found
