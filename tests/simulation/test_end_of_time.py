"""A simulation ends when nothing that is waited for can come, whatever never comes."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.api import ApiObject, Pod, ResourceClaim
from bayplan.cluster.apiserver.store import ServedCluster
from bayplan.cluster.embedded.assembly import start_controllers
from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.cluster.protocol import Bind, BindLock
from bayplan.profiles.loading import default_profiles
from bayplan.simulation import Simulation
from bayplan.testing import make_node, make_object, make_pod

TOO_LARGE = {"containers": [{"name": "c", "resources": {"requests": {"cpu": "2"}}}]}


def claim_of_a_pod(*finalizers: str) -> list[ApiObject]:
    """Return a pod and its claim, which others keep from going."""
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u-p", "controller": True}
    pod = make_object(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "p", "uid": "u-p"},
            "spec": {
                "nodeName": "n",
                "terminationGracePeriodSeconds": 0,
                "resourceClaims": [{"name": "g", "resourceClaimName": "c"}],
                "containers": [{"name": "c"}],
            },
        }
    )
    result = {"request": "g", "driver": "d.example.com", "pool": "n", "device": "gpu-0"}
    claim = make_object(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {
                "name": "c",
                "finalizers": list(finalizers),
                "ownerReferences": [owner],
            },
            "spec": {"devices": {"requests": [{"name": "g", "exactly": {"deviceClassName": "d"}}]}},
            "status": {
                "allocation": {"devices": {"results": [result]}},
                "reservedFor": [{"resource": "pods", "name": "p", "uid": "u-p"}],
            },
        }
    )
    return [pod, claim]


@pytest.mark.parametrize("kind", [MemoryCluster, ServedCluster])
def test_a_claim_that_another_controller_keeps_is_only_marked(kind: type[MemoryCluster]) -> None:
    cluster = kind()
    start_controllers(cluster)
    protection = "resource.kubernetes.io/delete-protection"
    for obj in (make_node("n"), *claim_of_a_pod("example.com/mine", protection)):
        cluster.create(obj)
    cluster.deliver()
    cluster.delete(Pod, "default/p")
    cluster.deliver()
    claim = cluster.get(ResourceClaim, "default/c")
    assert claim is not None
    assert claim.metadata.deletion_timestamp is not None
    assert claim.metadata.finalizers == ("example.com/mine",)
    assert claim.status.allocation is None


def workload(kind: str, duration: str = "", **spec: Any) -> ApiObject:
    labels = {"app": "x"}
    annotations = {"bayplan.dev/duration": duration} if duration else {}
    template = {"metadata": {"labels": labels, "annotations": annotations}, "spec": spec}
    content: dict[str, Any] = {"template": template}
    if kind == "Job":
        content["backoffLimit"] = 2**31 - 1
    else:
        content |= {"selector": {"matchLabels": labels}}
    version = "batch/v1" if kind == "Job" else "apps/v1"
    meta = {"name": "x", "uid": "u-x"}
    return make_object({"apiVersion": version, "kind": kind, "metadata": meta, "spec": content})


def job_set() -> ApiObject:
    pods = {"spec": {"nodeName": "n", "restartPolicy": "Never", **TOO_LARGE}}
    job = {"spec": {"backoffLimit": 0, "template": pods}}
    return make_object(
        {
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "metadata": {"name": "x"},
            "spec": {
                "failurePolicy": {"maxRestarts": 2**31 - 1},
                "replicatedJobs": [{"name": "w", "template": job}],
            },
        }
    )


def arriving(*objects: ApiObject) -> Simulation:
    """Return a simulation, over, of objects that are there and of a pod that comes later."""
    made = Simulation(default_profiles())
    made.create([make_node("n", cpu=1), *objects])
    made.arrive([(1.0, make_pod("late", cpu=8))])
    made.run()
    return made


@pytest.mark.parametrize("kind", ["Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "Job"])
def test_pods_that_their_node_rejects_are_replaced_less_and_less(kind: str) -> None:
    made = arriving(workload(kind, nodeName="n", **TOO_LARGE))
    assert 1 <= len(made.pods()) - 1 <= 20
    assert made.ended_at < 86_400


def test_a_job_set_whose_jobs_fail_at_once_restarts_less_and_less() -> None:
    made = arriving(job_set())
    assert made.ended_at < 86_400


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet"])
@pytest.mark.parametrize("duration", ["0s", "1s", "2h"])
def test_a_service_is_not_waited_for_without_end(kind: str, duration: str) -> None:
    made = arriving(workload(kind, duration, containers=[{"name": "c"}]))
    assert made.ended_at < 86_400


def test_the_end_of_a_services_pod_is_waited_for_once() -> None:
    made = arriving(workload("Deployment", "2h", containers=[{"name": "c"}]))
    assert made.ended_at >= 7200


def test_a_lock_from_the_future_is_not_waited_for() -> None:
    lock = {"hami.io/mutex.lock": "2099-01-01T00:00:00Z,default,other"}
    cluster = MemoryCluster()
    cluster.create(make_node("n", annotations=lock))
    for name in ("other", "p"):
        cluster.create(make_pod(name))
    cluster.submit(Bind("default/p", "", "n", lock=BindLock("hami.io/mutex.lock", 300.0)))
    assert cluster.clock.next_time(idle=False) is None
    cluster.delete(Pod, "default/other")
    cluster.clock.catch_up()
    pod = cluster.get(Pod, "default/p")
    assert pod is not None
    assert pod.spec.node_name == "n"
