"""What becomes of workloads between cycles: timeouts, admission checks, stops, backoff.

Each function returns the workload as it is written back, or None if nothing changes.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from bayplan.api.conditions import set_condition
from bayplan.api.kueue import (
    AdmissionCheckState,
    AssignedPodSet,
    ClusterQueue,
    KueueCondition,
    KueueWorkload,
    LocalQueue,
    RequeueState,
)
from bayplan.api.times import rfc3339, seconds_of
from bayplan_plugins.queues.kueue.conditions import (
    Reason,
    condition,
    evicted,
    has_quota,
    is_true,
    pending,
    since,
)
from bayplan_plugins.queues.kueue.settings import PodsReady

__all__ = [
    "after_checks",
    "checks_with",
    "due_eviction",
    "next_change",
    "requeued",
    "required_checks",
    "with_checks",
    "without_quota",
    "without_reservation",
]

STOPPED = ("Hold", "HoldAndDrain")
"""The stop policies of queues that admit nothing."""
DEACTIVATED = "Deactivated"
_TIME_IS_OVER = "MaximumExecutionTimeExceeded"
_INACTIVE = "The workload is deactivated"
_WAITS = ("PodsReadyTimeout", "AdmissionCheck", "ClusterQueueStopped", "LocalQueueStopped")
"""For what workloads are evicted that come back only once something else has happened."""
_LONGEST_WAIT = 10 * 366 * 86_400
"""Seconds; what a check asks for beyond that is no time that can be written."""


def required_checks(queue: ClusterQueue, workload: KueueWorkload) -> list[str]:
    """Return the admission checks that a queue asks for with a workload's flavors."""
    admission = workload.status.admission
    return checks_with(queue, admission.pod_set_assignments if admission is not None else ())


def checks_with(queue: ClusterQueue, assigned: Iterable[AssignedPodSet]) -> list[str]:
    """Return the admission checks that a queue asks for where pod sets are assigned so."""
    flavors = {flavor for one in assigned for flavor in one.flavors.values()}
    rules = queue.spec.admission_checks_strategy.admission_checks
    return [
        rule.name for rule in rules if not rule.on_flavors or flavors.intersection(rule.on_flavors)
    ]


def due_eviction(
    workload: KueueWorkload,
    queue: ClusterQueue,
    local: LocalQueue | None,
    pods_ready: PodsReady | None,
    now: float,
) -> KueueWorkload | None:
    """Return a workload with quota that has to go, for whatever other reason than preemption."""
    if not has_quota(workload) or is_true(workload, "Evicted") or is_true(workload, "Finished"):
        return None
    if workload.spec.active is False:
        return evicted(_without_retries(workload), DEACTIVATED, _INACTIVE, now)
    if workload.status.admission_checks:
        if rejected := _checks_in(workload, "Rejected"):
            return _given_up(workload, "AdmissionCheck", rejected, now)
        if retried := _checks_in(workload, "Retry"):
            text = f"Evicted due to {retried}"
            return evicted(_later(workload, now), "AdmissionCheck", text, now)
    if _overran(workload, now):
        text = "exceeding the maximum execution time"
        return _given_up(workload, _TIME_IS_OVER, text, now)
    if local is not None and local.spec.stop_policy == "HoldAndDrain":
        if is_true(workload, "Admitted"):
            return evicted(workload, "LocalQueueStopped", "The LocalQueue is stopped", now)
    elif queue.spec.stop_policy == "HoldAndDrain" and is_true(workload, "Admitted"):
        return evicted(workload, "ClusterQueueStopped", "The ClusterQueue is stopped", now)
    return _not_ready(workload, pods_ready, now) if pods_ready is not None else None


def without_reservation(
    workload: KueueWorkload, queue: ClusterQueue, local: LocalQueue | None, now: float
) -> KueueWorkload | None:
    """Return a workload without its quota that its queues have stopped before it was admitted."""
    name = workload.spec.queue_name
    if local is None:
        why = Reason.MISCONFIGURED, f"LocalQueue {name} is terminating or missing"
    elif local.spec.stop_policy in STOPPED:
        why = Reason.SUSPENDED, f"LocalQueue {name} is stopped"
    elif queue.spec.stop_policy in STOPPED:
        why = Reason.SUSPENDED, f"ClusterQueue {queue.metadata.name} is stopped"
    else:
        return None
    if is_true(workload, "Admitted") or is_true(workload, "Evicted"):
        return None
    return pending(workload, *why, workload.status.resource_requests, now)


