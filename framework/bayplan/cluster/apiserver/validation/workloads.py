"""Deployments, ReplicaSets, StatefulSets, DaemonSets and Jobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bayplan.cluster.api_errors import Cause
from bayplan.cluster.apiserver.validation.formats import (
    at_least,
    forbidden,
    immutable,
    label,
    mapping,
    named,
    required,
    unsupported,
    wrong,
)
from bayplan.cluster.apiserver.validation.pods import pod_spec_problems
from bayplan.cluster.apiserver.validation.selectors import label_selector

__all__ = ["job_problems", "workload_problems"]

Content = Mapping[str, Any]

_CALLED = {"Deployment": "deployment", "ReplicaSet": "deployment"}
_OWNER = {"Deployment": "ReplicaSet"}
_WHILE_SUSPENDED = ("affinity", "nodeSelector", "schedulingGates", "tolerations")
_CHANGEABLE = (
    "replicas",
    "ordinals",
    "template",
    "updateStrategy",
    "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy",
    "minReadySeconds",
)


def workload_problems(after: Content, before: Content | None) -> Iterator[Cause]:
    """Yield what is wrong with a workload of apps/v1."""
    kind, spec = str(after["kind"]), mapping(after.get("spec"))
    selector = spec.get("selector")
    if isinstance(selector, dict):
        yield from label_selector(selector, "spec.selector")
        if not selector.get("matchLabels") and not selector.get("matchExpressions"):
            called = _CALLED.get(kind, kind.lower())
            yield wrong("spec.selector", {}, f"empty selector is invalid for {called}")
    if kind == "ReplicaSet":
        yield from at_least(0, spec.get("minReadySeconds"), "spec.minReadySeconds")
    service = spec.get("serviceName")
    if kind == "StatefulSet" and service:
        yield from named(label(service), "spec.serviceName", service)
    pods = mapping(mapping(spec.get("template")).get("spec"))
    yield from pod_spec_problems(pods, "spec.template.spec")
    path = "spec.template.spec"
    if pods.get("restartPolicy") not in (None, "", "Always"):
        yield unsupported(f"{path}.restartPolicy", pods["restartPolicy"], ("Always",))
    if pods.get("activeDeadlineSeconds") is not None:
        why = f"activeDeadlineSeconds in {_OWNER.get(kind, kind)} is not Supported"
        yield forbidden(f"{path}.activeDeadlineSeconds", why)
    if before is not None:
        yield from _changes(kind, spec, mapping(before.get("spec")))


def _changes(kind: str, spec: Content, old: Content) -> Iterator[Cause]:
    if kind != "StatefulSet":
        yield from immutable(old.get("selector"), spec.get("selector"), "spec.selector")
        return
    fixed = [{k: v for k, v in one.items() if k not in _CHANGEABLE} for one in (old, spec)]
    if fixed[0] != fixed[1]:
        names = [f"'{name}'" for name in _CHANGEABLE]
        listed = f"{', '.join(names[:-1])} and {names[-1]}"
        why = f"updates to statefulset spec for fields other than {listed} are forbidden"
        yield forbidden("spec", why)


def job_problems(after: Content, before: Content | None) -> Iterator[Cause]:
    """Yield what is wrong with a Job."""
    spec = mapping(after.get("spec"))
    for field in ("backoffLimit", "activeDeadlineSeconds", "ttlSecondsAfterFinished"):
        yield from at_least(0, spec.get(field), f"spec.{field}")
    if before is None:
        name = str(after["metadata"].get("name") or "")
        if len(name) > 63:
            # The controller labels the pods with it.
            yield wrong("spec.template.labels", name, "must be no more than 63 bytes")
        if spec.get("selector") and not spec.get("manualSelector"):
            yield wrong("spec.selector", spec["selector"], "`selector` not auto-generated")
    pods = mapping(mapping(spec.get("template")).get("spec"))
    yield from pod_spec_problems(pods, "spec.template.spec")
    if pods.get("restartPolicy") not in ("OnFailure", "Never"):
        yield required("spec.template.spec.restartPolicy", 'valid values: "OnFailure", "Never"')
    if before is not None:
        yield from _job_changes(spec, before)


def _job_changes(spec: Content, before: Content) -> Iterator[Cause]:
    old = mapping(before.get("spec"))
    fixed = ["completionMode", "selector"]
    completions = spec.get("completions")
    if old.get("completionMode") != "Indexed":
        fixed.append("completions")
    elif completions not in (None, old.get("completions"), spec.get("parallelism", 1)):
        why = "can only be modified in tandem with spec.parallelism"
        yield wrong("spec.completions", completions, why)
    for field in fixed:
        yield from immutable(old.get(field), spec.get(field), f"spec.{field}")
    started = mapping(before.get("status")).get("startTime")
    changeable = bool(old.get("suspend")) and not started
    was, template = mapping(old.get("template")), mapping(spec.get("template"))
    free: tuple[str, ...] = _WHILE_SUSPENDED if changeable else ()
    if _without(was.get("spec"), free) != _without(template.get("spec"), free):
        yield wrong("spec.template.spec", mapping(template.get("spec")), "field is immutable")
    free = ("labels", "annotations") if changeable else ()
    if _without(was.get("metadata"), free) != _without(template.get("metadata"), free):
        yield wrong("spec.template", template, "field is immutable")


def _without(content: Any, free: Sequence[str]) -> dict[str, Any]:
    """Return content without the fields that may change."""
    return {key: value for key, value in mapping(content).items() if key not in free}
