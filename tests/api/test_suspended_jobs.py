"""The kinds of jobs that a queue can hold back, beyond Job: JobSet, PyTorchJob, RayJob."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.api import KINDS, JobSet, PyTorchJob, RayCluster, RayJob, decode_object
from bayplan.api.objects import DecodeError

TEMPLATE = {"spec": {"containers": [{"name": "c", "image": "i"}]}}
CLUSTER = {
    "headGroupSpec": {"template": TEMPLATE},
    "workerGroupSpecs": [{"groupName": "w", "replicas": 3, "maxReplicas": 2, "template": TEMPLATE}],
}


def decoded(kind: str, spec: dict[str, Any]) -> Any:
    found = next(one for one in KINDS.values() if one.name == kind)
    return decode_object(found, {"metadata": {"name": "x"}, "spec": spec})


def test_a_job_set_has_groups_of_jobs() -> None:
    job = {"parallelism": 2, "completions": 2, "completionMode": "Indexed", "template": TEMPLATE}
    made = decoded(
        "JobSet",
        {"suspend": True, "replicatedJobs": [{"name": "w", "template": {"spec": job}}]},
    )
    assert isinstance(made, JobSet)
    (group,) = made.spec.replicated_jobs
    assert (made.spec.suspend, group.replicas, group.template.spec.parallelism) == (True, 1, 2)


def test_a_pytorch_job_says_how_few_workers_it_goes_on_with() -> None:
    spec = {
        "runPolicy": {"suspend": True},
        "elasticPolicy": {"minReplicas": 1, "maxReplicas": 4},
        "pytorchReplicaSpecs": {"Worker": {"replicas": 3, "template": TEMPLATE}},
    }
    made = decoded("PyTorchJob", spec)
    assert isinstance(made, PyTorchJob)
    assert made.spec.run_policy.suspend
    assert made.spec.elastic_policy is not None
    assert made.spec.elastic_policy.min_replicas == 1
    assert made.spec.pytorch_replica_specs["Worker"].replicas == 3


def test_a_worker_group_stays_within_its_bounds() -> None:
    made = decoded("RayCluster", CLUSTER)
    assert isinstance(made, RayCluster)
    assert made.spec.worker_group_specs[0].wanted == 2


def test_a_ray_job_has_a_cluster_of_its_own() -> None:
    spec = {"suspend": True, "shutdownAfterJobFinishes": True, "rayClusterSpec": CLUSTER}
    made = decoded("RayJob", spec)
    assert isinstance(made, RayJob)
    assert made.spec.ray_cluster_spec is not None
    assert made.spec.submission_mode == "K8sJobMode"


BAD: list[tuple[str, dict[str, Any], str]] = [
    (
        "JobSet",
        {"replicatedJobs": [{"name": "w", "template": {"spec": {"template": {}}}}]},
        "$.spec.replicatedJobs[0].template.spec.template.spec.containers",
    ),
    (
        "JobSet",
        {"replicatedJobs": [{"name": "w", "template": {"spec": {"template": TEMPLATE}}}] * 2},
        'two replicated jobs are named "w"',
    ),
    ("PyTorchJob", {}, "a job needs a Master or Workers"),
    (
        "PyTorchJob",
        {"pytorchReplicaSpecs": {"Master": {"replicas": 2, "template": TEMPLATE}}},
        "expected 1 master, got 2",
    ),
    ("PyTorchJob", {"pytorchReplicaSpecs": {"Chief": {}}}, "expected Master or Worker"),
    ("RayJob", {}, "is required without a clusterSelector"),
    (
        "RayJob",
        {"suspend": True, "rayClusterSpec": CLUSTER},
        "$.spec.suspend: needs shutdownAfterJobFinishes",
    ),
    (
        "RayJob",
        {"suspend": True, "clusterSelector": {"a": "b"}},
        "$.spec.suspend: a job that selects a cluster cannot be suspended",
    ),
    (
        "RayCluster",
        {**CLUSTER, "workerGroupSpecs": [{"groupName": "w", "numOfHosts": 0}]},
        "$.spec.workerGroupSpecs[0].numOfHosts: expected 1 or more, got 0",
    ),
]


@pytest.mark.parametrize(("kind", "spec", "text"), BAD)
def test_what_its_controller_would_refuse_is_refused(
    kind: str, spec: dict[str, Any], text: str
) -> None:
    with pytest.raises(DecodeError) as caught:
        decoded(kind, spec)
    assert text in str(caught.value)
