"""VolumeRestrictions: claims that one pod may use at a time."""

from __future__ import annotations

from tests.plugins.volumes.volume_builders import IN_USE, exclusive, pod

from bayplan.testing import (
    assert_pending,
    make_gang,
    make_pod,
    refusals,
)
from bayplan_plugins.volume_restrictions import VolumeRestrictions


def test_a_claim_for_one_pod_is_used_by_one() -> None:
    cluster = exclusive(pod("first", "data", node="b"))
    expected = {"a": IN_USE, "b": IN_USE}
    assert refusals(VolumeRestrictions, pod("p", "data"), cluster) == expected
    cluster.add(pod("p", "data"))
    assert_pending(cluster, "p", f"2 {IN_USE}")
    cluster.remove("first")
    assert "p" in cluster.advance(2)


def test_a_claim_for_one_pod_ends_in_the_hands_of_the_more_important() -> None:
    cluster = exclusive(
        pod("low", "data", node="b", priority=1), make_pod("other", node="a", priority=1)
    )
    cluster.add(pod("high", "data", priority=10))
    cluster.schedule()
    assert cluster.advance(60) == {"high": "b", "other": "a"}


def test_a_gang_cannot_share_a_claim_for_one_pod() -> None:
    cluster = exclusive(make_gang("g", 2))
    cluster.add(*(pod(f"m-{index}", "data", gang="g") for index in range(2)))
    assert_pending(cluster, "m-0", IN_USE, "1 of the 2 members")
