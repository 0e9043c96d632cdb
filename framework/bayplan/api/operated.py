"""Workloads of other projects' operators, of which bayplan reads what its table of kinds says.

The table (:mod:`bayplan.kinds`) knows where in ``spec`` and ``status`` the pods are.
"""

from __future__ import annotations

from typing import Any

from bayplan.api.meta import ApiStruct, Condition, ObjectMeta

__all__ = [
    "AppWrapper",
    "ClusterTrainingRuntime",
    "DisaggregatedSet",
    "JAXJob",
    "KnativeService",
    "LeaderWorkerSet",
    "MPIJob",
    "OperatedObject",
    "PaddleJob",
    "PodClique",
    "PodCliqueScalingGroup",
    "PodCliqueSet",
    "PodGang",
    "PodGangStatus",
    "RayService",
    "SparkApplication",
    "TFJob",
    "TrainJob",
    "TrainingRuntime",
    "Workflow",
    "XGBoostJob",
]


class OperatedObject(ApiStruct, frozen=True):
    """An object of such a kind."""

    metadata: ObjectMeta = ObjectMeta()
    spec: dict[str, Any] = {}
    status: dict[str, Any] = {}


class TFJob(OperatedObject, frozen=True):
    """kubeflow.org/v1 TFJob."""


class XGBoostJob(OperatedObject, frozen=True):
    """kubeflow.org/v1 XGBoostJob."""


class PaddleJob(OperatedObject, frozen=True):
    """kubeflow.org/v1 PaddleJob."""


class JAXJob(OperatedObject, frozen=True):
    """kubeflow.org/v1 JAXJob."""


class MPIJob(OperatedObject, frozen=True):
    """kubeflow.org MPIJob: v2beta1 of the MPI operator, v1 of the training operator."""


class RayService(OperatedObject, frozen=True):
    """ray.io/v1 RayService: a Ray cluster that serves, and the next one while it changes."""


class TrainJob(OperatedObject, frozen=True):
    """trainer.kubeflow.org/v1alpha1 TrainJob."""


class TrainingRuntime(OperatedObject, frozen=True):
    """trainer.kubeflow.org/v1alpha1 TrainingRuntime: the JobSet of its TrainJobs."""


class ClusterTrainingRuntime(OperatedObject, frozen=True):
    """trainer.kubeflow.org/v1alpha1 ClusterTrainingRuntime: one for all namespaces."""


class PodGangStatus(ApiStruct, frozen=True):
    """status of a PodGang: ``phase`` is Pending, Starting, Running, Succeeded or Failed."""

    phase: str = ""
    conditions: tuple[Condition, ...] = ()
    placement_score: float | None = None


class PodGang(ApiStruct, frozen=True):
    """scheduler.grove.io/v1alpha1 PodGang: what Grove asks of a scheduler."""

    metadata: ObjectMeta = ObjectMeta()
    spec: dict[str, Any] = {}
    status: PodGangStatus = PodGangStatus()


class LeaderWorkerSet(OperatedObject, frozen=True):
    """leaderworkerset.x-k8s.io/v1 LeaderWorkerSet."""


class DisaggregatedSet(OperatedObject, frozen=True):
    """disaggregatedset.x-k8s.io/v1 DisaggregatedSet: a LeaderWorkerSet for each of its roles."""


class SparkApplication(OperatedObject, frozen=True):
    """sparkoperator.k8s.io/v1beta2 SparkApplication: a driver, which makes its executors."""


class AppWrapper(OperatedObject, frozen=True):
    """workload.codeflare.dev/v1beta2 AppWrapper: objects that run together."""


class PodCliqueSet(OperatedObject, frozen=True):
    """grove.io/v1alpha1 PodCliqueSet: replicas of cliques of pods."""


class PodCliqueScalingGroup(OperatedObject, frozen=True):
    """grove.io/v1alpha1 PodCliqueScalingGroup: cliques that grow together."""


class PodClique(OperatedObject, frozen=True):
    """grove.io/v1alpha1 PodClique: pods of one role."""


class KnativeService(OperatedObject, frozen=True):
    """serving.knative.dev/v1 Service: revisions, each with a Deployment."""


class Workflow(OperatedObject, frozen=True):
    """argoproj.io/v1alpha1 Workflow: steps, each a pod or an object."""
