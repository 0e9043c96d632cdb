"""The controllers and the kubelet of the embedded cluster."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from bayplan.api import (
    ApiObject,
    Deployment,
    Job,
    Node,
    PersistentVolumeClaim,
    Pod,
    ReplicaSet,
    StatefulSet,
)
from bayplan.inputs.durations import parse_duration
from bayplan.profiles.loading import default_profiles
from bayplan.simulation import Simulation
from bayplan.testing import make_node, make_object


def workload(kind: str, spec: dict[str, Any], duration: str = "") -> ApiObject:
    labels = {"app": "x"}
    template = {
        "metadata": {
            "labels": labels,
            "annotations": {"bayplan.dev/duration": duration} if duration else {},
        },
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}],
        },
    }
    selector = {} if kind == "Job" else {"selector": {"matchLabels": labels}}
    return make_object(
        {
            "apiVersion": "batch/v1" if kind == "Job" else "apps/v1",
            "kind": kind,
            "metadata": {"name": "x"},
            "spec": {"template": template, **selector, **spec},
        }
    )


def simulation(*objects: ApiObject, cpu: int = 8, until: float = 600) -> Simulation:
    made = Simulation(default_profiles(), until=until)
    made.create([make_node("n", cpu=cpu), *objects])
    made.run()
    return made


def names(made: Simulation) -> list[str]:
    return [pod.metadata.name for pod in made.pods()]


def test_an_indexed_job_numbers_its_pods() -> None:
    spec = {"parallelism": 3, "completions": 3, "completionMode": "Indexed"}
    made = simulation(workload("Job", spec))
    assert [name.rsplit("-", 1)[0] for name in names(made)] == ["x-0", "x-1", "x-2"]
    key = "batch.kubernetes.io/job-completion-index"
    assert [p.metadata.annotations[key] for p in made.pods()] == ["0", "1", "2"]
    assert {p.metadata.labels["batch.kubernetes.io/job-name"] for p in made.pods()} == {"x"}
    assert {p.metadata.owner_references[0].kind for p in made.pods()} == {"Job"}


def test_a_job_runs_no_more_pods_at_once_than_its_parallelism() -> None:
    spec = {"parallelism": 2, "completions": 5, "completionMode": "Indexed"}
    made = simulation(workload("Job", spec, duration="10s"))
    # Two at a time, ten seconds each: the fifth is done after thirty.
    assert {p.status.phase for p in made.pods()} == {"Succeeded"}
    assert len(made.pods()) == 5
    assert made.cluster.now == 30


def test_a_job_without_completions_ends_with_its_first_success() -> None:
    made = simulation(workload("Job", {"parallelism": 2}, duration="10s"))
    assert len(made.pods()) == 2


def test_a_suspended_job_makes_no_pods() -> None:
    assert names(simulation(workload("Job", {"suspend": True}))) == []


def test_a_deployment_makes_a_replica_set_that_makes_pods() -> None:
    made = simulation(workload("Deployment", {"replicas": 2}))
    (replica_set,) = made.cluster.list(ReplicaSet)
    digest = replica_set.metadata.labels["pod-template-hash"]
    assert replica_set.metadata.name == f"x-{digest}"
    assert len(made.pods()) == 2
    assert all(name.startswith(f"x-{digest}-") for name in names(made))


def test_an_evicted_replica_is_replaced() -> None:
    made = simulation(workload("ReplicaSet", {"replicas": 2}))
    victim = made.pods()[0]
    made.cluster.delete(Pod, victim.key, grace=0)
    made.run()
    assert len(made.placements()) == 2
    assert victim.key not in made.placements()


def test_scaling_down_removes_pods_without_a_node_first() -> None:
    made = simulation(workload("ReplicaSet", {"replicas": 4}), cpu=2)
    assert len(made.placements()) == 2
    (owner,) = made.cluster.list(ReplicaSet)
    made.cluster.update(replace(owner, spec=replace(owner.spec, replicas=2)))
    made.run()
    assert len(made.pods()) == len(made.placements()) == 2


def test_an_ordered_stateful_set_waits_for_each_pod() -> None:
    made = simulation(workload("StatefulSet", {"replicas": 3}), cpu=2)
    # The third does not fit, and is made only because the second runs.
    assert names(made) == ["x-0", "x-1", "x-2"]
    assert sorted(made.placements()) == ["default/x-0", "default/x-1"]
    blocked = simulation(workload("StatefulSet", {"replicas": 3}), cpu=1)
    assert names(blocked) == ["x-0", "x-1"]
    spec = {"replicas": 3, "podManagementPolicy": "Parallel"}
    assert names(simulation(workload("StatefulSet", spec), cpu=1)) == ["x-0", "x-1", "x-2"]


def test_pods_go_with_their_owner() -> None:
    made = simulation(workload("Deployment", {"replicas": 2}))
    made.cluster.delete(Deployment, "default/x")
    made.run()
    assert made.pods() == []


def test_room_of_finished_pods_is_used_by_the_next() -> None:
    spec = {"parallelism": 4, "completions": 4, "completionMode": "Indexed"}
    made = simulation(workload("Job", spec, duration="1m"), cpu=2)
    assert {p.status.phase for p in made.pods()} == {"Succeeded"}
    starts = sorted(entry.at for entry in made.timeline() if entry.kind == "Bound")
    assert starts == [0, 0, 60, 60]


def test_the_horizon_ends_a_simulation() -> None:
    made = simulation(workload("Job", {}, duration="1h"), until=120)
    assert [p.status.phase for p in made.pods()] == ["Running"]


def test_a_vanished_node_makes_its_pods_move() -> None:
    made = simulation(workload("StatefulSet", {"replicas": 1}))
    made.cluster.create(make_node("spare"))
    made.cluster.vanish_node("n")
    made.run()
    assert made.placements() == {"default/x-0": "spare"}
    assert [node.metadata.name for node in made.cluster.list(Node)] == ["spare"]
    assert made.cluster.list(StatefulSet)
    assert not made.cluster.list(Job)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("1h30m", 5400), ("1.5m", 90), ("250ms", 0.25), ("1d", 86400)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "90", "1 h", "-5s", "1w", "s"])
def test_bad_durations_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a duration"):
        parse_duration(text)


def test_a_stateful_set_keeps_the_claims_of_its_pods() -> None:
    wanted = {
        "metadata": {"name": "data"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "fast",
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }
    fast = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": "fast"},
        "provisioner": "disks.example.com",
        "volumeBindingMode": "WaitForFirstConsumer",
    }
    spec = {"replicas": 2, "volumeClaimTemplates": [wanted]}
    made = simulation(make_object(fast), workload("StatefulSet", spec))
    claims = {claim.metadata.name: claim for claim in made.cluster.list(PersistentVolumeClaim)}
    assert sorted(claims) == ["data-x-0", "data-x-1"]
    assert {claim.status.phase for claim in claims.values()} == {"Bound"}
    made.cluster.delete(Pod, "default/x-0", grace=0)
    made.run()
    assert {pod.status.phase for pod in made.pods()} == {"Running"}
    after = made.cluster.list(PersistentVolumeClaim)
    assert {c.metadata.uid for c in after} == {c.metadata.uid for c in claims.values()}
