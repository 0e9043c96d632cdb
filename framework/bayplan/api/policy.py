"""Namespaces, services, priority classes and disruption budgets."""

from __future__ import annotations

from typing import Any, Literal

from bayplan.api.meta import ApiStruct, LabelSelector, ObjectMeta, explicit
from bayplan.api.quantity import Quantity

__all__ = ["Namespace", "PodDisruptionBudget", "PriorityClass", "ResourceQuota", "Service"]


class Namespace(ApiStruct, frozen=True):
    """v1 Namespace; namespaceSelectors match its labels."""

    metadata: ObjectMeta = ObjectMeta()


class ServiceSpec(ApiStruct, frozen=True):
    """spec of a service."""

    selector: dict[str, str] = {}


class Service(ApiStruct, frozen=True):
    """v1 Service; the default topology spread uses its selector."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ServiceSpec = ServiceSpec()


class ResourceQuotaSpec(ApiStruct, frozen=True):
    """spec of a resource quota; with scopes it counts some of the pods only."""

    hard: dict[str, Quantity] = {}
    scopes: tuple[str, ...] = ()
    scope_selector: dict[str, Any] | None = None


class ResourceQuota(ApiStruct, frozen=True):
    """v1 ResourceQuota: the most that a namespace may have."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ResourceQuotaSpec = ResourceQuotaSpec()


class PriorityClass(ApiStruct, frozen=True):
    """scheduling.k8s.io/v1 PriorityClass."""

    value: int
    metadata: ObjectMeta = ObjectMeta()
    global_default: bool = False
    preemption_policy: Literal["PreemptLowerPriority", "Never"] = explicit("PreemptLowerPriority")


class PodDisruptionBudgetSpec(ApiStruct, frozen=True):
    """spec of a disruption budget; amounts are counts or percentages."""

    selector: LabelSelector | None = None
    min_available: int | str | None = None
    max_unavailable: int | str | None = None


class PodDisruptionBudgetStatus(ApiStruct, frozen=True):
    """status of a disruption budget."""

    disruptions_allowed: int = 0


class PodDisruptionBudget(ApiStruct, frozen=True):
    """policy/v1 PodDisruptionBudget."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PodDisruptionBudgetSpec = PodDisruptionBudgetSpec()
    status: PodDisruptionBudgetStatus = PodDisruptionBudgetStatus()
