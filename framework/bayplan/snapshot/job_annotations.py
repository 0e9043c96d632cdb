"""Annotations of a Job that apply to its pods; Kubernetes does not copy them."""

from __future__ import annotations

from collections.abc import Mapping

from bayplan.api import Job, Pod
from bayplan.dialects.gpu_topology import PREFIX
from bayplan.snapshot import Snapshot

__all__ = ["NOTHING", "inherited", "is_of", "passed_on"]

NOTHING: Mapping[str, str] = {}


def passed_on(job: Job | None) -> Mapping[str, str]:
    """Return the annotations of a Job that apply to its pods."""
    if job is None:
        return NOTHING
    return {k: v for k, v in job.metadata.annotations.items() if k.startswith(PREFIX)}


def inherited(pod: Pod, snapshot: Snapshot) -> Mapping[str, str]:
    """Return the annotations that a pod inherits from its Job; the pod's own come first."""
    for owner in pod.metadata.owner_references:
        if owner.controller and owner.kind == "Job":
            return passed_on(snapshot.objects(Job).get(f"{pod.metadata.namespace}/{owner.name}"))
    return NOTHING


def is_of(pod: Pod, job: Job) -> bool:
    """Tell whether a Job controls a pod."""
    return pod.metadata.namespace == job.metadata.namespace and any(
        owner.controller and owner.kind == "Job" and owner.name == job.metadata.name
        for owner in pod.metadata.owner_references
    )
