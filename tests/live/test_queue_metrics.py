"""Queues as metrics: bayplan's own names, and those of each system's dashboards."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from tests.live.queue_builders import queue
from tests.live.stage import stage

from bayplan.live.kueue_gauges import KueueGauges
from bayplan.live.metrics import QUEUE_LABELS
from bayplan.live.peer_metrics import peer_metrics
from bayplan.queues.report import QueueReport, ResourceReport
from bayplan.scheduler.queued_unit import Place
from bayplan.testing import Cluster, make_node, make_pod

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
    for family in peer_metrics(Cluster().scheduler, reports, KueueGauges()):
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


def test_every_place_of_a_unit_is_counted() -> None:
    assert QUEUE_LABELS.keys() == set(Place)


async def test_without_queues_there_are_none() -> None:
    registry = CollectorRegistry()
    async with stage([make_node("n", cpu=4), make_pod("p")]) as made:
        await made.start(registry=registry)
        await made.run_out()
        names = {sample.name for family in registry.collect() for sample in family.samples}
        assert not [n for n in names if n.startswith(("bayplan_queue", "volcano_", "kueue_"))]
