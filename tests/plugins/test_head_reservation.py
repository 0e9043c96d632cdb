"""HeadReservation: large jobs are not starved, and short pods fill the gap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bayplan import Plugin
from bayplan.cluster.embedded.kubelet import VirtualKubelet
from bayplan.testing import Cluster, check_plugin, make_gang, make_node, make_pod
from bayplan_plugins.head_reservation import HeadReservation

DURATION = "bayplan.dev/duration"
PLUGINS: list[type[Plugin[Any]]] = [HeadReservation]


def busy_cluster(plugins: Sequence[type[Plugin[Any]]]) -> Cluster:
    """Four nodes full of single-core pods that end at different times, and a job for all four."""
    cluster = Cluster([make_node(f"n{i}", cpu=4) for i in range(4)], plugins=plugins)
    VirtualKubelet(cluster.api)
    for index in range(16):
        cluster.add(small(f"first-{index}", 100 + 7 * index))
    cluster.schedule()
    cluster.add(make_gang("big", 4))
    cluster.add(*(make_pod(f"big-{i}", "4", None, gang="big") for i in range(4)))
    return cluster


def small(name: str, seconds: int, **fields: Any) -> Any:
    return make_pod(name, "1", None, annotations={DURATION: f"{seconds}s"}, **fields)


def stream(cluster: Cluster, seconds: int) -> float | None:
    """Add a pod every ten seconds; return when the large job started."""
    for step in range(seconds // 10):
        cluster.add(small(f"next-{step}", 150))
        cluster.advance(10)
        if "big-0" in cluster.placements():
            return cluster.api.now
    return None


def test_small_pods_starve_a_large_job_without_it() -> None:
    assert stream(busy_cluster([]), 1500) is None


def test_the_head_of_the_queue_gets_its_turn() -> None:
    started = stream(busy_cluster(PLUGINS), 1500)
    assert started is not None
    assert started <= 260, "the last of the first pods ends at 205 s"


def test_a_pod_that_ends_in_time_fills_the_gap() -> None:
    cluster = busy_cluster(PLUGINS)
    cluster.advance(120)
    cluster.add(small("short", 20), small("long", 500), make_pod("endless", "1", None))
    placements = cluster.advance(5)
    assert "short" in placements
    assert not {"long", "endless"} & set(placements)
    assert "reserved for default/big" in cluster.message("long")
    assert "big-0" in cluster.advance(120)


def test_higher_priority_is_not_bound_by_it() -> None:
    cluster = busy_cluster(PLUGINS)
    cluster.advance(120)
    cluster.add(small("important", 500, priority=10))
    assert "important" in cluster.advance(5)


def test_nothing_is_kept_for_a_job_that_cannot_fit() -> None:
    cluster = Cluster([make_node("n", cpu=4)], plugins=PLUGINS)
    VirtualKubelet(cluster.api)
    cluster.add(make_gang("big", 2), *(make_pod(f"big-{i}", "4", None, gang="big") for i in (0, 1)))
    cluster.advance(60)
    cluster.add(small("other", 500))
    assert "other" in cluster.advance(5)


def test_the_room_is_free_again_when_the_job_is_gone() -> None:
    cluster = busy_cluster(PLUGINS)
    cluster.advance(120)
    cluster.add(small("long", 500))
    assert "long" not in cluster.advance(5)
    for index in range(4):
        cluster.remove(f"big-{index}")
    assert "long" in cluster.advance(20)


def test_it_keeps_the_contract() -> None:
    check_plugin(HeadReservation)
