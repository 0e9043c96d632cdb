"""Pods that a scheduler sees before what owns them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from bayplan.api import Job, ObjectMeta, OwnerReference, Pod
from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.dialects.gpu_topology import PREFIX
from bayplan.scheduler import event_handlers
from bayplan.scheduler.owner_waits import OwnerWaits
from bayplan.snapshot.job_annotations import is_of
from bayplan.testing import Cluster, make_node, make_object, make_pod

ROLE = "training.kubeflow.org/replica-type"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """A cluster in which owners may come after their pods."""
    monkeypatch.setattr(MemoryCluster, "in_order", False)
    return Cluster([make_node("n", cpu=2)])


def worker(index: int) -> Pod:
    owner = OwnerReference("TFJob", "train", "uid-1", "kubeflow.org/v1", controller=True)
    pod = make_pod(f"w{index}", labels={ROLE: "worker"})
    return replace(pod, metadata=replace(pod.metadata, owner_references=(owner,)))


def training(workers: int) -> object:
    template = {"spec": {"containers": [{"name": "c", "image": "i"}]}}
    specs = {"Worker": {"replicas": workers, "template": template}}
    meta = {"name": "train", "uid": "uid-1"}
    content = {"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "metadata": meta}
    return make_object({**content, "spec": {"tfReplicaSpecs": specs}})


def test_a_pod_waits_for_its_owner_and_says_so(made: Cluster) -> None:
    made.add(worker(0), worker(1), worker(2))
    assert made.schedule() == {}
    assert "Pod default/w0: waits for its owner TFJob train to be seen" in made.message("w0")
    made.add(training(3))
    assert made.schedule() == {}
    assert "2 of the 3 members it needs" in made.message("w0")


def test_pods_whose_owner_comes_are_placed_together(made: Cluster) -> None:
    made.add(worker(0), worker(1))
    made.schedule()
    made.add(training(2))
    assert len(made.schedule()) == 2


def test_an_owner_that_does_not_come_is_given_up_after_five_seconds(made: Cluster) -> None:
    made.add(worker(0))
    assert made.schedule() == {}
    assert made.advance(4.9) == {}
    assert made.advance(0.2) == {"w0": "n"}


def test_a_pod_that_is_gone_waits_for_nobody() -> None:
    waits = OwnerWaits()
    assert waits.may_wait("pod", "owner", 0.0)
    assert waits.next_time() == 5.0
    waits.forget("pod")
    assert waits.next_time() is None
    assert waits.arrived("owner") == set()
    assert waits.may_wait("pod", "owner", 9.0)
    assert waits.arrived("owner") == {"pod"}
    assert waits.arrived("owner") == set()
    assert waits.next_time() is None


def test_an_owner_that_comes_late_is_still_told_of_its_pods() -> None:
    waits = OwnerWaits()
    assert waits.may_wait("pod", "owner", 0.0)
    assert waits.overdue(5.0) == {"pod"}
    assert not waits.may_wait("pod", "owner", 5.0)
    assert waits.next_time() is None
    assert waits.arrived("owner") == {"pod"}


def test_pods_that_have_a_node_are_not_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def asked(pod: Pod, job: Job) -> bool:
        seen.append(pod.metadata.name)
        return is_of(pod, job)

    monkeypatch.setattr(event_handlers, "is_of", asked)
    job = Job(ObjectMeta(name="train", namespace="default", uid="uid-1"))
    owner = OwnerReference("Job", "train", "uid-1", "batch/v1", controller=True)
    pods = [make_pod(f"p{number}", cpu=1) for number in range(3)]
    owned = [replace(p, metadata=replace(p.metadata, owner_references=(owner,))) for p in pods]
    cluster = Cluster([make_node("n", cpu=2), job, *owned])
    (waiting,) = {"p0", "p1", "p2"} - set(cluster.schedule())

    known = cluster.api.list(Job)[0]
    seen.clear()
    meta = replace(known.metadata, annotations={f"{PREFIX}level": "numa"})
    cluster.api.update(replace(known, metadata=meta))
    cluster.schedule()

    assert set(seen) == {waiting}
