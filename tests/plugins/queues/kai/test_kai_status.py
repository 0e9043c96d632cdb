"""What KAI's objects say: why pod groups wait, and whether queues are beyond their quota."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from msgspec.structs import replace

from bayplan.api import ApiObject, KaiPodGroup, KaiQueue, Pod, Quantity
from bayplan.api.gang import Gang
from bayplan.api.pod import SchedulingGate
from bayplan.api.podgroup import SchedulingCondition
from bayplan.api.queue_objects import KaiQueueCondition
from bayplan.cluster.protocol import Event
from bayplan.snapshot import PodInfo
from bayplan.testing import Cluster, make_node, make_object, make_pod
from bayplan_plugins.queues.kai import jobs, stale
from bayplan_plugins.queues.kai.jobs import Part

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
    assert why.message == (
        "top quota has reached the allowable limit of GPUs. "
        "Limit is 3 GPUs, currently 0 GPUs allocated and workload requested 4 GPUs"
    )
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
    assert why.message == (
        "Non-preemptible workload is over quota. Workload requested 3 GPUs, but a quota is 2 GPUs, "
        "while 0 GPUs are already allocated for non-preemptible pods. "
        "Use a preemptible workload to go over quota."
    )
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


def test_cores_and_gigabytes_beyond_a_limit_are_named_in_kais_units() -> None:
    bounds = {"cpu": {"limit": 2500, "quota": -1}, "memory": {"limit": 1500, "quota": -1}}
    spec = {"displayName": "Team A", "resources": {**bounds, "gpu": {"limit": -1, "quota": -1}}}
    queue_a = {"apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": {"name": "a"}}
    cluster = Cluster([make_node("n"), make_object({**queue_a, "spec": spec})])
    said = []
    for name, cpu, memory in (("g", "3", "1G"), ("h", "1", "2000200300")):
        pod = make_pod(f"{name}-0", cpu, memory, annotations={"pod-group-name": name})
        cluster.add(group(name, 1), pod)
        cluster.schedule()
        (one,) = conditions(cluster, name)
        said.append(one.reasons[0].message)
    assert said == [
        "Team A quota has reached the allowable limit of CPU cores. "
        "Limit is 2.5 cores, currently 0 cores allocated and workload requested 3 cores",
        "Team A quota has reached the allowable limit of memory. "
        "Limit is 1.5 GB, currently 0 GB allocated and workload requested 2 GB",
    ]


def told(cluster: Cluster, name: str) -> list[tuple[str, str]]:
    found = [event for _, event in cluster.api.events if event.pod == f"default/{name}"]
    return [(one.reason, one.message) for one in found if one.about == "PodGroup"]


def test_a_group_that_lacks_pods_says_how_many_exist_and_are_gated() -> None:
    cluster = Cluster([make_node("n", gpu=4), queue("a")])
    cluster.add(group("g", 3), *members("g", 1), gated("g", 1))
    cluster.schedule()
    cluster.add(*members("g", 1, first=2))
    cluster.advance(60)
    start = "Job is not ready for scheduling. Waiting for 3 pods, currently"
    assert told(cluster, "g") == [
        ("NotReady", f"{start} 2 exist, 1 are gated"),
        ("NotReady", f"{start} 3 exist, 1 are gated"),
    ]
    assert conditions(cluster, "g") == ()
    cluster.add(*members("g", 1, first=3))
    assert len(cluster.advance(60)) == 3


def gated(group: str, index: int) -> Pod:
    (pod,) = members(group, 1, first=index)
    return replace(pod, spec=replace(pod.spec, scheduling_gates=(SchedulingGate("hold"),)))


def test_a_gang_behind_gates_keeps_no_like_gang_waiting_and_starts_once_they_open() -> None:
    cluster = Cluster([make_node("n", gpu=4), queue("a"), queue("b")])
    cluster.add(group("g", 2), *members("g", 1), gated("g", 1))
    cluster.schedule()
    cluster.add(group("h", 2, queue="b"), *members("h", 2))
    assert set(cluster.schedule()) == {"h-0", "h-1"}
    (pod,) = members("g", 1, first=1)
    found = cluster.api.get(Pod, "default/g-1")
    assert found is not None
    cluster.api.update(replace(found, spec=pod.spec))
    assert set(cluster.schedule()) >= {"g-0", "g-1"}


def subgroup(name: str, least: int, parent: str = "") -> dict[str, object]:
    return {"name": name, "minMember": least, **({"parent": parent} if parent else {})}


def of_subgroup(group: str, name: str, count: int) -> list[Pod]:
    labels = {"kai.scheduler/subgroup-name": name}
    note = {"pod-group-name": group}
    names = [f"{group}-{name}-{index}" for index in range(count)]
    return [make_pod(one, None, None, annotations=note, labels=labels, gpu=1) for one in names]


def test_each_subgroup_that_lacks_pods_is_named_unless_enough_others_are_ready() -> None:
    cluster = Cluster([make_node("n", gpu=8), queue("a")])
    parts = [subgroup("head", 1), subgroup("left", 2), subgroup("right", 2)]
    cluster.add(group("all", 1, subGroups=parts), *of_subgroup("all", "left", 1))
    cluster.add(group("two", 1, subGroups=parts, minSubGroup=2))
    cluster.add(*of_subgroup("two", "head", 1), *of_subgroup("two", "left", 2))
    cluster.schedule()
    assert told(cluster, "all") == [
        (
            "NotReady",
            "Job is not ready for scheduling. "
            "Waiting for 1 pods for SubGroup head, currently 0 exist, 0 are gated. "
            "Waiting for 2 pods for SubGroup left, currently 1 exist, 0 are gated. "
            "Waiting for 2 pods for SubGroup right, currently 0 exist, 0 are gated.",
        )
    ]
    assert told(cluster, "two") == []


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
    stale = ("StaleJob", "Job is stale. 1 pods are active, minMember is 2")
    assert told(cluster, "g") == [stale]
    cluster.add(*members("g", 1))
    cluster.advance(60)
    assert annotation(cluster, "g", "stale-podgroup-timestamp") is None


def test_groups_that_did_not_change_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def whole_of(gang: Gang | None, *pods: Iterable[PodInfo]) -> Part:
        seen.append(gang.key if gang is not None else "")
        return jobs.whole_of(gang, *pods)

    monkeypatch.setattr(stale, "whole_of", whole_of)
    cluster = Cluster([make_node("n", gpu=8), queue("a", 8)])
    for name in ("g", "h", "i"):
        cluster.add(group(name, 2), *members(name, 2))
    cluster.schedule()
    assert set(seen) == {"default/g", "default/h", "default/i"}
    seen.clear()

    cluster.remove("h-0")
    cluster.schedule()
    assert set(seen) == {"default/h"}


def test_a_stale_group_names_the_subgroups_that_lack_pods() -> None:
    cluster = Cluster([make_node("n", gpu=8), queue("a")])
    parts = [subgroup("head", 1), subgroup("left", 2)]
    cluster.add(group("g", 1, subGroups=parts, stalenessGracePeriod="1h"))
    cluster.add(*of_subgroup("g", "head", 1), *of_subgroup("g", "left", 2))
    assert len(cluster.schedule()) == 3
    cluster.remove("g-left-0")
    cluster.schedule()
    assert told(cluster, "g") == [
        (
            "StaleJob",
            "Job is stale. 2 pods are active, minMember is 3, "
            "subGroup left minMember is 2 and 1 pods are active",
        )
    ]


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


def test_a_claim_that_two_jobs_share_counts_once_and_for_the_one_that_is_left() -> None:
    exactly = {"deviceClassName": "gpu.nvidia.com", "count": 3}
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "c", "namespace": "default", "labels": {"kai.scheduler/queue": "a"}},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}},
    }
    cluster = Cluster([make_node("n", gpu=4), queue("a"), make_object(claim)])
    labels = {"kai.scheduler/queue": "a"}
    named = {"resourceClaims": [{"name": "c", "resourceClaimName": "c"}]}
    for name in ("first", "second"):
        cluster.add(make_pod(name, None, None, node="n", labels=labels, spec=named))
    for gone, amount in ((None, 3), ("first", 3), ("second", 0)):
        if gone is not None:
            cluster.remove(gone)
        cluster.advance(1)
        found = cluster.api.get(KaiQueue, "a")
        assert found is not None
        assert found.status.allocated.get(GPU, Quantity("0")) == Quantity(str(amount))
        assert found.status.requested == found.status.allocated


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


def asked_of(cluster: Cluster, name: str) -> str:
    found = cluster.api.get(KaiQueue, name)
    assert found is not None
    return found.status.requested[GPU].text


def test_a_queue_asks_for_less_once_a_pod_that_waited_is_gone() -> None:
    cluster = Cluster([make_node("n", gpu=1), queue("a")])
    labels = {"kai.scheduler/queue": "a"}
    cluster.add(*(make_pod(name, None, None, labels=labels, gpu=1) for name in ("g", "h")))
    cluster.schedule()
    assert asked_of(cluster, "a") == "2"
    cluster.remove(next(name for name in ("g", "h") if name not in cluster.placements()))
    cluster.schedule()
    assert asked_of(cluster, "a") == "1"
