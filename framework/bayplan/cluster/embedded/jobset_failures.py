"""What becomes of a JobSet one of whose Jobs failed: it fails, or all Jobs are made again.

Rules, reasons and messages are those of kubernetes-sigs/jobset (KEP-262).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from bayplan.api import Job, JobSet
from bayplan.api.jobset import FailurePolicyRule
from bayplan.api.meta import Condition
from bayplan.api.workloads import JobCondition

__all__ = ["Outcome", "outcome_of"]

_GROUP = "jobset.sigs.k8s.io/replicatedjob-name"
_FAIL, _RESTART = "FailJobSet", "RestartJobSet"


class Outcome(msgspec.Struct, frozen=True):
    """The condition that a set gets, whether it fails, and whether a restart counts."""

    condition: Condition
    fails: bool
    counts: bool = False


def outcome_of(owner: JobSet, failed: Sequence[Job]) -> Outcome:
    """Return what becomes of a set with Jobs that failed."""
    policy, first = owner.spec.failure_policy, _earliest(failed)
    if policy is None:
        return _failure("FailedJobs", "jobset failed due to one or more job failures", first)
    rule, job = _first_match(policy.rules, failed)
    action = rule.action if rule is not None else _RESTART
    job = job or first
    if action == _FAIL:
        return _failure(
            f"{_FAIL}FailurePolicyAction", f"applying {_FAIL} failure policy action", job
        )
    # What restarts a single Job is an alpha feature, and restarts the set here.
    counts = not action.endswith("IgnoreMaxRestarts")
    if counts and owner.status.restarts_count_towards_max >= policy.max_restarts:
        text = "jobset failed due to reaching max number of restarts"
        return _failure("ReachedMaxRestarts", text, job)
    reason = f"FailurePolicy_{rule.name}" if rule is not None else "DefaultFailurePolicy"
    text = _about(f"applying {action} failure policy action", job)
    return Outcome(Condition("RestartingJobSet", "True", reason, text), False, counts)


def _failure(reason: str, text: str, job: Job) -> Outcome:
    return Outcome(Condition("Failed", "True", reason, _about(text, job)), True)


def _about(text: str, job: Job) -> str:
    return f"{text} (first failed job: {job.metadata.name})"


def _first_match(
    rules: Iterable[FailurePolicyRule], failed: Sequence[Job]
) -> tuple[FailurePolicyRule | None, Job | None]:
    """Return the first rule that matches any Job, with the one of these that failed first."""
    for rule in rules:
        matching = [job for job in failed if _matches(rule, job)]
        if matching:
            return rule, _earliest(matching)
    return None, None


def _matches(rule: FailurePolicyRule, job: Job) -> bool:
    condition = _failed_condition(job)
    if rule.on_job_failure_reasons and condition.reason not in rule.on_job_failure_reasons:
        return False
    patterns = rule.on_job_failure_message_patterns
    if patterns and not any(_found(pattern, condition.message) for pattern in patterns):
        return False
    targets, group = rule.target_replicated_jobs, job.metadata.labels.get(_GROUP)
    return group is not None and (not targets or group in targets)


def _found(pattern: str, text: str) -> bool:
    """Tell whether a pattern (RE2, as Go's) is in a text; one that cannot be read is not."""
    # Only sets with such rules need the library, which takes time to load.
    import re2

    try:
        return re2.search(pattern, text) is not None
    except re2.error:
        return False


def _earliest(jobs: Sequence[Job]) -> Job:
    return min(jobs, key=lambda job: _failed_condition(job).last_transition_time or "")


def _failed_condition(job: Job) -> JobCondition:
    return next(one for one in job.status.conditions if one.type == "Failed")
