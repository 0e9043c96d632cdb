"""Queues under the names of the peers' own metrics, so that their dashboards go on working.

Names and labels are those of Volcano (pkg/scheduler/metrics/queue.go and the queue controller), KAI
(docs/metrics, with the default prefix ``kai``) and Koordinator
(pkg/scheduler/plugins/elasticquota); Kueue's are in :mod:`bayplan.live.kueue_gauges`. A system's
metrics are exported while the cluster has queues of it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from prometheus_client.core import GaugeMetricFamily

from bayplan.api import VolcanoPodGroup
from bayplan.api.gpus import GPU_RESOURCES
from bayplan.live.gauges import Gauges
from bayplan.live.kueue_gauges import KueueGauges
from bayplan.queues.report import QueueReport, ResourceReport
from bayplan.scheduler.scheduler import Scheduler
from bayplan.snapshot import Snapshot

__all__ = ["peer_metrics"]


def peer_metrics(
    scheduler: Scheduler, reports: Sequence[QueueReport], kueue: KueueGauges
) -> list[GaugeMetricFamily]:
    """Return the gauges of all systems that have queues."""
    gauges = Gauges()
    for report in reports:
        add = _SYSTEMS.get(report.system)
        if add is not None:
            add(gauges, report)
    systems = {report.system for report in reports}
    if "volcano" in systems:
        _volcano_groups(gauges, scheduler.snapshot, reports)
    if "kueue" in systems:
        kueue.add(gauges, scheduler.snapshot)
    return gauges.families()


# Volcano ---------------------------------------------------------------------------------

_QUEUE = ("queue_name",)
_SCALAR = ("queue_name", "resource")


def _volcano(gauges: Gauges, report: QueueReport) -> None:
    amounts: Mapping[str, Callable[[ResourceReport], float]] = {
        "allocated": lambda one: one.used,
        "request": lambda one: one.demand,
        "deserved": lambda one: one.fair,
        "capacity": lambda one: one.limit,
    }
    for word, value_of in amounts.items():
        text = f"{word.capitalize()} resources of one queue"
        for resource, found in report.resources.items():
            suffix, labels, of = _volcano_resource(report.name, resource)
            name = f"volcano_queue_{word}_{suffix}"
            gauges.add(name, text, labels, of, value_of(found))
    overused = any(one.used > one.fair for one in report.resources.values())
    key = (report.name,)
    gauges.add("volcano_queue_share", "Share for one queue", _QUEUE, key, report.share)
    gauges.add("volcano_queue_weight", "Weight for one queue", _QUEUE, key, report.weight)
    gauges.add("volcano_queue_overused", "If one queue is overused", _QUEUE, key, overused)


def _volcano_resource(queue: str, resource: str) -> tuple[str, Sequence[str], Sequence[str]]:
    if resource == "cpu":
        return "milli_cpu", _QUEUE, (queue,)
    if resource == "memory":
        return "memory_bytes", _QUEUE, (queue,)
    return "scalar_resources", _SCALAR, (queue, resource)


_PHASES = ("Inqueue", "Pending", "Running", "Unknown", "Completed")


def _volcano_groups(gauges: Gauges, snapshot: Snapshot, reports: Sequence[QueueReport]) -> None:
    """Add how many pod groups of each phase a queue has; without a phase one is Pending."""
    groups = snapshot.objects(VolcanoPodGroup).values()
    counts = Counter((group.spec.queue, group.status.phase or "Pending") for group in groups)
    for phase in _PHASES:
        name = f"volcano_queue_pod_group_{phase.lower()}_count"
        text = f"The number of {phase} PodGroup in this queue"
        for report in reports:
            if report.system == "volcano":
                value = counts[report.name, phase]
                gauges.add(name, text, _QUEUE, (report.name,), value)


# KAI -------------------------------------------------------------------------------------

_KAI = ("queue_name", "queue_metadata_name")


def _kai(gauges: Gauges, report: QueueReport) -> None:
    def add(name: str, text: str, value: float) -> None:
        gauges.add(f"kai_queue_{name}", text, _KAI, (report.name, report.name), value)

    cpu, memory = report.resources.get("cpu"), report.resources.get("memory")
    gpus = [one for name, one in report.resources.items() if name in GPU_RESOURCES]
    add("info", "Queues info", 1)
    add("deserved_gpus", "Queue deserved GPUs", _quota(sum(one.deserved for one in gpus)))
    add("allocated_gpus", "Queue allocated GPUs", sum(one.used for one in gpus))
    add("fair_share_gpu", "GPU Fair share of queue", sum(one.fair for one in gpus))
    if cpu is not None:
        add("quota_cpu_cores", "Queue quota CPU", _quota(cpu.deserved / 1000))
        add("allocated_cpu_cores", "Queue allocated CPUs", cpu.used / 1000)
        add("fair_share_cpu_cores", "CPU Fair share of queue, in cores", cpu.fair / 1000)
    if memory is not None:
        add("quota_memory_bytes", "Queue quota memory", _quota(memory.deserved))
        add("allocated_memory_bytes", "Queue allocated memory", memory.used)
        add("fair_share_memory_gb", "Memory Fair share of queue, in GB", memory.fair / 1e9)


def _quota(value: float) -> float:
    """Return a quota as KAI exports it: -1 is unlimited."""
    return -1.0 if value == math.inf else value


# Koordinator -----------------------------------------------------------------------------

_QUOTA = ("name", "resource", "tree", "is_parent", "parent", "field")


def _koordinator(gauges: Gauges, report: QueueReport) -> None:
    parent = "true" if report.children else "false"
    for resource, found in report.resources.items():
        spec = {"min": found.deserved, "max": found.limit}
        status = {
            "used": found.used,
            "runtime": found.fair,
            "request": found.demand,
            "non-preemptible-used": found.fixed,
        }
        for word, fields in (("spec", spec), ("status", status)):
            name, text = f"scheduler_elastic_quota_{word}", f"ElasticQuota {word}"
            for field, value in fields.items():
                of = (report.name, resource, "", parent, report.parent, field)
                gauges.add(name, text, _QUOTA, of, value)


_SYSTEMS: Mapping[str, Callable[[Gauges, QueueReport], None]] = {
    "volcano": _volcano,
    "kai": _kai,
    "koordinator": _koordinator,
}
