"""PyTorchJobs with a scheduling policy: their pods are a gang, as the operator makes one."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.api import ApiObject, Pod, PyTorchJob, SchedulerPluginsPodGroup, VolcanoPodGroup
from bayplan.explain.explanation import why_pending
from bayplan.profiles.loading import default_profiles
from bayplan.simulation import Simulation
from bayplan.testing import make_node, make_object

GPU = "nvidia.com/gpu"


def template(gpus: int, scheduler: str = "", **meta: Any) -> dict[str, Any]:
    container = {"name": "pytorch", "image": "sft", "resources": {"limits": {GPU: gpus}}}
    spec: dict[str, Any] = {"containers": [container]}
    if scheduler:
        spec["schedulerName"] = scheduler
    return {"metadata": meta, "spec": spec}


def job(policy: dict[str, Any] | None, **pods: Any) -> ApiObject:
    """Return a job with a master and three workers."""
    one = template(pods.pop("gpus", 8), **pods)
    return make_object(
        {
            "apiVersion": "kubeflow.org/v1",
            "kind": "PyTorchJob",
            "metadata": {"name": "sft", "namespace": "default"},
            "spec": {
                "runPolicy": {"schedulingPolicy": policy} if policy is not None else {},
                "pytorchReplicaSpecs": {
                    "Master": {"replicas": 1, "template": one},
                    "Worker": {"replicas": 3, "template": one},
                },
            },
        }
    )


def run(*objects: ApiObject) -> Simulation:
    simulation = Simulation(default_profiles(), until=60)
    simulation.create(objects)
    simulation.run()
    return simulation


def nodes(count: int) -> list[ApiObject]:
    return [make_node(f"n{number}", cpu=64, gpu=8) for number in range(count)]


@pytest.mark.parametrize("scheduler", ["", "volcano"])
def test_half_a_gang_does_not_run(scheduler: str) -> None:
    simulation = run(*nodes(2), job({"minAvailable": 4}, scheduler=scheduler))
    assert simulation.placements() == {}
    assert len(simulation.pending()) == 4
    assert len(run(*nodes(4), job({"minAvailable": 4}, scheduler=scheduler)).placements()) == 4


def test_without_a_minimum_all_pods_are_needed() -> None:
    assert run(*nodes(3), job({})).placements() == {}


def test_a_minimum_lets_the_rest_wait() -> None:
    simulation = run(*nodes(2), job({"minAvailable": 2}))
    assert len(simulation.placements()) == 2
    assert len(simulation.pending()) == 2


def test_without_a_policy_all_of_its_pods_are_a_gang() -> None:
    assert run(*nodes(2), job(None)).placements() == {}


def test_the_queue_of_the_policy_limits_the_gang() -> None:
    queue = {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "Queue",
        "metadata": {"name": "research"},
        "spec": {"weight": 1, "capability": {GPU: 8}},
    }
    policy = {"minAvailable": 4, "queue": "research"}
    simulation = run(*nodes(4), make_object(queue), job(policy, scheduler="volcano"))
    assert simulation.placements() == {}
    master = simulation.cluster.get(Pod, "default/sft-master-0")
    assert master is not None
    assert 'queue "research"' in why_pending(simulation.scheduler, master)


def test_a_group_that_templates_name_stays_theirs() -> None:
    group = make_object(
        {
            "apiVersion": "scheduling.x-k8s.io/v1alpha1",
            "kind": "PodGroup",
            "metadata": {"name": "own", "namespace": "default"},
            "spec": {"minMember": 2},
        }
    )
    named = {"scheduling.x-k8s.io/pod-group": "own"}
    simulation = run(*nodes(2), group, job({"minAvailable": 4}, labels=named))
    assert len(simulation.placements()) == 2
    keys = [one.metadata.name for one in simulation.cluster.list(SchedulerPluginsPodGroup)]
    assert keys == ["own"]


def test_the_group_goes_with_its_job() -> None:
    simulation = run(*nodes(4), job({"minAvailable": 4}, scheduler="volcano"))
    assert simulation.cluster.list(VolcanoPodGroup)
    simulation.cluster.delete(PyTorchJob, "default/sft")
    simulation.run()
    assert not simulation.cluster.list(VolcanoPodGroup)
    assert not simulation.cluster.list(Pod)
