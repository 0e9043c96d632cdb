"""Kueue's metrics: all of its names, what they count, and when their series go."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from tests.live.stage import stage
from tests.plugins.queues.kueue.kueue_builders import (
    cluster_queue,
    cohort,
    flavor,
    local_queue,
    workload,
)

from bayplan.api import ClusterQueue, KueueWorkload
from bayplan.api.kueue import KueueWorkloadStatus
from bayplan.api.objects import decode_part
from bayplan.live.gauges import Gauges
from bayplan.live.kueue_gauges import KueueGauges
from bayplan.live.kueue_metrics import KueueMetrics
from bayplan.snapshot import Snapshot
from bayplan.testing import make_node, make_object

BY_QUEUE_AND_LOCAL_QUEUE = """
admission_checks_wait_time_seconds admission_wait_time_seconds admitted_active_workloads
admitted_until_ready_wait_time_seconds admitted_workloads evicted_workloads execution_time_seconds
finished_workloads pending_workloads quota_reserved_wait_time_seconds quota_reserved_workloads
ready_wait_time_seconds reserving_active_workloads
"""
"""Kueue has these for a ClusterQueue and, with ``local_queue_`` before them, for a LocalQueue."""
OTHERS = """
admission_attempt_duration_seconds admission_attempts admission_cycle_preemption_skips build_info
cluster_queue_borrowing_limit cluster_queue_info cluster_queue_lending_limit
cluster_queue_nominal_quota cluster_queue_resource_pending cluster_queue_resource_reservation
cluster_queue_resource_usage cluster_queue_status cohort_info
cohort_subtree_admitted_active_workloads cohort_subtree_admitted_workloads cohort_subtree_quota
cohort_subtree_resource_reservations evicted_workloads_once
local_queue_resource_reservation local_queue_resource_usage local_queue_status
pending_scheduling_hashes pod_scheduling_gate_removal_seconds pods_ready_to_evicted_time_seconds
preempted_workloads preemption_target_recomputations replaced_workload_slices
workload_creation_latency_seconds workload_eviction_latency_seconds
"""
"""The others, without those of fair sharing."""

RESERVED, ADMITTED, EVICTED = "QuotaReserved", "Admitted", "Evicted"


def with_status(
    one: KueueWorkload, reasons: dict[str, str] | None = None, /, **stated: Any
) -> KueueWorkload:
    """Return a Workload of ClusterQueue q; each condition is true since a minute after it came."""
    conditions = [
        {
            "type": kind,
            "status": "True",
            "reason": (reasons or {}).get(kind, kind),
            "lastTransitionTime": f"2025-06-15T15:{6 + minute:02d}:40Z",
            "message": stated.get("message", ""),
        }
        for kind, minute in stated.items()
        if kind[0].isupper()
    ]
    admission = {"clusterQueue": "q"} if RESERVED in stated else None
    more = {name: stated[name] for name in ("schedulingStats",) if name in stated}
    content = {"conditions": conditions, "admission": admission, **more}
    return decode_part(
        KueueWorkload,
        {
            "metadata": {
                "name": one.metadata.name,
                "namespace": "default",
                "creationTimestamp": "2025-06-15T15:06:40Z",
            },
            "spec": {"queueName": "l", "priorityClassRef": {"name": "gold"}},
            "status": content,
        },
    )


class Followed:
    """What the metrics say after changes of one Workload of queue q, in cohorts a and root."""

    def __init__(self, *states: KueueWorkload) -> None:
        self.registry, self.snapshot = CollectorRegistry(), Snapshot()
        for name, parent in (("a", "root"), ("root", "")):
            self.snapshot.set_object(name, cohort(name, parent))
        self.snapshot.set_object("q", cluster_queue("q", {}, cohort="a"))
        self.snapshot.set_object("default/l", local_queue("l", "q"))
        KueueMetrics(self.registry).watch(self.snapshot)
        for state in states:
            self.snapshot.set_object("default/w", state)

    def value(self, name: str, **more: str) -> float | None:
        labels = {"cluster_queue": "q", "priority_class": "gold", **more}
        return self.registry.get_sample_value(f"kueue_{name}", labels)

    def local(self, name: str, **more: str) -> float | None:
        labels = {"name": "l", "namespace": "default", "priority_class": "gold", **more}
        return self.registry.get_sample_value(f"kueue_local_queue_{name}", labels)


W = workload("w", "l")


def test_admissions_are_counted_with_their_waits_for_queues_local_queues_and_cohorts() -> None:
    found = Followed(
        with_status(W),
        with_status(W, QuotaReserved=5),
        with_status(W, QuotaReserved=5, Admitted=7),
        with_status(W, Evicted=20),
        with_status(W, Evicted=20, QuotaReserved=30, Admitted=30),
    )
    for value in (found.value, found.local):
        assert value("admitted_workloads_total") == 2
        assert value("quota_reserved_workloads_total") == 2
        assert value("admission_wait_time_seconds_sum") == 60 * (7 + 10)
        assert value("quota_reserved_wait_time_seconds_sum") == 60 * (5 + 10)
        assert value("admission_checks_wait_time_seconds_sum") == 60 * 2
    for name in ("a", "root"):
        labels = {"cohort": name, "priority_class": "gold"}
        counted = "kueue_cohort_subtree_admitted_workloads_total"
        assert found.registry.get_sample_value(counted, labels) == 2


def test_evictions_are_counted_by_reason_and_cause_and_each_workload_once() -> None:
    def evicted(count: int, minute: int, **more: int) -> KueueWorkload:
        why = {"reason": "Deactivated", "underlyingCause": "AdmissionCheck", "count": count}
        stats = {"evictions": [why]} if count else {}
        return with_status(W, schedulingStats=stats, Evicted=minute, PodsReady=2, **more)

    running = with_status(W, QuotaReserved=1, Admitted=1, PodsReady=2)
    found = Followed(
        running,
        evicted(1, 5, QuotaReserved=1, Admitted=1),
        evicted(2, 9, QuotaReserved=1, Admitted=1),
    )
    labels = {"reason": "Deactivated", "underlying_cause": "AdmissionCheck"}
    assert found.value("evicted_workloads_total", **labels) == 2
    assert found.local("evicted_workloads_total", **labels) == 2
    assert found.value("evicted_workloads_once_total", **labels) == 1
    ran = {"cluster_queue": "q", **labels}
    total = "kueue_pods_ready_to_evicted_time_seconds_sum"
    assert found.registry.get_sample_value(total, ran) == 60 * (3 + 7)


def test_without_counts_in_the_status_the_condition_tells_of_an_eviction() -> None:
    reasons = {EVICTED: "DeactivatedDueToRequeuingLimitExceeded"}
    found = Followed(
        with_status(W, QuotaReserved=1, Admitted=1),
        with_status(W, reasons, QuotaReserved=1, Admitted=1, Evicted=3),
        with_status(W, reasons, Evicted=3, Requeued=4),
    )
    labels = {"reason": "Deactivated", "underlying_cause": "RequeuingLimitExceeded"}
    assert found.value("evicted_workloads_total", **labels) == 1
    of = {"cluster_queue": "q", "reason": "Deactivated"}
    latency = "kueue_workload_eviction_latency_seconds_sum"
    assert found.registry.get_sample_value(latency, of) == 60


def test_a_preemption_counts_for_the_queue_that_preempts() -> None:
    text = (
        "Preempted to accommodate a workload (UID: u, JobUID: j) due to reclamation within the "
        "cohort; preemptor path: /root/a/high; preemptee path: /root/a/q"
    )
    found = Followed(
        with_status(W, QuotaReserved=1, Admitted=1),
        with_status(
            W,
            {"Preempted": "InCohortReclamation"},
            QuotaReserved=1,
            Admitted=1,
            Preempted=2,
            message=text,
        ),
    )
    labels = {"preempting_cluster_queue": "high", "reason": "InCohortReclamation"}
    counted = "kueue_preempted_workloads_total"
    assert found.registry.get_sample_value(counted, labels) == 1


def test_starts_and_ends_are_timed() -> None:
    reasons = {"PodsReady": "Started", "Finished": "WorkloadSliceReplaced"}
    found = Followed(
        with_status(W, QuotaReserved=1, Admitted=1),
        with_status(W, reasons, QuotaReserved=1, Admitted=1, PodsReady=4),
        with_status(W, reasons, QuotaReserved=1, Admitted=1, PodsReady=4, Finished=9),
    )
    for value in (found.value, found.local):
        assert value("ready_wait_time_seconds_sum") == 60 * 4
        assert value("admitted_until_ready_wait_time_seconds_sum") == 60 * 3
        assert value("finished_workloads_total") == 1
        assert value("execution_time_seconds_sum") == 60 * 8
    replaced = "kueue_replaced_workload_slices_total"
    assert found.registry.get_sample_value(replaced, {"cluster_queue": "q"}) == 1


def test_what_was_counted_of_a_queue_goes_with_it() -> None:
    found = Followed(with_status(W), with_status(W, QuotaReserved=5, Admitted=7))
    found.snapshot.delete_object("q", cluster_queue("q", {}))
    assert found.value("admitted_workloads_total") is None
    assert found.value("admission_wait_time_seconds_sum") is None
    assert found.local("admitted_workloads_total") == 1
    found.snapshot.delete_object("default/l", local_queue("l", "q"))
    assert "kueue_local_queue_admitted_workloads" not in generate_latest(found.registry).decode()


# Gauges ----------------------------------------------------------------------------------


def gauges(snapshot: Snapshot) -> dict[str, float]:
    """The samples as Prometheus writes them, with sorted labels."""
    made = Gauges()
    KueueGauges().add(made, snapshot)
    found = {}
    for family in made.families():
        for sample in family.samples:
            labels = ",".join(f"{name}={sample.labels[name]}" for name in sorted(sample.labels))
            found[f"{sample.name.removeprefix('kueue_')}{{{labels}}}"] = sample.value
    return found


def queue(strategy: str = "BestEffortFIFO", active: str = "True") -> ClusterQueue:
    made = cluster_queue(
        "q", {"spot": {"cpu": (2, 1, None)}}, cohort="a", queueingStrategy=strategy
    )
    status = {
        "conditions": [{"type": "Active", "status": active, "reason": "R", "message": ""}],
        "flavorsReservation": [{"name": "spot", "resources": [{"name": "cpu", "total": "1500m"}]}],
        "flavorsUsage": [{"name": "spot", "resources": [{"name": "cpu", "total": "500m"}]}],
        "reservingWorkloads": 3,
        "admittedWorkloads": 1,
        "fairSharing": {"weightedShare": 250},
    }
    content = {"metadata": {"name": "q"}, "status": status}
    decoded = decode_part(ClusterQueue, {**content, "spec": {}})
    return msgspec.structs.replace(made, status=decoded.status)


def test_a_cluster_queues_state_is_that_of_its_object() -> None:
    snapshot = Snapshot()
    snapshot.set_object("q", queue())
    snapshot.set_object("a", cohort("a", "root", {"spot": {"cpu": (4, None, 3)}}))
    found = gauges(snapshot)
    of = "{cluster_queue=q,cohort=a,flavor=spot,resource=cpu}"
    assert found[f"cluster_queue_resource_reservation{of}"] == 1.5
    assert found[f"cluster_queue_resource_usage{of}"] == 0.5
    assert found[f"cluster_queue_nominal_quota{of}"] == 2
    assert found[f"cluster_queue_borrowing_limit{of}"] == 1
    assert found[f"cluster_queue_lending_limit{of}"] == float("inf")
    assert found["reserving_active_workloads{cluster_queue=q}"] == 3
    assert found["admitted_active_workloads{cluster_queue=q}"] == 1
    assert found["cluster_queue_status{cluster_queue=q,status=active}"] == 1
    assert found["cluster_queue_status{cluster_queue=q,status=pending}"] == 0
    assert found["cluster_queue_info{cluster_queue=q,parent_cohort=a,root_cohort=root}"] == 1
    assert found["cluster_queue_weighted_share{cluster_queue=q,cohort=a}"] == 250
    # The cohort has 4 of its own and 2 of the queue, of which it lends 3.
    assert found["cohort_subtree_quota{cohort=a,flavor=spot,resource=cpu}"] == 6
    assert found["cohort_subtree_quota{cohort=root,flavor=spot,resource=cpu}"] == 3
    reserved = "{cohort=root,flavor=spot,resource=cpu}"
    assert found[f"cohort_subtree_resource_reservations{reserved}"] == 1.5
    assert found["cohort_subtree_admitted_active_workloads{cohort=root}"] == 1
    assert found["cohort_info{cohort=a,parent_cohort=root,root_cohort=root}"] == 1
    assert found["cohort_info{cohort=root,parent_cohort=,root_cohort=root}"] == 1


def test_cohorts_that_contain_themselves_are_shown() -> None:
    snapshot = Snapshot()
    snapshot.set_object("q", queue())
    snapshot.set_object("a", cohort("a", "b"))
    snapshot.set_object("b", cohort("b", "a"))
    found = gauges(snapshot)
    assert found["cohort_info{cohort=a,parent_cohort=b,root_cohort=a}"] == 1


@pytest.mark.parametrize(
    ("strategy", "active", "waits_as"),
    [
        ("BestEffortFIFO", "True", "inadmissible"),
        ("StrictFIFO", "True", "active"),
        ("StrictFIFO", "False", "inadmissible"),
    ],
)
def test_a_workload_that_was_tried_is_inadmissible_until_something_changes(
    strategy: str, active: str, waits_as: str
) -> None:
    snapshot = Snapshot()
    snapshot.set_object("q", queue(strategy, active))
    snapshot.set_object("default/l", local_queue("l", "q"))
    refused = {
        "conditions": [
            {
                "type": "QuotaReserved",
                "status": "False",
                "reason": "WaitingForQuota",
                "message": "",
            }
        ]
    }
    one = workload("w", "l", {"cpu": 3}, count=2)
    one = msgspec.structs.replace(one, status=decode_part(KueueWorkloadStatus, refused))
    snapshot.set_object("default/w", one)
    snapshot.set_object("default/v", workload("v", "other"))
    found = gauges(snapshot)
    other = {"active": "inadmissible", "inadmissible": "active"}[waits_as]
    for labels, name in (
        ("cluster_queue=q", "pending_workloads"),
        ("cluster_queue=q", "pending_scheduling_hashes"),
        ("name=l,namespace=default", "local_queue_pending_workloads"),
    ):
        assert found[f"{name}{{{labels},status={waits_as}}}"] == 1
        assert found[f"{name}{{{labels},status={other}}}"] == 0
    assert found["cluster_queue_resource_pending{cluster_queue=q,resource=cpu}"] == 6


def test_a_local_queue_without_its_cluster_queue_shows_only_what_waits() -> None:
    snapshot = Snapshot()
    snapshot.set_object("default/l", local_queue("l", "q"))
    found = gauges(snapshot)
    of = "name=l,namespace=default"
    assert found[f"local_queue_pending_workloads{{{of},status=inadmissible}}"] == 0
    assert found[f"local_queue_status{{active=Unknown,{of}}}"] == 1
    assert f"local_queue_reserving_active_workloads{{{of}}}" not in found


# A live scheduler ------------------------------------------------------------------------


def job(name: str, cpu: int) -> Any:
    containers = [{"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}]
    labels = {"kueue.x-k8s.io/queue-name": "l"}
    return make_object(
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name, "namespace": "default", "labels": labels},
            "spec": {
                "suspend": True,
                "template": {"spec": {"containers": containers, "restartPolicy": "Never"}},
            },
        }
    )


async def test_a_live_scheduler_exports_all_of_kueues_metrics() -> None:
    queues = [
        flavor("spot"),
        cluster_queue("q", {"spot": {"cpu": 4}}, cohort="a"),
        local_queue("l", "q"),
    ]
    before = REGISTRY.get_sample_value("kueue_admission_attempts_total", {"result": "success"})
    async with stage([make_node("n", cpu=8), *queues]) as made:
        registry = CollectorRegistry()
        await made.start(registry=registry)
        made.create(job("first", 3), job("second", 3))
        await made.run_out(until=60)
        names = set(registry._names_to_collectors) | set(REGISTRY._names_to_collectors)
        names |= {family.name for family in registry.collect()}
        both = BY_QUEUE_AND_LOCAL_QUEUE.split()
        wanted = [*both, *(f"local_queue_{name}" for name in both), *OTHERS.split()]
        assert [name for name in wanted if f"kueue_{name}" not in names] == []

        def value(name: str, **labels: str) -> float | None:
            return registry.get_sample_value(f"kueue_{name}", {"cluster_queue": "q", **labels})

        assert value("admitted_workloads_total", priority_class="") == 1
        assert value("admitted_active_workloads") == 1
        assert value("pending_workloads", status="inadmissible") == 1
        assert value("pending_workloads", status="active") == 0
        assert value("cluster_queue_resource_pending", resource="cpu") == 3
    attempts = {"result": "success"}
    after = REGISTRY.get_sample_value("kueue_admission_attempts_total", attempts)
    assert after == (before or 0) + 1
    written = REGISTRY.get_sample_value(
        "kueue_workload_creation_latency_seconds_count", {"job_kind": "Job"}
    )
    assert written is not None
    assert written >= 2
