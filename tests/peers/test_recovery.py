"""Nodes fail, or go into maintenance, under gangs of real controllers."""

from __future__ import annotations

import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.controlplane.live_cluster import PODS, Content
from tests.controlplane.process import BAYPLAN, Scheduler
from tests.controlplane.story_builders import asking, nodes
from tests.peers.failing_nodes import GRACE, NODES, fails, live, runs_on, why_evicted
from tests.peers.real_peers import SCHEDULER, Peers

JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets"
DISRUPTED = {"onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}


def pod_spec(**spec: object) -> Content:
    """Return the spec of a pod that takes a node for itself."""
    found: Content = asking("x", 6, schedulerName=SCHEDULER, restartPolicy="Never", **spec)["spec"]
    return found


def job(count: int) -> list[Content]:
    """Return a Job of a gang of so many pods."""
    group = {
        "apiVersion": "scheduling.sigs.k8s.io/v1alpha1",
        "kind": "PodGroup",
        "metadata": {"name": "train", "namespace": "default"},
        "spec": {"minMember": count},
    }
    labels = {"pod-group.scheduling.sigs.k8s.io": "train"}
    spec = {
        "parallelism": count,
        "completions": count,
        "backoffLimit": 20,
        "template": {"metadata": {"labels": labels}, "spec": pod_spec()},
    }
    meta = {"name": "train", "namespace": "default"}
    return [group, {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": spec}]


def test_the_fifth_node_takes_over_and_three_pods_keep_running(
    peers: Peers, recovery: Scheduler
) -> None:
    peers.cluster.apply([*nodes(5), *job(4)])
    before = runs_on(peers, 4)
    dead = min(before.values())
    began = peers.now()
    fails(peers, dead)
    (spare,) = {f"n{i}" for i in range(5)} - set(before.values())
    peers.wait(lambda: spare in live(peers).values(), "the fifth node takes over")
    # Two seconds until it counts as lost; the rest is for a busy machine.
    assert peers.now() - began < 2 + 20
    kept = {uid: node for uid, node in before.items() if node != dead}
    assert kept.items() <= live(peers).items()
    assert why_evicted(peers) == [f"recovery: node {dead} is lost, its kubelet is silent"]


def test_without_a_spare_the_gang_waits_as_a_whole_and_comes_back(
    peers: Peers, recovery: Scheduler
) -> None:
    peers.cluster.apply([*nodes(4), *job(4)])
    before = runs_on(peers, 4)
    fails(peers, min(before.values()))
    peers.wait(lambda: len(live(peers)) == 4 and not any(live(peers).values()), "nobody runs")
    broken = "recovery: PodGroup default/train is broken, 3 of the 4 members that it needs are left"
    assert [one for one in why_evicted(peers) if one == broken] == [broken] * 3
    peers.cluster.apply([nodes(6)[5]])
    found = runs_on(peers, 4)
    assert found.keys().isdisjoint(before)


@pytest.mark.parametrize("recovery", [("jobset",)], indirect=True)
def test_a_jobset_restarts_after_a_host_failure_all_pods_or_none(
    peers: Peers, recovery: Scheduler
) -> None:
    rules = [
        {
            "name": "hostfailure",
            "action": "RestartJobSetAndIgnoreMaxRestarts",
            "onJobFailureReasons": ["PodFailurePolicy"],
        }
    ]
    job_spec = {
        "backoffLimit": 0,
        "parallelism": 1,
        "completions": 1,
        "podFailurePolicy": {"rules": [{"action": "FailJob", **DISRUPTED}]},
        "template": {"spec": pod_spec()},
    }
    spec = {
        "failurePolicy": {
            "maxRestarts": 0,
            "restartStrategy": "BlockingRecreate",
            "rules": rules,
        },
        "replicatedJobs": [{"name": "w", "replicas": 3, "template": {"spec": job_spec}}],
    }
    made = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "js", "namespace": "default"},
        "spec": spec,
    }
    peers.cluster.apply([*nodes(4), made])
    before = runs_on(peers, 3)
    dead = min(before.values())
    fails(peers, dead)
    # Its pod ends once somebody vouches that nothing runs there any more.
    peers.kubelet.silent.discard(dead)
    peers.wait(
        lambda: peers.cluster.client.get(f"{JOBSETS}/js").json["status"].get("restarts") == 1,
        "the JobSet restarts",
    )
    found = runs_on(peers, 3)
    assert found.keys().isdisjoint(before)
    assert dead not in found.values()


@pytest.mark.parametrize("recovery", [("volcano",)], indirect=True)
def test_a_job_of_volcano_that_does_not_fit_any_more_holds_nothing(
    peers: Peers, recovery: Scheduler
) -> None:
    restart = {"event": "PodEvicted", "action": "RestartJob"}
    task = {"name": "worker", "replicas": 3, "template": {"spec": pod_spec()}}
    task["template"]["spec"]["containers"][0]["resources"]["limits"] = {"cpu": "6"}
    made = {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": "train", "namespace": "default"},
        "spec": {
            "schedulerName": SCHEDULER,
            "minAvailable": 3,
            "policies": [restart],
            "tasks": [task],
        },
    }
    queue = "/apis/scheduling.volcano.sh/v1beta1/queues/default"
    client = peers.cluster.client
    peers.wait(lambda: client.get(queue).json.get("status", {}).get("state") == "Open", "open")
    peers.cluster.apply([*nodes(3), made])
    before = runs_on(peers, 3)
    fails(peers, "n0")
    peers.kubelet.silent.discard("n0")

    def waits() -> bool:
        found = live(peers)
        return len(found) == 3 and not any(found.values()) and found.keys().isdisjoint(before)

    # Volcano restarts the job, or bayplan ends what is left of it: whoever comes first.
    peers.wait(waits, "nobody holds a node")
    peers.cluster.apply([nodes(5)[4]])
    found = runs_on(peers, 3)
    assert set(found.values()) == {"n1", "n2", "n4"}


@pytest.mark.parametrize("recovery", [("lws",)], indirect=True)
def test_a_group_of_a_leader_worker_set_is_made_again_as_a_whole(
    peers: Peers, recovery: Scheduler
) -> None:
    template = {"spec": {**pod_spec(), "restartPolicy": "Always"}}
    spec = {"replicas": 1, "leaderWorkerTemplate": {"size": 3, "workerTemplate": template}}
    made = {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": "serve", "namespace": "default"},
        "spec": spec,
    }
    peers.cluster.apply([*nodes(4), made])
    before = runs_on(peers, 3)
    (dead,) = {
        pod["spec"]["nodeName"]
        for pod in peers.cluster.items(PODS)
        if pod["metadata"]["name"] == "serve-0-1"
    }
    fails(peers, dead)
    # The names of its pods are taken until somebody vouches that nothing runs there any more.
    peers.kubelet.silent.discard(dead)

    def is_whole() -> bool:
        found = live(peers)
        return found.keys().isdisjoint(before) and len([n for n in found.values() if n]) == 3

    peers.wait(is_whole, "all three have come again, on other nodes")
    assert dead not in live(peers).values()


@pytest.mark.parametrize("recovery", [("kuberay",)], indirect=True)
def test_a_ray_cluster_gets_another_worker_and_the_others_keep_running(
    peers: Peers, recovery: Scheduler
) -> None:
    template = {"spec": {**pod_spec(), "restartPolicy": "Always"}}
    group = {"rayStartParams": {}, "template": template}
    workers = {"groupName": "w", "replicas": 2, "minReplicas": 2, "maxReplicas": 2, **group}
    made = {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": "ray", "namespace": "default"},
        "spec": {"headGroupSpec": group, "workerGroupSpecs": [workers]},
    }
    peers.cluster.apply([*nodes(4), made])
    before = runs_on(peers, 3)
    (dead, *_) = sorted(
        pod["spec"]["nodeName"]
        for pod in peers.cluster.items(PODS)
        if pod["metadata"]["labels"].get("ray.io/node-type") == "worker"
    )
    (spare,) = {f"n{number}" for number in range(4)} - set(before.values())
    fails(peers, dead)
    kept = {uid: node for uid, node in before.items() if node != dead}
    peers.wait(lambda: live(peers) == kept, "the worker ends")
    # KubeRay counts it until it is gone; the others wait longer for that than for a node.
    time.sleep(GRACE + 5)
    assert live(peers) == kept
    peers.kubelet.silent.discard(dead)
    peers.wait(lambda: spare in live(peers).values(), "the fourth node takes over")
    assert kept.items() <= live(peers).items()


ASKS = {"bayplan.dev/checkpoint-seconds": "120"}
NOTICE, SAVED = "bayplan.dev/eviction-notice", "bayplan.dev/checkpointed-at"


def pod_of(peers: Peers, name: str) -> Content:
    found: Content = peers.cluster.client.get(f"{PODS}/{name}").json
    return found


def test_a_pod_has_notice_across_a_kill_and_goes_once_its_work_is_saved(
    peers: Peers, recovery: Scheduler
) -> None:
    low = asking("low", 6, schedulerName=SCHEDULER)
    low["metadata"]["annotations"] = ASKS
    peers.cluster.apply([*nodes(1), low])
    runs_on(peers, 1)
    peers.wait(lambda: pod_of(peers, "low")["status"].get("phase") == "Running", "it runs")
    high = asking("urgent", 6, schedulerName=SCHEDULER, priority=1000)
    peers.cluster.apply([high])
    peers.wait(lambda: NOTICE in pod_of(peers, "low")["metadata"]["annotations"], "it has notice")
    going = pod_of(peers, "low")["metadata"]["annotations"]["bayplan.dev/going-at"]
    recovery.kill()
    recovery.start()
    time.sleep(3)
    kept = pod_of(peers, "low")["metadata"]
    assert "deletionTimestamp" not in kept
    assert kept["annotations"]["bayplan.dev/going-at"] == going
    stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    patch = {"metadata": {"annotations": {SAVED: stamp}}}
    assert peers.cluster.client.patch(f"{PODS}/low", patch).code == 200
    peers.wait(
        lambda: pod_of(peers, "urgent")["spec"].get("nodeName") == "n0", "its successor runs", 60
    )


def test_drain_announces_maintenance_and_the_gang_moves(
    peers: Peers, recovery: Scheduler, tmp_path: Path
) -> None:
    peers.cluster.apply([*nodes(5), *job(4)])
    before = runs_on(peers, 4)
    leaving = min(before.values())
    (other,) = {f"n{number}" for number in range(5)} - set(before.values())
    arguments = ["drain", leaving, "--by", "1h", "--config", str(tmp_path / "profile.yaml")]
    arguments += ["--kubeconfig", str(peers.plane.kubeconfig)]
    tried = subprocess.run(
        [BAYPLAN, *arguments, "--dry-run"], capture_output=True, text=True, check=False
    )
    assert tried.returncode == 0, tried.stderr
    assert f"moves to {other}" in tried.stdout
    node = peers.cluster.client.get(f"{NODES}/{leaving}").json
    assert "bayplan.dev/maintenance-at" not in node["metadata"].get("annotations", {})
    made = subprocess.run([BAYPLAN, *arguments], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    assert "Announced" in made.stdout
    peers.wait(lambda: other in live(peers).values(), "the member moves")
    kept = {uid: node for uid, node in before.items() if node != leaving}
    assert kept.items() <= live(peers).items()
    (why,) = why_evicted(peers)
    assert why.startswith(f"maintenance: that of node {leaving} begins at ")
