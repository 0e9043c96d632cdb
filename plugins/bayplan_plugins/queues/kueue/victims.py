"""Whom a workload may preempt, in which order, and the texts that say so."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum
from functools import cmp_to_key

import msgspec

from bayplan.api.kueue import KueueWorkload
from bayplan.dialects.kueue import JOB_UID
from bayplan_plugins.queues.kueue.settings import Settings
from bayplan_plugins.queues.kueue.workloads import (
    WorkloadInfo,
    priority_of,
    queue_time,
)

__all__ = [
    "Rank",
    "Victim",
    "Why",
    "in_order",
    "may_preempt",
    "preemption_message",
    "victim_rank",
]

Rank = tuple[bool, bool, int, float, str]
"""What candidates compare by; the lowest goes first."""


class Why(StrEnum):
    """Why a workload is preempted."""

    IN_QUEUE = "InClusterQueue"
    RECLAMATION = "InCohortReclamation"
    FAIR_SHARING = "InCohortFairSharing"
    RECLAIM_WHILE_BORROWING = "InCohortReclaimWhileBorrowing"
    REPLACED = ""
    """It is the workload slice that the preemptor replaces."""


_TEXTS = {
    Why.IN_QUEUE: "prioritization in the ClusterQueue",
    Why.RECLAMATION: "reclamation within the cohort",
    Why.FAIR_SHARING: "Fair Sharing within the cohort",
    Why.RECLAIM_WHILE_BORROWING: "reclamation within the cohort while borrowing",
    Why.REPLACED: "UNKNOWN",
}


class Victim(msgspec.Struct, frozen=True):
    """A workload that has to go, and why it may be taken."""

    workload: WorkloadInfo
    why: Why


def may_preempt(
    preemptor: KueueWorkload, candidate: KueueWorkload, policy: str, settings: Settings
) -> bool:
    """Tell whether a policy lets a workload preempt another.

    :param policy: Never, LowerPriority, LowerOrNewerEqualPriority or Any.
    """
    mine, theirs = priority_of(preemptor, settings), priority_of(candidate, settings)
    if policy == "LowerPriority":
        return mine > theirs
    if policy == "LowerOrNewerEqualPriority":
        newer = queue_time(candidate, settings) > queue_time(preemptor, settings)
        return mine > theirs or (mine == theirs and newer)
    return policy == "Any"


def victim_rank(one: WorkloadInfo, queue: str, now: float, settings: Settings) -> Rank:
    """Return what candidates compare by where usage over time does not count.

    :param queue: the preemptor's ClusterQueue.
    """
    reserved = now if one.reserved_at is None else one.reserved_at
    priority = priority_of(one.workload, settings)
    return not one.evicted, one.queue == queue, priority, -reserved, one.uid


def in_order(
    candidates: Iterable[WorkloadInfo], queue: str, now: float, settings: Settings
) -> list[WorkloadInfo]:
    """Return candidates with the first to go first.

    Those already evicted, those of other queues, those of heavier LocalQueues, those of lower
    priority, those with the newest quota, by UID.

    :param queue: the preemptor's ClusterQueue.
    """

    def rank(one: WorkloadInfo) -> Rank:
        return victim_rank(one, queue, now, settings)

    groups: dict[tuple[bool, bool], list[WorkloadInfo]] = {}
    for one in candidates:
        groups.setdefault((not one.evicted, one.queue == queue), []).append(one)
    ordered: list[WorkloadInfo] = []
    for group in sorted(groups):
        found = groups[group]
        if any(one.usage_share is not None for one in found):
            ordered += _by_usage(found, rank)
        else:
            ordered += sorted(found, key=rank)
    return ordered


def _by_usage(
    found: list[WorkloadInfo], rank: Callable[[WorkloadInfo], Rank]
) -> list[WorkloadInfo]:
    """Sort candidates; in a queue that goes by usage over time, those of heavy users go first."""

    def compare(one: WorkloadInfo, other: WorkloadInfo) -> int:
        mine, theirs = one.usage_share, other.usage_share
        if one.queue == other.queue and mine is not None and theirs is not None and mine != theirs:
            return -1 if mine > theirs else 1
        ranks = rank(one), rank(other)
        return (ranks[0] > ranks[1]) - (ranks[0] < ranks[1])

    return sorted(found, key=cmp_to_key(compare))


def preemption_message(
    preemptor: KueueWorkload, why: str, preemptor_path: str, victim_path: str
) -> str:
    """Return the text of the conditions of a preempted workload.

    :param preemptor_path: the names from the root cohort to the preemptor's queue.
    """
    uid = preemptor.metadata.uid or "UNKNOWN"
    job = preemptor.metadata.labels.get(JOB_UID) or "UNKNOWN"
    return (
        f"Preempted to accommodate a workload (UID: {uid}, JobUID: {job}) due to "
        f"{_TEXTS[Why(why)]}; preemptor path: {preemptor_path or 'UNKNOWN'}; preemptee path: "
        f"{victim_path or 'UNKNOWN'}"
    )


def preempted_message(victim: WorkloadInfo) -> str:
    """Return the text of the event that tells a preemptor whom it preempted."""
    uid = victim.workload.metadata.uid or "UNKNOWN"
    return f"Preempted workload {victim.key} (UID: {uid}) in ClusterQueue {victim.queue}"


def compared_priorities(preemptor: KueueWorkload, victim: KueueWorkload, settings: Settings) -> str:
    """Return the end of the events of both: their priorities."""
    parts = (("preemptor", preemptor), ("preemptee", victim))
    texts = (f"{name} effective priority: {_priority_text(one, settings)}" for name, one in parts)
    return "; " + "; ".join(texts)


def _priority_text(workload: KueueWorkload, settings: Settings) -> str:
    effective, base = priority_of(workload, settings), workload.spec.priority or 0
    return f"{effective} (base: {base}, boost: {effective - base})"
