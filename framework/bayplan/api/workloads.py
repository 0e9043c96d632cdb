"""The workloads whose pods the embedded cluster creates: those of Kubernetes and Volcano."""

from __future__ import annotations

from typing import Any, Literal

from bayplan.api.meta import ApiStruct, LabelSelector, ObjectMeta, OwnerReference, explicit
from bayplan.api.pod import PodTemplate
from bayplan.api.podgroup import NetworkTopologySpec
from bayplan.api.volume_claim import PersistentVolumeClaimTemplate

__all__ = [
    "ControllerRevision",
    "DaemonSet",
    "DaemonSetStatus",
    "Deployment",
    "DeploymentStatus",
    "Job",
    "JobCondition",
    "JobSpec",
    "JobStatus",
    "PartitionPolicy",
    "ReplicaSet",
    "ReplicaSetSpec",
    "ReplicaSetStatus",
    "StatefulSet",
    "StatefulSetStatus",
    "StoredPodTemplate",
    "VolcanoCommand",
    "VolcanoJob",
    "VolcanoJobState",
    "VolcanoJobStatus",
    "VolcanoTask",
    "WorkloadCondition",
]

CountOrPercent = int | str
"""A number of pods, or a percentage such as ``25%``."""


class PodConditionPattern(ApiStruct, frozen=True):
    """podFailurePolicy.rules[].onPodConditions[]."""

    type: str
    status: str = explicit("True")


class PodFailureRule(ApiStruct, frozen=True):
    """podFailurePolicy.rules[]: what becomes of a job one of whose pods failed so."""

    action: Literal["FailJob", "FailIndex", "Ignore", "Count"]
    on_pod_conditions: tuple[PodConditionPattern, ...] = ()


class PodFailurePolicy(ApiStruct, frozen=True):
    """spec.podFailurePolicy of a job; the first rule that matches counts."""

    rules: tuple[PodFailureRule, ...] = ()


class JobSpec(ApiStruct, frozen=True):
    """spec of a job."""

    parallelism: int = explicit(1)
    completions: int | None = None
    completion_mode: Literal["NonIndexed", "Indexed"] = explicit("NonIndexed")
    backoff_limit: int = explicit(6)
    suspend: bool = False
    template: PodTemplate = explicit(PodTemplate())
    pod_failure_policy: PodFailurePolicy | None = None
    managed_by: str | None = None


class JobCondition(ApiStruct, frozen=True):
    """status.conditions[] of a job."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_probe_time: str | None = None
    last_transition_time: str | None = None


class JobStatus(ApiStruct, frozen=True):
    """status of a job; a count of 0 is None where Kubernetes omits it."""

    conditions: tuple[JobCondition, ...] = ()
    start_time: str | None = None
    completion_time: str | None = None
    active: int | None = None
    ready: int | None = None
    terminating: int | None = None
    succeeded: int | None = None
    failed: int | None = None
    completed_indexes: str = ""
    failed_indexes: str | None = None


class Job(ApiStruct, frozen=True):
    """batch/v1 Job."""

    metadata: ObjectMeta = ObjectMeta()
    spec: JobSpec = explicit(JobSpec())
    status: JobStatus = JobStatus()


class WorkloadCondition(ApiStruct, frozen=True):
    """status.conditions[] of a workload."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_update_time: str | None = None
    last_transition_time: str | None = None


class ReplicaSetSpec(ApiStruct, frozen=True):
    """spec of a replica set."""

    replicas: int = explicit(1)
    selector: LabelSelector | None = None
    template: PodTemplate = explicit(PodTemplate())
    min_ready_seconds: int = 0


class ReplicaSetStatus(ApiStruct, frozen=True):
    """status of a replica set; a count of 0 is None where Kubernetes omits it."""

    replicas: int = 0
    fully_labeled_replicas: int | None = None
    ready_replicas: int | None = None
    available_replicas: int | None = None
    terminating_replicas: int | None = None
    observed_generation: int | None = None


