"""Where a pending job stands in its queue, whom it waits for, and what would admit it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from bayplan import Handle, PodInfo, Unit
from bayplan.api import DeviceClass, ResourceSlice
from bayplan.api.dra import IMPLICIT_RESOURCE_PREFIX
from bayplan.dialects.reading import timestamp
from bayplan.inputs.durations import stated_duration
from bayplan.naming import counted
from bayplan.queues.amounts import base_resource
from bayplan.queues.report import KnownReports, QueuePosition, QueueReport, amount_text
from bayplan_plugins.queues.policy import (
    AdmitsJobs,
    EvictionPlan,
    MayLeaveAdmission,
    Policy,
    QuotaRefusal,
    ReservesQuota,
)
from bayplan_plugins.queues.victim_search import VictimSearch

__all__ = ["left_to", "position_of", "reports"]

_MOST_NAMED = 5
_MOST_TRIED = 64
"""Running jobs whose end is tried, the soonest first."""


def reports(handle: Handle, policy: Policy, known: KnownReports) -> Sequence[QueueReport]:
    """Return the reports of a policy's queues, with the number of their jobs.

    :param known: what was reported before; queues that have not changed keep their reports.
    """
    tree = policy.ledger.tree
    fair = policy.fair()
    reserved = policy.reserved() if isinstance(policy, ReservesQuota) else None
    offered = _offered(handle, tree.resources)
    found = known.of(tree, fair, offered, _job_counts(policy), reserved)
    faults = policy.faults() if isinstance(policy, AdmitsJobs) else {}
    if not faults:
        return found
    return [replace(one, problem=faults.get(one.name, one.problem)) for one in found]


def _job_counts(policy: Policy) -> tuple[Mapping[int, int], Mapping[int, int]]:
    """Return how many jobs wait and run in each row of the ledger's tree, those below included."""
    if not isinstance(policy, AdmitsJobs):
        return policy.ledger.jobs()
    tree = policy.ledger.tree
    waiting: Counter[int] = Counter()
    running: Counter[int] = Counter()
    for name, (waits, runs) in policy.job_counts().items():
        for row in tree.path(tree.row_of[name]) if name in tree.row_of else ():
            waiting[row] += waits
            running[row] += runs
    return waiting, running


def _offered(handle: Handle, resources: Iterable[str]) -> set[str]:
    """Return the resources that nodes or classes of devices offer; none without any node."""
    table = handle.snapshot.nodes
    if not len(table):
        return set()
    names = {base_resource(name) for name in resources}
    found = {name for name in names if table.allocatable(name).any()}
    for name, devices in handle.snapshot.objects(DeviceClass).items():
        extended = devices.spec.extended_resource_name
        found |= {extended} if extended else set()
        found |= {one for one in resources if one.endswith(f"deviceclass/{name}")}
        found.add(f"{IMPLICIT_RESOURCE_PREFIX}{name}")
    drivers = {one.spec.driver for one in handle.snapshot.objects(ResourceSlice).values()}
    return found | drivers


def position_of(handle: Handle, policy: Policy, queue: str, unit: Unit) -> QueuePosition:
    """Return where a unit stands in the line of its queue."""
    row = policy.ledger.tree.row_of.get(queue)
    own = _own_report(handle, policy, row) if row is not None else _unknown(policy, queue)
    keys, name = _line(handle, policy, queue, unit)
    place = keys.index(name) + 1 if name in keys else 0
    note = left_to(policy)
    if note:
        return QueuePosition(own, place, len(keys), notes=(note,))
    refusal = policy.refusal(unit) if row is not None else None
    lacks = policy.shortfall(unit) if row is not None and isinstance(policy, AdmitsJobs) else None
    return QueuePosition(
        own,
        place,
        len(keys),
        tuple(keys[: max(0, place - 1)][-_MOST_NAMED:]),
        str(refusal or ""),
        tuple(_reclaims(handle, policy, unit)) if row is not None else (),
        tuple(_waits_for(handle, policy, unit)),
        _change(lacks or refusal),
    )


def left_to(policy: Policy) -> str:
    """Return who decides on a policy's queues instead, in words; "" where the policy does."""
    return policy.left_to if isinstance(policy, MayLeaveAdmission) else ""


