"""The resizer: jobs grow into idle capacity, and give it up before anybody is evicted."""

from __future__ import annotations

from tests.resizing.elastic_builders import GPU, cluster_of, events, job, running

from bayplan.api import ApiObject, HorizontalPodAutoscaler, Job, Node, Pod
from bayplan.testing import make_node, make_object, make_pod

GOING = "bayplan.dev/going-at"


def nodes(count: int, gpus: int = 8) -> list:
    return [make_node(f"n{at}", cpu=64, **{GPU: gpus}) for at in range(count)]


def test_a_job_starts_at_its_minimum_and_grows_to_what_is_idle() -> None:
    cluster = cluster_of(*nodes(1), job("a", 2, 20, now=6))
    first = [one.message for one in events(cluster, "Resized")]
    assert first[0] == "6 to 2 replicas: it starts at its minimum"
    cluster.advance(70)
    found = cluster.api.get(Job, "default/a")
    assert found is not None
    assert (found.spec.parallelism, found.spec.completions) == (8, 8)
    assert running(cluster, "a-") == 8


def test_a_job_grows_to_its_maximum() -> None:
    cluster = cluster_of(*nodes(2), job("a", 1, 5))
    assert running(cluster, "a-") == 5


def test_surplus_goes_before_anybody_is_evicted() -> None:
    cluster = cluster_of(*nodes(1), job("a", 2, 8))
    assert running(cluster, "a-") == 8
    cluster.add(make_pod("urgent", "1", None, priority=100, **{GPU: 4}))
    cluster.schedule()
    going = {
        pod.metadata.name.rsplit("-", 1)[0]
        for pod in cluster.api.list(Pod)
        if GOING in pod.metadata.annotations
    }
    assert going == {"a-4", "a-5", "a-6", "a-7"}, "the highest indexes"
    assert running(cluster, "a-") == 8, "they have been told, and have time"
    cluster.advance(12)
    assert running(cluster, "a-") == 4
    assert "urgent" in cluster.placements()
    assert not cluster.scheduler.evictor.evicted


def test_load_that_comes_and_goes_does_not_make_a_job_flap() -> None:
    cluster = cluster_of(*nodes(1), job("a", 2, 8))
    for at in range(30):
        cluster.add(make_pod(f"b{at}", "1", None, **{GPU: 4}))
        cluster.advance(10)
        cluster.remove(f"b{at}")
        cluster.advance(10)
    resized = [one.message for one in events(cluster, "Resized")]
    assert len(resized) <= 2 * 600 / 60, "it grows once a minute, and shrinks as often"
    assert running(cluster, "a-") >= 2
    cluster.advance(120)
    assert running(cluster, "a-") == 8


def test_jobs_grow_in_turn_and_by_priority() -> None:
    cluster = cluster_of(*nodes(1), job("a", 1, 8), job("b", 1, 8))
    assert running(cluster, "a-") == running(cluster, "b-") == 4
    cluster = cluster_of(*nodes(1), job("a", 1, 8), job("b", 1, 6, priority=5))
    assert (running(cluster, "a-"), running(cluster, "b-")) == (2, 6)


def test_no_more_than_needed_goes_and_what_would_not_help_stays() -> None:
    cluster = cluster_of(*nodes(2, 4), job("a", 1, 4), job("b", 1, 4))
    cluster.add(make_pod("huge", "1", None, **{GPU: 5}))
    cluster.advance(60)
    assert running(cluster, "a-") + running(cluster, "b-") == 8
    assert not events(cluster, "Shrinking")
    cluster.add(make_pod("small", "1", None, **{GPU: 1}))
    cluster.advance(15)
    assert "small" in cluster.placements()
    assert running(cluster, "a-") + running(cluster, "b-") == 7


def test_surplus_takes_nothing_from_others() -> None:
    cluster = cluster_of(*nodes(1), job("a", 1, 8), job("b", 1, 8, priority=9))
    before = running(cluster, "a-"), running(cluster, "b-")
    cluster.advance(600)
    assert (running(cluster, "a-"), running(cluster, "b-")) == before


def test_replicas_that_lose_their_node_are_given_up() -> None:
    cluster = cluster_of(*nodes(2, 4), job("a", 2, 8))
    assert running(cluster, "a-") == 8
    cluster.api.delete(Node, "n1")
    for pod in cluster.api.list(Pod):
        if pod.spec.node_name == "n1":
            cluster.remove(pod.metadata.name)
    cluster.advance(30)
    found = cluster.api.get(Job, "default/a")
    assert found is not None
    assert found.spec.parallelism == 4


def test_jobs_that_cannot_be_resized_say_why() -> None:
    wrong = job("a", 3, 2)
    cluster = cluster_of(*nodes(1), wrong)
    assert [one.message for one in events(cluster, "NotResized")] == [
        "its minimum, 3, is more than its maximum, 2"
    ]
    assert running(cluster, "a-") == 3


def autoscaler(name: str, target: str, kind: str = "Job", version: str = "batch/v1") -> ApiObject:
    return make_object(
        {
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {
                "scaleTargetRef": {"apiVersion": version, "kind": kind, "name": target},
                "minReplicas": 1,
                "maxReplicas": 4,
            },
        }
    )


def test_a_job_with_an_autoscaler_is_left_to_it() -> None:
    mine, others = autoscaler("mine", "a"), autoscaler("other", "a", version="batch.volcano.sh/v1")
    cluster = cluster_of(*nodes(1), mine, others, job("a", 2, 8, now=3))
    cluster.advance(120)
    assert running(cluster, "a-") == 3, "neither its minimum nor more"
    expected = "HorizontalPodAutoscaler mine sets its replicas"
    assert [one.message for one in events(cluster, "NotResized")] == [expected]
    assert not events(cluster, "Resized")
    cluster.api.delete(HorizontalPodAutoscaler, "default/mine")
    cluster.advance(120)
    assert running(cluster, "a-") == 8


def test_an_autoscaler_that_comes_later_takes_over() -> None:
    cluster = cluster_of(*nodes(1), job("a", 2, 8), job("b", 1, 1))
    assert running(cluster, "a-") == 7
    cluster.add(autoscaler("mine", "a"))
    cluster.add(make_pod("urgent", "1", None, priority=100, **{GPU: 4}))
    cluster.advance(60)
    assert running(cluster, "a-") + running(cluster, "b-") >= 4
    assert not events(cluster, "Shrinking"), "its replicas are the autoscaler's"
    assert [one.pod for one in events(cluster, "NotResized")] == ["default/a"]
