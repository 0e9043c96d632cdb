"""A cluster at one look: what it offers, its fullest nodes, its queues, and who waits and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from bayplan.api import ResourceClaim, ResourceSlice
from bayplan.api.gpu_shares import WHOLE
from bayplan.api.gpus import GPU_RESOURCES
from bayplan.api.node_state import NodeState, state_of
from bayplan.api.queue import UNLIMITED
from bayplan.explain.explanation import why_pending
from bayplan.explain.waits import waited
from bayplan.queues.amounts import base_resource
from bayplan.queues.gpus import gpus_offered, gpus_used, is_gpu_count
from bayplan.queues.held_jobs import HeldJobs
from bayplan.queues.report import QueueReport
from bayplan.scheduler.scheduler import Scheduler
from bayplan.snapshot import NodeRow, NodeTable, PodInfo, Snapshot

__all__ = ["MOST_ROWS", "Amount", "BusyQueue", "FullNode", "Overview", "PendingJob", "overview"]

MOST_ROWS = 50
"""How many nodes, queues and jobs are named; all are counted."""
_MOST_DEVICES = 3
_ENDED = ("Succeeded", "Failed")
_Column = tuple[str, npt.NDArray[Any], npt.NDArray[Any]]
"""A resource, what is used of it, and what there is, by node."""


class Amount(msgspec.Struct, frozen=True):
    """How much of a resource is requested, of what is offered; CPU in milli-CPU, memory in bytes.

    Shares of GPUs are parts of GPUs. ``offered`` is None where there is no limit.
    """

    resource: str
    used: float
    offered: float | None

    @property
    def part(self) -> float:
        """The part that is used, 0 to 1; 0 where nothing is offered."""
        return min(1.0, self.used / self.offered) if self.offered else 0.0


class FullNode(msgspec.Struct, frozen=True):
    """A node: its state (in-service, maintenance or failed), what is used of it, and its pods."""

    name: str
    state: str
    amounts: Sequence[Amount]
    pods: int


class BusyQueue(msgspec.Struct, frozen=True):
    """A queue: its dominant share (None: it may have nothing), and its first resource.

    ``amount.offered`` is what it may have now by its policy, ``deserved`` what it may have whenever
    it asks, None without a limit. ``waiting`` and ``running`` count jobs.
    """

    system: str
    name: str
    state: str
    share: float | None
    amount: Amount | None
    deserved: float | None
    waiting: int
    running: int


class PendingJob(msgspec.Struct, frozen=True):
    """Pods of one job or gang that have no node: how many, for how many seconds, and why.

    ``first`` is one of them, or a job that has none yet, for ``bayplan explain``.
    """

    job: str
    first: str
    pods: int
    waits: float
    why: str


class Overview(msgspec.Struct, frozen=True):
    """A cluster at a time in seconds: counts of everything, and the rows that matter most.

    ``nodes`` are those out of service, then the fullest; ``pending`` are the jobs that have waited
    longest. ``maintenance`` and ``failed`` count nodes, ``placed`` and ``waiting`` pods.
    """

    at: float
    node_count: int
    maintenance: int
    failed: int
    placed: int
    waiting: int
    waiting_jobs: int
    amounts: Sequence[Amount]
    nodes: Sequence[FullNode]
    queue_count: int
    queues: Sequence[BusyQueue]
    pending: Sequence[PendingJob]

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object, which ``msgspec.convert`` turns into an Overview again."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain


def overview(scheduler: Scheduler) -> Overview:
    """Return what a scheduler knows of its cluster now.

    :raises PluginError: when a plugin raises.
    """
    snapshot = scheduler.snapshot
    snapshot.sync()
    table = snapshot.nodes
    columns = [_column(table, name) for name in _resources(table)]
    states = [state_of(node) for node in table.nodes]
    jobs = _pending(scheduler)
    reports = scheduler.queues.reports()
    queues = sorted(reports, key=lambda one: (-one.waiting, -_finite(one.share, 1e9)))
    return Overview(
        at=round(scheduler.now, 3),
        node_count=len(table),
        maintenance=states.count(NodeState.MAINTENANCE),
        failed=states.count(NodeState.FAILED),
        placed=sum(map(len, table.pods)),
        waiting=sum(job.pods for job in jobs),
        waiting_jobs=len(jobs),
        amounts=(
            *_claimed(snapshot),
            *(
                Amount(name, float(used.sum(dtype=np.float64)), float(offered.sum()))
                for name, used, offered in columns
            ),
        ),
        nodes=_fullest(table, columns, states),
        queue_count=len(reports),
        queues=tuple(_queue(one) for one in queues[:MOST_ROWS]),
        pending=tuple(jobs[:MOST_ROWS]),
    )


def _resources(table: NodeTable) -> list[str]:
    """Return the devices that nodes offer, GPUs first, then the most numerous; CPU; and memory."""
    offered = {
        name: int(column.sum())
        for name, column in table.allocatable_columns.items()
        if "/" in name and column.any()
    }
    devices = sorted(offered, key=lambda name: (name not in GPU_RESOURCES, -offered[name], name))
    return [*devices[:_MOST_DEVICES], "cpu", "memory"]


def _claimed(snapshot: Snapshot) -> list[Amount]:
    """Return how many devices of each driver are allocated to claims.

    Drivers whose devices are parts of each other have no such number, and are left out.
    """
    slices = [one.spec for one in snapshot.objects(ResourceSlice).values()]
    newest: dict[tuple[str, str], int] = {}
    for one in slices:
        key = (one.driver, one.pool.name)
        newest[key] = max(newest.get(key, 0), one.pool.generation)
    offered: dict[str, int] = {}
    parts = {one.driver for one in slices if one.shared_counters}
    for one in slices:
        if one.driver not in parts and one.pool.generation == newest[one.driver, one.pool.name]:
            offered[one.driver] = offered.get(one.driver, 0) + len(one.devices)
    used = Counter(
        result.driver
        for claim in snapshot.objects(ResourceClaim).values()
        if claim.status.allocation is not None
        for result in claim.status.allocation.devices.results
        if not result.admin_access
    )
    return [
        Amount(f"devices of {driver}", used[driver], count)
        for driver, count in sorted(offered.items())
        if count
    ]


def _column(table: NodeTable, resource: str) -> _Column:
    """Return what is used and what there is of a resource, by node; of GPUs in GPUs."""
    used, offered = table.used(resource), table.allocatable(resource)
    if not is_gpu_count(resource):
        return resource, used, offered
    used, offered = used.astype(np.float64), offered.astype(np.float64)
    for row in np.flatnonzero(offered).tolist():
        offered[row] = gpus_offered(table.nodes[row], resource, int(offered[row])) / WHOLE
        used[row] = gpus_used(NodeRow(table, row), resource) / WHOLE
    return resource, used, offered


def _fullest(
    table: NodeTable, columns: Sequence[_Column], states: Sequence[NodeState]
) -> tuple[FullNode, ...]:
    parts = [-used / np.maximum(offered, 1) for _, used, offered in columns]
    in_service = np.array([state is NodeState.IN_SERVICE for state in states], dtype=np.bool_)
    # The last key counts most; equal nodes keep the order of their names.
    rows = np.lexsort((*reversed(parts), in_service))[:MOST_ROWS].tolist()
    return tuple(
        FullNode(
            table.names[row],
            states[row].value,
            tuple(Amount(name, float(u[row]), float(o[row])) for name, u, o in columns),
            len(table.pods[row]),
        )
        for row in rows
    )


def _queue(report: QueueReport) -> BusyQueue:
    resources = sorted(report.resources, key=_rank)
    asked = {name for name, one in report.resources.items() if one.used or one.demand}
    busy = [name for name in resources if name in asked]
    amount, deserved = None, None
    if busy or resources:
        name = (busy or resources)[0]
        found = report.resources[name]
        amount = Amount(name, found.used, _or_none(found.fair))
        deserved = _or_none(found.deserved)
    return BusyQueue(
        report.system,
        report.name,
        "Invalid" if report.problem else report.state,
        _or_none(report.share),
        amount,
        deserved,
        report.waiting,
        report.running,
    )


def _rank(column: str) -> tuple[bool, bool, str]:
    """Return what orders the resources of queues: GPUs first, then other devices."""
    resource = base_resource(column)
    return "/" not in resource, resource not in GPU_RESOURCES, column


def _or_none(value: float) -> float | None:
    return None if value == UNLIMITED else value


def _finite(value: float, instead: float) -> float:
    return instead if value == UNLIMITED else value


def _pending(scheduler: Scheduler) -> list[PendingJob]:
    """Return the jobs with pods, also to come, that have no node; the longest waits first."""
    jobs: dict[str, list[PodInfo]] = {}
    placed = scheduler.snapshot.placed
    for key, info in scheduler.snapshot.living.items():
        if info.spec.node_name or key in placed or info.pod.status.phase in _ENDED:
            continue
        unit = scheduler.queue.unit_key(key) or info.gang or key
        jobs.setdefault(unit, []).append(info)
    found = []
    for unit, pods in jobs.items():
        first = pods[0]
        waits = waited(scheduler, unit, pods)
        why = why_pending(scheduler, first.pod)
        found.append(PendingJob(unit, first.key, len(pods), round(waits, 3), why))
    now = scheduler.unix_time
    for job in HeldJobs(scheduler.snapshot).all():
        waits = round(max(0.0, now - job.since), 3)
        found.append(PendingJob(job.key, str(job), job.pods, waits, job.why))
    return sorted(found, key=lambda job: -job.waits)
