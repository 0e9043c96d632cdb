"""What admission changes of jobs and of their pods, where it lets them run and stops them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from bayplan.api.kueue import AssignedPodSet, KueueWorkload, ResourceFlavor
from bayplan.api.objects import decode_part
from bayplan.api.pod import PodSpec, PodTemplate, Toleration
from bayplan.dialects.queued_jobs import JobPods, QueuedJob
from bayplan_plugins.queues.kueue.pod_set_info import (
    CHANGED,
    PodSetInfo,
    Template,
    info_of_flavors,
    info_of_update,
)

__all__ = ["ELASTIC_GATE", "admitted_fields", "admitted_spec", "restored_fields"]

ELASTIC_GATE = "kueue.x-k8s.io/elastic-job"
"""The gate of pods of elastic jobs, which wait for the slice that they are admitted with."""
_POD_SET = "kueue.x-k8s.io/podset"
_LOCAL_QUEUE = "kueue.x-k8s.io/local-queue-name"
_CLUSTER_QUEUE = "kueue.x-k8s.io/cluster-queue-name"
_LONGEST_LABEL = 63


def admitted_spec(spec: PodSpec, flavors: Iterable[ResourceFlavor]) -> PodSpec:
    """Return a pod's spec with what its flavors add."""
    info = info_of_flavors(flavors)
    added = (decode_part(Toleration, dict(one)) for one in info.tolerations)
    tolerations = [*spec.tolerations, *(one for one in added if one not in spec.tolerations)]
    selector = {**spec.node_selector, **info.node_selector}
    return msgspec.structs.replace(spec, node_selector=selector, tolerations=tuple(tolerations))


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
    fields: dict[str, Any] = {}
    for pods, given in _with_templates(job, workload):
        one = of_set.get(pods.name, AssignedPodSet(pods.name))
        flavors = [known[name] for name in dict.fromkeys(one.flavors.values()) if name in known]
        info = _added(pods.name, workload, job.elastic).merged(info_of_flavors(flavors))
        for update in _updates(workload, pods.name):
            info = info.merged(update)
        fields |= _template_fields(pods, PodSetInfo.of(given).merged(info))
        if one.count is not None and one.count < pods.count:
            fields |= dict.fromkeys(pods.count_pointers, one.count)
    return {**fields, **job.resume}


def _added(pod_set: str, workload: KueueWorkload, elastic: bool) -> PodSetInfo:
    """Return what tells pods' queues, and keeps those that come when a job grows until they may."""
    admission = workload.status.admission
    queues = {
        _POD_SET: pod_set,
        _LOCAL_QUEUE: workload.spec.queue_name,
        _CLUSTER_QUEUE: admission.cluster_queue if admission is not None else "",
    }
    labels = {key: name for key, name in queues.items() if 0 < len(name) <= _LONGEST_LABEL}
    return PodSetInfo(labels=labels, gates=({"name": ELASTIC_GATE},) if elastic else ())


def _updates(workload: KueueWorkload, pod_set: str) -> Iterator[PodSetInfo]:
    """Yield what the admission checks of a workload ask for in the pods of a pod set."""
    for check in workload.status.admission_checks:
        for update in check.pod_set_updates:
            if update.get("name") == pod_set:
                yield info_of_update(update)


def restored_fields(job: QueuedJob, workload: KueueWorkload) -> dict[str, Any]:
    """Return the fields of a job that differ from those that it came with; none of its suspension.

    A job may only get them back once it is suspended.
    """
    counts = {one.name: one.count for one in workload.spec.pod_sets}
    fields: dict[str, Any] = {}
    for pods, given in _with_templates(job, workload):
        fields |= _template_fields(pods, PodSetInfo.of(given))
        if counts[pods.name] != pods.count:
            fields |= dict.fromkeys(pods.count_pointers, counts[pods.name])
    return fields


def _plain(template: PodTemplate) -> Template:
    plain: Template = msgspec.to_builtins(template, enc_hook=lambda quantity: quantity.text)
    return plain


def _with_templates(job: QueuedJob, workload: KueueWorkload) -> list[tuple[JobPods, Template]]:
    """Return the templates of a job, each with the one that it came with."""
    given = {one.name: _plain(one.template) for one in workload.spec.pod_sets}
    own = (pods for pods in job.pods if pods.pointer)
    return [(pods, given[pods.name]) for pods in own if pods.name in given]


def _template_fields(pods: JobPods, wanted: PodSetInfo) -> dict[str, Any]:
    """Return the fields of a template that differ from what is wanted."""
    now = PodSetInfo.of(pods.content).with_labels(pods.kept).put(pods.content)
    then = wanted.with_labels(pods.kept).put(pods.content)
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
