"""Workloads that users make for jobs that name them (kueue.x-k8s.io/prebuilt-workload-name)."""

from __future__ import annotations

from typing import Any

import msgspec

from bayplan.api import OwnerReference
from bayplan.api.kueue import KueueWorkload
from bayplan.api.objects import kind_of
from bayplan.api.resources import effective_requests
from bayplan.cluster.protocol import PatchFields
from bayplan.dialects.kueue import JOB_UID
from bayplan.dialects.queued_job_checks import QUEUE_LABEL, prebuilt_of
from bayplan.dialects.queued_jobs import QueuedJob

__all__ = ["adopting", "as_prebuilt", "owner_of", "prebuilt_key"]


def prebuilt_key(job: QueuedJob) -> str:
    """Return the key of the Workload that a job names, "" where it names none.

    Slices of elastic jobs are made as the jobs grow.
    """
    meta = job.obj.metadata
    name = "" if job.elastic else prebuilt_of(meta)
    return f"{meta.namespace}/{name}" if name else ""


def owner_of(job: QueuedJob) -> OwnerReference:
    """Return the reference from a Workload to its job."""
    meta, kind = job.obj.metadata, kind_of(job.obj)
    version = f"{kind.group}/{kind.versions[0]}"
    return OwnerReference(kind.name, meta.name, meta.uid, version, controller=True)


def adopting(job: QueuedJob, workload: KueueWorkload, mark: tuple[str, str]) -> PatchFields:
    """Return the write that makes a Workload that of a job.

    :param mark: the label of Workloads that are bayplan's.
    """
    meta = workload.metadata
    owners = [*meta.owner_references, owner_of(job)]
    fields: dict[str, Any] = {
        "/metadata/ownerReferences": msgspec.to_builtins(owners),
        "/metadata/labels": {**meta.labels, JOB_UID: job.obj.metadata.uid, **dict([mark])},
    }
    return PatchFields(KueueWorkload, workload.key, meta.uid, fields)


def as_prebuilt(job: QueuedJob, workload: KueueWorkload) -> KueueWorkload | None:
    """Return a Workload in the queue of its job; None where it asks for other pods than that."""
    asked = [(one.name, one.count, effective_requests(one.template.spec)) for one in job.pods]
    given = [
        (one.name, one.count, effective_requests(one.template.spec))
        for one in workload.spec.pod_sets
    ]
    if asked != given:
        return None
    queue = job.obj.metadata.labels.get(QUEUE_LABEL, "")
    return msgspec.structs.replace(
        workload, spec=msgspec.structs.replace(workload.spec, queue_name=queue)
    )
