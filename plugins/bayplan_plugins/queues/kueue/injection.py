"""What admission changes of jobs and of their pods, where it lets them run and stops them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from bayplan.api import Job
from bayplan.api.kueue import AssignedPodSet, KueueWorkload, ResourceFlavor
from bayplan.api.objects import decode_part
from bayplan.api.operated import AppWrapper, TrainJob
from bayplan.api.pod import PodSpec, PodTemplate, Toleration
from bayplan.dialects.kueue import UNCONSTRAINED_TOPOLOGY, asks_for_topology
from bayplan.dialects.queued_jobs import JobPods, QueuedJob
from bayplan.dialects.train_jobs import patched_by, without_patches
from bayplan.dialects.wrapped_jobs import infos_by_component, without_infos
from bayplan_plugins.queues.kueue.pod_set_info import (
    CHANGED,
    PodSetInfo,
    Template,
    info_of_flavors,
    info_of_update,
)

__all__ = [
    "ELASTIC_GATE",
    "admitted_fields",
    "admitted_spec",
    "put_back_fields",
    "queue_labels",
    "restored_fields",
    "started_fields",
    "topology_marks",
    "updates_of",
]

ELASTIC_GATE = "kueue.x-k8s.io/elastic-job"
"""The gate of pods of elastic jobs, which wait for the slice that they are admitted with."""
MANAGER = "kueue.x-k8s.io/manager"
"""The manager of the patches of TrainJobs that admission makes."""
_PATCHES = "/spec/runtimePatches"
_WORKLOAD = "kueue.x-k8s.io/workload"
_POD_SET = "kueue.x-k8s.io/podset"
_LOCAL_QUEUE = "kueue.x-k8s.io/local-queue-name"
_CLUSTER_QUEUE = "kueue.x-k8s.io/cluster-queue-name"
_QUEUE_LABELS = (_POD_SET, _LOCAL_QUEUE, _CLUSTER_QUEUE)
_LONGEST_LABEL = 63


def admitted_spec(
    spec: PodSpec, flavors: Iterable[ResourceFlavor], asked: PodSetInfo | None = None
) -> PodSpec:
    """Return a pod's spec with what its flavors add.

    :param asked: what admission checks add.
    """
    info, more = info_of_flavors(flavors), asked or PodSetInfo()
    added = (decode_part(Toleration, dict(one)) for one in (*info.tolerations, *more.tolerations))
    tolerations = tuple(dict.fromkeys((*spec.tolerations, *added)))
    selector = {**spec.node_selector, **info.node_selector, **more.node_selector}
    return msgspec.structs.replace(spec, node_selector=selector, tolerations=tolerations)


def admitted_fields(
    job: QueuedJob, workload: KueueWorkload, known: Mapping[str, ResourceFlavor]
) -> dict[str, Any]:
    """Return the fields of a job that let it run where its workload was admitted.

    :param known: the flavors by name.
    :raises ConflictError: where its template, its flavors and its admission checks contradict each
        other.
    """
    admission = workload.status.admission
    assigned = admission.pod_set_assignments if admission is not None else ()
    of_set = {one.name: one for one in assigned}
    given = {one.name: PodSetInfo.of(_plain(one.template)) for one in workload.spec.pod_sets}
    infos, counts = [], []
    own = [given.get(pods.name, PodSetInfo()) for pods in job.pods]
    for pods in job.pods:
        one = of_set.get(pods.name, AssignedPodSet(pods.name))
        flavors = [known[name] for name in dict.fromkeys(one.flavors.values()) if name in known]
        info = _added(pods.name, workload, job.elastic).merged(info_of_flavors(flavors))
        marks = topology_marks(workload, flavors)
        if marks and isinstance(job.obj, Job) and not job.elastic:
            marks |= _unconstrained(pods.template)
        info = info.merged(PodSetInfo(annotations=marks))
        for update in updates_of(workload, pods.name):
            info = info.merged(update)
        infos.append(info)
        counts.append(one.count)
    return started_fields(job, own, infos, counts)


def started_fields(
    job: QueuedJob,
    own: Sequence[PodSetInfo],
    infos: Sequence[PodSetInfo],
    counts: Sequence[int | None],
) -> dict[str, Any]:
    """Return the fields of a job that let it run with these infos and numbers of pods.

    :param own: what its templates came with; :param infos: what is added to it.
    :param counts: so many pods of each, where it may run with fewer than it asks for.
    :raises ConflictError: where an info contradicts a template.
    :raises ValueError: for another number of infos than it has templates.
    """
    if isinstance(job.obj, TrainJob):
        # What it was started with before is no contradiction: the patch replaces it.
        of_jobs = zip(job.pods, infos, strict=True)
        parts = {pods.name: {"spec": {}, **info.put({})} for pods, info in of_jobs}
        return {_PATCHES: patched_by(job.content, MANAGER, parts), **job.resume}
    if isinstance(job.obj, AppWrapper):
        # Its operator adds these to the templates, and they replace what it was started with.
        pairs = zip(job.pods, infos, strict=True)
        added = {pods.pointer: info.plain() for pods, info in pairs}
        return {**infos_by_component(list(added), list(added.values())), **job.resume}
    merged = [one.merged(info) for one, info in zip(map(_unlabelled, own), infos, strict=True)]
    fields = _fields_of(job, merged)
    for pods, count in zip(job.pods, counts, strict=True):
        if pods.least is not None and count is not None and count < pods.count:
            fields |= dict.fromkeys(pods.count_pointers, count)
    return {**fields, **job.resume}


def _unlabelled(own: PodSetInfo) -> PodSetInfo:
    """Return what a template has without the labels of a queue that it was copied with."""
    labels = {key: value for key, value in own.labels.items() if key not in _QUEUE_LABELS}
    return replace(own, labels=labels)


def _fields_of(job: QueuedJob, infos: Sequence[PodSetInfo]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for pods, info in zip(job.pods, infos, strict=True):
        fields |= _template_fields(pods, info)
    return fields


def queue_labels(pod_set: str, workload: KueueWorkload) -> dict[str, str]:
    """Return the labels of admitted pods that tell their pod set and their queues."""
    admission = workload.status.admission
    queues = {
        _POD_SET: pod_set,
        _LOCAL_QUEUE: workload.spec.queue_name,
        _CLUSTER_QUEUE: admission.cluster_queue if admission is not None else "",
    }
    return {key: name for key, name in queues.items() if 0 < len(name) <= _LONGEST_LABEL}


def topology_marks(workload: KueueWorkload, flavors: Iterable[ResourceFlavor]) -> dict[str, str]:
    """Return the annotation by which pods name the Workload that says in which domains they are."""
    if not any(one.spec.topology_name for one in flavors):
        return {}
    return {_WORKLOAD: workload.metadata.name}


def _unconstrained(template: PodTemplate) -> dict[str, str]:
    """Return the annotation of pods that ask for no topology, and are placed in rank order."""
    own = template.metadata.annotations
    return {} if asks_for_topology(own) else {UNCONSTRAINED_TOPOLOGY: "true"}


def _added(pod_set: str, workload: KueueWorkload, elastic: bool) -> PodSetInfo:
    """Return what tells pods' queues, and keeps those that come when a job grows until they may."""
    labels = queue_labels(pod_set, workload)
    return PodSetInfo(labels=labels, gates=({"name": ELASTIC_GATE},) if elastic else ())


