"""What an earlier version left behind is gone on with: nobody is evicted, moved or told twice."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.scheduler.running_cluster import half, on, running_cluster, saved, taken_over, web

from bayplan.api import Job, Pod
from bayplan.dialects.kai.shares import GROUP_LABEL
from bayplan.testing import Cluster, assert_pending, make_pod

HERE = Path(__file__).parent
STATES = sorted(HERE.glob("running-*.json"))


@pytest.fixture(params=[*STATES, None], ids=lambda path: path.stem if path else "this version")
def cluster(request: pytest.FixtureRequest) -> Cluster:
    """A running cluster as each released version left it, and as this one does."""
    path: Path | None = request.param
    found = taken_over(path.read_text() if path is not None else saved(running_cluster()))
    found.schedule()
    return found


def pod(cluster: Cluster, name: str) -> Pod:
    found = cluster.api.get(Pod, f"default/{name}")
    assert found is not None
    return found


def test_pods_stay_where_they_run_and_nobody_is_evicted(cluster: Cluster) -> None:
    before = cluster.placements()
    assert set(before.values()) == {"c", "e", "g", "s"}
    assert cluster.advance(60) == before
    assert not cluster.scheduler.evictor.evicted


def test_a_victim_keeps_the_time_that_it_was_given(cluster: Cluster) -> None:
    given = dict(pod(cluster, "low").metadata.annotations)
    assert pod(cluster, "high").status.nominated_node_name == "g"
    cluster.advance(90)
    assert pod(cluster, "low").metadata.annotations == given
    assert cluster.advance(60)["high"] == "g"
    assert cluster.api.get(Pod, "default/low") is None


def test_the_other_half_of_a_gpu_is_given_out_once(cluster: Cluster) -> None:
    cluster.add(half("half-1"), half("half-2"))
    cluster.schedule()
    assert_pending(cluster, "half-2")
    groups = {pod(cluster, name).metadata.labels[GROUP_LABEL] for name in ("half-0", "half-1")}
    assert len(groups) == 1


def test_what_is_left_of_a_reservation_is_kept_for_its_owners(cluster: Cluster) -> None:
    cluster.add(make_pod("other", 4, spec=on("c")))
    assert_pending(cluster, "other", "Insufficient cpu")
    cluster.add(web("web-1", 4))
    assert cluster.schedule()["web-1"] == "c"


def test_an_elastic_job_keeps_its_size(cluster: Cluster) -> None:
    cluster.advance(120)
    (job,) = cluster.api.list(Job)
    assert job.spec.parallelism == 4
    assert not [event for _, event in cluster.api.events if event.reason == "Resized"]
