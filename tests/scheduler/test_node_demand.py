"""Which pending pods autoscalers add nodes for: the reasons of PodScheduled conditions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bayplan.api import ApiObject, Pod
from bayplan.cluster.protocol import Event
from bayplan.testing import Cluster, make_gang, make_node, make_object, make_pod

LACKS_NODES = "Unschedulable"
NOT_READY = "NotReadyForScheduling"
SMALL = make_node("small", cpu=8)
SLOW = {"terminationGracePeriodSeconds": 60}
BIG = make_node("big", cpu=8, gpu=8)


def queue(name: str, **data: str) -> ApiObject:
    meta = {"name": name, "namespace": "queues", "labels": {"bayplan.dev/queue": name}}
    return make_object({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data})


def limited(name: str, gpus: int, **more: str) -> ApiObject:
    return queue(name, maxCapacity=f"{{nvidia.com/gpu: {gpus}}}", **more)


def gpu_pod(name: str, queue: str = "lab", gpus: int = 8, **more: Any) -> Pod:
    return make_pod(name, "1", None, labels={"bayplan.dev/queue": queue}, gpu=gpus, **more)


def run(*objects: ApiObject) -> Cluster:
    cluster = Cluster(objects, plugins=["Queues"])
    cluster.schedule()
    return cluster


def reasons(cluster: Cluster) -> dict[str, str]:
    """Return the reason of each pending pod, "" for one without."""
    found = {}
    for pod in cluster.api.list(Pod):
        if not pod.spec.node_name:
            told = [c.reason for c in pod.status.conditions if c.type == "PodScheduled"]
            found[pod.metadata.name] = told[0] if told else ""
    return found


def test_what_a_full_queue_holds_back_asks_for_no_node() -> None:
    cluster = run(BIG, limited("lab", 8), gpu_pod("p1"), gpu_pod("p2"))
    assert reasons(cluster) == {"p2": NOT_READY}
    assert 'queue "lab": limit of nvidia.com/gpu exceeded' in cluster.message("p2")


def test_a_full_queue_is_the_reason_although_no_node_has_room_either() -> None:
    cluster = run(BIG, limited("lab", 8), gpu_pod("p1"), gpu_pod("p2", gpus=4), SMALL)
    assert reasons(cluster) == {"p2": NOT_READY}


def test_of_equal_pods_that_no_node_takes_as_many_ask_for_nodes_as_their_queue_would_take() -> None:
    pods = [gpu_pod(f"p{index}") for index in range(4)]
    cluster = run(SMALL, limited("lab", 16), *pods)
    expected = {"p0": LACKS_NODES, "p1": LACKS_NODES, "p2": NOT_READY, "p3": NOT_READY}
    assert reasons(cluster) == expected
    assert "did not fit" in cluster.message("p1")
    assert "More nodes alone would not help: queue" in cluster.message("p2")


def test_pods_of_different_needs_are_counted_together() -> None:
    cluster = run(SMALL, limited("lab", 8), gpu_pod("p1", gpus=6), gpu_pod("p2", gpus=4))
    assert reasons(cluster) == {"p1": LACKS_NODES, "p2": NOT_READY}


def test_queues_below_one_limit_are_counted_together() -> None:
    parent = limited("all", 8)
    children = [queue(name, parent="all") for name in ("a", "b")]
    pods = [gpu_pod("p1", "a"), gpu_pod("p2", "b")]
    assert sorted(reasons(run(SMALL, parent, *children, *pods)).values()) == [
        NOT_READY,
        LACKS_NODES,
    ]


def test_a_cluster_without_any_node_is_asked_for_what_the_queue_takes() -> None:
    cluster = run(limited("lab", 8), gpu_pod("p1"), gpu_pod("p2"))
    assert reasons(cluster) == {"p1": LACKS_NODES, "p2": NOT_READY}


def test_the_next_pod_asks_for_a_node_once_the_one_before_it_is_gone() -> None:
    cluster = run(SMALL, limited("lab", 8), gpu_pod("p1"), gpu_pod("p2"))
    cluster.remove("p1")
    cluster.advance(30.0)
    assert reasons(cluster) == {"p2": LACKS_NODES}
    assert "More nodes" not in cluster.message("p2")


def test_no_pod_asks_for_a_node_any_more_once_others_have_what_its_queue_had() -> None:
    cluster = run(make_node("n", cpu=8, gpu=4), limited("lab", 8), gpu_pod("p1"))
    assert reasons(cluster) == {"p1": LACKS_NODES}
    cluster.add(gpu_pod("p2", gpus=4))
    cluster.schedule()
    assert cluster.placements() == {"p2": "n"}
    assert reasons(cluster) == {"p1": NOT_READY}
    cluster.remove("p2")
    cluster.advance(30.0)
    assert reasons(cluster) == {"p1": LACKS_NODES}


def test_a_higher_limit_lets_more_pods_ask_for_nodes() -> None:
    cluster = run(SMALL, limited("lab", 8), gpu_pod("p1"), gpu_pod("p2"), gpu_pod("p3"))
    cluster.api.update(limited("lab", 16))
    cluster.advance(30.0)
    assert reasons(cluster) == {"p1": LACKS_NODES, "p2": LACKS_NODES, "p3": NOT_READY}


def test_the_nodes_that_are_added_are_used_and_no_more_are_asked_for() -> None:
    cluster = run(SMALL, limited("lab", 8), gpu_pod("p1"), gpu_pod("p2"))
    cluster.add(BIG)
    cluster.advance(30.0)
    assert cluster.placements() == {"p1": "big"}
    assert reasons(cluster) == {"p2": NOT_READY}


def test_without_a_limit_every_equal_pod_asks_for_a_node() -> None:
    pods = [gpu_pod(f"p{index}") for index in range(200)]
    assert set(reasons(run(SMALL, queue("lab"), *pods)).values()) == {LACKS_NODES}


def test_gangs_ask_for_nodes_as_far_as_their_queue_takes_them_whole() -> None:
    objects: list[ApiObject] = [SMALL, limited("lab", 40)]
    for job in ("a", "b", "c"):
        objects.append(make_gang(job, 2))
        objects += [gpu_pod(f"{job}{index}", gang=job) for index in range(2)]
    expected = dict.fromkeys(("a0", "a1", "b0", "b1"), LACKS_NODES)
    assert reasons(run(*objects)) == {**expected, "c0": NOT_READY, "c1": NOT_READY}


def test_members_of_a_gang_that_lacks_one_ask_for_no_node() -> None:
    members = [make_pod(f"p{index}", gang="job") for index in range(2)]
    cluster = run(SMALL, make_gang("job", 3), *members)
    assert reasons(cluster) == {"p0": NOT_READY, "p1": NOT_READY}
    told = [one for one in cluster.api.list(Pod) if "members" in cluster.message(one.key)]
    assert len(told) == 2


def test_a_pod_with_a_scheduling_gate_keeps_the_reason_of_the_api_server() -> None:
    gated = make_pod("p", spec={"schedulingGates": [{"name": "example.com/hold"}]})
    assert set(reasons(run(SMALL, gated)).values()) == {"SchedulingGated"}


def test_what_waits_for_evicted_pods_to_end_asks_for_no_node() -> None:
    held = [gpu_pod(f"r{index}", "lent", 1, node="big", spec=SLOW) for index in range(8)]
    cluster = run(
        BIG,
        queue("lent"),
        queue("lab", guaranteedCapacity="{nvidia.com/gpu: 8}"),
        *held,
        gpu_pod("p"),
    )
    pod = cluster.api.get(Pod, "default/p")
    assert pod is not None
    assert pod.status.nominated_node_name == "big"
    assert reasons(cluster)["p"] == NOT_READY


def test_a_plain_pod_that_preempts_keeps_the_reason_of_kube_scheduler() -> None:
    victim = make_pod("v", "6", node="small", priority=0, spec=SLOW)
    cluster = run(SMALL, victim, make_pod("p", "6", priority=10))
    assert reasons(cluster) == {"p": LACKS_NODES}
    pod = cluster.api.get(Pod, "default/p")
    assert pod is not None
    assert pod.status.nominated_node_name == "small"


def test_events_say_what_conditions_say() -> None:
    events: list[Event] = []
    cluster = Cluster(plugins=["Queues"])
    submit: Callable[..., None] = cluster.api.submit

    def noted(write: object, *rest: Any) -> None:
        if isinstance(write, Event) and write.reason == "FailedScheduling":
            events.append(write)
        submit(write, *rest)

    cluster.api.submit = noted  # type: ignore[method-assign, assignment]
    cluster.add(SMALL, limited("lab", 8), gpu_pod("p1"), gpu_pod("p2"))
    cluster.schedule()
    for pod in ("p1", "p2"):
        told = [one.message for one in events if one.pod == f"default/{pod}"]
        assert told[-1] == cluster.message(pod) == cluster.decision(pod).message
