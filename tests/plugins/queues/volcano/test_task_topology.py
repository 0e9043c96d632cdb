"""Volcano's task topology: tasks that belong together share nodes, tasks that do not keep apart."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.plugins.queues.volcano.volcano_worlds import queue

from bayplan.api import ApiObject
from bayplan.dialects.volcano_tasks import task_topology_of
from bayplan.migration.volcano import volcano_profile
from bayplan.profiles.loading import load_profiles
from bayplan.testing import Cluster, make_node, make_object, make_pod
from bayplan_plugins.queues.volcano.task_buckets import buckets_of

NEAR = "volcano.sh/task-topology-affinity"
APART = "volcano.sh/task-topology-anti-affinity"
ORDER = "volcano.sh/task-topology-task-order"
CONFIGURATION = {
    "actions": "enqueue, allocate",
    "tiers": [
        {
            "plugins": [
                {"name": "gang"},
                {"name": "task-topology", "arguments": {"task-topology.weight": 10}},
                {"name": "nodeorder"},
            ]
        }
    ],
}


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    """Return a cluster with the profile that Volcano's configuration becomes."""
    profile, _ = volcano_profile(CONFIGURATION, "default-scheduler")
    kind = "KubeSchedulerConfiguration"
    path = tmp_path / "profiles.yaml"
    path.write_text(json.dumps({"kind": kind, "profiles": [profile]}))
    cluster = Cluster(profiles=load_profiles(path))
    cluster.add(queue("q"))
    return cluster


def nodes(**cpus: int) -> list[ApiObject]:
    """Return nodes by name, with their CPUs."""
    return [make_node(name, count) for name, count in cpus.items()]


def job(least: int, tasks: dict[str, int], **annotations: str) -> list[ApiObject]:
    """Return a PodGroup with as many pods of each task, each of one CPU."""
    group = make_object(
        {
            "apiVersion": "scheduling.volcano.sh/v1beta1",
            "kind": "PodGroup",
            "metadata": {"name": "job", "namespace": "default", "annotations": annotations},
            "spec": {"minMember": least, "queue": "q"},
            "status": {"phase": "Inqueue"},
        }
    )
    return [group, *(member(task, n) for task, count in tasks.items() for n in range(count))]


def member(task: str, number: int, **more: Any) -> ApiObject:
    marks = {"scheduling.k8s.io/group-name": "job", "volcano.sh/task-spec": task}
    return make_pod(f"job-{task}-{number}", 1, None, annotations=marks, **more)


def by_node(cluster: Cluster) -> dict[str, list[str]]:
    """Return which pods each node has, without the name of the job."""
    found: dict[str, list[str]] = {}
    for pod, node in cluster.placements().items():
        found.setdefault(node, []).append(pod.removeprefix("default/").removeprefix("job-"))
    return {node: sorted(pods) for node, pods in sorted(found.items())}


def test_the_example_of_volcanos_design(cluster: Cluster) -> None:
    """A server and two workers fill the largest node; the other server goes with a worker."""
    cluster.add(*nodes(n1=2, n2=1, n3=4))
    cluster.add(*job(6, {"ps": 2, "worker": 4}, **{NEAR: "ps,worker", APART: "ps"}))
    cluster.schedule()
    found = by_node(cluster)
    assert {"ps-0", "worker-0", "worker-2"} <= set(found["n3"])
    assert found["n1"] == ["ps-1", "worker-1"]


def test_tasks_that_avoid_themselves_are_spread_evenly_over_few_nodes(
    cluster: Cluster,
) -> None:
    cluster.add(*nodes(a=16, b=16))
    cluster.add(*job(8, {"worker": 8}, **{APART: "worker"}))
    cluster.schedule()
    assert {node: len(pods) for node, pods in by_node(cluster).items()} == {"a": 4, "b": 4}


def test_tasks_that_belong_together_share_a_node(cluster: Cluster) -> None:
    cluster.add(*nodes(a=4, b=4, c=4))
    cluster.add(*job(6, {"ps": 2, "worker": 2, "eval": 2}, **{NEAR: "ps,worker", APART: "ps"}))
    cluster.schedule()
    tasks = [
        Counter(pod.rpartition("-")[0] for pod in pods if not pod.startswith("eval"))
        for pods in by_node(cluster).values()
    ]
    assert [one for one in tasks if one] == [{"ps": 1, "worker": 1}] * 2


