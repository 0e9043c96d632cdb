"""Other schedulers that give out shares of the same GPUs are known by their pods."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from bayplan.api import Pod
from bayplan.profiles.loading import default_profiles
from bayplan.testing import Cluster, make_node, make_pod

SHARE = {"koordinator.sh/gpu-core": 50, "koordinator.sh/gpu-memory-ratio": 50}


def cluster_of_mine(*plugins: str) -> Cluster:
    """Return a cluster whose scheduler takes pods that name no other one."""
    return Cluster(
        [make_node("n")], replace(default_profiles(), any_scheduler=False), plugins=plugins
    )


def naming(scheduler: str, name: str, **more: Any) -> Pod:
    return make_pod(name, spec={"schedulerName": scheduler}, **more)


def test_pods_without_shares_make_no_rival() -> None:
    cluster = cluster_of_mine()
    cluster.add(naming("theirs", "plain"))
    cluster.schedule()
    assert cluster.scheduler.other_schedulers == set()


def test_a_pod_that_asks_for_shares_of_another_scheduler_makes_one_before_it_is_bound() -> None:
    cluster = cluster_of_mine()
    cluster.add(make_pod("mine", **SHARE))
    cluster.schedule()
    assert cluster.scheduler.other_schedulers == set()
    cluster.add(naming("koord-scheduler", "theirs", **SHARE))
    cluster.schedule()
    assert cluster.scheduler.other_schedulers == {"koord-scheduler"}


def test_annotations_tell_of_rivals_where_shares_are_asked_for_by_them() -> None:
    cluster = cluster_of_mine("GPUSharing")
    asked = {"gpu-fraction": "0.5"}
    cluster.add(naming("kai-scheduler", "theirs", annotations=asked, node="n"))
    cluster.schedule()
    assert cluster.scheduler.other_schedulers == {"kai-scheduler"}
