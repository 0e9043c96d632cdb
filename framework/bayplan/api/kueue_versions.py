"""Conversion of kueue.x-k8s.io v1beta1 and v1alpha1 to v1beta2.

v1beta1 names a ClusterQueue's cohort ``cohort``, lists its admission checks by name, calls a search
that stops ``Borrow`` or ``Preempt``, and has a workload's priority class in two fields.
"""

from __future__ import annotations

from typing import Any

__all__ = ["as_v1beta2"]

_STOPS = ("Borrow", "Preempt")
_SOURCES = {
    "kueue.x-k8s.io/workloadpriorityclass": ("kueue.x-k8s.io", "WorkloadPriorityClass"),
    "scheduling.k8s.io/priorityclass": ("scheduling.k8s.io", "PriorityClass"),
}


def as_v1beta2(kind: str, version: str, content: dict[str, Any]) -> dict[str, Any]:
    """Return an object of kueue.x-k8s.io in the shape of v1beta2, without changing the input."""
    spec = content.get("spec")
    if version not in ("v1beta1", "v1alpha1") or not isinstance(spec, dict):
        return content
    if kind == "ClusterQueue":
        return {**content, "spec": _cluster_queue(spec)}
    if kind == "Cohort":
        return {**content, "spec": _renamed(spec, "parent", "parentName")}
    if kind == "Workload":
        return {**content, "spec": _workload(spec)}
    return content


def _renamed(spec: dict[str, Any], old: str, new: str) -> dict[str, Any]:
    if old not in spec:
        return spec
    return {new: spec[old], **{key: value for key, value in spec.items() if key != old}}


def _cluster_queue(spec: dict[str, Any]) -> dict[str, Any]:
    converted = _renamed(spec, "cohort", "cohortName")
    fungibility = spec.get("flavorFungibility")
    if isinstance(fungibility, dict):
        converted = {
            **converted,
            "flavorFungibility": {
                key: "MayStopSearch" if value in _STOPS else value
                for key, value in fungibility.items()
            },
        }
    checks = converted.get("admissionChecks")
    if isinstance(checks, list):
        converted = {key: value for key, value in converted.items() if key != "admissionChecks"}
        converted["admissionChecksStrategy"] = {"admissionChecks": [{"name": c} for c in checks]}
    return converted


def _workload(spec: dict[str, Any]) -> dict[str, Any]:
    name = spec.get("priorityClassName")
    if not name:
        return spec
    old = ("priorityClassName", "priorityClassSource")
    converted = {key: value for key, value in spec.items() if key not in old}
    group, kind = _SOURCES.get(str(spec.get("priorityClassSource") or ""), ("", ""))
    converted["priorityClassRef"] = {"group": group, "kind": kind, "name": name}
    return converted