def _line(handle: Handle, policy: Policy, queue: str, unit: Unit) -> tuple[list[str], str]:
    """Return the jobs in line, and the name of the unit there."""
    if isinstance(policy, AdmitsJobs):
        return [one.job for one in policy.pending_jobs(queue)], policy.pending_name(unit.pods[0])
    return [other.key for other in handle.pending(f"{policy.system}/{queue}")], unit.key


def _own_report(handle: Handle, policy: Policy, row: int) -> QueueReport:
    return reports(handle, policy, KnownReports(policy.system, policy.name))[row]


def _unknown(policy: Policy, queue: str) -> QueueReport:
    return QueueReport(policy.system, policy.name, queue, "", "missing", 0, 0.0, 0.0, {})


def _change(refusal: QuotaRefusal | str | None) -> str:
    if not isinstance(refusal, QuotaRefusal):
        return ""
    more = amount_text(refusal.resource, refusal.missing)
    title = refusal.title or f'queue "{refusal.ancestor}"'
    return f"{more} more {refusal.resource} in the {refusal.bound} of {title}"


def _reclaims(handle: Handle, policy: Policy, unit: Unit) -> Iterable[str]:
    """Yield what each way to preempt would evict for the unit now."""
    for action in policy.actions:
        plan = policy.plan(unit, action)
        if isinstance(plan, str):
            yield f"{action}: {plan.removeprefix(f'{action}: ')}"
        elif plan is not None:
            if not isinstance(plan, EvictionPlan):
                plan = VictimSearch(handle, unit, plan).run()
            if plan is None:
                yield f"{action}: no allowed eviction frees enough for it"
            else:
                yield f"{action}: {_evictions(policy, plan)}"


def _evictions(policy: Policy, plan: EvictionPlan) -> str:
    by_queue: dict[str, int] = {}
    for pod in plan.victims:
        queue = policy.queue_of(pod) or "no queue"
        by_queue[queue] = by_queue.get(queue, 0) + 1
    parts = [f'{counted(count, "pod")} of "{queue}"' for queue, count in by_queue.items()]
    moved = f", {counted(len(plan.moves), 'pod')} of them placed again elsewhere"
    return f"would evict {' and '.join(parts)}{moved if plan.moves else ''}"


def _waits_for(handle: Handle, policy: Policy, unit: Unit) -> Iterable[str]:
    """Yield the running jobs whose end frees enough, the soonest first, if they say when it is."""
    jobs: dict[str, list[PodInfo]] = {}
    for pod, _ in handle.snapshot.placed.values():
        jobs.setdefault(_job_of(policy, pod), []).append(pod)
    own = unit.key
    ending = sorted((_end(handle, pods), key) for key, pods in jobs.items() if key != own)
    ending = [(end, key) for end, key in ending if not math.isinf(end)][:_MOST_TRIED]
    running = [jobs[key] for _, key in ending]
    if isinstance(policy, AdmitsJobs):
        waited = policy.until_admitted(unit, running)
    else:
        waited = _until_placed(handle, unit, running)
    for end, key in ending[:waited]:
        yield f"{key}, which ends in about {max(0.0, end - handle.now):.0f} s"


def _job_of(policy: Policy, pod: PodInfo) -> str:
    if isinstance(policy, AdmitsJobs):
        return policy.pending_name(pod)
    return pod.gang or pod.key


def _until_placed(handle: Handle, unit: Unit, jobs: Sequence[Sequence[PodInfo]]) -> int:
    """Return how many jobs have to end, in order, until the unit is placed; 0 if never."""
    snapshot = handle.snapshot
    with snapshot.trial():
        for count, pods in enumerate(jobs, 1):
            for pod in pods:
                snapshot.remove_pod(pod.key)
            for candidate in handle.offers(unit).candidates:
                with snapshot.trial():
                    nodes = handle.place(unit, candidate)
                if nodes is not None:
                    return count
    return 0


def _end(handle: Handle, pods: Sequence[PodInfo]) -> float:
    """Return when the last pod of a job ends, by the handle's clock; infinite if unknown."""
    ends = []
    for pod in pods:
        seconds = stated_duration(pod.annotations, pod.spec.active_deadline_seconds)
        if seconds is None:
            return math.inf
        ends.append(_started(handle, pod) + seconds)
    return max(ends)


def _started(handle: Handle, pod: PodInfo) -> float:
    """Return when a pod started, by the handle's clock; now for one that has not."""
    started = timestamp(pod.pod.status.start_time)
    return handle.now - max(0.0, handle.unix_time - started) if started else handle.now
