"""An elastic job on a real API server: it grows, gives way, and outlasts the scheduler."""

from __future__ import annotations

from pathlib import Path

import yaml
from live_cluster import PODS, Content, LiveCluster
from test_stories import asking, happens, nodes

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
