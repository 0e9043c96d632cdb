"""Elastic jobs: a job that grows gets a new workload slice, which replaces the old one.

The rules are Kueue's (pkg/workloadslicing): one slice with quota, and at most one pending slice
that replaces it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cmp_to_key

import msgspec

from bayplan.api.kueue import AssignedPodSet, KueueWorkload, PodSet
from bayplan.api.meta import ObjectMeta
from bayplan.dialects.kueue import JOB_UID
from bayplan.dialects.queued_jobs import ELASTIC_ANNOTATION
from bayplan_plugins.queues.kueue.amounts import amount_in, quantity_of
from bayplan_plugins.queues.kueue.conditions import finished, has_quota, is_true
from bayplan_plugins.queues.kueue.snapshot import Snapshot
from bayplan_plugins.queues.kueue.workloads import REPLACES, WorkloadInfo, creation

__all__ = [
    "SliceChoice",
    "choose_slice",
    "is_elastic",
    "latest_with_quota",
    "normalize",
    "out_of_sync",
    "replaced_key",
    "replaced_slice",
    "replacement_message",
    "scaled_down",
    "unfinished",
    "with_counts",
    "with_lowered_admission",
]

_OUT_OF_SYNC = "The workload slice is out of sync with its parent job"
_REPLACED = "Replaced to accommodate a new workload slice"


def is_elastic(metadata: ObjectMeta) -> bool:
    """Tell whether a job or a workload grows and shrinks by slices."""
    return metadata.annotations.get(ELASTIC_ANNOTATION) == "true"


def replaced_key(workload: KueueWorkload) -> str | None:
    """Return ``namespace/name`` of the slice that a workload replaces."""
    return workload.metadata.annotations.get(REPLACES)


def replaced_slice(workload: WorkloadInfo, snapshot: Snapshot) -> WorkloadInfo | None:
    """Return the slice with quota of the same queue and namespace that a workload replaces.

    It has the same pod sets, of other sizes; a workload with others replaces none.
    """
    key = replaced_key(workload.workload)
    if key is None or workload.queue not in snapshot.queues:
        return None
    found = snapshot.workload(workload.queue, key)
    if found is None:
        return None
    namespaces = {one.workload.metadata.namespace for one in (workload, found)}
    names, old_names = ([pods.name for pods in one.pod_sets] for one in (workload, found))
    return found if len(namespaces) == 1 and names == old_names else None


def replacement_message(new: KueueWorkload) -> str:
    """Return the text of the condition of a slice that was replaced."""
    uid, job = new.metadata.uid, new.metadata.labels.get(JOB_UID, "")
    return (
        f"Replaced to accommodate a workload (UID: {uid}, JobUID: {job}) "
        "due to workload slice aggregation"
    )


def scaled_down(old: Mapping[str, int], new: Mapping[str, int]) -> bool:
    """Tell whether counts by pod set fell: at least one did, and none grew."""
    return _has_fewer(new, old) and not _has_fewer(old, new)


def _has_fewer(some: Mapping[str, int], others: Mapping[str, int]) -> bool:
    return any(name in others and count < others[name] for name, count in some.items())


def unfinished(workloads: Iterable[KueueWorkload]) -> list[KueueWorkload]:
    """Return the slices of a job that have not ended, the oldest first."""

    def compare(one: KueueWorkload, other: KueueWorkload) -> int:
        times = creation(one), creation(other)
        if times[0] != times[1]:
            return -1 if times[0] < times[1] else 1
        # Times are in whole seconds, in which a job may have grown.
        if replaced_key(other) == one.key:
            return -1
        if replaced_key(one) == other.key:
            return 1
        ranks = [(w.metadata.uid, w.key) for w in (one, other)]
        return -1 if ranks[0] < ranks[1] else 1

    living = (one for one in workloads if not is_true(one, "Finished"))
    return sorted(living, key=cmp_to_key(compare))


def latest_with_quota(workloads: Iterable[KueueWorkload]) -> KueueWorkload | None:
    """Return the newest slice of a job that has quota; its counts are what the job may run."""
    for one in reversed(unfinished(workloads)):
        if has_quota(one) and not is_true(one, "Evicted"):
            return one
    return None


# Choice ------------------------------------------------------------------------------------


class SliceChoice(msgspec.Struct, frozen=True):
    """What becomes of the slices of a job.

    :param workload: the slice that stands for the job, with the job's counts; None where a new one
        has to be made.
    :param compatible: whether the job's pod sets are those of its slices; if not, the job has to
        be stopped.
    :param changed: whether ``workload`` got other counts.
    :param finished: slices that have ended by this.
    """

    workload: KueueWorkload | None = None
    compatible: bool = True
    changed: bool = False
    finished: tuple[KueueWorkload, ...] = ()


def choose_slice(
    pod_sets: Sequence[PodSet], workloads: Iterable[KueueWorkload], now: float
) -> SliceChoice:
    """Return which slice stands for a job with certain pod sets.

    A slice without quota, and one of a job that shrinks, is changed in place.

    :param workloads: all workloads that the job owns.
    """
    slices = unfinished(workloads)
    if not slices:
        return SliceChoice()
    ended: tuple[KueueWorkload, ...] = ()
    if len(slices) == 1:
        chosen: KueueWorkload | None = slices[0]
    else:
        chosen, ended = normalize(slices, now)
    if chosen is None:
        return SliceChoice(finished=ended)
    wanted = {one.name: one.count for one in pod_sets}
    has = {one.name: one.count for one in chosen.spec.pod_sets}
    if wanted.keys() != has.keys():
        return SliceChoice(None, False, finished=ended)
    if wanted == has:
        return SliceChoice(chosen, finished=ended)
    if not has_quota(chosen) or scaled_down(has, wanted):
        return SliceChoice(with_counts(chosen, wanted), changed=True, finished=ended)
    return SliceChoice(finished=ended)


def with_counts(workload: KueueWorkload, counts: Mapping[str, int]) -> KueueWorkload:
    """Return a slice with other counts by pod set."""
    sets = tuple(
        msgspec.structs.replace(one, count=counts[one.name]) for one in workload.spec.pod_sets
    )
    spec = msgspec.structs.replace(workload.spec, pod_sets=sets)
    return msgspec.structs.replace(workload, spec=spec)


def with_lowered_admission(workload: KueueWorkload) -> KueueWorkload:
    """Return a slice with quota that was admitted with no more pods than it asks for."""
    admission = workload.status.admission
    if admission is None:
        return workload
    asked = {one.name: one.count for one in workload.spec.pod_sets}
    sets = tuple(_lowered(one, asked.get(one.name)) for one in admission.pod_set_assignments)
    admission = msgspec.structs.replace(admission, pod_set_assignments=sets)
    status = msgspec.structs.replace(workload.status, admission=admission)
    return msgspec.structs.replace(workload, status=status)


def _lowered(given: AssignedPodSet, asked: int | None) -> AssignedPodSet:
    if asked is None or not given.count or given.count <= asked:
        return given
    usage = {
        name: quantity_of(name, amount_in(name, amount) // given.count * asked)
        for name, amount in given.resource_usage.items()
    }
    return msgspec.structs.replace(given, count=asked, resource_usage=usage)


def out_of_sync(workload: KueueWorkload, now: float) -> KueueWorkload:
    """Return a slice that has ended because its job is another by now."""
    return finished(workload, "OutOfSync", _OUT_OF_SYNC, now)


def normalize(
    slices: Sequence[KueueWorkload], now: float
) -> tuple[KueueWorkload | None, tuple[KueueWorkload, ...]]:
    """Return the slice that stands for a job, and those that end by that.

    Evicted slices always end, because they hold quota that has to be released.

    :param slices: in the order of :func:`unfinished`, of which the last one is the newest.
    """
    living = [one for one in slices if not is_true(one, "Evicted")]
    replacements: dict[str, KueueWorkload] = {}
    for one in living:
        key = replaced_key(one)
        if key is None:
            continue
        known = replacements.get(key)
        if known is None or (has_quota(one) and not has_quota(known)):
            replacements[key] = one
    with_quota = waiting = None
    newest = living[-1] if living else None
    for one in living:
        successor = replacements.get(one.key)
        if has_quota(one) and not (successor is not None and has_quota(successor)):
            with_quota = one
    if with_quota is not None:
        successor = replacements.get(with_quota.key)
        waiting = successor if successor is not None and not has_quota(successor) else None
    chosen = waiting or with_quota or newest
    kept = {one.key for one in (chosen, with_quota) if one is not None}
    ended = [one for one in slices if one.key not in kept]
    return chosen, tuple(
        finished(one, "WorkloadSliceReplaced", _REPLACED, now)
        if one.key in replacements
        else out_of_sync(one, now)
        for one in ended
    )
