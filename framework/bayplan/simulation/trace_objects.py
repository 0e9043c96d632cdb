"""Jobs and pod groups for the jobs of a trace, as the system of their queue spells them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from bayplan.api import KINDS, ApiObject, ResourceQuota, decode_object, kind_of
from bayplan.api.configmap import ConfigMap
from bayplan.dialects import kai, queue_configmap, resource_quota, volcano
from bayplan.errors import InputError, did_you_mean
from bayplan.inputs.durations import DURATION_ANNOTATION
from bayplan.simulation.trace import TraceJob

__all__ = ["arrivals_of_trace"]

_SYSTEMS = {
    ("scheduling.volcano.sh", "Queue"): "volcano",
    ("scheduling.run.ai", "Queue"): "kai",
    ("scheduling.sigs.k8s.io", "ElasticQuota"): "koordinator",
    ("kueue.x-k8s.io", "LocalQueue"): "kueue",
}
"""The kinds of the objects that jobs name as their queue."""
_GANG = "gang.scheduling.koordinator.sh/"
_QUOTA_LABEL = "quota.scheduling.koordinator.sh/name"
_KUEUE_LABEL = "kueue.x-k8s.io/queue-name"
_NO_LIMIT = 2**31 - 1
"""A backoffLimit that no job reaches: what is evicted is tried again."""

Plain = dict[str, Any]


def arrivals_of_trace(
    jobs: Sequence[TraceJob], objects: Iterable[ApiObject], scheduler_name: str
) -> list[tuple[float, ApiObject]]:
    """Return the objects of all jobs, each with when it arrives, in seconds.

    :param objects: those of the cluster, among them the queues.
    :param scheduler_name: whose pods theirs are.
    :raises InputError: for a queue that is not among them, or that two systems have.
    """
    queues = _queues(objects)
    made: list[tuple[float, ApiObject]] = []
    for job in jobs:
        for content in _job(job, _queue_of(job, queues), scheduler_name):
            group, _, _ = str(content["apiVersion"]).rpartition("/")
            made.append((job.arrival, decode_object(KINDS[group, content["kind"]], content)))
    return made


class _Queue(msgspec.Struct, frozen=True):
    """A queue that jobs can name: its system, its name, and the namespace that its jobs are in."""

    system: str
    name: str
    namespace: str = "default"


def _queues(objects: Iterable[ApiObject]) -> dict[str, list[_Queue]]:
    """Return the queues that objects define, by ``NAME`` and by ``SYSTEM/NAME``."""
    found: dict[str, list[_Queue]] = {}
    for queue in dict.fromkeys(one for obj in objects if (one := _defined(obj)) is not None):
        for name in (queue.name, f"{queue.system}/{queue.name}"):
            found.setdefault(name, []).append(queue)
    return found


def _defined(obj: ApiObject) -> _Queue | None:
    """Return the queue that an object defines, if it does."""
    meta, kind = obj.metadata, kind_of(obj)
    if isinstance(obj, ConfigMap):
        is_queue = queue_configmap.is_queue(obj)
        return (
            _Queue(queue_configmap.NAME, meta.labels[queue_configmap.LABEL]) if is_queue else None
        )
    if isinstance(obj, ResourceQuota):
        return _Queue(resource_quota.NAME, meta.namespace, meta.namespace)
    system = _SYSTEMS.get((kind.group, kind.name))
    if system == "kueue":
        return _Queue(system, meta.name, meta.namespace)
    return _Queue(system, meta.name) if system is not None else None


def _queue_of(job: TraceJob, queues: Mapping[str, Sequence[_Queue]]) -> _Queue:
    """Return a job's queue; one without a system for a job that names none."""
    if not job.queue:
        return _Queue("", "")
    named = queues.get(job.queue, ())
    # A namespace is a queue only where nothing else has its name.
    found = [one for one in named if one.system != resource_quota.NAME] or named
    if not found:
        near = did_you_mean(job.queue, queues)
        raise InputError(f'there is no queue "{job.queue}"{near}', job.where)
    if len(found) > 1:
        names = " and ".join(f"{one.system} (namespace {one.namespace})" for one in found)
        raise InputError(f'several queues have the name "{job.queue}": {names}', job.where)
    return found[0]


def _job(job: TraceJob, queue: _Queue, scheduler_name: str) -> list[Plain]:
    """Return the manifests of a job: a pod group where the system has one, and a Job.

    The Job makes pods that were evicted again; they start from the beginning.
    """
    meta: Plain = {"labels": {}, "annotations": {}}
    if job.duration is not None:
        meta["annotations"][DURATION_ANNOTATION] = f"{job.duration:.3f}s"
    groups = _MEMBERS.get(queue.system, _plain)(job, meta, queue.name)
    pods: Plain = {
        "schedulerName": scheduler_name,
        "priority": job.priority,
        "restartPolicy": "Never",
        "containers": [{"name": "main", "resources": {"requests": dict(job.requests)}}],
    }
    spec = {
        "parallelism": job.pods,
        "completions": job.pods,
        "completionMode": "Indexed",
        "backoffLimit": _NO_LIMIT,
        # Kueue's admission lets it go on.
        "suspend": queue.system == "kueue",
        "template": {"metadata": meta, "spec": pods},
    }
    named = {"name": job.name, "namespace": queue.namespace, "labels": meta["labels"]}
    made = {"apiVersion": "batch/v1", "kind": "Job", "metadata": named, "spec": spec}
    return [*groups, made]


# How a system's pods name their queue and their group; each adds to the pods' metadata and returns
# the group's manifest.


def _volcano(job: TraceJob, meta: Plain, queue: str) -> list[Plain]:
    meta["annotations"][volcano.GROUP_ANNOTATION] = job.name
    meta["annotations"][volcano.QUEUE_ANNOTATION] = queue
    return [_group("scheduling.volcano.sh/v1beta1", job, meta, queue)]


def _kai(job: TraceJob, meta: Plain, queue: str) -> list[Plain]:
    meta["annotations"][kai.GROUP_ANNOTATION] = job.name
    meta["labels"][kai.QUEUE_LABEL] = queue
    return [_group("scheduling.run.ai/v2alpha2", job, meta, queue)]


def _group(version: str, job: TraceJob, meta: Plain, queue: str) -> Plain:
    named = {"name": job.name, "namespace": "default"}
    spec = {"minMember": job.pods, "queue": queue}
    return {"apiVersion": version, "kind": "PodGroup", "metadata": named, "spec": spec}


def _koordinator(job: TraceJob, meta: Plain, queue: str) -> list[Plain]:
    meta["labels"][_QUOTA_LABEL] = queue
    return _plain(job, meta, queue)


def _config_map(job: TraceJob, meta: Plain, queue: str) -> list[Plain]:
    meta["labels"][queue_configmap.LABEL] = queue
    return _plain(job, meta, queue)


def _kueue(job: TraceJob, meta: Plain, queue: str) -> list[Plain]:
    meta["labels"][_KUEUE_LABEL] = queue
    return []


def _plain(job: TraceJob, meta: Plain, queue: str) -> list[Plain]:
    if job.pods > 1:
        meta["annotations"][f"{_GANG}name"] = job.name
        meta["annotations"][f"{_GANG}min-available"] = str(job.pods)
    return []


_MEMBERS: Mapping[str, Callable[[TraceJob, Plain, str], list[Plain]]] = {
    "volcano": _volcano,
    "kai": _kai,
    "koordinator": _koordinator,
    queue_configmap.NAME: _config_map,
    "kueue": _kueue,
}