def test_a_pod_that_comes_later_joins_its_bucket(cluster: Cluster) -> None:
    cluster.add(*nodes(a=4, b=4))
    group, *_ = job(1, {}, **{NEAR: "ps,worker"})
    cluster.add(group, member("ps", 0, node="b"))
    cluster.add(member("worker", 0))
    cluster.schedule()
    assert by_node(cluster) == {"b": ["ps-0", "worker-0"]}


@pytest.mark.parametrize(
    ("annotations", "text"),
    [
        ({NEAR: "ps,master"}, f'{NEAR}: the job has no task "master"'),
        ({APART: "ps,ps"}, f'{APART}: the task "ps" is named twice'),
        ({NEAR: "ps", ORDER: "ps,ps"}, f'{ORDER}: the task "ps" is named twice'),
    ],
    ids=["unknown task", "twice in a group", "twice in the order"],
)
def test_a_topology_that_cannot_be_read_holds_back_nobody_and_is_named(
    annotations: dict[str, str], text: str, cluster: Cluster
) -> None:
    cluster.add(*nodes(a=4))
    cluster.add(*job(2, {"ps": 2}, **annotations))
    cluster.schedule()
    assert by_node(cluster) == {"a": ["ps-0", "ps-1"]}
    decision = cluster.scheduler.decisions["default/job"]
    (notes,) = {tuple(pod.notes) for pod in decision.pods.values()}
    assert notes == (f"no task topology: PodGroup default/job: {text}",)


def buckets(annotations: dict[str, str], tasks: dict[str, int], *bound: tuple[str, str]) -> Any:
    """Return the tasks of the pending pods by bucket, in order, and those with nodes."""
    cluster = Cluster()
    objects = job(1, tasks, **annotations)[1:]
    there = [(f"{task}", node) for task, node in bound]
    cluster.add(*objects)
    cluster.add(*(make_node(node) for node in {node for _, node in there}))
    held = [member(task, 100 + i, node=node) for i, (task, node) in enumerate(there)]
    cluster.add(*held)
    cluster.snapshot.sync()
    living = cluster.snapshot.living
    pending = [pod for pod in living.values() if pod.key not in cluster.snapshot.placed]
    topology = task_topology_of(annotations, {pod.role for pod in living.values()})
    assert topology is not None
    found = buckets_of(topology, pending, list(cluster.snapshot.placed.values()))
    own = sorted({id(one): one for one in found.values()}.values(), key=lambda one: one.place)
    return [
        ([pod.name.removeprefix("job-") for pod in one.pending], sorted(set(one.bound.values())))
        for one in own
    ]


def test_pods_join_the_bucket_with_most_affinity_then_the_one_with_least_to_do() -> None:
    found = buckets({NEAR: "ps,worker", APART: "ps"}, {"ps": 2, "worker": 4})
    assert found == [
        (["ps-0", "worker-0", "worker-2"], []),
        (["ps-1", "worker-1", "worker-3"], []),
    ]


def test_tasks_without_affinity_have_no_bucket_and_an_order_alone_makes_none() -> None:
    assert buckets({NEAR: "ps"}, {"ps": 2, "worker": 1}) == [(["ps-0", "ps-1"], [])]
    assert buckets({ORDER: "worker,ps"}, {"ps": 2, "worker": 1}) == []


def test_the_stated_order_goes_before_that_of_affinities() -> None:
    stated = {NEAR: "ps,worker", APART: "ps", ORDER: "worker,ps"}
    # All workers join the first bucket, as none keeps them apart; then each server a new one.
    assert buckets(stated, {"ps": 2, "worker": 2}) == [
        (["worker-0", "worker-1", "ps-0", "ps-1"], [])
    ]
    assert buckets({**stated, APART: "ps;worker"}, {"ps": 2, "worker": 2}) == [
        (["worker-0", "ps-0"], []),
        (["worker-1", "ps-1"], []),
    ]


def test_nodes_with_pods_of_the_job_are_buckets() -> None:
    stated = {NEAR: "ps,worker", APART: "ps"}
    assert buckets(stated, {"ps": 1, "worker": 2}, ("ps", "b"), ("ps", "a")) == [
        (["worker-0"], ["a"]),
        (["worker-1"], ["b"]),
        (["ps-0"], []),
    ]
