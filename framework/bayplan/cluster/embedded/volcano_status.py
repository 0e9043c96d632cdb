"""The status of Volcano jobs: their phases, and what a command makes of them.

Phases and their order are those of volcano-sh/volcano (pkg/controllers/job/state).
"""

from __future__ import annotations

from msgspec.structs import replace

from bayplan.api import Pod, VolcanoJob
from bayplan.api.workloads import VolcanoJobState, VolcanoJobStatus

__all__ = ["commanded", "least_of", "makes_pods", "status_of"]

_ENDED = ("Completed", "Failed", "Terminated", "Aborted")
_KILLED = {"Aborting": "Aborted", "Terminating": "Terminated", "Completing": "Completed"}
"""Phases in which a job waits for its pods to go, and the phase that follows."""
_RESTARTING = "Restarting"
_COMMANDS = {
    "AbortJob": "Aborting",
    "TerminateJob": "Terminating",
    "CompleteJob": "Completing",
    "RestartJob": _RESTARTING,
}


def least_of(job: VolcanoJob) -> int:
    """Return the number of pods that a job needs at least."""
    total = sum(task.replicas for task in job.spec.tasks)
    return job.spec.min_available if job.spec.min_available is not None else total


def makes_pods(status: VolcanoJobStatus) -> bool:
    """Return whether a job's phase is one in which its pods are created."""
    return status.state.phase in ("", "Pending", "Running")


def commanded(status: VolcanoJobStatus, action: str, now: str) -> VolcanoJobStatus | None:
    """Return the status of a job after a command, None when its phase forbids it.

    Aborted jobs can be resumed, those that run or wait can be stopped or restarted. Each new start
    counts as a retry.
    """
    phase = status.state.phase
    if action == "ResumeJob":
        wanted = _RESTARTING if phase in ("Aborting", "Aborted") else ""
    else:
        wanted = _COMMANDS.get(action, "") if makes_pods(status) else ""
    if not wanted:
        return None
    retries = status.retry_count + (wanted == _RESTARTING)
    state = VolcanoJobState(wanted, last_transition_time=now)
    return replace(status, state=state, retry_count=retries)


def status_of(job: VolcanoJob, pods: list[Pod], now: str) -> VolcanoJobStatus:
    """Return the status of a job.

    :param pods: its pods as they are now.
    :param now: the present time, RFC 3339.
    """
    old = job.status
    phases = [pod.status.phase for pod in pods if pod.metadata.deletion_timestamp is None]
    status = VolcanoJobStatus(
        state=old.state,
        min_available=least_of(job),
        pending=phases.count("Pending"),
        running=phases.count("Running"),
        succeeded=phases.count("Succeeded"),
        failed=phases.count("Failed"),
        terminating=len(pods) - len(phases),
        unknown=phases.count("Unknown"),
        retry_count=old.retry_count,
    )
    phase = _next_phase(job, status)
    if phase == old.state.phase:
        return status
    return replace(status, state=VolcanoJobState(phase, last_transition_time=now))


def _next_phase(job: VolcanoJob, status: VolcanoJobStatus) -> str:
    phase = status.state.phase or "Pending"
    total = sum(task.replicas for task in job.spec.tasks)
    alive = status.pending + status.running + status.terminating
    if phase in _ENDED:
        return phase
    if phase in _KILLED:
        return phase if alive else _KILLED[phase]
    if phase == _RESTARTING:
        if status.retry_count >= job.spec.max_retry:
            return "Failed"
        return "Pending" if total - status.terminating >= status.min_available else phase
    ended = status.succeeded + status.failed
    if total and ended == total:
        return "Completed" if status.succeeded >= status.min_available else "Failed"
    return "Running" if status.running + ended >= status.min_available else phase
