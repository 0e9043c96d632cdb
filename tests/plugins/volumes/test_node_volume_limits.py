"""NodeVolumeLimits: how many volumes of a driver a node takes."""

from __future__ import annotations

from collections import Counter

from tests.plugins.volumes.volume_builders import (
    FAST,
    FULL,
    HOST,
    csi_node,
    disk,
    live,
    nodes,
    pod,
    with_scratch,
)

from bayplan.testing import (
    Cluster,
    assert_pending,
    make_gang,
    refusals,
)
from bayplan_plugins.node_volume_limits import NodeVolumeLimits


def test_a_node_takes_as_many_volumes_as_its_driver_says() -> None:
    disks = [one for index in range(3) for one in disk(f"d{index}")]
    cluster = Cluster([*nodes("a", "b"), csi_node("a", 2), *disks])
    cluster.add(pod("first", "d0", "d1", node="a"))
    assert refusals(NodeVolumeLimits, pod("p", "d2"), cluster) == {"a": FULL}
    assert refusals(NodeVolumeLimits, pod("p", "d1"), cluster) == {}


def test_one_volume_counts_once_on_a_node() -> None:
    disks = [*disk("d0", "same"), *disk("d1", "same"), *disk("d2")]
    cluster = Cluster([*nodes("a"), csi_node("a", 2), *disks])
    cluster.add(pod("first", "d0", node="a"), pod("second", "d1", node="a"))
    assert refusals(NodeVolumeLimits, pod("p", "d2"), cluster) == {}
    cluster.add(pod("third", "d2", node="a"))
    cluster.remove("first")
    cluster.add(*disk("d3"))
    assert refusals(NodeVolumeLimits, pod("p", "d3"), cluster) == {"a": FULL}
    cluster.remove("second")
    assert refusals(NodeVolumeLimits, pod("p", "d3"), cluster) == {}


def test_a_claim_without_a_volume_counts_for_its_class() -> None:
    cluster = live(*nodes("a", "b"), csi_node("a", 2, keys=(HOST,)), FAST)
    cluster.add(*(with_scratch(f"p{index}") for index in range(5)))
    placed = cluster.schedule()
    assert len(placed) == 5
    assert Counter(placed.values())["a"] == 2


def test_the_limit_holds_for_gangs() -> None:
    drivers = [csi_node(name, 3, keys=(HOST,)) for name in "ab"]
    cluster = live(*nodes("a", "b"), *drivers, FAST, make_gang("g", 7))
    cluster.add(*(with_scratch(f"m-{index}", gang="g") for index in range(7)))
    assert_pending(cluster, "m-0", f"2 {FULL}", "6 of the 7 members")
    cluster.api.update(csi_node("b", 4, keys=(HOST,)))
    assert len(cluster.advance(2)) == 7


def test_a_limit_that_changes_holds_at_once() -> None:
    disks = [one for index in range(2) for one in disk(f"d{index}")]
    cluster = Cluster([*nodes("a"), csi_node("a", 1), *disks, pod("first", "d0", node="a")])
    cluster.add(pod("p", "d1"))
    assert_pending(cluster, "p", f"1 {FULL}")
    cluster.api.update(csi_node("a", 2))
    assert cluster.advance(2)["p"] == "a"


def test_preemption_helps_where_a_limit_is_reached() -> None:
    disks = [one for index in range(2) for one in disk(f"d{index}")]
    cluster = Cluster([*nodes("a"), csi_node("a", 1), *disks])
    cluster.add(pod("low", "d0", node="a", priority=1), pod("high", "d1", priority=10))
    cluster.schedule()
    assert cluster.advance(60) == {"high": "a"}
