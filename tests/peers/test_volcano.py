"""Volcano's controllers and webhooks make the pods, bayplan is the scheduler."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.controlplane.live_cluster import PODS, Content
from tests.controlplane.process import Scheduler
from tests.controlplane.story_builders import asking, nodes
from tests.peers.real_peers import SCHEDULER, Peers

JOBS = "/apis/batch.volcano.sh/v1alpha1/namespaces/default/jobs"
GROUPS = "/apis/scheduling.volcano.sh/v1beta1/namespaces/default/podgroups"
QUEUES = "/apis/scheduling.volcano.sh/v1beta1/queues"
GATE = "example.com/hold"
QUEUE_GATE = "scheduling.volcano.sh/queue-allocation-gate"


@pytest.fixture(scope="module")
def volcano(running: Peers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scheduler]:
    """Volcano's controller-manager and webhook-manager, and bayplan as it is installed."""
    with running.running("volcano"), running.scheduler(tmp_path_factory.mktemp("run")) as made:
        running.wait(lambda: queue_state(running) == "Open", "the controller opens the queue")
        yield made


def job(name: str, tasks: dict[str, int], least: int, cpu: int = 1, **spec: object) -> Content:
    """Return a Volcano Job: tasks by their replicas, each pod with so many cores."""
    template = {"spec": asking("x", cpu, restartPolicy="Never")["spec"]}
    template["spec"]["containers"][0]["resources"]["limits"] = {"cpu": str(cpu)}
    return {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "schedulerName": SCHEDULER,
            "minAvailable": least,
            "tasks": [
                {"name": task, "replicas": count, "template": template}
                for task, count in tasks.items()
            ],
            **spec,
        },
    }


def queue_state(peers: Peers) -> str:
    """Return the state of Volcano's default queue."""
    content = peers.cluster.client.get(f"{QUEUES}/default").json
    return str(content.get("status", {}).get("state", ""))


def phase(peers: Peers, name: str) -> str:
    """Return the phase of a Volcano Job."""
    content = peers.cluster.client.get(f"{JOBS}/{name}").json
    return str(content.get("status", {}).get("state", {}).get("phase", ""))


def nodes_of(peers: Peers, name: str) -> list[str]:
    """Return the nodes of a job's pods; "" of those that have none."""
    label = "volcano.sh/job-name"
    return sorted(
        pod["spec"].get("nodeName", "")
        for pod in peers.cluster.items(PODS)
        if pod["metadata"].get("labels", {}).get(label) == name
    )


def group_phase(peers: Peers, name: str) -> str:
    """Return the phase of the PodGroup that Volcano's controller made for a job, "" for none."""
    groups = peers.cluster.items(GROUPS)
    mine = [one for one in groups if one["metadata"]["name"].startswith(f"{name}-")]
    return str(mine[0].get("status", {}).get("phase", "")) if mine else ""


def test_a_job_is_admitted_bound_as_a_gang_and_runs(peers: Peers, volcano: Scheduler) -> None:
    peers.cluster.apply([*nodes(2), job("train", {"master": 1, "worker": 5}, least=6, cpu=2)])
    peers.wait(lambda: phase(peers, "train") == "Running", "the job runs")
    assert len(nodes_of(peers, "train")) == 6
    assert all(nodes_of(peers, "train"))
    peers.wait(lambda: group_phase(peers, "train") == "Running", "the group runs")


def test_a_job_that_does_not_fit_binds_no_pod_and_follows_the_first(
    peers: Peers, volcano: Scheduler
) -> None:
    peers.cluster.apply([*nodes(1), job("first", {"w": 6}, least=6)])
    peers.wait(lambda: phase(peers, "first") == "Running", "the first job runs")
    peers.cluster.apply([job("second", {"w": 4}, least=4)])
    peers.wait(lambda: group_phase(peers, "second") in ("Pending", "Inqueue"), "it is seen")
    assert not any(nodes_of(peers, "second"))
    peers.cluster.client.delete(f"{JOBS}/first", propagationPolicy="Background")
    peers.wait(lambda: phase(peers, "second") == "Running", "the second job runs")


def test_pods_that_are_gated_keep_no_other_job_out(peers: Peers, volcano: Scheduler) -> None:
    gated = job("gated", {"w": 8}, least=8)
    template = gated["spec"]["tasks"][0]["template"]
    template["spec"]["schedulingGates"] = [{"name": GATE}]
    peers.cluster.apply([*nodes(1), gated])
    peers.wait(lambda: len(nodes_of(peers, "gated")) == 8, "the gated pods are there")
    peers.cluster.apply([job("free", {"w": 8}, least=8)])
    peers.wait(lambda: phase(peers, "free") == "Running", "the job without gates runs")
    assert not any(nodes_of(peers, "gated"))


def test_the_gate_of_a_queue_opens_for_pods_that_opted_in(peers: Peers, volcano: Scheduler) -> None:
    opted_in = job("opted", {"w": 2}, least=2)
    template = opted_in["spec"]["tasks"][0]["template"]
    template["metadata"] = {"annotations": {QUEUE_GATE: "true"}}
    template["spec"]["schedulingGates"] = [{"name": QUEUE_GATE}]
    peers.cluster.apply([*nodes(1), opted_in])
    peers.wait(lambda: phase(peers, "opted") == "Running", "the job runs")


def test_a_running_group_that_finds_no_place_for_a_pod_again_is_unknown(
    peers: Peers, volcano: Scheduler
) -> None:
    policy = {"event": "Unknown", "action": "AbortJob"}
    peers.cluster.apply([*nodes(1), job("train", {"w": 8}, least=8, policies=[policy])])
    peers.wait(lambda: phase(peers, "train") == "Running", "the job runs")
    (node,) = set(nodes_of(peers, "train"))
    peers.cluster.client.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": True}})
    peers.cluster.client.delete(f"{PODS}/train-w-0", gracePeriodSeconds=0)
    peers.wait(lambda: phase(peers, "train") == "Aborted", "Volcano's policy stops the job")


def _owner(group: Content) -> str:
    owners = group["metadata"].get("ownerReferences", ())
    return next((one["name"] for one in owners), "")


def test_a_deployments_pods_get_a_group_of_volcanos_and_nodes(
    peers: Peers, volcano: Scheduler
) -> None:
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {
            "replicas": 3,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {**asking("x")["spec"], "schedulerName": SCHEDULER},
            },
        },
    }
    peers.cluster.apply([*nodes(1), deployment])
    peers.wait(lambda: len(peers.cluster.placements()) == 3, "all replicas have nodes")
    # Groups of other owners may still be going.
    groups = peers.cluster.items(GROUPS)
    (group,) = [one for one in groups if _owner(one).startswith("web-")]
    assert group["spec"]["minMember"] == 1
