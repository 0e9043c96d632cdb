"""How long Kueue's workloads wait, and when they are evicted, as their conditions tell.

That of a job waits before it has any pods, so that pods cannot tell; those of pods, and of groups
of pods, wait with them.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from bayplan.api import KueueWorkload, LocalQueue
from bayplan.api.kueue import KueueCondition
from bayplan.dialects.queued_jobs import is_part
from bayplan.dialects.reading import timestamp
from bayplan.snapshot import PodInfo, Snapshot

__all__ = [
    "ADMITTED",
    "EVICTED",
    "QUOTA_RESERVED",
    "Reached",
    "WaitingWorkload",
    "has_workload",
    "is_of_pods",
    "reached",
    "true_conditions",
    "waiting_workloads",
    "waits_since",
]

ADMITTED = "Admitted"
EVICTED = "Evicted"
QUOTA_RESERVED = "QuotaReserved"
_SINCE = (EVICTED, "Requeued")
"""The conditions from whose last change an evicted workload waits again."""


class Reached(msgspec.Struct, frozen=True):
    """A condition that came true, of a workload of a ClusterQueue, with its reason.

    ``waited`` is for how many seconds the workload had waited: since it was created or evicted.
    """

    condition: str
    queue: str
    waited: float
    reason: str


def reached(old: KueueWorkload | None, new: KueueWorkload | None) -> Iterator[Reached]:
    """Yield the conditions that came true with a change.

    None for an object that is new or gone: what a new one says happened before it was seen.
    """
    if old is None or new is None:
        return
    admission = new.status.admission or old.status.admission
    if admission is None:
        return
    before = true_conditions(old)
    for kind, one in true_conditions(new).items():
        if kind in (QUOTA_RESERVED, ADMITTED, EVICTED) and kind not in before:
            waited = max(0.0, timestamp(one.last_transition_time) - waits_since(new))
            yield Reached(kind, admission.cluster_queue, waited, one.reason)


def is_of_pods(workload: KueueWorkload) -> bool:
    """Tell whether a Workload is that of pods, which wait with it."""
    owners = workload.metadata.owner_references
    return bool(owners) and all(one.kind == "Pod" for one in owners)


def has_workload(pod: PodInfo, queue: str, snapshot: Snapshot) -> bool:
    """Tell whether the Workload of a job tells a pod's wait: the pod comes only after it.

    :param queue: ``SYSTEM/NAME`` of the pod's queue, "" without one.
    """
    jobs = queue.startswith("kueue/") and is_part(pod.pod.metadata)
    return jobs and bool(snapshot.objects(KueueWorkload))


class WaitingWorkload(msgspec.Struct, frozen=True):
    """A workload without quota, its ClusterQueue, and for how many seconds it has waited."""

    workload: KueueWorkload
    queue: str
    seconds: float


def waiting_workloads(snapshot: Snapshot, unix_time: float) -> Iterator[WaitingWorkload]:
    """Yield the workloads of jobs that wait for quota."""
    queues = snapshot.objects(LocalQueue)
    for one in snapshot.objects(KueueWorkload).values():
        conditions = true_conditions(one)
        if (
            is_of_pods(one)
            or one.spec.active is False
            or conditions.keys() & {QUOTA_RESERVED, "Finished"}
        ):
            continue
        queue = queues.get(f"{one.metadata.namespace}/{one.spec.queue_name}")
        if queue is not None:
            waits = max(0.0, unix_time - waits_since(one))
            yield WaitingWorkload(one, queue.spec.cluster_queue, waits)


def true_conditions(workload: KueueWorkload) -> dict[str, KueueCondition]:
    """Return the conditions that hold, by type."""
    return {one.type: one for one in workload.status.conditions if one.status == "True"}


def waits_since(workload: KueueWorkload) -> float:
    """Return since when a workload waits or waited, in seconds since 1970."""
    stamps = [workload.metadata.creation_timestamp]
    stamps += [c.last_transition_time for c in workload.status.conditions if c.type in _SINCE]
    return max(map(timestamp, stamps))
