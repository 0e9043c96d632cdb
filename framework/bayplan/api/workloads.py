"""The controllers whose pods the embedded cluster creates."""

from __future__ import annotations

from typing import Literal

from bayplan.api.meta import ApiStruct, LabelSelector, ObjectMeta
from bayplan.api.pod import PodTemplate

__all__ = ["Deployment", "Job", "ReplicaSet", "StatefulSet"]


class JobSpec(ApiStruct, frozen=True):
    """spec of a job."""

    parallelism: int = 1
    completions: int | None = None
    completion_mode: Literal["NonIndexed", "Indexed"] = "NonIndexed"
    backoff_limit: int = 6
    suspend: bool = False
    template: PodTemplate = PodTemplate()


class Job(ApiStruct, frozen=True):
    """batch/v1 Job."""

    metadata: ObjectMeta = ObjectMeta()
    spec: JobSpec = JobSpec()


class ReplicaSetSpec(ApiStruct, frozen=True):
    """spec of a replica set."""

    replicas: int = 1
    selector: LabelSelector | None = None
    template: PodTemplate = PodTemplate()


class ReplicaSet(ApiStruct, frozen=True):
    """apps/v1 ReplicaSet."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ReplicaSetSpec = ReplicaSetSpec()


class Deployment(ApiStruct, frozen=True):
    """apps/v1 Deployment."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ReplicaSetSpec = ReplicaSetSpec()


class StatefulSetSpec(ApiStruct, frozen=True):
    """spec of a stateful set."""

    replicas: int = 1
    selector: LabelSelector | None = None
    template: PodTemplate = PodTemplate()
    pod_management_policy: Literal["OrderedReady", "Parallel"] = "OrderedReady"


class StatefulSet(ApiStruct, frozen=True):
    """apps/v1 StatefulSet."""

    metadata: ObjectMeta = ObjectMeta()
    spec: StatefulSetSpec = StatefulSetSpec()