class ReplicaSet(ApiStruct, frozen=True):
    """apps/v1 ReplicaSet."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ReplicaSetSpec = explicit(ReplicaSetSpec())
    status: ReplicaSetStatus = ReplicaSetStatus()


class RollingDeployment(ApiStruct, frozen=True):
    """strategy.rollingUpdate of a deployment."""

    max_surge: CountOrPercent = explicit("25%")
    max_unavailable: CountOrPercent = explicit("25%")


class DeploymentStrategy(ApiStruct, frozen=True):
    """spec.strategy of a deployment."""

    type: Literal["RollingUpdate", "Recreate"] = explicit("RollingUpdate")
    rolling_update: RollingDeployment | None = None


class DeploymentSpec(ApiStruct, frozen=True):
    """spec of a deployment."""

    replicas: int = explicit(1)
    selector: LabelSelector | None = None
    template: PodTemplate = explicit(PodTemplate())
    strategy: DeploymentStrategy = explicit(DeploymentStrategy())
    min_ready_seconds: int = 0
    progress_deadline_seconds: int | None = explicit(600)
    revision_history_limit: int = explicit(10)
    paused: bool = False


class DeploymentStatus(ApiStruct, frozen=True):
    """status of a deployment; counts of 0 are None, because Kubernetes omits them."""

    observed_generation: int | None = None
    replicas: int | None = None
    updated_replicas: int | None = None
    ready_replicas: int | None = None
    available_replicas: int | None = None
    unavailable_replicas: int | None = None
    terminating_replicas: int | None = None
    collision_count: int | None = None
    conditions: tuple[WorkloadCondition, ...] = ()


class Deployment(ApiStruct, frozen=True):
    """apps/v1 Deployment."""

    metadata: ObjectMeta = ObjectMeta()
    spec: DeploymentSpec = explicit(DeploymentSpec())
    status: DeploymentStatus = DeploymentStatus()


class RollingStatefulSet(ApiStruct, frozen=True):
    """updateStrategy.rollingUpdate of a stateful set; pods from ordinal ``partition`` on update."""

    partition: int = 0
    max_unavailable: CountOrPercent | None = None


class StatefulSetStrategy(ApiStruct, frozen=True):
    """spec.updateStrategy of a stateful set."""

    type: Literal["RollingUpdate", "OnDelete"] = explicit("RollingUpdate")
    rolling_update: RollingStatefulSet | None = None


class Ordinals(ApiStruct, frozen=True):
    """spec.ordinals of a stateful set."""

    start: int = 0


class StatefulSetSpec(ApiStruct, frozen=True):
    """spec of a stateful set."""

    replicas: int = explicit(1)
    selector: LabelSelector | None = None
    template: PodTemplate = explicit(PodTemplate())
    service_name: str = ""
    pod_management_policy: Literal["OrderedReady", "Parallel"] = explicit("OrderedReady")
    update_strategy: StatefulSetStrategy = explicit(StatefulSetStrategy())
    ordinals: Ordinals = Ordinals()
    min_ready_seconds: int = 0
    revision_history_limit: int = explicit(10)
    volume_claim_templates: tuple[PersistentVolumeClaimTemplate, ...] = ()


class StatefulSetStatus(ApiStruct, frozen=True):
    """status of a stateful set."""

    observed_generation: int | None = None
    replicas: int = 0
    ready_replicas: int | None = None
    current_replicas: int | None = None
    updated_replicas: int | None = None
    available_replicas: int = 0
    current_revision: str = ""
    update_revision: str = ""
    collision_count: int | None = None


class StatefulSet(ApiStruct, frozen=True):
    """apps/v1 StatefulSet."""

    metadata: ObjectMeta = ObjectMeta()
    spec: StatefulSetSpec = explicit(StatefulSetSpec())
    status: StatefulSetStatus = StatefulSetStatus()


class RollingDaemonSet(ApiStruct, frozen=True):
    """updateStrategy.rollingUpdate of a daemon set."""

    max_surge: CountOrPercent = 0
    max_unavailable: CountOrPercent = explicit(1)


class DaemonSetStrategy(ApiStruct, frozen=True):
    """spec.updateStrategy of a daemon set."""

    type: Literal["RollingUpdate", "OnDelete"] = explicit("RollingUpdate")
    rolling_update: RollingDaemonSet | None = None


class DaemonSetSpec(ApiStruct, frozen=True):
    """spec of a daemon set."""

    selector: LabelSelector | None = None
    template: PodTemplate = explicit(PodTemplate())
    update_strategy: DaemonSetStrategy = explicit(DaemonSetStrategy())
    min_ready_seconds: int = 0
    revision_history_limit: int = explicit(10)


class DaemonSetStatus(ApiStruct, frozen=True):
    """status of a daemon set: the number of nodes that have, and should have, its pod."""

    current_number_scheduled: int = 0
    number_misscheduled: int = 0
    desired_number_scheduled: int = 0
    number_ready: int = 0
    observed_generation: int | None = None
    updated_number_scheduled: int | None = None
    number_available: int | None = None
    number_unavailable: int | None = None
    collision_count: int | None = None


class DaemonSet(ApiStruct, frozen=True):
    """apps/v1 DaemonSet."""

    metadata: ObjectMeta = ObjectMeta()
    spec: DaemonSetSpec = explicit(DaemonSetSpec())
    status: DaemonSetStatus = DaemonSetStatus()


class ControllerRevision(ApiStruct, frozen=True):
    """apps/v1 ControllerRevision: a former template of a stateful or daemon set."""

    metadata: ObjectMeta = ObjectMeta()
    revision: int = 0
    data: dict[str, Any] = {}


class StoredPodTemplate(ApiStruct, frozen=True):
    """v1 PodTemplate: a template as an object of its own, plain as it is sent."""

    metadata: ObjectMeta = ObjectMeta()
    template: dict[str, Any] = {}


# Volcano -----------------------------------------------------------------------------------


class PartitionPolicy(ApiStruct, frozen=True):
    """tasks[].partitionPolicy: groups of a task's pods that are placed together."""

    total_partitions: int
    partition_size: int
    min_partitions: int = 0
    network_topology: NetworkTopologySpec | None = None


