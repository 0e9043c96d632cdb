"""The class by which a workload has its priority: of workloads, or else of pods."""

from __future__ import annotations

from bayplan.api import PriorityClass, WorkloadPriorityClass
from bayplan.api.kueue import PriorityClassRef
from bayplan.api.meta import ObjectMeta
from bayplan.dialects.queued_job_checks import PRIORITY_LABEL
from bayplan.snapshot import Snapshot

__all__ = ["class_of"]

_DEFAULT = "default"
_OF_WORKLOADS = ("kueue.x-k8s.io", "WorkloadPriorityClass")
_OF_PODS = ("scheduling.k8s.io", "PriorityClass")


def class_of(
    snapshot: Snapshot, metadata: ObjectMeta, name: str
) -> tuple[PriorityClassRef, int] | None:
    """Return the class of a job or a pod with its value; None where none is there.

    :param metadata: its label names a class of workloads, which comes first; without it, that is
        the one that is called "default", if there is one.
    :param name: the class of its pods; "" for the default one.
    """
    label = metadata.labels.get(PRIORITY_LABEL) or _DEFAULT
    chosen = snapshot.objects(WorkloadPriorityClass).get(label)
    if chosen is not None:
        return PriorityClassRef(*_OF_WORKLOADS, label), chosen.value
    classes = snapshot.objects(PriorityClass)
    default = (one.metadata.name for one in classes.values() if one.global_default)
    found = classes.get(name or next(default, ""))
    if found is None:
        return None
    return PriorityClassRef(*_OF_PODS, found.metadata.name), found.value
