"""The Workloads of one job: mostly a single one, and two while an elastic job waits to grow.

A job that shrinks has its Workload lowered, one that grows gets a new one, a slice, that replaces
the old one when it is admitted. What a job that is not elastic was admitted with is not its size
any more when that changes: it is stopped, and waits for its new size.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import msgspec

from bayplan.api import ApiObject, ObjectMeta
from bayplan.api.kueue import KueueWorkload, KueueWorkloadSpec, PodSet
from bayplan.api.objects import kind_of
from bayplan.api.times import rfc3339
from bayplan.dialects.kueue import JOB_UID
from bayplan.dialects.queued_jobs import ELASTIC_ANNOTATION, QueuedJob
from bayplan_plugins.queues.kueue.conditions import evicted, finished, has_quota, is_true
from bayplan_plugins.queues.kueue.prebuilt import as_prebuilt, owner_of, prebuilt_key
from bayplan_plugins.queues.kueue.slices import (
    choose_slice,
    latest_with_quota,
    out_of_sync,
    unfinished,
    with_counts,
    with_lowered_admission,
)
from bayplan_plugins.queues.kueue.workloads import REPLACES

__all__ = ["MANAGED_BY", "JobSlices", "home_of", "is_own", "updated"]

MANAGED_BY = ("app.kubernetes.io/managed-by", "bayplan")
"""The label of the Workloads that bayplan makes. Others have controllers of their own."""
_SLICE_NAME = "kueue.x-k8s.io/workload-slice-name"
"""Names the first slice of a job; all have it."""
_LONGEST_NAME = 247
"""Characters of a Workload's name before the dash and the five of its hash."""
_NO_MATCH = "No matching Workload; restoring pod templates according to existing Workload"


def is_own(workload: KueueWorkload) -> bool:
    """Tell whether bayplan made a Workload, or has taken it over."""
    name, value = MANAGED_BY
    return workload.metadata.labels.get(name) == value


class JobSlices(msgspec.Struct, frozen=True):
    """The Workloads of a job after it was looked at.

    :param all: those that it had, as they are now, and a new one.
    :param current: the key of the one by which its pods run, or else the one that waits.
    """

    all: Sequence[KueueWorkload]
    current: str


def updated(
    job: QueuedJob,
    known: Sequence[KueueWorkload],
    spec: Callable[[], KueueWorkloadSpec],
    now: float,
) -> JobSlices:
    """Return the Workloads of a job as they have to be now.

    :param known: those that it has, ended ones too.
    :param spec: returns the spec of one that waits, as the job is.
    :param now: seconds since 1970.
    """
    if job.state.end is not None:
        _, message = job.state.end
        end = "Succeeded" if job.state.succeeded else "Failed", message
        ended = [finished(one, *end, now) for one in known] or [
            finished(_made(job, known, spec(), now), *end, now)
        ]
        return JobSlices(ended, ended[-1].key)
    living = unfinished(known)
    if any(has_quota(one) and is_true(one, "Evicted") for one in living):
        # Its quota is free once its pods have ended; only then it is known what waits instead.
        new: Sequence[KueueWorkload] = ()
    elif job.elastic and job.pods:
        new = _elastic(job, living, known, spec, now)
    else:
        new = _fixed(job, living, known, spec, now)
    changed = {one.key: one for one in new}
    result = [changed.pop(one.key, one) for one in known]
    result += changed.values()
    return JobSlices(result, _current(result))


def _current(slices: Sequence[KueueWorkload]) -> str:
    living = unfinished(slices)
    # What is evicted has its quota until its pods have ended.
    holders = [one for one in living if has_quota(one)]
    latest = latest_with_quota(living)
    return (latest or (holders or living or slices)[-1]).key


def _fixed(
    job: QueuedJob,
    living: Sequence[KueueWorkload],
    known: Sequence[KueueWorkload],
    spec: Callable[[], KueueWorkloadSpec],
    now: float,
) -> list[KueueWorkload]:
    """Return the one Workload of a job that is not elastic, and others that end."""
    if not living:
        return [] if prebuilt_key(job) else [_made(job, known, spec(), now)]
    chosen = latest_with_quota(living) or living[-1]
    others = [out_of_sync(one, now) for one in living if one is not chosen]
    if not has_quota(chosen):
        if prebuilt_key(job):
            return [as_prebuilt(job, chosen) or out_of_sync(chosen, now), *others]
        return [_as_job(chosen, spec()), *others]
    # Of a job that cannot be read, what it was admitted with is all that is known.
    if job.pods and job.counts not in (_asked(chosen), _given(chosen)):
        chosen = evicted(chosen, "NoMatchingWorkload", _NO_MATCH, now)
    return [chosen, *others]


def _elastic(
    job: QueuedJob,
    living: Sequence[KueueWorkload],
    known: Sequence[KueueWorkload],
    spec: Callable[[], KueueWorkloadSpec],
    now: float,
) -> list[KueueWorkload]:
    holder = latest_with_quota(living)
    ended: list[KueueWorkload] = []
    if holder is not None and len(living) > 1 and _covers(_given(holder), job.counts):
        # It shrinks at once instead of waiting for a smaller slice.
        ended = [out_of_sync(one, now) for one in living if one is not holder]
        living = [holder]
    sets = [PodSet(one.name, one.template, one.count) for one in job.pods]
    choice = choose_slice(sets, living, now)
    ended += choice.finished
    if not choice.compatible:
        return [*ended, *_other_sets(living, ended, spec, now)]
    if choice.workload is None:
        made = _made(job, known, spec(), now)
        return [*ended, _replacing(made, holder, job) if holder is not None else made]
    chosen = choice.workload
    if has_quota(chosen):
        chosen = with_lowered_admission(chosen)
        if not job.grows_in_parts or _covers(_given(chosen), job.counts):
            return [*ended, chosen]
        # It was admitted with a part of what it grows by, and waits for the rest.
        rest = _replacing(_made(job, known, spec(), now), chosen, job)
        return [*ended, chosen, rest]
    if holder is None:
        return [*ended, _as_job(chosen, spec())]
    return [*ended, _replacing(chosen, holder, job)]


