"""Which HyperNode a job gets among those that hold as many of its pods."""

from __future__ import annotations

from tests.plugins.queues.volcano.volcano_worlds import cluster_of, group, pods, queue

from bayplan.api import ApiObject
from bayplan.testing import make_node, make_object, make_pod


def hyper_node(name: str, *nodes: str) -> ApiObject:
    return make_object(
        {
            "apiVersion": "topology.volcano.sh/v1alpha1",
            "kind": "HyperNode",
            "metadata": {"name": name},
            "spec": {
                "tier": 1,
                "members": [
                    {"type": "Node", "selector": {"exactMatch": {"name": node}}} for node in nodes
                ],
            },
        }
    )


def test_the_domain_of_whose_resources_most_is_used_comes_first() -> None:
    """Both hold two pods of three cores on each node."""
    topology = {"networkTopology": {"mode": "hard", "highestTierAllowed": 1}}
    cluster = cluster_of(
        [
            *(make_node(f"n{index}", cpu=8) for index in range(6)),
            hyper_node("s0", "n0", "n1"),
            hyper_node("s1", "n2", "n3"),
            hyper_node("s2", "n4", "n5"),
            queue("q"),
            make_pod("a", cpu=1, memory=None, node="n2"),
            make_pod("b", cpu=1, memory=None, node="n3"),
            group("job", "q", 4, **topology),
            *pods("job", 4, cpu=3),
        ]
    )
    placed = cluster.schedule()
    assert {placed[f"job-{index}"] for index in range(4)} == {"n2", "n3"}
