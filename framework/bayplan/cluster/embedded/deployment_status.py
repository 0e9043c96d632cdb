"""The status of Deployments: replica counts and rollout progress."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from bayplan.api import Deployment, ReplicaSet
from bayplan.api.workloads import DeploymentStatus, WorkloadCondition
from bayplan.cluster.embedded.rollouts import RolloutLimits
from bayplan.cluster.embedded.store import MemoryCluster

__all__ = ["DeploymentCounts", "progress", "status_of"]

_AVAILABLE, _PROGRESSING = "Available", "Progressing"
_DONE, _TIMED_OUT = "NewReplicaSetAvailable", "ProgressDeadlineExceeded"
_PAUSED, _RESUMED = "DeploymentPaused", "DeploymentResumed"


class DeploymentCounts(msgspec.Struct, frozen=True):
    """The numbers of a Deployment's pods, in all and with the current template."""

    generation: int | None
    replicas: int
    updated: int
    ready: int
    available: int
    unavailable: int
    terminating: int

    def complete(self, owner: Deployment) -> bool:
        """Return whether the rollout is complete."""
        wanted = owner.spec.replicas
        return self.updated == self.replicas == self.available == wanted


def status_of(
    owner: Deployment, sets: list[ReplicaSet], new: ReplicaSet | None, cluster: MemoryCluster
) -> DeploymentCounts:
    """Count the pods of a Deployment by the statuses of its ReplicaSets."""
    available = sum(one.status.available_replicas or 0 for one in sets)
    return DeploymentCounts(
        cluster.generation_of(owner),
        sum(one.status.replicas for one in sets),
        new.status.replicas if new is not None else 0,
        sum(one.status.ready_replicas or 0 for one in sets),
        available,
        max(0, sum(one.spec.replicas for one in sets) - available),
        sum(one.status.terminating_replicas or 0 for one in sets),
    )


def progress(
    owner: Deployment, sets: list[ReplicaSet], new: ReplicaSet | None, cluster: MemoryCluster
) -> tuple[DeploymentStatus, float | None]:
    """Return a Deployment's status, and when its progress deadline expires."""
    counts = status_of(owner, sets, new, cluster)
    old = owner.status
    conditions = {c.type: c for c in old.conditions}
    stamp = cluster.timestamp()
    again = None
    if owner.spec.progress_deadline_seconds is None:
        conditions.pop(_PROGRESSING, None)
    else:
        before = conditions.get(_PROGRESSING)
        found = _progress(owner, counts, new, before, cluster)
        if found is not None:
            _set(conditions, replace(found, last_update_time=stamp, last_transition_time=stamp))
        again = _deadline(owner, conditions.get(_PROGRESSING), cluster)
    _set(conditions, _availability(owner, counts, stamp))
    status = DeploymentStatus(
        observed_generation=counts.generation,
        replicas=counts.replicas or None,
        updated_replicas=counts.updated or None,
        ready_replicas=counts.ready or None,
        available_replicas=counts.available or None,
        unavailable_replicas=counts.unavailable or None,
        terminating_replicas=counts.terminating or None,
        collision_count=old.collision_count,
        conditions=tuple(conditions.values()),
    )
    return status, again


def _set(conditions: dict[str, WorkloadCondition], wanted: WorkloadCondition) -> None:
    """Set a condition; an unchanged one keeps its times."""
    before = conditions.get(wanted.type)
    if before is not None and before.status == wanted.status:
        if before.reason == wanted.reason and wanted.reason != "ReplicaSetUpdated":
            return
        wanted = replace(wanted, last_transition_time=before.last_transition_time)
    conditions[wanted.type] = wanted


def _availability(owner: Deployment, counts: DeploymentCounts, stamp: str) -> WorkloadCondition:
    enough = counts.available >= RolloutLimits.of(owner).least
    return WorkloadCondition(
        _AVAILABLE,
        "True" if enough else "False",
        "MinimumReplicasAvailable" if enough else "MinimumReplicasUnavailable",
        f"Deployment {'has' if enough else 'does not have'} minimum availability.",
        stamp,
        stamp,
    )


def _progress(
    owner: Deployment,
    counts: DeploymentCounts,
    new: ReplicaSet | None,
    before: WorkloadCondition | None,
    cluster: MemoryCluster,
) -> WorkloadCondition | None:
    """Return the new Progressing condition, None when it does not change."""
    reason = before.reason if before is not None else ""
    if owner.spec.paused:
        return _condition("Unknown", _PAUSED, "Deployment is paused")
    if reason == _PAUSED:
        return _condition("Unknown", _RESUMED, "Deployment is resumed")
    name = f'ReplicaSet "{new.metadata.name}"' if new is not None else ""
    name = name or f'Deployment "{owner.metadata.name}"'
    if reason == _DONE and counts.replicas == counts.updated and _same_template(before, name):
        return None
    if counts.complete(owner):
        return _condition("True", _DONE, f"{name} has successfully progressed.")
    if before is None or _moves(owner, counts) or not _same_template(before, name):
        return _condition("True", "ReplicaSetUpdated", f"{name} is progressing.")
    deadline = _deadline(owner, before, cluster)
    if reason == _TIMED_OUT or (deadline is not None and deadline <= cluster.now):
        return _condition("False", _TIMED_OUT, f"{name} has timed out progressing.")
    return None


def _same_template(before: WorkloadCondition | None, name: str) -> bool:
    """Return whether a condition is about the current ReplicaSet."""
    about_set = before is not None and before.message.startswith("ReplicaSet ")
    return before is not None and (not about_set or before.message.startswith(f"{name} "))


def _condition(status: str, reason: str, message: str) -> WorkloadCondition:
    return WorkloadCondition(_PROGRESSING, status, reason, message)


def _moves(owner: Deployment, counts: DeploymentCounts) -> bool:
    """Return whether a rollout has progressed since the last status."""
    old = owner.status
    old_updated = old.updated_replicas or 0
    return (
        counts.updated > old_updated
        or counts.replicas - counts.updated < (old.replicas or 0) - old_updated
        or counts.ready > (old.ready_replicas or 0)
        or counts.available > (old.available_replicas or 0)
    )


def _deadline(
    owner: Deployment, condition: WorkloadCondition | None, cluster: MemoryCluster
) -> float | None:
    """Return when a stalled rollout has failed, None when no deadline applies."""
    seconds = owner.spec.progress_deadline_seconds
    if condition is None or seconds is None or owner.spec.paused:
        return None
    if condition.reason in (_DONE, _TIMED_OUT):
        return None
    # Times in conditions are whole seconds.
    return cluster.seconds_of(condition.last_update_time) + seconds + 1
