"""What has a Workload of Kueue's: a job, a pod or a group that is followed, or something else."""

from __future__ import annotations

from bayplan.api.kueue import KueueWorkload
from bayplan.dialects.kueue import GROUP_MARK, JOB_UID
from bayplan.dialects.queued_jobs import queued_kinds
from bayplan.queues.workload_waits import QUOTA_RESERVED, true_conditions

__all__ = ["is_lone", "is_of_followed_kind", "parent_of"]

_BY_PODS = frozenset(("Pod", "ReplicaSet", "StatefulSet", "LeaderWorkerSet"))
"""The kinds of jobs that are followed by their pods."""


def parent_of(workload: KueueWorkload) -> str:
    """Return the UID of the Workload that a variant belongs to; empty for others."""
    for owner in workload.metadata.owner_references:
        if owner.kind == "Workload" and owner.controller:
            return owner.uid
    return ""


def is_of_followed_kind(workload: KueueWorkload) -> bool:
    """Tell whether a Workload is that of a job, pod or group of a kind that bayplan follows."""
    owners = workload.metadata.owner_references
    kinds = {one.kind for one in owners if one.controller} or {one.kind for one in owners}
    return bool(kinds & _BY_PODS) or any(type_.__name__ in kinds for type_ in queued_kinds())


def is_lone(workload: KueueWorkload) -> bool:
    """Tell whether nothing that bayplan follows has a Workload.

    A variant of another Workload counts once it has quota. One that has lost its job is finished.
    """
    meta = workload.metadata
    if is_of_followed_kind(workload) or GROUP_MARK in meta.annotations.items():
        return False
    if not meta.owner_references and JOB_UID in meta.labels:
        return False
    return not parent_of(workload) or QUOTA_RESERVED in true_conditions(workload)
