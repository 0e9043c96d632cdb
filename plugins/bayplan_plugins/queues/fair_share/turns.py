"""Which pods of an elastic job are placed next, and which go first when it has to shrink."""

from __future__ import annotations

from collections.abc import Sequence

from bayplan import PodInfo
from bayplan_plugins.queues.fair_share.jobs import Job, PodSet, pod_order

__all__ = ["next_pods", "next_victims"]


def next_pods(job: Job) -> list[PodInfo]:
    """Return the pods that are placed together next: what the minimum lacks, then one at a time."""
    lacking = [one for one in job.sets if not one.satisfied]
    if lacking:
        return [pod for one in lacking for pod in one.pending[: one.least - len(one.active)]]
    growing = [one for one in job.sets if one.pending]
    if not growing:
        return []
    least = min(growing, key=lambda one: len(one.active) / max(1, one.least))
    return list(least.pending[:1])


def next_victims(job: Job) -> list[PodInfo]:
    """Return the pods that go together next: the last surplus pod, or all that is left."""
    surplus = [one for one in job.sets if len(one.active) > one.least]
    if surplus:
        return [_last(surplus)]
    return sorted(job.pods, key=pod_order, reverse=True)


def _last(sets: Sequence[PodSet]) -> PodInfo:
    most = max(sets, key=lambda one: len(one.active) / max(1, one.least))
    return most.active[-1]
