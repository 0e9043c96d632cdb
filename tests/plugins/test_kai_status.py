"""What KAI's objects say: why pod groups wait, and whether queues are beyond their quota."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from bayplan.api import ApiObject, KaiPodGroup, KaiQueue, Pod, Quantity
from bayplan.api.podgroup import SchedulingCondition
from bayplan.api.queue_objects import KaiQueueCondition
from bayplan.cluster.protocol import Event
from bayplan.testing import Cluster, make_node, make_object, make_pod

GPU = "nvidia.com/gpu"
START = "2000-01-01T00:00:00Z"
"""When the clock of the embedded cluster starts."""


def queue(name: str, quota: float = 2, limit: float = -1, parent: str = "") -> ApiObject:
    unlimited = {"quota": -1, "limit": -1, "overQuotaWeight": 1}
    gpu = {"quota": quota, "limit": limit, "overQuotaWeight": 1}
    spec = {"resources": {"gpu": gpu, "cpu": unlimited, "memory": unlimited}}
    return make_object(
        {
            "apiVersion": "scheduling.run.ai/v2",
            "kind": "Queue",
            "metadata": {"name": name},
            "spec": {**spec, **({"parentQueue": parent} if parent else {})},
        }
    )


def group(name: str, least: int, queue: str = "a", pool: str = "", **spec: Any) -> ApiObject:
    labels = {"kai.scheduler/node-pool": pool} if pool else {}
    return make_object(
        {
            "apiVersion": "scheduling.run.ai/v2alpha2",
            "kind": "PodGroup",
            "metadata": {
                "name": name,
                "namespace": "default",
                "labels": labels,
                "creationTimestamp": START,
            },
            "spec": {"minMember": least, "queue": queue, **spec},
        }
    )


def members(group: str, count: int, first: int = 0, gpu: int = 1) -> list[Pod]:
    annotations = {"pod-group-name": group}
    return [
        make_pod(f"{group}-{index}", None, None, annotations=annotations, gpu=gpu)
        for index in range(first, first + count)
    ]


def conditions(cluster: Cluster, name: str) -> tuple[SchedulingCondition, ...]:
    found = cluster.api.get(KaiPodGroup, f"default/{name}")
    assert found is not None
    return found.status.scheduling_conditions


def of_queue(cluster: Cluster, name: str) -> dict[str, KaiQueueCondition]:
    found = cluster.api.get(KaiQueue, name)
    assert found is not None
    return {one.type: one for one in found.status.conditions}


# Pod groups ------------------------------------------------------------------------------------


def test_a_group_beyond_a_limit_says_so_with_the_amounts_of_its_queue() -> None:
    cluster = Cluster([make_node("n", gpu=8), queue("top", limit=3), queue("a", parent="top")])
    cluster.add(group("g", 4), *members("g", 4))
    cluster.schedule()
    (one,) = conditions(cluster, "g")
    assert (one.type, one.node_pool) == ("UnschedulableOnNodePool", "default")
    assert (one.reason, one.status, one.transition_id) == ("Unschedulable", "True", "1")
    assert one.message == cluster.message("g-0")
    assert one.last_transition_time is not None
    (why,) = one.reasons
    assert why.reason == "OverLimit"
    assert "limit of nvidia.com/gpu exceeded" in why.message
    assert why.details is not None
    details = why.details.queue_details
    assert details is not None
    assert details.name == "top"
    assert details.queue_resource_limits == {GPU: Quantity("3")}
    assert details.queue_deserved_resources == {GPU: Quantity("2")}
    assert details.pod_group_requested_resources == {GPU: Quantity("4")}
    assert details.pod_group_requested_non_preemptible_resources == {}


def test_a_group_that_nothing_may_preempt_names_the_quota() -> None:
    cluster = Cluster([make_node("n", gpu=8), queue("a")])
    cluster.add(group("g", 3, preemptibility="non-preemptible"), *members("g", 3))
    cluster.schedule()
    (one,) = conditions(cluster, "g")
    (why,) = one.reasons
    assert why.reason == "NonPreemptibleOverQuota"
    assert why.details is not None
    assert why.details.queue_details is not None
    asked = why.details.queue_details.pod_group_requested_non_preemptible_resources
    assert asked == {GPU: Quantity("3")}


def test_a_group_without_room_and_one_without_a_queue() -> None:
    cluster = Cluster([make_node("n", gpu=2), queue("a")])
    cluster.add(group("g", 3, pool="fast"), *members("g", 3))
    cluster.add(group("h", 1, queue="none"), *members("h", 1))
    cluster.schedule()
    (one,), (other,) = conditions(cluster, "g"), conditions(cluster, "h")
    assert [why.reason for why in one.reasons] == ["PodSchedulingErrors"]
    assert one.node_pool == "fast"
    assert [why.reason for why in other.reasons] == ["QueueDoesNotExist"]
    assert other.message == 'waiting for Queue "none", which does not exist'


def test_a_group_that_may_not_evict_yet_says_so() -> None:
    cluster = Cluster([make_node("n", gpu=2), queue("a"), queue("b", quota=0)])
    cluster.add(group("old", 2, queue="b"), *members("old", 2))
    assert len(cluster.schedule()) == 2
    cluster.add(group("g", 2, preemptionDelay="1h"), *members("g", 2))
    cluster.schedule()
    (one,) = conditions(cluster, "g")
    assert [why.reason for why in one.reasons] == ["PreemptionDelayNotElapsed"]


def test_the_number_of_a_condition_grows_with_each_reason_and_not_without_one() -> None:
    cluster = Cluster([make_node("n", gpu=2), queue("a", limit=4)])
    cluster.add(group("g", 3), *members("g", 3))
    cluster.schedule()
    before = conditions(cluster, "g")
    cluster.add(make_node("other"))
    cluster.advance(60)
    (after,) = conditions(cluster, "g")
    assert before[0].transition_id == "1"
    assert after.transition_id == "2"
    cluster.advance(60)
    assert conditions(cluster, "g") == (after,)


def test_a_condition_goes_when_all_members_are_bound_and_none_comes_while_any_is() -> None:
    cluster = Cluster([make_node("n", gpu=2), queue("a")])
    cluster.add(group("g", 2), *members("g", 2, gpu=2))
    cluster.schedule()
    assert len(conditions(cluster, "g")) == 1
    cluster.add(make_node("other", gpu=2))
    assert len(cluster.advance(60)) == 2
    assert conditions(cluster, "g") == ()
    cluster.add(*members("g", 1, first=2))
    cluster.schedule()
    assert conditions(cluster, "g") == ()


def test_a_group_that_lacks_members_has_no_condition() -> None:
    cluster = Cluster([make_node("n", gpu=2), queue("a")])
    cluster.add(group("g", 3), *members("g", 2))
    cluster.schedule()
    assert conditions(cluster, "g") == ()


def annotation(cluster: Cluster, name: str, key: str) -> str | None:
    found = cluster.api.get(KaiPodGroup, f"default/{name}")
    assert found is not None
    return found.metadata.annotations.get(f"kai.scheduler/{key}")


def test_a_group_says_when_it_started_and_so_again_once_it_has_new_pods() -> None:
    cluster = Cluster([make_node("n", gpu=4), queue("a")])
    cluster.add(group("g", 2), *members("g", 2))
    cluster.schedule()
    assert annotation(cluster, "g", "last-start-timestamp") == START
    cluster.advance(60)
    cluster.add(*members("g", 1, first=2))
    cluster.advance(60)
    assert annotation(cluster, "g", "last-start-timestamp") == START
    for index in range(3):
        cluster.remove(f"g-{index}")
    cluster.schedule()
    assert annotation(cluster, "g", "last-start-timestamp") == START
    cluster.add(*members("g", 2, first=3))
    cluster.schedule()
    assert annotation(cluster, "g", "last-start-timestamp") == "2000-01-01T00:02:00Z"


def test_a_group_below_its_minimum_says_since_when_until_it_is_whole_again() -> None:
    cluster = Cluster([make_node("n", gpu=4), queue("a")])
    cluster.add(group("g", 2, stalenessGracePeriod="1h"), *members("g", 2))
    cluster.schedule()
    assert annotation(cluster, "g", "stale-podgroup-timestamp") is None
    cluster.advance(60)
    cluster.remove("g-0")
    cluster.schedule()
    assert annotation(cluster, "g", "stale-podgroup-timestamp") == "2000-01-01T00:01:00Z"
    cluster.advance(60)
    assert annotation(cluster, "g", "stale-podgroup-timestamp") == "2000-01-01T00:01:00Z"
    cluster.add(*members("g", 1))
    cluster.advance(60)
    assert annotation(cluster, "g", "stale-podgroup-timestamp") is None


# Queues ----------------------------------------------------------------------------------------


def test_a_queue_with_more_than_its_quota_says_so_until_it_has_not() -> None:
    cluster = Cluster([make_node("n", gpu=4), queue("a")])
    cluster.add(group("g", 3), *members("g", 3))
    cluster.schedule()
    found = of_queue(cluster, "a")["OverQuota"]
    assert (found.status, found.message) == ("True", "it has 3 of nvidia.com/gpu, its quota is 2")
    cluster.remove("g-2")
    cluster.advance(1)
    assert of_queue(cluster, "a")["OverQuota"].status == "False"


def test_a_queue_without_its_parent_is_an_orphan() -> None:
    cluster = Cluster([make_node("n"), queue("a", parent="top")])
    cluster.schedule()
    found = of_queue(cluster, "a")["Orphan"]
    assert (found.status, found.reason) == ("True", "ParentNotFound")
    cluster.add(queue("top"))
    cluster.advance(1)
    assert of_queue(cluster, "a")["Orphan"].status == "False"


def test_conditions_of_other_programs_stay() -> None:
    cluster = Cluster([make_node("n", gpu=4), queue("a")])
    cluster.schedule()
    found = cluster.api.get(KaiQueue, "a")
    assert found is not None
    theirs = KaiQueueCondition("Mine", "True", "Said", last_transition_time="2000-01-01T00:00:00Z")
    status = replace(found.status, conditions=(*found.status.conditions, theirs))
    cluster.api.update(replace(found, status=status))
    cluster.add(group("g", 3), *members("g", 3))
    cluster.schedule()
    assert of_queue(cluster, "a")["Mine"] == theirs
    assert of_queue(cluster, "a")["OverQuota"].status == "True"


# Evictions -------------------------------------------------------------------------------------


def evictions(cluster: Cluster, name: str) -> list[Event]:
    about = (f"default/{name}", "PodGroup", "Evict")
    found = [event for _, event in cluster.api.events]
    return [event for event in found if (event.pod, event.about, event.reason) == about]


def test_a_group_whose_queue_gives_back_is_told_by_whom_and_why() -> None:
    queues = [
        queue("top"),
        queue("a", parent="top"),
        queue("other", 0),
        queue("b", 0, parent="other"),
    ]
    cluster = Cluster([make_node("n", gpu=2), *queues])
    cluster.add(group("old", 2, queue="b"), *members("old", 2))
    assert len(cluster.schedule()) == 2
    cluster.add(group("new", 2), *members("new", 2))
    cluster.advance(60)
    second, first = evictions(cluster, "old")
    lines = first.message.splitlines()
    no_more = "CPU: Unlimited (cores), memory: Unlimited (GB)"
    nothing = "CPU: 0 (cores), memory: 0 (GB)"
    assert lines == [
        "Pod default/old-0 was preempted by workload default/new.",
        f"other uses <GPU: 2, {nothing}> with a quota of <GPU: 0, {no_more}>, "
        f"fair-share of <GPU: 0, {nothing}> and queue priority of <100>.",
        f"top uses <GPU: 0, {nothing}> with a quota of <GPU: 2, {no_more}>, "
        f"fair-share of <GPU: 2, {nothing}> and queue priority of <100>.",
    ]
    assert first.annotations == second.annotations
    assert first.annotations == {
        "num-evicted-pods": "2",
        "evictor-action-type": "reclaim",
        "evictor-pod-group-name": "new",
        "evictor-pod-group-namespace": "default",
    }
    assert annotation(cluster, "old", "last-eviction-timestamp") == START


def test_a_group_that_gives_way_to_a_higher_priority_is_told_so() -> None:
    cluster = Cluster([make_node("n", gpu=2), queue("a")])
    cluster.add(group("old", 2), *members("old", 2))
    assert len(cluster.schedule()) == 2
    annotations = {"pod-group-name": "new"}
    cluster.add(group("new", 1))
    cluster.add(make_pod("new-0", None, None, annotations=annotations, gpu=2, priority=50))
    cluster.advance(60)
    found = sorted(event.message for event in evictions(cluster, "old"))
    start = "Pod default/old-{} was preempted by higher priority workload default/new"
    assert found == [start.format(0), start.format(1)]


def test_the_rest_of_a_stale_group_is_told_how_many_pods_it_lacks() -> None:
    cluster = Cluster([make_node("n", gpu=2), queue("a")])
    cluster.add(group("g", 2, stalenessGracePeriod="1m"), *members("g", 2))
    assert len(cluster.schedule()) == 2
    cluster.remove("g-0")
    cluster.advance(120)
    (found,) = evictions(cluster, "g")
    assert found.message == (
        "Workload doesn't meet the minimum required number of pods (2), "
        "evicting remaining pod: default/g-1"
    )
    assert found.annotations == {
        "num-evicted-pods": "1",
        "evictor-action-type": "stalegangeviction",
    }
