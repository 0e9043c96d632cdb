"""Queues under the names of the peers' own metrics, so that their dashboards go on working.

Names and labels are those of Volcano (pkg/scheduler/metrics/queue.go and the queue controller), KAI
(docs/metrics, with the default prefix ``kai``), Koordinator (pkg/scheduler/plugins/elasticquota)
and Kueue (pkg/metrics). A system's metrics are exported while the cluster has queues of it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from prometheus_client.core import GaugeMetricFamily

from bayplan.api import ClusterQueue, Cohort, VolcanoPodGroup
from bayplan.api.gpus import GPU_RESOURCES
from bayplan.queues.report import QueueReport, ResourceReport
from bayplan.scheduler.scheduler import Scheduler
from bayplan.snapshot import Snapshot

__all__ = ["Gauges", "peer_metrics"]


class Gauges:
    """Gauges by name, in the order in which they were first added."""

    def __init__(self) -> None:
        self._families: dict[str, GaugeMetricFamily] = {}

    def add(
        self, name: str, text: str, labels: Sequence[str], of: Sequence[str], value: float
    ) -> None:
        """Add a value; what is unlimited has none.

        :param labels: the names of the labels, :param of: their values.
        """
        if value == math.inf:
            return
        family = self._families.get(name)
        if family is None:
            family = self._families[name] = GaugeMetricFamily(name, text, labels=labels)
        family.add_metric(of, value)

    def families(self) -> list[GaugeMetricFamily]:
        """Return all that has values."""
        return list(self._families.values())


def peer_metrics(scheduler: Scheduler, reports: Sequence[QueueReport]) -> list[GaugeMetricFamily]:
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
        _kueue_shares(gauges, scheduler.snapshot)
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


# Kueue -----------------------------------------------------------------------------------

_COHORT = "cohort/"
_CLUSTER_QUEUE = ("cluster_queue",)
_FLAVORS = ("cohort", "cluster_queue", "flavor", "resource")


def _kueue(gauges: Gauges, report: QueueReport) -> None:
    """Add a ClusterQueue; Kueue exports nothing of this kind for cohorts."""
    if report.name.startswith(_COHORT):
        return
    key = (report.name,)
    for column, found in report.resources.items():
        flavor, _, resource = column.partition("/")
        of = (report.parent.removeprefix(_COHORT), report.name, flavor, resource)
        scale = 0.001 if resource == "cpu" else 1.0
        amounts = {
            "resource_usage": found.used,
            "resource_reservation": found.reserved,
            "nominal_quota": found.deserved,
            "borrowing_limit": found.borrow_limit,
            "lending_limit": found.lend_limit,
        }
        for word, value in amounts.items():
            text = f"Reports the cluster_queue's {word.replace('_', ' ')} within all the flavors"
            gauges.add(f"kueue_cluster_queue_{word}", text, _FLAVORS, of, value * scale)
    pending = "The number of pending workloads, per 'cluster_queue' and 'status'"
    labels = ("cluster_queue", "status")
    gauges.add("kueue_pending_workloads", pending, labels, (*key, "active"), report.waiting)
    for name in ("kueue_admitted_active_workloads", "kueue_reserving_active_workloads"):
        gauges.add(name, "The number of admitted Workloads", _CLUSTER_QUEUE, key, report.running)
    for status in ("pending", "active", "terminating"):
        now = "active" if report.state == "Open" and not report.problem else "pending"
        text = "Reports 'cluster_queue' with its 'status'"
        gauges.add("kueue_cluster_queue_status", text, labels, (*key, status), status == now)


def _kueue_shares(gauges: Gauges, snapshot: Snapshot) -> None:
    """Add the weighted shares, as the statuses of ClusterQueues and Cohorts state them."""
    for kind, found in (
        ("cluster_queue", snapshot.objects(ClusterQueue).values()),
        ("cohort", snapshot.objects(Cohort).values()),
    ):
        for one in found:
            shares = one.status.fair_sharing
            if shares is not None:
                text, of = f"Weighted share of the {kind}", (one.metadata.name,)
                gauges.add(f"kueue_{kind}_weighted_share", text, (kind,), of, shares.weighted_share)


_SYSTEMS: Mapping[str, Callable[[Gauges, QueueReport], None]] = {
    "volcano": _volcano,
    "kai": _kai,
    "koordinator": _koordinator,
    "kueue": _kueue,
}
