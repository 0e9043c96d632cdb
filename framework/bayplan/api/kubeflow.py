"""PyTorchJob (kubeflow.org): one master and its workers."""

from __future__ import annotations

from typing import Any, Literal

from bayplan.api.meta import ApiStruct, LabelSelector, ObjectMeta, explicit
from bayplan.api.pod import PodTemplate
from bayplan.api.quantity import Quantity
from bayplan.api.workloads import WorkloadCondition

__all__ = [
    "ElasticPolicy",
    "PyTorchJob",
    "PyTorchJobSpec",
    "PyTorchJobStatus",
    "ReplicaSpec",
    "ReplicaStatus",
    "RunPolicy",
    "SchedulingPolicy",
]


class ReplicaSpec(ApiStruct, frozen=True):
    """pytorchReplicaSpecs[type]: ``replicas`` pods of one template."""

    replicas: int = explicit(1)
    template: PodTemplate = explicit(PodTemplate())
    restart_policy: Literal["Always", "OnFailure", "Never", "ExitCode"] = explicit("OnFailure")


class ElasticPolicy(ApiStruct, frozen=True):
    """spec.elasticPolicy: how few and how many workers the training can go on with."""

    min_replicas: int | None = None
    max_replicas: int | None = None
    max_restarts: int | None = None
    metrics: tuple[dict[str, Any], ...] = ()
    """What an autoscaler follows; with any, it sets the number of workers."""


class SchedulingPolicy(ApiStruct, frozen=True):
    """runPolicy.schedulingPolicy: how the job's pods are placed as a gang."""

    min_available: int | None = None
    queue: str = ""
    min_resources: dict[str, Quantity] = {}
    priority_class: str = ""
    schedule_timeout_seconds: int | None = None


class RunPolicy(ApiStruct, frozen=True):
    """spec.runPolicy; an empty clean-pod policy is None: the pods of a finished job stay."""

    suspend: bool = False
    clean_pod_policy: Literal["", "All", "Running", "None"] = ""
    backoff_limit: int | None = None
    active_deadline_seconds: int | None = None
    scheduling_policy: SchedulingPolicy | None = None
    managed_by: str | None = None


class PyTorchJobSpec(ApiStruct, frozen=True):
    """spec of a PyTorch job; the types of replicas are Master and Worker."""

    pytorch_replica_specs: dict[str, ReplicaSpec] = {}
    elastic_policy: ElasticPolicy | None = None
    run_policy: RunPolicy = RunPolicy()


class ReplicaStatus(ApiStruct, frozen=True):
    """status.replicaStatuses[type]: its pods that run, and that ended."""

    active: int = 0
    succeeded: int = 0
    failed: int = 0
    label_selector: LabelSelector | None = None
    selector: str = ""


class PyTorchJobStatus(ApiStruct, frozen=True):
    """status of a PyTorch job.

    Its conditions are Created, Running, Restarting, Suspended, Succeeded and Failed.
    """

    conditions: tuple[WorkloadCondition, ...] = ()
    replica_statuses: dict[str, ReplicaStatus] = {}
    start_time: str | None = None
    completion_time: str | None = None


class PyTorchJob(ApiStruct, frozen=True):
    """kubeflow.org/v1 PyTorchJob."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PyTorchJobSpec = explicit(PyTorchJobSpec())
    status: PyTorchJobStatus = PyTorchJobStatus()
