"""Nominated nodes outlast the process: the next leader reads them from the status of the pods."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from bayplan.api import ApiObject, Pod
from bayplan.profiles.loading import default_profiles
from bayplan.scheduler.scheduler import Scheduler
from bayplan.scheduler.virtual_time import VirtualTime
from bayplan.testing import Cluster, make_gang, make_node, make_object, make_pod

SLOW = {"terminationGracePeriodSeconds": 60}


def victim(node: str, name: str = "") -> Pod:
    return make_pod(name or f"v-{node}", "4", priority=0, node=node, spec=SLOW)


def full(*nodes: str) -> list[ApiObject]:
    return [*(make_node(node, cpu=4) for node in nodes), *(victim(node) for node in nodes)]


def restarted(cluster: Cluster) -> Cluster:
    """Let a new process lead, which knows only what the API says."""
    cluster.restart()
    cluster.api.deliver()
    return cluster


def nominated(cluster: Cluster, *pods: str) -> list[str]:
    found = [cluster.api.get(Pod, f"default/{pod}") for pod in pods]
    return [pod.status.nominated_node_name for pod in found if pod is not None]


def evicted(cluster: Cluster) -> list[str]:
    return [one.pod for one in cluster.scheduler.evictor.evicted]


def queue(name: str, **data: str) -> ApiObject:
    meta = {"name": name, "namespace": "queues", "labels": {"bayplan.dev/queue": name}}
    return make_object({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data})


def queued(name: str, queue: str, node: str = "") -> Pod:
    labels = {"bayplan.dev/queue": queue}
    return make_pod(name, "1", labels=labels, node=node, gpu=8, spec=SLOW)


@pytest.mark.parametrize("gone", [False, True], ids=["ending", "ended"])
def test_a_victim_that_is_created_again_does_not_take_the_node_that_was_cleared(gone: bool) -> None:
    queues = queue("a-lent"), queue("owner", guaranteedCapacity="{nvidia.com/gpu: 8}")
    running = queued("v", "a-lent", node="n1")
    cluster = Cluster([make_node("n1", cpu=8, gpu=8), *queues, running, queued("p", "owner")])
    cluster.schedule()
    assert nominated(cluster, "p") == ["n1"]
    if gone:
        cluster.api.delete(Pod, "default/v", grace=0)
    restarted(cluster)
    cluster.add(queued("again", "a-lent"))
    cluster.schedule()
    cluster.advance(90.0)
    assert cluster.placements() == {"p": "n1"}
    assert not evicted(cluster)


def test_nobody_else_is_evicted_while_the_victims_of_the_process_before_end() -> None:
    cluster = Cluster([*full("n1", "n2"), make_pod("p", "4", priority=10)])
    cluster.schedule()
    (node,) = nominated(cluster, "p")
    restarted(cluster)
    cluster.schedule()
    cluster.advance(20.0)
    assert not evicted(cluster)
    assert nominated(cluster, "p") == [node]
    assert "Waiting for 1 evicted pod to end on its nominated nodes." in cluster.message("p")
    cluster.advance(60.0)
    assert cluster.placements()["p"] == node


def test_the_members_of_a_gang_keep_all_their_nodes() -> None:
    members = [make_pod(f"p{index}", "4", priority=10, gang="job") for index in range(2)]
    cluster = Cluster([*full("n1", "n2"), make_gang("job", 2), *members])
    cluster.schedule()
    before = nominated(cluster, "p0", "p1")
    assert sorted(before) == ["n1", "n2"]
    restarted(cluster)
    cluster.add(*(make_pod(f"again{index}", "4", priority=0) for index in range(2)))
    cluster.schedule()
    for node in ("n1", "n2"):
        cluster.remove(f"v-{node}")
        cluster.advance(5.0)
        assert "again0" not in cluster.placements()
    cluster.advance(30.0)
    assert [cluster.placements()[pod] for pod in ("p0", "p1")] == before


def test_a_process_that_followed_meanwhile_reads_them_once_it_leads() -> None:
    cluster = Cluster(full("n1"))
    follower = Scheduler(cluster.api, default_profiles())
    cluster.add(make_pod("p", "4", priority=10))
    cluster.schedule()
    follower.stand_by()
    assert nominated(cluster, "p") == ["n1"]
    assert follower.nominator.get("default/p") is None, "it has not decided anything yet"
    cluster.crash()
    cluster.scheduler = follower
    cluster._time = VirtualTime(cluster.api, follower)
    cluster.schedule()
    made = follower.nominator.get("default/p")
    assert made is not None
    assert made.victims == {"default/v-n1"}


def test_a_node_that_does_not_serve_any_more_is_given_up_at_once() -> None:
    pod = make_pod("p", "8", priority=10)
    stated = replace(pod, status=replace(pod.status, nominated_node_name="n1"))
    cluster = Cluster([make_node("n1", cpu=4), stated])
    cluster.schedule()
    assert nominated(cluster, "p") == [""]
    cluster.add(make_pod("q", "4", priority=0))
    assert cluster.schedule() == {"q": "n1"}


def test_what_another_component_nominates_is_tried_first_and_what_it_takes_back_is_free() -> None:
    cluster = Cluster([make_node("n1", cpu=4), make_node("n2", cpu=8)])
    held = make_pod("p", "2", priority=10, spec={"schedulingGates": [{"name": "example.com/a"}]})
    cluster.add(held)
    cluster.schedule()
    assert cluster.evaluate(make_pod("q", "4")).feasible.tolist() == [True, True]

    def say(node: str) -> None:
        pod = cluster.api.get(Pod, "default/p")
        assert pod is not None
        cluster.api.update(replace(pod, status=replace(pod.status, nominated_node_name=node)))
        cluster.schedule()

    say("n1")
    assert cluster.evaluate(make_pod("q", "4")).feasible.tolist() == [False, True]
    say("")
    assert cluster.evaluate(make_pod("q", "4")).feasible.tolist() == [True, True]
