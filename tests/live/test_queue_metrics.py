"""Queues as metrics: bayplan's own names, and those of each system's dashboards."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from tests.live.queue_builders import queue
from tests.live.stage import stage

from bayplan.api import KueueWorkload
from bayplan.live.metrics import QUEUE_LABELS
from bayplan.live.peer_metrics import peer_metrics
from bayplan.live.queue_metrics import QueueMetrics
from bayplan.queues.report import QueueReport, ResourceReport
from bayplan.scheduler.queued_unit import Place
from bayplan.testing import Cluster, make_node, make_object, make_pod

INF = float("inf")


def report(system: str, name: str, resources: Mapping[str, ResourceReport], **more: object):
    given = {"policy": "", "parent": "", "state": "Open", "priority": 0, "weight": 2.0}
    given |= {"share": 0.5, "waiting": 3, "running": 1, **more}
    return QueueReport(system=system, name=name, resources=resources, **given)  # type: ignore[arg-type]


def amounts(**given: float) -> ResourceReport:
    zeros = dict.fromkeys(
        ("deserved", "guaranteed", "fair", "used", "fixed", "demand", "borrowed", "lent"), 0.0
    )
    return ResourceReport(**{**zeros, "limit": INF, **given})


def values(*reports: QueueReport) -> dict[str, float]:
    """The samples of some reports as Prometheus writes them: name{label="value"}."""
    found = {}
    for family in peer_metrics(Cluster().scheduler, reports):
        assert isinstance(family, GaugeMetricFamily)
        for sample in family.samples:
            labels = ",".join(f'{name}="{value}"' for name, value in sample.labels.items())
            found[f"{sample.name}{{{labels}}}"] = sample.value
    return found


def test_volcano_dashboards_find_queues_under_their_names() -> None:
    resources = {
        "cpu": amounts(used=3000, fair=2000, demand=4000, limit=8000),
        "memory": amounts(used=1e9),
        "nvidia.com/gpu": amounts(fair=8),
    }
    found = values(report("volcano", "q", resources))
    assert found['volcano_queue_allocated_milli_cpu{queue_name="q"}'] == 3000
    assert found['volcano_queue_request_milli_cpu{queue_name="q"}'] == 4000
    assert found['volcano_queue_deserved_milli_cpu{queue_name="q"}'] == 2000
    assert found['volcano_queue_capacity_milli_cpu{queue_name="q"}'] == 8000
    assert found['volcano_queue_allocated_memory_bytes{queue_name="q"}'] == 1e9
    assert 'volcano_queue_capacity_memory_bytes{queue_name="q"}' not in found
    gpus = 'volcano_queue_deserved_scalar_resources{queue_name="q",resource="nvidia.com/gpu"}'
    assert found[gpus] == 8
    assert found['volcano_queue_share{queue_name="q"}'] == 0.5
    assert found['volcano_queue_weight{queue_name="q"}'] == 2
    assert found['volcano_queue_overused{queue_name="q"}'] == 1
    assert found['volcano_queue_pod_group_running_count{queue_name="q"}'] == 0


def test_kai_dashboards_find_queues_in_cores_and_gpus() -> None:
    resources = {
        "cpu": amounts(used=3000, fair=2000, deserved=INF),
        "memory": amounts(used=1e9, fair=2e9),
        "nvidia.com/gpu": amounts(used=3, fair=8, deserved=4),
    }
    found = values(report("kai", "q", resources))
    of = '{queue_name="q",queue_metadata_name="q"}'
    assert found[f"kai_queue_info{of}"] == 1
    assert found[f"kai_queue_quota_cpu_cores{of}"] == -1
    assert found[f"kai_queue_allocated_cpu_cores{of}"] == 3
    assert found[f"kai_queue_fair_share_cpu_cores{of}"] == 2
    assert found[f"kai_queue_fair_share_memory_gb{of}"] == 2
    assert found[f"kai_queue_deserved_gpus{of}"] == 4
    assert found[f"kai_queue_allocated_gpus{of}"] == 3
    assert found[f"kai_queue_fair_share_gpu{of}"] == 8


def test_koordinator_dashboards_find_fields_of_quotas() -> None:
    resources = {"cpu": amounts(deserved=1000, limit=4000, used=500, fair=2000)}
    found = values(report("koordinator", "q", resources, parent="root", children=("c",)))
    of = 'name="q",resource="cpu",tree="",is_parent="true",parent="root"'
    assert found[f'scheduler_elastic_quota_spec{{{of},field="min"}}'] == 1000
    assert found[f'scheduler_elastic_quota_spec{{{of},field="max"}}'] == 4000
    assert found[f'scheduler_elastic_quota_status{{{of},field="used"}}'] == 500
    assert found[f'scheduler_elastic_quota_status{{{of},field="runtime"}}'] == 2000


def test_kueue_dashboards_find_cluster_queues_by_flavor() -> None:
    column = amounts(used=500, reserved=1500, deserved=2000, borrow_limit=1000)
    found = values(
        report("kueue", "q", {"spot/cpu": column}, parent="cohort/all"),
        report("kueue", "cohort/all", {"spot/cpu": column}),
    )
    of = '{cohort="all",cluster_queue="q",flavor="spot",resource="cpu"}'
    assert found[f"kueue_cluster_queue_resource_usage{of}"] == 0.5
    assert found[f"kueue_cluster_queue_resource_reservation{of}"] == 1.5
    assert found[f"kueue_cluster_queue_nominal_quota{of}"] == 2
    assert found[f"kueue_cluster_queue_borrowing_limit{of}"] == 1
    assert f"kueue_cluster_queue_lending_limit{of}" not in found
    assert found['kueue_pending_workloads{cluster_queue="q",status="active"}'] == 3
    assert found['kueue_admitted_active_workloads{cluster_queue="q"}'] == 1
    assert found['kueue_cluster_queue_status{cluster_queue="q",status="active"}'] == 1
    assert not any("cohort/" in name for name in found)


async def test_a_scheduler_exports_its_queues_waits_and_evictions() -> None:
    registry = CollectorRegistry()
    mine = {"scheduling.volcano.sh/queue-name": "a"}
    async with stage([make_node("n", cpu=4), queue("a")]) as made:
        await made.start(registry=registry)
        made.create(make_pod("low", cpu=3, priority=1, annotations=mine))
        await made.run_out()
        made.create(make_pod("large", cpu=16, annotations=mine))
        made.create(make_pod("high", cpu=3, priority=9))
        await made.run_out(until=100)
        labels = {"system": "volcano", "queue": "a"}

        def value(name: str, **more: str) -> float | None:
            return registry.get_sample_value(f"bayplan_queue_{name}", {**labels, **more})

        assert value("used", resource="cpu") == 0
        assert value("demand", resource="cpu") == 16
        assert value("limit", resource="cpu") is None
        assert value("running_jobs") == 0
        assert value("waiting_jobs") == 1
        assert value("wait_seconds_count") == 1
        assert value("evictions_total", reason="preempt") == 1
        oldest = value("oldest_wait_seconds")
        assert oldest is not None
        assert oldest > 0


def workload(**conditions: str) -> KueueWorkload:
    """A workload of queue q that came at 0 s; each condition came true at so many seconds."""
    found = [
        {"type": kind, "status": "True", "reason": "Why", "lastTransitionTime": stamp(seconds)}
        for kind, seconds in conditions.items()
    ]
    template = {"spec": {"containers": [{"name": "c", "image": "i"}]}}
    made = make_object(
        {
            "apiVersion": "kueue.x-k8s.io/v1beta1",
            "kind": "Workload",
            "metadata": {"name": "w", "namespace": "default", "creationTimestamp": stamp("0")},
            "spec": {"queueName": "l", "podSets": [{"name": "main", "template": template}]},
            "status": {"conditions": found, "admission": {"clusterQueue": "q"}},
        }
    )
    assert isinstance(made, KueueWorkload)
    return made


def stamp(seconds: str) -> str:
    return f"2026-01-01T00:00:{int(seconds):02d}Z"


def test_kueues_workloads_are_counted_by_their_conditions() -> None:
    registry, cluster = CollectorRegistry(), Cluster()
    QueueMetrics(registry).watch(cluster.scheduler)
    snapshot = cluster.scheduler.snapshot
    for one in (
        workload(),
        workload(QuotaReserved="5"),
        workload(QuotaReserved="5", Admitted="7"),
        workload(Evicted="20"),
        workload(Evicted="20", QuotaReserved="30", Admitted="30"),
    ):
        snapshot.set_object("default/w", one)

    def value(name: str, **more: str) -> float | None:
        return registry.get_sample_value(f"kueue_{name}", {"cluster_queue": "q", **more})

    assert value("admitted_workloads_total") == 2
    assert value("quota_reserved_workloads_total") == 2
    assert value("admission_wait_time_seconds_sum") == 7 + 10
    assert value("quota_reserved_wait_time_seconds_sum") == 5 + 10
    assert value("evicted_workloads_total", reason="Why") == 1
    own = {"system": "kueue", "queue": "q"}
    assert registry.get_sample_value("bayplan_queue_wait_seconds_sum", own) == 7 + 10
    evictions = {**own, "reason": "Why"}
    assert registry.get_sample_value("bayplan_queue_evictions_total", evictions) == 1


def test_weighted_shares_are_those_of_the_statuses() -> None:
    cluster = Cluster()
    content = {"apiVersion": "kueue.x-k8s.io/v1beta1", "metadata": {"name": "q"}, "spec": {}}
    status = {"status": {"fairSharing": {"weightedShare": 250}}}
    for kind in ("ClusterQueue", "Cohort"):
        made = make_object({**content, "kind": kind, **status})
        cluster.scheduler.snapshot.set_object("q", made)
    found = {
        sample.name: sample.value
        for family in peer_metrics(cluster.scheduler, [report("kueue", "q", {})])
        for sample in family.samples
    }
    assert found["kueue_cluster_queue_weighted_share"] == 250
    assert found["kueue_cohort_weighted_share"] == 250


def test_every_place_of_a_unit_is_counted() -> None:
    assert QUEUE_LABELS.keys() == set(Place)


async def test_without_queues_there_are_none() -> None:
    registry = CollectorRegistry()
    async with stage([make_node("n", cpu=4), make_pod("p")]) as made:
        await made.start(registry=registry)
        await made.run_out()
        names = {sample.name for family in registry.collect() for sample in family.samples}
        assert not [n for n in names if n.startswith(("bayplan_queue", "volcano_", "kueue_"))]