def next_change(workload: KueueWorkload, pods_ready: PodsReady | None) -> float | None:
    """Return when time alone may change a workload, in seconds since 1970; None for never."""
    if is_true(workload, "Finished"):
        return None
    if not has_quota(workload):
        state = workload.status.requeue_state
        at = state.requeue_at if state is not None else None
        return seconds_of(at) if at else None
    if is_true(workload, "Evicted"):
        return None
    times: list[float] = []
    most, admitted = workload.spec.maximum_execution_time_seconds, since(workload, "Admitted")
    if most is not None and admitted is not None:
        past = workload.status.accumulated_past_execution_time_seconds or 0
        times.append(admitted + most - past)
    if pods_ready is not None and admitted is not None and not is_true(workload, "PodsReady"):
        since_when = _waits_for_pods_since(workload, pods_ready, admitted)
        times += [sum(since_when)] if since_when is not None else []
    return min(times, default=None)


def _given_up(workload: KueueWorkload, cause: str, why: str, now: float) -> KueueWorkload:
    """Return a workload that is deactivated and has to go."""
    spec = msgspec.structs.replace(workload.spec, active=False)
    workload = _without_retries(msgspec.structs.replace(workload, spec=spec))
    return evicted(workload, DEACTIVATED, f"{_INACTIVE} due to {why}", now, cause)


def _without_retries(workload: KueueWorkload) -> KueueWorkload:
    """Return a workload that begins again to count its retries once it is active."""
    status = msgspec.structs.replace(workload.status, requeue_state=None)
    return msgspec.structs.replace(workload, status=status)


def _checks_in(workload: KueueWorkload, state: str) -> str:
    """Name the admission checks in a state, with what they say; "" without any."""
    found = [one for one in workload.status.admission_checks if one.state == state]
    named = [
        f'"{one.name}" ({one.message})' if one.message else f'"{one.name}"'
        for one in sorted(found, key=lambda one: one.name)
    ]
    noun = "AdmissionCheck" if len(named) == 1 else "AdmissionChecks"
    return f"{noun} in {state} state: {'; '.join(named)}" if named else ""


def _later(workload: KueueWorkload, now: float) -> KueueWorkload:
    """Return a workload that waits for as long as the checks that are retried ask for."""
    checks = workload.status.admission_checks
    waits = [one.requeue_after_seconds or 0 for one in checks if one.state == "Retry"]
    wait = min(max(waits, default=0), _LONGEST_WAIT)
    if wait <= 0:
        return workload
    known = workload.status.requeue_state or RequeueState()
    state = msgspec.structs.replace(known, requeue_at=rfc3339(now + wait))
    status = msgspec.structs.replace(workload.status, requeue_state=state)
    return msgspec.structs.replace(workload, status=status)


def _overran(workload: KueueWorkload, now: float) -> bool:
    most, admitted = workload.spec.maximum_execution_time_seconds, since(workload, "Admitted")
    if most is None or admitted is None:
        return False
    past = workload.status.accumulated_past_execution_time_seconds or 0
    return past + now - admitted >= most


def _not_ready(workload: KueueWorkload, settings: PodsReady, now: float) -> KueueWorkload | None:
    """Evict a workload whose pods did not get ready in time, again after a backoff.

    The n-th backoff takes base * 2^(n-1) seconds.
    """
    admitted = since(workload, "Admitted")
    if admitted is None or is_true(workload, "PodsReady"):
        return None
    waits = _waits_for_pods_since(workload, settings, admitted)
    if waits is None or now - waits[0] < waits[1]:
        return None
    text = f"Exceeded the PodsReady timeout {workload.key}"
    state = workload.status.requeue_state or RequeueState()
    count = (state.count or 0) + 1
    if settings.backoff_limit is not None and count > settings.backoff_limit:
        text = "exceeding the maximum number of re-queuing retries"
        return _given_up(workload, "RequeuingLimitExceeded", text, now)
    wait = min(settings.backoff_base * 2 ** (count - 1), settings.backoff_most)
    state = RequeueState(count, rfc3339(now + wait))
    status = msgspec.structs.replace(workload.status, requeue_state=state)
    workload = msgspec.structs.replace(workload, status=status)
    ready = condition(workload, "PodsReady")
    cause = ready.reason if ready is not None else "WaitForStart"
    return evicted(workload, "PodsReadyTimeout", text, now, cause)


def _waits_for_pods_since(
    workload: KueueWorkload, settings: PodsReady, admitted: float
) -> tuple[float, float] | None:
    """Return since when a workload waits for its pods, and for how long it may; None: for ever."""
    ready = condition(workload, "PodsReady")
    if ready is None or ready.reason not in ("WaitForRecovery", "WorkloadRecovery"):
        return admitted, settings.timeout
    if settings.recovery_timeout is None:
        return None
    return seconds_of(ready.last_transition_time), settings.recovery_timeout


