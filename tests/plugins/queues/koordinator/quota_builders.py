"""Quotas and pods, in few words."""

from __future__ import annotations

from collections.abc import Mapping

from bayplan.api import Container, ElasticQuota, ObjectMeta, Pod, PodSpec, Quantity
from bayplan.api.elastic_quota import ElasticQuotaSpec
from bayplan.api.pod import ResourceRequirements
from bayplan.dialects.koordinator.elastic_quota import QuotaDefinition, ResourceList, definition_of

PREFIX = "quota.scheduling.koordinator.sh/"
GPU = "nvidia.com/gpu"


def quota(
    name: str,
    least: int = 0,
    most: int = 100,
    parent: str = "",
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> ElasticQuota:
    """Return a quota of GPUs."""
    named = {"parent": parent, **(labels or {})}
    return ElasticQuota(
        ObjectMeta(
            name=name,
            namespace="quotas",
            labels={PREFIX + key: value for key, value in named.items() if value},
            annotations={PREFIX + key: value for key, value in (annotations or {}).items()},
        ),
        ElasticQuotaSpec(min={GPU: Quantity(least)}, max={GPU: Quantity(most)}),
    )


def defined(name: str, least: int = 0, most: int = 100, parent: str = "") -> QuotaDefinition:
    """Return what a quota of GPUs says."""
    return definition_of(quota(name, least, most, parent))


def gpus(amount: int) -> ResourceList:
    """Return an amount of GPUs."""
    return {GPU: amount}


def pod(
    name: str,
    amount: int = 1,
    quota: str = "",
    priority: int = 0,
    node: str = "",
    preemptible: bool = True,
    namespace: str = "team",
) -> Pod:
    """Return a pod that asks for GPUs."""
    labels = {f"{PREFIX}name": quota} if quota else {}
    if not preemptible:
        labels[f"{PREFIX}preemptible"] = "false"
    requests = ResourceRequirements(requests={GPU: Quantity(amount), "cpu": Quantity(1)})
    return Pod(
        ObjectMeta(name=name, namespace=namespace, labels=labels),
        PodSpec(
            containers=(Container(name="c", resources=requests),),
            priority=priority,
            node_name=node,
        ),
    )
