"""Clusters and pods by seed, varied enough to reveal broken rules."""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from msgspec.structs import replace

from bayplan.api import Node, Pod
from bayplan.testing.builders import make_node, make_pod
from bayplan.testing.cluster import Cluster

__all__ = ["random_cluster", "random_pod"]


def random_cluster(seed: int, nodes: int = 12, pods: int = 30) -> Cluster:
    """Return a cluster of mixed nodes with pods placed on them; the same for the same seed."""
    made, waiting = _objects(seed, nodes, pods)
    where = _placements(seed, nodes, pods)
    cluster = Cluster(made)
    cluster.add(*(_on_its_node(pod, where) for pod in waiting))
    cluster.schedule()
    return cluster


@lru_cache(maxsize=64)
def _placements(seed: int, nodes: int, pods: int) -> Mapping[str, str]:
    """Return where the scheduler puts these pods, which takes most of the time."""
    made, waiting = _objects(seed, nodes, pods)
    cluster = Cluster(made)
    cluster.add(*waiting)
    return cluster.schedule()


def _on_its_node(pod: Pod, where: Mapping[str, str]) -> Pod:
    return replace(pod, spec=replace(pod.spec, node_name=where.get(pod.metadata.name, "")))


def _objects(seed: int, nodes: int, pods: int) -> tuple[list[Node], list[Pod]]:
    draw = random.Random(seed)  # noqa: S311 - test data
    made = [
        make_node(
            f"node-{index}",
            cpu=draw.choice([4, 8, 16]),
            memory=draw.choice(["16Gi", "32Gi"]),
            pods=draw.choice([5, 110]),
            labels={
                "topology.kubernetes.io/zone": draw.choice(["a", "b", "c"]),
                **({"disk": draw.choice(["ssd", "hdd"])} if draw.random() < 0.7 else {}),
            },
            taints=draw.choice([(), (), ("team=a:NoSchedule",), ("old:PreferNoSchedule",)]),
            unschedulable=draw.random() < 0.1,
            gpu=draw.choice([0, 0, 4, 8]),
        )
        for index in range(nodes)
    ]
    return made, [random_pod(draw, f"placed-{index}") for index in range(pods)]


def random_pod(draw: random.Random, name: str) -> Pod:
    """Return a pod with random requirements."""
    app = draw.choice(["web", "db", "train"])
    spec: dict[str, Any] = {}
    if draw.random() < 0.2:
        spec["nodeSelector"] = {"disk": "ssd"}
    if draw.random() < 0.3:
        spec["tolerations"] = [{"key": "team", "operator": "Exists"}]
    gpus = draw.choice([1, 2]) if draw.random() < 0.3 else None
    cpu = draw.choice([None, "250m", "1", "2"])
    memory = draw.choice([None, "512Mi", "2Gi"])
    labels = {"app": app}
    if gpus is None:
        return make_pod(name, cpu, memory, labels, spec=spec)
    return make_pod(name, cpu, memory, labels, spec=spec, gpu=gpus)
