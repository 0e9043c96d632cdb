"""Workloads that users make themselves, for jobs that name them."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace
from tests.plugins.queues.kueue.queued_job_builders import (
    GPU,
    job,
    on_nodes,
    one_queue,
    running,
    started,
)
from tests.plugins.queues.kueue.test_pod_workloads import charged, stated

from bayplan.api import ApiObject, Job, KueueWorkload, OwnerReference
from bayplan.api.objects import decode_part
from bayplan.testing import Cluster, make_node

PREBUILT = "kueue.x-k8s.io/prebuilt-workload-name"


def prebuilt(count: int = 2, name: str = "mine", owner: OwnerReference | None = None) -> ApiObject:
    container = {"name": "c", "resources": {"limits": {GPU: 1}, "requests": {GPU: 1}}}
    pods = {"name": "main", "count": count, "template": {"spec": {"containers": [container]}}}
    meta: dict[str, Any] = {"name": name, "namespace": "default", "uid": "w"}
    spec = {"queueName": "lq", "podSets": [pods]}
    made = decode_part(KueueWorkload, {"metadata": meta, "spec": spec})
    owners = (owner,) if owner is not None else ()
    kept = ("kueue.x-k8s.io/resource-in-use",)
    metadata = replace(made.metadata, owner_references=owners, finalizers=kept)
    return replace(made, metadata=metadata)


def naming(workload: str = "mine", label: bool = False) -> Job:
    made = job("j")
    marks = {PREBUILT: workload}
    part = {"labels": {**made.metadata.labels, **marks}} if label else {"annotations": marks}
    return replace(made, metadata=replace(made.metadata, **part))


def run(*objects: ApiObject) -> Cluster:
    return started(make_node("n", gpu=8), *one_queue(8), *objects)


def workloads(cluster: Cluster) -> dict[str, KueueWorkload]:
    return {one.metadata.name: one for one in cluster.api.list(KueueWorkload)}


def test_a_job_takes_the_workload_that_it_names() -> None:
    for label in (True, False):
        cluster = run(prebuilt(), naming(label=label))
        cluster.advance(10.0)
        (found,) = workloads(cluster).values()
        assert (found.metadata.name, found.metadata.uid) == ("mine", "w")
        (owner,) = found.metadata.owner_references
        assert (owner.kind, owner.name, owner.controller) == ("Job", "j", True)
        assert found.metadata.labels["kueue.x-k8s.io/job-uid"] == owner.uid
        assert stated(found)["Admitted"][0] == "True"
        assert found.metadata.finalizers == ("kueue.x-k8s.io/resource-in-use",)
        assert on_nodes(cluster) == {"j": 2}
        assert charged(cluster) == 2


def test_a_job_waits_until_its_workload_is_there() -> None:
    cluster = run(naming())
    cluster.advance(10.0)
    assert running(cluster) == set()
    assert workloads(cluster) == {}
    cluster.add(prebuilt())
    cluster.advance(10.0)
    assert on_nodes(cluster) == {"j": 2}
    assert list(workloads(cluster)) == ["mine"]


def test_a_workload_that_asks_for_other_pods_ends_and_the_job_waits() -> None:
    cluster = run(prebuilt(3), naming())
    cluster.advance(10.0)
    (found,) = workloads(cluster).values()
    assert stated(found)["Finished"] == ("True", "OutOfSync")
    # Nothing needs it any more.
    assert found.metadata.finalizers == ()
    assert running(cluster) == set()
    assert charged(cluster) == 0


def test_the_workload_of_another_job_is_left_alone() -> None:
    other = OwnerReference("Job", "other", "o", "batch/v1", controller=True)
    cluster = run(prebuilt(owner=other), naming())
    cluster.advance(10.0)
    assert running(cluster) == set()
    assert workloads(cluster)["mine"].metadata.owner_references == (other,)


def test_a_workload_that_nobody_owns_is_no_sign_of_kueues_manager() -> None:
    cluster = run(prebuilt(name="unused"), job("j"))
    cluster.advance(10.0)
    assert on_nodes(cluster) == {"j": 2}
