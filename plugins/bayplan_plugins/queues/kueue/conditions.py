"""The conditions of Workloads, with the reasons and texts that Kueue writes."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import msgspec

from bayplan.api.conditions import set_condition
from bayplan.api.kueue import (
    EvictionCount,
    KueueCondition,
    KueueWorkload,
    KueueWorkloadStatus,
    PodSetRequest,
    QuotaAdmission,
    SchedulingStats,
)
from bayplan.api.times import seconds_of

__all__ = [
    "Reason",
    "condition",
    "evicted",
    "finished",
    "has_closed_gate",
    "has_quota",
    "is_true",
    "pending",
    "reserved",
    "since",
    "with_pods_ready",
]


class Reason(StrEnum):
    """Why a workload has no quota, from the least to the most severe of those of flavors."""

    TOPOLOGY = "TopologyPlacementFailed"
    WAITING_FOR_QUOTA = "WaitingForQuota"
    EXCEEDS_QUOTA = "ExceedsMaxQuota"
    NO_FLAVOR = "NoMatchingFlavor"
    WAITING_FOR_VICTIMS = "WaitingForPreemptedWorkloads"
    WAITING_FOR_PODS = "WaitingForPodsReady"
    MISCONFIGURED = "Misconfigured"
    SUSPENDED = "Suspended"
    DEACTIVATED = "Deactivated"
    GATED = "AdmissionGated"
    ON_HOLD = "OnHold"
    PENDING = "PendingEvaluation"


def condition(workload: KueueWorkload, type_: str) -> KueueCondition | None:
    """Return the condition of a type, if the workload has it."""
    for one in workload.status.conditions:
        if one.type == type_:
            return one
    return None


def is_true(workload: KueueWorkload, type_: str) -> bool:
    """Tell whether a condition is true."""
    return any(one.type == type_ and one.status == "True" for one in workload.status.conditions)


def has_quota(workload: KueueWorkload) -> bool:
    """Tell whether quota is reserved for a workload."""
    return is_true(workload, "QuotaReserved")


def has_closed_gate(workload: KueueWorkload) -> bool:
    """Tell whether a preemption gate keeps a workload from preempting."""
    opened = {one.name for one in workload.status.preemption_gates if one.position != "Closed"}
    return any(gate.name not in opened for gate in workload.spec.preemption_gates)


def since(workload: KueueWorkload, type_: str) -> float | None:
    """Return since when a condition is true, in seconds since 1970."""
    found = condition(workload, type_)
    if found is None or found.status != "True":
        return None
    return seconds_of(found.last_transition_time)


def _with(workload: KueueWorkload, status: KueueWorkloadStatus) -> KueueWorkload:
    return msgspec.structs.replace(workload, status=status)


def _set(
    workload: KueueWorkload,
    status: KueueWorkloadStatus,
    type_: str,
    value: bool,
    reason: str,
    message: str,
    now: float,
) -> KueueWorkloadStatus:
    """Return a status of a workload with a condition set."""
    new = KueueCondition(type_, "True" if value else "False", reason, message)
    generation = workload.metadata.generation
    conditions = set_condition(status.conditions, new, now, generation)
    return msgspec.structs.replace(status, conditions=conditions)


def pending(
    workload: KueueWorkload,
    reason: str,
    message: str,
    requests: tuple[PodSetRequest, ...],
    now: float,
    gated: bool = False,
) -> KueueWorkload:
    """Return a workload that has no quota, and why.

    :param gated: whether its preemption gates keep it from preempting.
    """
    status = msgspec.structs.replace(workload.status, admission=None)
    status = _set(workload, status, "QuotaReserved", False, reason, message, now)
    if gated:
        type_ = "BlockedOnPreemptionGates"
        status = _set(workload, status, type_, True, "PreemptionGated", message, now)
    text = "The workload has no reservation"
    status = _set(workload, status, "Admitted", False, "NoReservation", text, now)
    return _with(workload, msgspec.structs.replace(status, resource_requests=requests))


def reserved(
    workload: KueueWorkload, admission: QuotaAdmission, checks: Iterable[str], now: float
) -> KueueWorkload:
    """Return a workload with quota; it is admitted once its admission checks are ready.

    :param checks: the admission checks that its queue asks for.
    """
    status = msgspec.structs.replace(workload.status, admission=admission, resource_requests=())
    text = f"Quota reserved in ClusterQueue {admission.cluster_queue}"
    status = _set(workload, status, "QuotaReserved", True, "QuotaReserved", text, now)
    for type_ in ("Evicted", "Preempted"):
        old = next((one for one in status.conditions if one.type == type_), None)
        if old is not None and old.status == "True":
            text = f"Previously: {old.message}"
            status = _set(workload, status, type_, False, "QuotaReserved", text, now)
    states = {check.name: check.state for check in status.admission_checks}
    if all(name in states for name in checks):
        ready = all(state == "Ready" for state in states.values())
        if ready:
            status = _set(
                workload, status, "Admitted", True, "Admitted", "The workload is admitted", now
            )
        else:
            text = "The workload has not all checks ready"
            reason = "UnsatisfiedAdmissionChecks"
            status = _set(workload, status, "Admitted", False, reason, text, now)
    return _with(workload, status)


def evicted(
    workload: KueueWorkload, reason: str, message: str, now: float, cause: str = ""
) -> KueueWorkload:
    """Return a workload that has to go: its quota is free once its pods have ended.

    :param reason: Preempted, PodsReadyTimeout, AdmissionCheck, ClusterQueueStopped, ...
    :param cause: for Preempted, why it may be preempted; for Deactivated, why it was.
    """
    status = workload.status
    whole = f"{reason}DueTo{cause}" if reason == "Deactivated" and cause else reason
    status = _set(workload, status, "Evicted", True, whole, message, now)
    if reason == "Preempted":
        status = _set(workload, status, "Preempted", True, cause, message, now)
        cause = ""
    stats = status.scheduling_stats or SchedulingStats()
    counts = list(stats.evictions)
    for index, one in enumerate(counts):
        if (one.reason, one.underlying_cause) == (reason, cause):
            counts[index] = msgspec.structs.replace(one, count=one.count + 1)
            break
    else:
        counts.append(EvictionCount(reason, cause, 1))
    stats = msgspec.structs.replace(stats, evictions=tuple(counts))
    return _with(workload, msgspec.structs.replace(status, scheduling_stats=stats))


def with_pods_ready(workload: KueueWorkload, ready: bool, now: float) -> KueueWorkload:
    """Return an admitted workload that says whether all its pods are ready."""
    if ready:
        reason, text = "Started", "All pods reached readiness and the workload is running"
    elif is_true(workload, "PodsReady") or _recovers(workload):
        reason, text = "WaitForRecovery", "At least one pod has failed, waiting for recovery"
    else:
        reason, text = "WaitForStart", "Not all pods are ready or succeeded"
    return _with(workload, _set(workload, workload.status, "PodsReady", ready, reason, text, now))


def _recovers(workload: KueueWorkload) -> bool:
    stated = condition(workload, "PodsReady")
    return stated is not None and stated.reason == "WaitForRecovery"


def finished(workload: KueueWorkload, reason: str, message: str, now: float) -> KueueWorkload:
    """Return a workload that has ended."""
    if is_true(workload, "Finished"):
        return workload
    return _with(workload, _set(workload, workload.status, "Finished", True, reason, message, now))
