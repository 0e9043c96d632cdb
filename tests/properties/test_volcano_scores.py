"""Volcano's scores, whatever the cluster: as a plain reckoning, node by node, gives them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples

from bayplan import NodeRow, PodInfo
from bayplan.api import ApiObject
from bayplan.dialects.volcano_tasks import task_topology_of
from bayplan.testing import Cluster, make_node, make_object, make_pod
from bayplan.testing.cluster import runtime_of
from bayplan_plugins.queues.volcano.binpack import VolcanoBinpack
from bayplan_plugins.queues.volcano.resource_strategy_fit import VolcanoResourceStrategyFit
from bayplan_plugins.queues.volcano.task_buckets import buckets_of
from bayplan_plugins.queues.volcano.task_topology import VolcanoTaskTopology

RESOURCES = ("cpu", "memory", "nvidia.com/gpu", "example.com/foo")
NEAR = "volcano.sh/task-topology-affinity"
APART = "volcano.sh/task-topology-anti-affinity"


def random_cluster(dice: random.Random) -> Cluster:
    """Return up to five nodes, with pods that may request more than there is."""
    cluster = Cluster()
    for number in range(dice.randint(1, 5)):
        extra = {name: dice.randint(0, 8) for name in RESOURCES[2:] if dice.random() < 0.6}
        cluster.add(
            make_node(f"n{number}", dice.randint(1, 16), f"{dice.randint(1, 64)}Gi", **extra)
        )
        for other in range(dice.randint(0, 3)):
            cluster.add(some_pod(f"b{number}-{other}", dice, node=f"n{number}"))
    cluster.snapshot.sync()
    return cluster


def some_pod(name: str, dice: random.Random, **more: Any) -> Any:
    extra = {one: dice.randint(0, 4) for one in RESOURCES[2:] if dice.random() < 0.4}
    cpu = f"{dice.randint(0, 40) * 100}m" if dice.random() < 0.8 else None
    memory = f"{dice.randint(0, 12)}Gi" if dice.random() < 0.8 else None
    return make_pod(name, cpu, memory, **extra, **more)


def plain(pod: PodInfo, node: NodeRow, stated: Mapping[str, tuple[str, int]]) -> float:
    """Return the mean over what the pod requests of how full, or empty, the node would be."""
    total, weights = 0.0, 0
    for name, asked in {**pod.requests, "pods": 1}.items():
        if name not in stated:
            continue
        kind, weight = stated[name]
        weights += weight
        offered = node.allocatable(name)
        if not offered or not weight:
            continue
        after = node.used(name) + asked
        if after > offered:
            return 0.0
        total += weight * (after if kind == "MostAllocated" else offered - after) / offered
    return total / weights * 100 if weights else 0.0


@examples(150)
@given(seed=st.integers(0, 2**32))
def test_packing_and_strategies_are_the_plain_means(seed: int) -> None:
    dice = random.Random(seed)
    cluster = random_cluster(dice)
    pod = PodInfo(some_pod("p", dice))
    view = cluster.snapshot.view()
    named = [name for name in (*RESOURCES, "pods") if dice.random() < 0.7]
    weights = {name: dice.randint(0, 5) for name in named}
    packing: Any = runtime_of(VolcanoBinpack, cluster, {"resources": weights})
    found = packing.plugins["VolcanoBinpack"].score(pod, view)
    stated = {name: ("MostAllocated", weight) for name, weight in weights.items()}
    assert found.tolist() == pytest.approx([plain(pod, node, stated) for node in view])

    kinds = ("MostAllocated", "LeastAllocated")
    mixed = {name: (dice.choice(kinds), weight or 1) for name, weight in weights.items()}
    mixed = mixed or {"cpu": ("LeastAllocated", 1)}
    args = {"resources": {n: {"type": kind, "weight": w} for n, (kind, w) in mixed.items()}}
    fitting: Any = runtime_of(VolcanoResourceStrategyFit, cluster, args)
    found = fitting.plugins["VolcanoResourceStrategyFit"].score(pod, view)
    assert found.tolist() == pytest.approx([plain(pod, node, mixed) for node in view])


# Task topology -----------------------------------------------------------------------------


def plain_points(cluster: Cluster, pod: PodInfo, node: NodeRow, stated: Mapping[str, str]) -> float:
    """Return Volcano's score of one node for a pod of the job, by counting."""
    placed = cluster.snapshot.placed
    living = [one for one in cluster.snapshot.living.values() if one.gang == pod.gang]
    pending = [one for one in living if one.key not in placed]
    bound = [placed[one.key] for one in living if one.key in placed]
    topology = task_topology_of(stated, {one.role for one in living})
    assert topology is not None
    buckets = buckets_of(topology, pending, bound)
    own = buckets[pod.key]
    points = sum(name == node.name for name in own.bound.values())
    near = Counter(one.role for one, name in bound if name == node.name and one.key in buckets)
    points += min(0, topology.affinity(pod.role, near, only_apart=True))
    others = [one for one in own.pending if one.key != pod.key]
    while True:
        needed = Counter[str]()
        for one in (pod, *others):
            needed.update({**one.requests, "pods": 1})
        if all(node.free(name) >= amount for name, amount in needed.items()):
            points += 1 + len(others)
            break
        if not others:
            break
        others.pop()
    return points * 100 / max(bucket.size for bucket in buckets.values())


def group(annotations: Mapping[str, str]) -> ApiObject:
    return make_object(
        {
            "apiVersion": "scheduling.volcano.sh/v1beta1",
            "kind": "PodGroup",
            "metadata": {"name": "job", "namespace": "default", "annotations": dict(annotations)},
            "spec": {"minMember": 1, "queue": "default"},
        }
    )


@examples(100)
@given(seed=st.integers(0, 2**32))
def test_points_of_task_topologies_are_counted_right(seed: int) -> None:
    dice = random.Random(seed)
    cluster = random_cluster(dice)
    names = cluster.snapshot.nodes.names
    tasks = ["ps", "worker", "chief"]
    for number in range(dice.randint(3, 9)):
        task = tasks[number % 3]
        marks = {"scheduling.k8s.io/group-name": "job", "volcano.sh/task-spec": task}
        node = dice.choice(names) if dice.random() < 0.3 else ""
        cluster.add(some_pod(f"job-{task}-{number}", dice, annotations=marks, node=node))
    stated = {
        key: ";".join(
            ",".join(dice.sample(tasks, dice.randint(1, 3))) for _ in range(dice.randint(1, 2))
        )
        for key in (NEAR, APART)
        if dice.random() < 0.9
    } or {NEAR: "ps"}
    cluster.add(group(stated))
    cluster.snapshot.sync()
    plugin: Any = runtime_of(VolcanoTaskTopology, cluster, None).plugins["VolcanoTaskTopology"]
    view = cluster.snapshot.view()
    placed = cluster.snapshot.placed
    roles = {role for key in stated for role in stated[key].replace(";", ",").split(",")}
    for pod in cluster.snapshot.living.values():
        if pod.gang != "default/job" or pod.key in placed or pod.role not in roles:
            continue
        wanted = [plain_points(cluster, pod, node, stated) / 10 + 90 for node in view]
        assert plugin.score(pod, view).tolist() == pytest.approx(wanted)
