"""The status of Jobs: counts of pods, conditions, times, as pkg/controller/job writes them."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from bayplan.api import Job, Pod
from bayplan.api.workloads import JobCondition, JobStatus
from bayplan.cluster.embedded.children import alive, is_ready

__all__ = ["FinishedPods", "is_finished", "status_of"]

_DONE = ("CompletionsReached", "Reached expected number of succeeded pods")
_FAILED = ("BackoffLimitExceeded", "Job has reached the specified backoff limit")


class FinishedPods(msgspec.Struct, frozen=True):
    """What has ended so far, with the pods that exist no more.

    :param done: the indexes of an indexed job that succeeded, else the uids of its pods that did.
    :param failed: the number of pods that failed.
    :param by_policy: why the job's podFailurePolicy lets it fail, "" if it does not.
    """

    done: frozenset[int | str]
    failed: int
    by_policy: str = ""


def is_finished(status: JobStatus) -> bool:
    """Return whether a job has succeeded or failed."""
    return any(c.type in ("Complete", "Failed") and c.status == "True" for c in status.conditions)


def status_of(job: Job, pods: list[Pod], finished: FinishedPods, now: str) -> JobStatus:
    """Return the status of a job that is not finished yet.

    A suspended job has no start time, and gets a new one when it is resumed. A job ends only when
    none of its pods is left; SuccessCriteriaMet and FailureTarget say before how it will end.

    :param pods: its pods, after the controller created and deleted some.
    :param now: the present time, RFC 3339.
    """
    old, spec = job.status, job.spec
    active = [pod for pod in pods if alive(pod)]
    phases = ("Pending", "Running")
    terminating = sum(p.status.phase in phases for p in pods) - len(active)
    indexed = spec.completion_mode == "Indexed"
    status = JobStatus(
        conditions=old.conditions,
        start_time=None if spec.suspend else old.start_time or now,
        active=len(active) or None,
        ready=sum(is_ready(pod) for pod in active),
        terminating=terminating,
        succeeded=len(finished.done) or None,
        failed=finished.failed or None,
        completed_indexes=_ranges(finished.done) if indexed else "",
        failed_indexes=old.failed_indexes,
    )
    if finished.by_policy:
        why = ("PodFailurePolicy", finished.by_policy)
        return _ended(status, "FailureTarget", "Failed", why, now)
    if finished.failed > spec.backoff_limit:
        return _ended(status, "FailureTarget", "Failed", _FAILED, now)
    if _is_done(job, len(finished.done), len(active)):
        return _ended(status, "SuccessCriteriaMet", "Complete", _DONE, now)
    return _suspension(status, spec.suspend, now)


def _is_done(job: Job, succeeded: int, active: int) -> bool:
    total = job.spec.completions
    if active:
        return False
    return succeeded > 0 if total is None else succeeded >= total


def _ended(status: JobStatus, first: str, last: str, why: tuple[str, str], now: str) -> JobStatus:
    """Return the status of a job whose end is decided."""
    kinds = (first,) if status.active or status.terminating else (first, last)
    for kind in kinds:
        status = _with(status, JobCondition(kind, "True", *why, now, now))
    over = last in kinds and last == "Complete"
    return replace(status, completion_time=now) if over else status


def _suspension(status: JobStatus, suspend: bool, now: str) -> JobStatus:
    """Set the Suspended condition, which jobs that were never suspended do not have."""
    if suspend:
        why = ("JobSuspended", "Job suspended")
        return _with(status, JobCondition("Suspended", "True", *why, now, now))
    if any(c.type == "Suspended" for c in status.conditions):
        why = ("JobResumed", "Job resumed")
        return _with(status, JobCondition("Suspended", "False", *why, now, now))
    return status


def _with(status: JobStatus, wanted: JobCondition) -> JobStatus:
    """Set a condition; one with this status already stays as it is."""
    known = {c.type: c for c in status.conditions}
    before = known.get(wanted.type)
    if before is None or before.status != wanted.status:
        known[wanted.type] = wanted
    return replace(status, conditions=tuple(known.values()))


def _ranges(indexes: Iterable[int | str]) -> str:
    """Return indexes as status.completedIndexes has them: ``1,3-5``; pairs are not joined."""
    found = sorted(index for index in indexes if isinstance(index, int))
    runs: list[list[int]] = []
    for index in found:
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    return ",".join(
        f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs
    )
