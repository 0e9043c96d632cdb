"""The controllers whose pods the embedded cluster creates, Kubernetes' and Volcano's."""

from __future__ import annotations

from typing import Literal

from bayplan.api.meta import ApiStruct, LabelSelector, ObjectMeta
from bayplan.api.pod import PodTemplate
from bayplan.api.podgroup import NetworkTopologySpec
from bayplan.api.volume_claim import PersistentVolumeClaimTemplate

__all__ = [
    "Deployment",
    "Job",
    "PartitionPolicy",
    "ReplicaSet",
    "StatefulSet",
    "VolcanoJob",
    "VolcanoTask",
]


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
    volume_claim_templates: tuple[PersistentVolumeClaimTemplate, ...] = ()


class StatefulSet(ApiStruct, frozen=True):
    """apps/v1 StatefulSet."""

    metadata: ObjectMeta = ObjectMeta()
    spec: StatefulSetSpec = StatefulSetSpec()


# Volcano -----------------------------------------------------------------------------------


class PartitionPolicy(ApiStruct, frozen=True):
    """tasks[].partitionPolicy: groups of a task's pods that go together."""

    total_partitions: int
    partition_size: int
    min_partitions: int = 0
    network_topology: NetworkTopologySpec | None = None


class VolcanoTask(ApiStruct, frozen=True):
    """tasks[] of a Volcano job; ``min_available`` None means all replicas."""

    name: str = ""
    replicas: int = 1
    min_available: int | None = None
    template: PodTemplate = PodTemplate()
    partition_policy: PartitionPolicy | None = None


class VolcanoJobSpec(ApiStruct, frozen=True):
    """spec of a Volcano job; ``min_available`` None means all pods."""

    min_available: int | None = None
    tasks: tuple[VolcanoTask, ...] = ()
    queue: str = "default"
    scheduler_name: str = "volcano"
    priority_class_name: str = ""
    network_topology: NetworkTopologySpec | None = None


class VolcanoJob(ApiStruct, frozen=True):
    """batch.volcano.sh/v1alpha1 Job."""

    metadata: ObjectMeta = ObjectMeta()
    spec: VolcanoJobSpec = VolcanoJobSpec()