def _other_sets(
    living: Sequence[KueueWorkload],
    ended: Sequence[KueueWorkload],
    spec: Callable[[], KueueWorkloadSpec],
    now: float,
) -> list[KueueWorkload]:
    """Return the slices of a job with other pod sets: it is stopped, and waits with these."""
    holders = [one for one in living if has_quota(one)]
    if holders:
        return [evicted(one, "NoMatchingWorkload", _NO_MATCH, now) for one in holders]
    gone = {one.key for one in ended}
    left = [one for one in living if one.key not in gone]
    return [*(out_of_sync(one, now) for one in left[:-1]), _as_job(left[-1], spec())]


def _asked(workload: KueueWorkload) -> dict[str, int]:
    return {one.name: one.count for one in workload.spec.pod_sets}


def _given(workload: KueueWorkload) -> dict[str, int]:
    """Return what a workload was admitted with, which may be fewer pods."""
    admission = workload.status.admission
    sets = admission.pod_set_assignments if admission is not None else ()
    return _asked(workload) | {one.name: one.count for one in sets if one.count is not None}


def _covers(has: Mapping[str, int], wanted: Mapping[str, int]) -> bool:
    return has.keys() == wanted.keys() and all(wanted[name] <= has[name] for name in has)


def _as_job(workload: KueueWorkload, spec: KueueWorkloadSpec) -> KueueWorkload:
    """Return a workload without quota with what its job asks for now."""
    spec = msgspec.structs.replace(
        spec, active=workload.spec.active, preemption_gates=workload.spec.preemption_gates
    )
    return msgspec.structs.replace(workload, spec=spec)


def _replacing(workload: KueueWorkload, old: KueueWorkload, job: QueuedJob) -> KueueWorkload:
    """Return a slice with the size of its job, which replaces another one.

    The templates are those that the job came with; by now it has those of the old slice's flavors.
    """
    meta = workload.metadata
    marks = {**meta.annotations, REPLACES: old.key}
    marks[_SLICE_NAME] = old.metadata.annotations.get(_SLICE_NAME, old.metadata.name)
    meta = msgspec.structs.replace(meta, annotations=marks)
    spec = msgspec.structs.replace(
        workload.spec,
        pod_sets=tuple(_growing(job, old)),
        queue_name=old.spec.queue_name,
    )
    return msgspec.structs.replace(workload, metadata=meta, spec=spec)


def _growing(job: QueuedJob, old: KueueWorkload) -> Iterator[PodSet]:
    """Yield the pod sets of a slice; those that grow in parts get one pod more at least."""
    given = _given(old)
    parts = {one.name for one in job.pods if one.whole == 1} if job.grows_in_parts else set()
    for one in with_counts(old, job.counts).spec.pod_sets:
        has = given.get(one.name, one.count)
        least = has + 1 if one.name in parts and has < one.count else None
        yield msgspec.structs.replace(one, min_count=least)


# Names -------------------------------------------------------------------------------------


def home_of(obj: ApiObject) -> str:
    """Return what a job is known by among the Workloads: the key of one of its that is no slice.

    The name is that of Kueue's jobframework: the kind, the job's name, and five digits of a SHA-1
    hash.
    """
    return f"{obj.metadata.namespace}/{_name(obj)}"


def _name(obj: ApiObject, generation: int | None = None) -> str:
    meta, kind = obj.metadata, kind_of(obj)
    return workload_name(kind.group, kind.name, meta.name, meta.uid, str(generation or ""))


def workload_name(group: str, kind: str, name: str, uid: str, extra: str = "") -> str:
    """Return the name of the Workload of an object, as Kueue's jobframework makes it.

    :param extra: what tells several Workloads of one object apart.
    """
    parts = [kind, group, name, uid, *([extra] if extra else [])]
    digits = hashlib.sha1("\n".join(parts).encode(), usedforsecurity=False).hexdigest()[:5]
    prefix = f"{kind.lower()}-{name}"[:_LONGEST_NAME]
    return f"{prefix}-{digits}"


def _slice_name(job: QueuedJob, taken: Collection[str]) -> str:
    """Return the name of a new slice, which counts the changes of the job's spec."""
    generation = job.obj.metadata.generation or 1
    while (name := _name(job.obj, generation)) in taken:
        generation += 1
    return name


def _made(
    job: QueuedJob, known: Sequence[KueueWorkload], spec: KueueWorkloadSpec, now: float
) -> KueueWorkload:
    meta = job.obj.metadata
    name, marks = _name(job.obj), {}
    # What the job was made with has the job's place in the line.
    created = rfc3339(now) if known else meta.creation_timestamp
    if job.elastic:
        name = _slice_name(job, {one.metadata.name for one in known})
        marks = {ELASTIC_ANNOTATION: "true", _SLICE_NAME: name}
    made = ObjectMeta(
        name=name,
        namespace=meta.namespace,
        uid=f"{meta.namespace}/{name}",
        labels={JOB_UID: meta.uid, **dict([MANAGED_BY])},
        annotations=marks,
        owner_references=(owner_of(job),),
        creation_timestamp=created,
    )
    return KueueWorkload(made, spec)
