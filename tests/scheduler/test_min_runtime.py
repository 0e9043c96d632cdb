"""Pods that ask for a minimum runtime are not evicted before, whoever wants their place."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from tests.plugins.queues.kueue.kueue_builders import cluster_queue, flavor, local_queue
from tests.plugins.queues.kueue.queued_job_builders import GPU, job, running

from bayplan.api import ApiObject, Pod
from bayplan.cluster.embedded.assembly import start_controllers
from bayplan.dialects.progress import min_runtime
from bayplan.explain.explanation import explain
from bayplan.profiles.loading import default_profiles
from bayplan.testing import Cluster, make_gang, make_node, make_pod

ASKS = {"bayplan.dev/min-runtime": "600"}


def world(*objects: ApiObject, plugins: Any = ()) -> Cluster:
    """Return a cluster whose pods have run for ten seconds."""
    cluster = Cluster((), default_profiles(scheduler_names=("default-scheduler",)), plugins)
    start_controllers(cluster.api)
    cluster.add(*objects)
    cluster.advance(10.0)
    return cluster


def is_there(cluster: Cluster, name: str) -> bool:
    pod = cluster.api.get(Pod, f"default/{name}")
    return pod is not None and pod.metadata.deletion_timestamp is None


def node_of(cluster: Cluster, name: str) -> str:
    pod = cluster.api.get(Pod, f"default/{name}")
    assert pod is not None
    return pod.spec.node_name


def low(name: str = "low", **kwargs: Any) -> Pod:
    return make_pod(name, gpu=8, annotations=ASKS, **kwargs)


def test_a_pod_is_preempted_only_once_it_has_run_for_its_minimum() -> None:
    cluster = world(make_node("n", gpu=8), low())
    cluster.add(make_pod("high", gpu=8, priority=10))
    cluster.advance(500.0)
    assert is_there(cluster, "low")
    high = cluster.api.get(Pod, "default/high")
    assert high is not None
    told = [one.text for one in explain(cluster.scheduler, high).suggestions]
    assert "would fit once low has run for its minimum, in 90 s" in told
    cluster.advance(200.0)
    assert not is_there(cluster, "low")
    assert node_of(cluster, "high") == "n"


def test_another_victim_is_taken_meanwhile() -> None:
    cluster = world(make_node("n", gpu=8), make_node("m", gpu=8), low(), make_pod("old", gpu=8))
    cluster.add(make_pod("high", gpu=8, priority=10))
    cluster.advance(100.0)
    assert is_there(cluster, "low")
    assert not is_there(cluster, "old")


def test_a_gang_is_as_safe_as_its_newest_member() -> None:
    pods = [make_pod(f"g{i}", gpu=8, gang="g", annotations=ASKS) for i in range(2)]
    nodes = [make_node(f"n{i}", gpu=8) for i in range(2)]
    cluster = world(*nodes, make_gang("g", 2), *pods)
    cluster.add(make_pod("high", gpu=8, priority=10))
    cluster.advance(500.0)
    assert is_there(cluster, "g0")
    assert is_there(cluster, "g1")
    cluster.advance(200.0)
    assert node_of(cluster, "high")


def test_a_restart_does_not_begin_it_again() -> None:
    cluster = world(make_node("n", gpu=8), low())
    cluster.advance(300.0)
    cluster.restart()
    cluster.add(make_pod("high", gpu=8, priority=10))
    cluster.advance(200.0)
    assert is_there(cluster, "low")
    cluster.advance(200.0)
    assert not is_there(cluster, "low")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("600", 600.0), ("1e9", 3600.0), ("-1", 0.0), ("nan", 0.0), ("soon", 0.0), ("", 0.0)],
)
def test_absurd_minimums_are_none_or_an_hour(text: str, seconds: float) -> None:
    assert min_runtime({"bayplan.dev/min-runtime": text}) == seconds


def with_minimum(made: ApiObject) -> ApiObject:
    """Return a job whose pods ask for a minimum runtime."""
    template = made.spec.template  # type: ignore[attr-defined]
    template = replace(template, metadata=replace(template.metadata, annotations=ASKS))
    return replace(made, spec=replace(made.spec, template=template))  # type: ignore[attr-defined]


def test_a_job_in_kueues_queue_is_preempted_only_once_it_has_run_for_its_minimum() -> None:
    preemption = {"withinClusterQueue": "LowerPriority"}
    queue = cluster_queue("cq", {"f": {GPU: 2}}, preemption=preemption)
    objects = [make_node("n", gpu=8), flavor("f"), queue, local_queue("lq", "cq")]
    cluster = world(*objects, with_minimum(job("low", 2)), plugins={"Queues": {}})
    assert running(cluster) == {"low"}
    cluster.add(job("high", 2, priority=10))
    cluster.advance(500.0)
    assert running(cluster) == {"low"}
    cluster.advance(200.0)
    assert running(cluster) == {"high"}


def test_a_pod_in_kueues_queue_is_preempted_only_once_it_has_run_for_its_minimum() -> None:
    preemption = {"withinClusterQueue": "LowerPriority"}
    quotas = {GPU: 8, "cpu": 64, "memory": 2**40}
    queue = cluster_queue("cq", {"f": quotas}, preemption=preemption)
    objects = [make_node("n", gpu=16), flavor("f"), queue, local_queue("lq", "cq")]
    label = {"kueue.x-k8s.io/queue-name": "lq"}
    cluster = world(*objects, low(labels=label), plugins={"Queues": {}})
    cluster.advance(100.0)
    cluster.restart()
    cluster.add(make_pod("high", gpu=8, priority=10, labels=label))
    cluster.advance(300.0)
    assert is_there(cluster, "low")
    cluster.advance(250.0)
    assert not is_there(cluster, "low")
    assert node_of(cluster, "high") == "n"


def test_a_pod_does_not_inherit_the_minimum_of_the_one_before_it() -> None:
    cluster = world(make_node("n", gpu=8), low())
    cluster.api.delete(Pod, "default/low", 0)
    cluster.add(make_pod("low", gpu=8))
    cluster.advance(20.0)
    cluster.add(make_pod("high", gpu=8, priority=10))
    cluster.advance(60.0)
    assert node_of(cluster, "high") == "n"


def test_a_minimum_that_is_stated_later_counts_from_the_start() -> None:
    cluster = world(make_node("n", gpu=8), make_pod("low", gpu=8))
    pod = cluster.api.get(Pod, "default/low")
    assert pod is not None
    cluster.api.update(replace(pod, metadata=replace(pod.metadata, annotations=ASKS)))
    cluster.advance(10.0)
    cluster.add(make_pod("high", gpu=8, priority=10))
    cluster.advance(500.0)
    assert is_there(cluster, "low")
    cluster.advance(120.0)
    assert not is_there(cluster, "low")
