"""Elastic jobs in a network, and after a restart of the scheduler."""

from __future__ import annotations

from tests.resizing.elastic_builders import GPU, cluster_of, events, job, running

from bayplan.api import Job, Pod
from bayplan.profiles.loading import default_profiles
from bayplan.scheduler.scheduler import Scheduler
from bayplan.scheduler.virtual_time import VirtualTime
from bayplan.testing import Cluster, make_network, make_node, make_pod

ADVICE = "bayplan.dev/would-gain"


def racks(*sizes: int, gpus: int = 4) -> list:
    made = [make_network(rack="rack")]
    for rack, size in enumerate(sizes):
        for at in range(size):
            labels = {"rack": f"r{rack}"}
            made.append(make_node(f"r{rack}-n{at}", cpu=64, labels=labels, **{GPU: gpus}))
    return made


def racks_of(cluster: Cluster, prefix: str) -> list[str]:
    found = cluster.placements()
    return sorted(node[:2] for pod, node in found.items() if pod.startswith(prefix))


def test_a_job_grows_in_the_rack_where_it_runs() -> None:
    cluster = cluster_of(*racks(1, 2, 1), job("a", 1, 1, gpus=4))
    home = racks_of(cluster, "a-")
    grown = cluster_of(*racks(2, 2, 2), job("a", 1, 8))
    assert len(home) == 1
    assert len(set(racks_of(grown, "a-"))) == 1
    assert running(grown, "a-") == 8


def test_a_job_in_two_racks_is_told_which_one_would_hold_it() -> None:
    filler = [make_pod(f"f{i}", "1", None, node=f"r1-n{i}", **{GPU: 4}) for i in range(2)]
    cluster = cluster_of(*racks(1, 2), *filler, job("a", 3, 6))
    assert set(racks_of(cluster, "a-")) == {"r0"}
    cluster.remove("f0")
    cluster.advance(70)
    assert set(racks_of(cluster, "a-")) == {"r0", "r1"}
    assert not events(cluster, "WouldGainByMoving"), "rack 1 has room for four"
    cluster.remove("f1")
    last = next(pod for pod in cluster.api.list(Pod) if pod.metadata.name.startswith("a-5"))
    cluster.remove(last.metadata.name)
    cluster.advance(70)
    (told,) = events(cluster, "WouldGainByMoving")
    assert told.message == "its 6 pods are in 2 domains of rack; rack/r1 would hold them all"
    found = cluster.api.get(Job, "default/a")
    assert found is not None
    assert found.metadata.annotations[ADVICE] == told.message


def test_a_notice_outlasts_the_scheduler_that_gave_it() -> None:
    cluster = cluster_of(make_node("n0", cpu=64, **{GPU: 8}), job("a", 2, 8), notice=30)
    cluster.add(make_pod("other", "1", None, **{GPU: 4}))
    cluster.schedule()
    assert running(cluster, "a-") == 8
    restarted = Scheduler(cluster.api, default_profiles())
    VirtualTime(cluster.api, restarted).advance(cluster.api.now + 45)
    assert running(cluster, "a-") == 4
    assert "other" in cluster.placements()
    assert not restarted.evictor.evicted
