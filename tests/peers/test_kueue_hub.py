"""Kueue's manager is the hub of MultiKueue; bayplan admits and places in the cluster that works.

The hub makes a Workload there, which nobody owns, and the job once that has quota.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.controlplane.installation import account_kubeconfig, install_own
from tests.controlplane.live_cluster import ALL_PODS, Kubelet, LiveCluster
from tests.controlplane.plane import control_plane
from tests.controlplane.queue_builders import KUEUE, cluster_queue, head, suspended_job
from tests.controlplane.story_builders import nodes
from tests.live.deployed import CRDS
from tests.peers.real_peers import Peers
from tests.peers.test_kueue import FRAMEWORKS, JOBS, WORKLOADS, finish, is_true, placed
from tests.real_programs import missing_peers

CLUSTER = f"/apis/{KUEUE}/multikueueclusters/worker"
SECRETS = "/api/v1/namespaces/kueue-system/secrets"
ORIGIN = "kueue.x-k8s.io/multikueue-origin"


@pytest.fixture
def worker(running: Peers, tmp_path: Path) -> Iterator[Peers]:
    """A control plane of its own, on which bayplan admits to Kueue's queues."""
    if reason := missing_peers("kueue"):
        pytest.skip(reason)
    with control_plane() as plane:
        install_own(plane.client, CRDS / "pools.yaml", CRDS / "ai-pools.yaml")
        kubeconfig = account_kubeconfig(plane, tmp_path / "worker-kubeconfig")
        kubelet = Kubelet(plane.client, ALL_PODS)
        kubelet.start()
        made = Peers(plane, LiveCluster(plane.client, kubeconfig), kubeconfig, kubelet)
        made.define("kueue.x-k8s.io_*")
        with made.scheduler(tmp_path):
            made.cluster.apply([*nodes(2), *cluster_queue("q")])
            yield made
        kubelet.end()


def whole(kubeconfig: Path) -> str:
    """Return a kubeconfig that names no files."""
    content = yaml.safe_load(kubeconfig.read_text())
    own = content["clusters"][0]["cluster"]
    authority = Path(own.pop("certificate-authority")).read_bytes()
    own["certificate-authority-data"] = base64.b64encode(authority).decode()
    return yaml.safe_dump(content)


@pytest.fixture
def hub(peers: Peers, worker: Peers) -> Iterator[Peers]:
    """Kueue's manager, which sends the jobs of queue q to the worker."""
    with peers.running("kueue", KUEUE_FRAMEWORKS=FRAMEWORKS):
        secret = head("v1", "Secret", "worker")
        secret["metadata"]["namespace"] = "kueue-system"
        secret["stringData"] = {"kubeconfig": whole(worker.plane.folder / "kubeconfig")}
        assert peers.cluster.client.post(SECRETS, secret).code == 201
        cluster = head(KUEUE, "MultiKueueCluster", "worker", False)
        source = {"kubeConfig": {"location": "worker", "locationType": "Secret"}}
        cluster["spec"] = {"clusterSource": source}
        config = head(KUEUE, "MultiKueueConfig", "sites", False)
        config["spec"] = {"clusters": ["worker"]}
        check = head(KUEUE, "AdmissionCheck", "elsewhere", False)
        parameters = {"apiGroup": "kueue.x-k8s.io", "kind": "MultiKueueConfig", "name": "sites"}
        check["spec"] = {
            "controllerName": "kueue.x-k8s.io/multikueue",
            "parameters": parameters,
        }
        flavor, local, queue = cluster_queue("q")
        queue["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]["nominalQuota"] = 20
        queue["spec"]["admissionChecksStrategy"] = {"admissionChecks": [{"name": "elsewhere"}]}
        peers.cluster.apply([cluster, config, check, flavor, local, queue])
        for name in ("a", "b"):
            peers.cluster.used(suspended_job(name, "q", 1)[0])
        yield peers
        peers.cluster.client.delete(f"{SECRETS}/worker")


def test_a_hub_of_kueues_sends_jobs_to_a_cluster_where_bayplan_admits(
    hub: Peers, worker: Peers
) -> None:
    hub.wait(
        lambda: is_true(hub.cluster.client.get(CLUSTER).json, "Active"), "the worker is seen", 60
    )
    hub.cluster.apply([*suspended_job("a", "q", 4), *suspended_job("b", "q", 4)])
    worker.wait(lambda: placed(worker, "a") + placed(worker, "b") == 4, "one of them runs")
    first, second = ("a", "b") if placed(worker, "a") else ("b", "a")
    sent = worker.cluster.items(WORKLOADS)
    assert all(ORIGIN in one["metadata"]["labels"] for one in sent)
    assert len(sent) == 2
    waits = next(one for one in sent if f"job-{second}-" in one["metadata"]["name"])
    assert not is_true(waits, "QuotaReserved")
    finish(worker, first)
    worker.wait(lambda: placed(worker, second) == 4, "the other one follows")
    path = f"{JOBS}/{first}"
    hub.wait(
        lambda: hub.cluster.client.get(path).json.get("status", {}).get("succeeded") == 4,
        "the hub knows that the first one is done",
    )
    hub.wait(lambda: len(worker.cluster.items(WORKLOADS)) == 1, "what is done is deleted there")
