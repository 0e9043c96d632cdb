"""PodGroups and Workloads of scheduling.k8s.io, priority classes and disruption budgets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bayplan.cluster.api_errors import Cause
from bayplan.cluster.apiserver.validation.conditions import conditions
from bayplan.cluster.apiserver.validation.formats import (
    at_least,
    duplicate,
    forbidden,
    immutable,
    items,
    label,
    mapping,
    named,
    qualified,
    required,
    subdomain,
    too_many,
    unsupported,
    wrong,
)
from bayplan.cluster.apiserver.validation.selectors import label_selector

__all__ = [
    "budget_problems",
    "budget_status_problems",
    "group_problems",
    "group_status_problems",
    "priority_class_problems",
    "workload_problems",
]

Content = Mapping[str, Any]

_HIGHEST = 1_000_000_000
"""The highest value of a PriorityClass that is not the system's."""


# Pod groups --------------------------------------------------------------------------------------


def group_problems(after: Content, before: Content | None) -> Iterator[Cause]:
    """Yield what is wrong with a PodGroup."""
    spec = mapping(after.get("spec"))
    yield from _policy(spec.get("schedulingPolicy"), "spec.schedulingPolicy")
    yield from _constraints(spec.get("schedulingConstraints"), "spec.schedulingConstraints")
    reference = spec.get("podGroupTemplateRef")
    if isinstance(reference, dict):
        yield from _template_reference(reference, "spec.podGroupTemplateRef")
    old = mapping(before.get("spec")) if before is not None else spec
    for field in ("schedulingPolicy", "schedulingConstraints", "podGroupTemplateRef"):
        yield from immutable(old.get(field), spec.get(field), f"spec.{field}", None)


def group_status_problems(after: Content, before: Content | None) -> Iterator[Cause]:
    """Yield what is wrong with the status of a PodGroup."""
    status = mapping(after.get("status"))
    yield from conditions(status.get("conditions"), "status.conditions")


def workload_problems(after: Content, before: Content | None) -> Iterator[Cause]:
    """Yield what is wrong with a Workload."""
    spec = mapping(after.get("spec"))
    path = "spec.podGroupTemplates"
    templates = [template for _, template in items(spec.get("podGroupTemplates"))]
    if not templates:
        yield required(path)
    if len(templates) > 8:
        yield too_many(path, len(templates), 8)
    names: list[Any] = []
    for index, template in enumerate(templates):
        where, name = f"{path}[{index}]", template.get("name") or ""
        if not name:
            yield required(f"{where}.name")
        else:
            yield from named(label(name), f"{where}.name", name)
        if name in names:
            yield duplicate(where, {**template, "schedulingConstraints": None})
        names.append(name)
        yield from _policy(template.get("schedulingPolicy"), f"{where}.schedulingPolicy")
        yield from _constraints(
            template.get("schedulingConstraints"), f"{where}.schedulingConstraints"
        )
    controller = spec.get("controllerRef")
    if isinstance(controller, dict):
        yield from _controller(controller, "spec.controllerRef")
    old = mapping(before.get("spec")) if before is not None else spec
    for field in ("podGroupTemplates", "controllerRef"):
        yield from immutable(old.get(field), spec.get(field), f"spec.{field}", None)


def _policy(policy: Any, path: str) -> Iterator[Cause]:
    given = sorted(field for field in ("basic", "gang") if mapping(policy).get(field) is not None)
    if not given:
        yield wrong(path, "", "must specify one of: `basic`, `gang`")
    elif len(given) > 1:
        yield wrong(path, "{basic, gang}", "must specify exactly one of: `basic`, `gang`")
    if "gang" in given:
        least = mapping(mapping(policy)["gang"]).get("minCount") or 0
        if not least:
            yield required(f"{path}.gang.minCount")
        else:
            yield from at_least(1, least, f"{path}.gang.minCount")


def _constraints(value: Any, path: str) -> Iterator[Cause]:
    levels = [one for _, one in items(mapping(value).get("topology"))]
    if len(levels) > 1:
        yield too_many(f"{path}.topology", len(levels), 1)
    for index, one in enumerate(levels):
        key = one.get("key") or ""
        if not key:
            yield required(f"{path}.topology[{index}].key")
        else:
            yield from named(qualified(key), f"{path}.topology[{index}].key", key)


def _template_reference(reference: Content, path: str) -> Iterator[Cause]:
    workload = reference.get("workload")
    if not isinstance(workload, dict):
        yield wrong(path, "", "must specify one of: `workload`")
        return
    for field, rule in (("workloadName", subdomain), ("podGroupTemplateName", label)):
        name = workload.get(field) or ""
        where = f"{path}.workload.{field}"
        if not name:
            yield required(where)
        else:
            yield from named(rule(name), where, name)


def _controller(reference: Content, path: str) -> Iterator[Cause]:
    group = reference.get("apiGroup")
    if group:
        yield from named(subdomain(group), f"{path}.apiGroup", group)
    for field in ("kind", "name"):
        text = reference.get(field) or ""
        if not text:
            yield required(f"{path}.{field}")
        for mark in ("/", "%"):
            if mark in text:
                yield wrong(f"{path}.{field}", text, f"may not contain '{mark}'")


# Priority classes --------------------------------------------------------------------------------


def priority_class_problems(after: Content, before: Content | None) -> Iterator[Cause]:
    """Yield what is wrong with a PriorityClass."""
    name = str(after["metadata"].get("name") or "")
    value = after.get("value") or 0
    if name.startswith("system-") and name not in (
        "system-node-critical",
        "system-cluster-critical",
    ):
        why = (
            "priority class names with 'system-' prefix are reserved for system use only. error: "
            f"{name} is not a known system priority class"
        )
        yield forbidden("metadata.name", why)
    if not name.startswith("system-") and value > _HIGHEST:
        why = f"maximum allowed value of a user defined priority is {_HIGHEST}"
        yield forbidden("value", why)
    if before is None:
        return
    if (before.get("value") or 0) != value:
        yield forbidden("value", "may not be changed in an update.")
    default = "PreemptLowerPriority"
    policies = [one.get("preemptionPolicy") or default for one in (before, after)]
    yield from immutable(policies[0], policies[1], "preemptionPolicy")


# Disruption budgets ------------------------------------------------------------------------------


def budget_problems(after: Content, before: Content | None) -> Iterator[Cause]:
    """Yield what is wrong with a PodDisruptionBudget."""
    spec = mapping(after.get("spec"))
    if spec.get("minAvailable") is not None and spec.get("maxUnavailable") is not None:
        yield wrong("spec", spec, "minAvailable and maxUnavailable cannot be both set")
    policy = spec.get("unhealthyPodEvictionPolicy")
    known = ("AlwaysAllow", "IfHealthyBudget")
    if policy not in (None, *known):
        yield unsupported("spec.unhealthyPodEvictionPolicy", policy, known)
    yield from label_selector(spec.get("selector"), "spec.selector")


def budget_status_problems(after: Content, before: Content | None) -> Iterator[Cause]:
    """Yield what is wrong with the status of a PodDisruptionBudget."""
    status = mapping(after.get("status"))
    yield from conditions(status.get("conditions"), "status.conditions")
    for field in ("disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"):
        yield from at_least(0, status.get(field), f"status.{field}")