def updates_of(workload: KueueWorkload, pod_set: str) -> Iterator[PodSetInfo]:
    """Yield what the admission checks of a workload ask for in the pods of a pod set."""
    for check in workload.status.admission_checks:
        for update in check.pod_set_updates:
            if update.get("name") == pod_set:
                yield info_of_update(update)


def restored_fields(job: QueuedJob, workload: KueueWorkload) -> dict[str, Any]:
    """Return the fields of a job that differ from those that it came with; none of its suspension.

    A job may only get them back once it is suspended.
    """
    given = {one.name: one for one in workload.spec.pod_sets}
    if any(pods.name not in given for pods in job.pods):
        return {}
    infos = [PodSetInfo.of(_plain(given[pods.name].template)) for pods in job.pods]
    return put_back_fields(job, infos, [given[pods.name].count for pods in job.pods])


def put_back_fields(
    job: QueuedJob, infos: Sequence[PodSetInfo], counts: Sequence[int]
) -> dict[str, Any]:
    """Return the fields of a job that differ from what it had before it ran.

    :param infos: what its templates had; :param counts: the numbers of their pods.
    """
    if isinstance(job.obj, TrainJob):
        patches = without_patches(job.content, MANAGER)
        return {_PATCHES: patches} if patches is not None else {}
    if isinstance(job.obj, AppWrapper):
        return without_infos(job.content)
    fields = _fields_of(job, infos)
    for pods, count in zip(job.pods, counts, strict=True):
        if count != pods.count:
            fields |= dict.fromkeys(pods.count_pointers, count)
    return fields


def _plain(template: PodTemplate) -> Template:
    plain: Template = msgspec.to_builtins(template, enc_hook=lambda quantity: quantity.text)
    return plain


def _template_fields(pods: JobPods, wanted: PodSetInfo) -> dict[str, Any]:
    """Return the fields of a template that differ from what is wanted."""
    now = PodSetInfo.of(pods.content).with_labels(pods.kept).put(pods.content)
    then = wanted.with_labels(pods.kept).put(pods.content)
    if pods.places:
        return _placed_fields(pods, now, then)
    if pods.absent:
        return {pods.pointer: then} if then != now else {}
    fields: dict[str, Any] = {}
    for part, names in CHANGED.items():
        own, changed = now.get(part), then.get(part) or {}
        if own is None:
            if changed:
                fields[f"{pods.pointer}/{part}"] = changed
            continue
        for name in names:
            if (own.get(name) or None) != (changed.get(name) or None):
                fields[f"{pods.pointer}/{part}/{name}"] = changed.get(name) or None
    return fields


def _placed_fields(pods: JobPods, now: Template, then: Template) -> dict[str, Any]:
    """Return the fields that differ, where the template has them from other fields."""
    fields: dict[str, Any] = {}
    own: dict[str, dict[str, Any]] = {}
    for part, names in CHANGED.items():
        for name in names:
            value = (then.get(part) or {}).get(name) or None
            if ((now.get(part) or {}).get(name) or None) == value:
                continue
            place = pods.places.get(f"{part}.{name}")
            if place is not None:
                fields[place] = value
            elif pods.absent:
                own.setdefault(part, {})[name] = value
            else:
                fields[f"{pods.pointer}/{part}/{name}"] = value
    if own:
        container = {"name": pods.template.spec.containers[0].name}
        fields[pods.pointer] = {**own, "spec": {"containers": [container], **own.get("spec", {})}}
    return fields
