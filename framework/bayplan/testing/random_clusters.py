"""Clusters and pods by seed, varied enough to reveal broken rules."""

from __future__ import annotations

import random
from typing import Any

from bayplan.api import (
    Pod,
)
from bayplan.testing.builders import make_node, make_pod
from bayplan.testing.cluster import Cluster

__all__ = ["random_cluster", "random_pod"]


def random_cluster(seed: int, nodes: int = 12, pods: int = 30) -> Cluster:
    """Return a cluster of mixed nodes with pods placed on them; the same for the same seed."""
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
    cluster = Cluster(made)
    cluster.add(*(random_pod(draw, f"placed-{index}") for index in range(pods)))
    cluster.schedule()
    return cluster


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
