"""Work that arrives over time, by the ``creationTimestamp`` of manifests."""

from __future__ import annotations

from collections.abc import Iterable

from bayplan.api import ApiObject, Pod, kind_of
from bayplan.dialects.reading import timestamp

__all__ = ["split_by_arrival"]

_WORK = (
    "ElasticJob",
    "Job",
    "JobSet",
    "Pod",
    "PodGroup",
    "PyTorchJob",
    "RayCluster",
    "RayJob",
    "Workload",
)


def split_by_arrival(
    objects: Iterable[ApiObject],
) -> tuple[list[ApiObject], list[tuple[float, ApiObject]]]:
    """Return the objects that are there from the start, and those that arrive later.

    Pods that wait for a node, jobs and pod groups arrive at their ``creationTimestamp``, in seconds
    after the earliest of these; without one, they are there from the start.
    """
    all_objects = list(objects)
    created = {id(obj): _created(obj) for obj in all_objects}
    first = min((at for at in created.values() if at), default=0.0)
    start, later = [], []
    for obj in all_objects:
        at = created[id(obj)]
        if at > first:
            later.append((at - first, obj))
        else:
            start.append(obj)
    return start, sorted(later, key=lambda pair: pair[0])


def _created(obj: ApiObject) -> float:
    """Return when work was created, in seconds since 1970; 0 for anything else."""
    if kind_of(obj).name not in _WORK:
        return 0.0
    if isinstance(obj, Pod) and (obj.spec.node_name or obj.status.phase not in ("", "Pending")):
        return 0.0
    return timestamp(obj.metadata.creation_timestamp)
