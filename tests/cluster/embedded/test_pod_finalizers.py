"""Pods that controllers keep until they are counted go; what others keep stays."""

from __future__ import annotations

import pytest

from bayplan.api import ApiObject, Pod
from bayplan.cluster.apiserver.store import ServedCluster
from bayplan.cluster.embedded.assembly import start_controllers
from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.profiles.loading import default_profiles
from bayplan.simulation import Simulation
from bayplan.testing import make_node, make_object

TRACKING = "batch.kubernetes.io/job-tracking"


def running(*finalizers: str) -> ApiObject:
    """Return a pod of a Job as a snapshot has it."""
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u", "controller": True}
    resources = {"requests": {"cpu": "4"}}
    return make_object(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": "low",
                "finalizers": list(finalizers),
                "ownerReferences": [owner],
            },
            "spec": {
                "nodeName": "n",
                "priority": 0,
                "terminationGracePeriodSeconds": 5,
                "containers": [{"name": "c", "resources": resources}],
            },
            "status": {"phase": "Running"},
        }
    )


def urgent() -> ApiObject:
    spec = {
        "priority": 1000,
        "containers": [{"name": "c", "resources": {"requests": {"cpu": "4"}}}],
    }
    meta = {"name": "urgent"}
    return make_object({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})


@pytest.mark.parametrize(
    ("finalizers", "goes"),
    [
        ((TRACKING,), True),
        (("kueue.x-k8s.io/managed", TRACKING), True),
        (("example.com/mine",), False),
        ((TRACKING, "example.com/mine"), False),
    ],
)
def test_a_victim_goes_unless_somebody_else_keeps_it(
    finalizers: tuple[str, ...], goes: bool
) -> None:
    made = Simulation(default_profiles())
    made.create([make_node("n", cpu=4), running(*finalizers), urgent()])
    made.run()
    assert ("default/urgent" in made.placements()) is goes
    left = made.cluster.get(Pod, "default/low")
    assert (left is None) is goes
    assert left is None or left.metadata.finalizers == ("example.com/mine",)


def test_a_served_cluster_counts_pods_that_ended() -> None:
    cluster = ServedCluster()
    start_controllers(cluster)
    cluster.create(make_node("n"))
    cluster.create(running(TRACKING))
    cluster.settle()
    pod = cluster.get(Pod, "default/low")
    assert pod is not None
    assert pod.metadata.finalizers == (TRACKING,)
    cluster.delete(Pod, "default/low", 0)
    cluster.settle()
    assert cluster.get(Pod, "default/low") is None


def test_a_simulation_starts_with_the_finalizers_that_there_are() -> None:
    cluster = MemoryCluster()
    start_controllers(cluster)
    cluster.create(running(TRACKING))
    cluster.deliver()
    pod = cluster.get(Pod, "default/low")
    assert pod is not None
    assert pod.metadata.finalizers == (TRACKING,)