def without_quota(workload: KueueWorkload, now: float) -> KueueWorkload:
    """Return an evicted workload whose pods have ended: it waits in its queue again.

    One that was evicted because its pods did not get ready waits for its backoff first, a
    deactivated one until it is active, others until their queues are started again.
    """
    gone = condition(workload, "Evicted")
    reason, message = (gone.reason, gone.message) if gone is not None else (Reason.PENDING, "")
    waits = reason in _WAITS or reason.startswith(DEACTIVATED)
    new = [
        KueueCondition("QuotaReserved", "False", Reason.PENDING, message),
        KueueCondition("Admitted", "False", "NoReservation", "The workload has no reservation"),
        KueueCondition("Requeued", "False" if waits else "True", reason, message),
    ]
    conditions = workload.status.conditions
    for one in new:
        conditions = set_condition(conditions, one, now, workload.metadata.generation)
    # Checks begin again with the next reservation.
    checks = tuple(_reset(check, now) for check in workload.status.admission_checks)
    status = msgspec.structs.replace(
        workload.status,
        conditions=conditions,
        admission=None,
        admission_checks=checks,
        accumulated_past_execution_time_seconds=_time_so_far(workload, now),
        unhealthy_nodes=(),
        nominated_cluster_names=(),
        cluster_name=None,
    )
    return msgspec.structs.replace(workload, status=status)


def _time_so_far(workload: KueueWorkload, now: float) -> int | None:
    """Return for how long an evicted workload has run, all in all.

    One that was given up for its time has all of it again once it is active.
    """
    gone, admitted = condition(workload, "Evicted"), since(workload, "Admitted")
    if gone is not None and gone.reason.endswith(_TIME_IS_OVER):
        return None
    past = workload.status.accumulated_past_execution_time_seconds
    return past if admitted is None else (past or 0) + int(now - admitted)


def _reset(check: AdmissionCheckState, now: float) -> AdmissionCheckState:
    if check.state == "Pending":
        return check
    return AdmissionCheckState(
        check.name,
        "Pending",
        f"Reset to Pending after eviction. Previously: {check.state}",
        last_transition_time=rfc3339(now),
        requeue_after_seconds=check.requeue_after_seconds,
        retry_count=(check.retry_count or 0) + 1 if check.state == "Retry" else check.retry_count,
    )


def requeued(
    workload: KueueWorkload, queue: ClusterQueue | None, local: LocalQueue | None, now: float
) -> KueueWorkload | None:
    """Return a workload that may run again: what it waited for since its eviction is over."""
    stated = condition(workload, "Requeued")
    if stated is None or stated.status != "False" or has_quota(workload):
        return None
    state = workload.status.requeue_state
    if stated.reason.startswith(DEACTIVATED):
        if workload.spec.active is False:
            return None
        reason, text = "Reactivated", "The workload was reactivated"
    elif stated.reason in ("ClusterQueueStopped", "LocalQueueStopped"):
        kind = stated.reason.removesuffix("Stopped")
        stopped = queue if kind == "ClusterQueue" else local
        if stopped is None or stopped.spec.stop_policy in STOPPED:
            return None
        reason, text = f"{kind}Restarted", f"The {kind} was restarted after being stopped"
    elif state is not None and state.requeue_at and seconds_of(state.requeue_at) > now:
        return None
    else:
        reason, text = "BackoffFinished", "The workload backoff was finished"
    new = KueueCondition("Requeued", "True", reason, text)
    conditions = set_condition(workload.status.conditions, new, now, workload.metadata.generation)
    if state is not None:
        state = msgspec.structs.replace(state, requeue_at=None)
    status = msgspec.structs.replace(workload.status, conditions=conditions, requeue_state=state)
    return msgspec.structs.replace(workload, status=status)


def with_checks(workload: KueueWorkload, queue: ClusterQueue, now: float) -> KueueWorkload | None:
    """Return a workload with quota with the checks that it still lacks, as pending."""
    if not has_quota(workload) or is_true(workload, "Evicted"):
        return None
    required = required_checks(queue, workload)
    admitted = is_true(workload, "Admitted")
    # A check that its queue no longer asks for holds nothing back.
    kept = [c for c in workload.status.admission_checks if admitted or c.name in required]
    known = {check.name for check in kept}
    missing = [name for name in required if name not in known]
    new = [
        AdmissionCheckState(name, "Pending", last_transition_time=rfc3339(now)) for name in missing
    ]
    checks = (*kept, *new)
    if checks == workload.status.admission_checks:
        return None
    status = msgspec.structs.replace(workload.status, admission_checks=checks)
    return msgspec.structs.replace(workload, status=status)


def after_checks(workload: KueueWorkload, queue: ClusterQueue, now: float) -> KueueWorkload | None:
    """Return a workload with quota that is admitted because its checks have become ready."""
    if not has_quota(workload) or is_true(workload, "Admitted") or is_true(workload, "Evicted"):
        return None
    states = {check.name: check.state for check in workload.status.admission_checks}
    if any(states.get(name) != "Ready" for name in required_checks(queue, workload)):
        return None
    if any(state != "Ready" for state in states.values()):
        return None
    new = KueueCondition("Admitted", "True", "Admitted", "The workload is admitted")
    conditions = set_condition(workload.status.conditions, new, now, workload.metadata.generation)
    status = msgspec.structs.replace(workload.status, conditions=conditions)
    return msgspec.structs.replace(workload, status=status)