class VolcanoPolicy(ApiStruct, frozen=True):
    """policies[] of a Volcano job or task: what becomes of it when something happens to a pod."""

    action: str = ""
    event: str = ""
    events: tuple[str, ...] = ()


class VolcanoTask(ApiStruct, frozen=True):
    """tasks[] of a Volcano job; ``min_available`` None means all replicas."""

    name: str = ""
    replicas: int = explicit(1)
    min_available: int | None = None
    template: PodTemplate = explicit(PodTemplate())
    partition_policy: PartitionPolicy | None = None
    policies: tuple[VolcanoPolicy, ...] = ()


class VolcanoJobSpec(ApiStruct, frozen=True):
    """spec of a Volcano job; ``min_available`` None means all pods."""

    min_available: int | None = None
    tasks: tuple[VolcanoTask, ...] = ()
    queue: str = explicit("default")
    scheduler_name: str = explicit("volcano")
    priority_class_name: str = ""
    network_topology: NetworkTopologySpec | None = None
    max_retry: int = explicit(3)
    policies: tuple[VolcanoPolicy, ...] = ()


class VolcanoJobState(ApiStruct, frozen=True):
    """status.state of a Volcano job; ``phase`` such as Pending, Running, Completed, Aborted."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


class VolcanoJobStatus(ApiStruct, frozen=True):
    """status of a Volcano job: its phase and the number of pods in each of theirs."""

    state: VolcanoJobState = VolcanoJobState()
    min_available: int = 0
    pending: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    terminating: int = 0
    unknown: int = 0
    retry_count: int = 0


class VolcanoJob(ApiStruct, frozen=True):
    """batch.volcano.sh/v1alpha1 Job."""

    metadata: ObjectMeta = ObjectMeta()
    spec: VolcanoJobSpec = explicit(VolcanoJobSpec())
    status: VolcanoJobStatus = VolcanoJobStatus()


class VolcanoCommand(ApiStruct, frozen=True):
    """bus.volcano.sh/v1alpha1 Command: what Volcano's controller is to do to a job, once.

    ``action`` is AbortJob, ResumeJob, RestartJob, TerminateJob or CompleteJob.
    """

    metadata: ObjectMeta = ObjectMeta()
    action: str = ""
    target: OwnerReference | None = None
    reason: str = ""
    message: str = ""
