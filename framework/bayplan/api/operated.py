"""Workloads of other projects' operators, of which bayplan reads what its table of kinds says.

The table (:mod:`bayplan.kinds`) knows where in ``spec`` and ``status`` the pods are.
"""

from __future__ import annotations

from typing import Any

from bayplan.api.meta import ApiStruct, ObjectMeta

__all__ = [
    "JAXJob",
    "LeaderWorkerSet",
    "MPIJob",
    "OperatedObject",
    "PaddleJob",
    "TFJob",
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


class LeaderWorkerSet(OperatedObject, frozen=True):
    """leaderworkerset.x-k8s.io/v1 LeaderWorkerSet."""
