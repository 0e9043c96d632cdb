"""Which HyperNode a job gets among those that hold as many of its pods."""

from __future__ import annotations

from tests.plugins.queues.volcano.volcano_worlds import cluster_of, group, pods, queue

from bayplan.api import ApiObject
from bayplan.testing import make_node, make_object, make_pod


def hyper_node(name: str, *members: str, tier: int = 1) -> ApiObject:
    kind = "Node" if tier == 1 else "HyperNode"
    return make_object(
        {
            "apiVersion": "topology.volcano.sh/v1alpha1",
            "kind": "HyperNode",
            "metadata": {"name": name},
            "spec": {
                "tier": tier,
                "members": [
                    {"type": kind, "selector": {"exactMatch": {"name": one}}} for one in members
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


def test_what_lies_around_a_domain_counts_less_than_what_is_used_in_it() -> None:
    """The first domain has a full one beside it, the third has a pod."""
    topology = {"networkTopology": {"mode": "hard", "highestTierAllowed": 1}}
    cluster = cluster_of(
        [
            *(make_node(f"n{index}", cpu=8) for index in range(8)),
            *(hyper_node(f"s{index}", f"n{2 * index}", f"n{2 * index + 1}") for index in range(4)),
            hyper_node("b0", "s0", "s1", tier=2),
            hyper_node("b1", "s2", "s3", tier=2),
            queue("q"),
            make_pod("full-2", cpu=8, memory=None, node="n2"),
            make_pod("full-3", cpu=8, memory=None, node="n3"),
            make_pod("small", cpu=1, memory=None, node="n4"),
            group("job", "q", 2, **topology),
            *pods("job", 2, cpu=5),
        ]
    )
    placed = cluster.schedule()
    assert {placed["job-0"], placed["job-1"]} == {"n4", "n5"}
