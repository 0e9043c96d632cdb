"""The defaults that the API server sets in workloads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bayplan.cluster.apiserver.defaults import container_defaults
from bayplan.cluster.apiserver.resources import Resource

__all__ = ["with_defaults"]

Content = dict[str, Any]

_TEMPLATE = {
    "restartPolicy": "Always",
    "terminationGracePeriodSeconds": 30,
    "dnsPolicy": "ClusterFirst",
    "securityContext": {},
    "schedulerName": "default-scheduler",
}
_ROLLING: Mapping[str, Content] = {
    "deployments": {"maxSurge": "25%", "maxUnavailable": "25%"},
    "statefulsets": {"partition": 0},
    "daemonsets": {"maxSurge": 0, "maxUnavailable": 1},
}
_SPEC: Mapping[str, Content] = {
    "deployments": {"replicas": 1, "progressDeadlineSeconds": 600, "revisionHistoryLimit": 10},
    "replicasets": {"replicas": 1},
    "statefulsets": {
        "replicas": 1,
        "podManagementPolicy": "OrderedReady",
        "revisionHistoryLimit": 10,
        "serviceName": "",
        "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"},
    },
    "daemonsets": {"revisionHistoryLimit": 10},
}


def with_defaults(resource: Resource, content: Content) -> Content:
    """Return an object of apps/v1 with its defaults; other objects unchanged."""
    spec = content.get("spec")
    if resource.group != "apps" or resource.plural not in _SPEC or not isinstance(spec, dict):
        return content
    filled = {**_SPEC[resource.plural], **spec}
    if resource.plural in _ROLLING:
        field = "strategy" if resource.plural == "deployments" else "updateStrategy"
        filled[field] = _strategy(filled.get(field), _ROLLING[resource.plural])
    if isinstance(filled.get("template"), dict):
        filled["template"] = _template(filled["template"])
    return {**content, "spec": filled}


def _strategy(given: Any, rolling: Content) -> Any:
    strategy = {"type": "RollingUpdate"} if given is None else given
    if not isinstance(strategy, dict):
        return strategy
    strategy = {"type": "RollingUpdate", **strategy}
    own = strategy.get("rollingUpdate", {})
    if strategy["type"] == "RollingUpdate" and isinstance(own, dict):
        strategy["rollingUpdate"] = {**rolling, **own}
    return strategy


def _template(template: Content) -> Content:
    given = template.get("spec")
    if not isinstance(given, dict):
        return template
    spec = {**_TEMPLATE, **given}
    for field in ("containers", "initContainers"):
        if isinstance(spec.get(field), list):
            spec[field] = [
                container_defaults(one) if isinstance(one, dict) else one for one in spec[field]
            ]
    return {**template, "spec": spec}
