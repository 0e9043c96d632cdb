"""Elastic jobs on a real API server: they grow, give way, and outlast the scheduler."""

from __future__ import annotations

from pathlib import Path

import yaml
from tests.controlplane.live_cluster import PODS, Content, LiveCluster
from tests.controlplane.queue_builders import KUEUE, cluster_queue, head, suspended_job
from tests.controlplane.story_builders import asking, happens, nodes

from bayplan.profiles.loading import ProfileSet, load_profiles

JOBS = "/apis/batch/v1/namespaces/default/jobs"


def profiles(folder: Path) -> ProfileSet:
    """Return a profile whose notices are short."""
    arguments = {"name": "Resizer", "args": {"notice": 2, "shrinkAfter": 0, "growAfter": 4}}
    profile = {"schedulerName": "bayplan", "pluginConfig": [arguments]}
    content = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [profile],
    }
    path = folder / "profile.yaml"
    path.write_text(yaml.safe_dump(content))
    return load_profiles(path)


def elastic_job(least: int, most: int) -> Content:
    annotations = {
        "bayplan.dev/resize": "true",
        "bayplan.dev/min-replicas": str(least),
        "bayplan.dev/max-replicas": str(most),
    }
    spec = asking("x", schedulerName="bayplan", restartPolicy="Never")["spec"]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "a", "namespace": "default", "annotations": annotations},
        "spec": {
            "completionMode": "Indexed",
            "parallelism": 4,
            "completions": 4,
            "template": {"spec": spec},
        },
    }


def indexes(cluster: LiveCluster) -> list[int]:
    """Return the indexes of the job's pods that have nodes and stay."""
    label = "batch.kubernetes.io/job-completion-index"
    return sorted(
        int(pod["metadata"]["labels"][label])
        for pod in cluster.items(PODS)
        if label in pod["metadata"].get("labels", {})
        and "nodeName" in pod["spec"]
        and "deletionTimestamp" not in pod["metadata"]
    )


def size(cluster: LiveCluster) -> int:
    (job,) = cluster.items(JOBS)
    assert job["spec"]["parallelism"] == job["spec"]["completions"]
    return int(job["spec"]["parallelism"])


async def test_a_job_grows_and_gives_way_across_a_restart(
    real: LiveCluster, tmp_path: Path
) -> None:
    chosen = profiles(tmp_path)
    real.apply([*nodes(1), elastic_job(2, 8)])
    async with real.scheduler(chosen):
        await happens(lambda: indexes(real) == [0, 1])
        await happens(lambda: indexes(real) == list(range(8)))
        real.apply([asking("other", 5, schedulerName="bayplan")])
        going = "bayplan.dev/going-at"
        await happens(
            lambda: (
                sum(going in p["metadata"].get("annotations", {}) for p in real.items(PODS)) == 5
            )
        )
        assert size(real) == 8, "they have been told, and have time"
    async with real.scheduler(chosen):
        await happens(lambda: indexes(real) == [0, 1, 2])
        await happens(lambda: "other" in real.placements())
        assert size(real) == 3
        real.client.delete(f"{PODS}/other")
        await happens(lambda: indexes(real) == list(range(8)))


async def test_a_job_with_an_autoscaler_keeps_its_size(real: LiveCluster, tmp_path: Path) -> None:
    target = {"apiVersion": "batch/v1", "kind": "Job", "name": "a"}
    metric = {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}
    autoscaler = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "mine", "namespace": "default"},
        "spec": {
            "scaleTargetRef": target,
            "maxReplicas": 8,
            "metrics": [{"type": "Resource", "resource": metric}],
        },
    }
    real.apply([*nodes(1), autoscaler, elastic_job(2, 8)])
    async with real.scheduler(profiles(tmp_path)):
        await happens(lambda: indexes(real) == list(range(4)))
        events = "/api/v1/namespaces/default/events"
        expected = "HorizontalPodAutoscaler mine sets its replicas"
        await happens(lambda: expected in [one["message"] for one in real.items(events)])
        assert size(real) == 4


# In Kueue's queues -----------------------------------------------------------------------------

WORKLOADS = f"/apis/{KUEUE}/namespaces/default/workloads"


def resize(cluster: LiveCluster, name: str, pods: int) -> None:
    assert cluster.client.patch(f"{JOBS}/{name}", {"spec": {"parallelism": pods}}).code == 200


def bound(cluster: LiveCluster, prefix: str) -> int:
    return sum(name.startswith(prefix) for name in cluster.placements())


def gated(cluster: LiveCluster) -> int:
    return sum(bool(pod["spec"].get("schedulingGates")) for pod in cluster.items(PODS))


def slices(cluster: LiveCluster, ended: bool = False) -> list[tuple[str, int]]:
    """Return the owners and counts of the Workloads that have ended, or have not."""
    found = []
    for one in cluster.items(WORKLOADS):
        stated = one.get("status", {}).get("conditions", ())
        if ended == any(c["type"] == "Finished" and c["status"] == "True" for c in stated):
            owner = one["metadata"]["ownerReferences"][0]["name"]
            found.append((owner, one["spec"]["podSets"][0]["count"]))
    return sorted(found)


async def test_a_job_grows_by_slices_of_its_queue_across_a_restart(real: LiveCluster) -> None:
    real.used(head(KUEUE, "Workload", "any"))
    (job,) = suspended_job("a", "q", 2)
    job["metadata"]["annotations"] = {"kueue.x-k8s.io/elastic-job": "true"}
    del job["spec"]["completions"]
    (other,) = suspended_job("b", "q", 3)
    real.apply([*nodes(2), *cluster_queue("q"), job])
    async with real.scheduler():
        await happens(lambda: bound(real, "a-") == 2)
        real.apply([other])
        await happens(lambda: bound(real, "b-") == 3)
        resize(real, "a", 4)
        await happens(lambda: gated(real) == 2 and slices(real) == [("a", 2), ("a", 4), ("b", 3)])
        resize(real, "a", 3)
        await happens(lambda: bound(real, "a-") == 3 and slices(real) == [("a", 3), ("b", 3)])
        assert slices(real, ended=True) == [("a", 2)]
        resize(real, "a", 5)
        await happens(lambda: gated(real) == 2)
    async with real.scheduler():
        real.client.delete(f"{JOBS}/b", propagationPolicy="Background")
        await happens(lambda: bound(real, "a-") == 5 and slices(real) == [("a", 5)])
        resize(real, "a", 1)
        await happens(lambda: slices(real) == [("a", 1)] and bound(real, "a-") == 1)
