"""What admission adds to the pods of a pod set, and takes back: labels, nodes, tolerations, gates.

As in Kueue's package ``podset``. Templates, tolerations and gates are JSON, so that a template
keeps the fields that bayplan does not read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from bayplan.api.kueue import ResourceFlavor

__all__ = [
    "CHANGED",
    "ConflictError",
    "PodSetInfo",
    "Template",
    "info_of_flavors",
    "info_of_update",
]

Template = Mapping[str, Any]
Part = Mapping[str, Any]


class ConflictError(ValueError):
    """Two sources ask for different values under one key."""


class PodSetInfo(msgspec.Struct, frozen=True):
    """What the pods of a pod set have, or get, where admission may change them."""

    labels: Mapping[str, str] = msgspec.field(default_factory=dict)
    annotations: Mapping[str, str] = msgspec.field(default_factory=dict)
    node_selector: Mapping[str, str] = msgspec.field(default_factory=dict)
    tolerations: tuple[Part, ...] = ()
    gates: tuple[Part, ...] = ()

    @classmethod
    def of(cls, template: Template) -> PodSetInfo:
        """Return what a pod template has."""
        meta, spec = template.get("metadata") or {}, template.get("spec") or {}
        return cls(
            meta.get("labels") or {},
            meta.get("annotations") or {},
            spec.get("nodeSelector") or {},
            tuple(spec.get("tolerations") or ()),
            tuple(spec.get("schedulingGates") or ()),
        )

    def merged(self, other: PodSetInfo) -> PodSetInfo:
        """Return what both ask for, this one's first; the other one's slice counts.

        :raises ConflictError: for two values of one label, annotation or label of nodes.
        """
        return PodSetInfo(
            _agreed("label", self.labels, other.labels),
            _agreed("annotation", _without_marks(self.annotations, other), other.annotations),
            _agreed("node selector", self.node_selector, other.node_selector),
            _joined(self.tolerations, other.tolerations, _toleration),
            _joined(self.gates, other.gates, _gate),
        )

    def with_labels(self, labels: Mapping[str, str]) -> PodSetInfo:
        """Return this with some labels that others set."""
        return replace(self, labels={**self.labels, **labels}) if labels else self

    def plain(self) -> dict[str, Any]:
        """Return this as JSON, without what holds nothing."""
        found = {
            "labels": dict(self.labels),
            "annotations": dict(self.annotations),
            "nodeSelector": dict(self.node_selector),
            "tolerations": list(self.tolerations),
            "schedulingGates": list(self.gates),
        }
        return _without(found, found)

    def put(self, template: Template) -> Template:
        """Return a template with exactly this; itself if it is so already."""
        if PodSetInfo.of(template) == self:
            return template
        meta = {
            **(template.get("metadata") or {}),
            "labels": dict(self.labels),
            "annotations": dict(self.annotations),
        }
        spec = {
            **(template.get("spec") or {}),
            "nodeSelector": dict(self.node_selector),
            "tolerations": list(self.tolerations),
            "schedulingGates": list(self.gates),
        }
        wanted = {**template, "metadata": _without(meta, CHANGED["metadata"])}
        wanted["spec"] = _without(spec, CHANGED["spec"])
        return _without(wanted, ("metadata",))


CHANGED = {
    "metadata": ("labels", "annotations"),
    "spec": ("nodeSelector", "tolerations", "schedulingGates"),
}
"""The fields of a template that admission may change."""
_OF_WORKLOADS = ("kueue.x-k8s.io/workload", "kueue.x-k8s.io/workload-slice-name")


def _without(content: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return a mapping without those of some keys that hold nothing."""
    return {key: value for key, value in content.items() if value or key not in names}


def _without_marks(annotations: Mapping[str, str], other: PodSetInfo) -> dict[str, str]:
    """Return annotations without those that name a slice, where the other one names another."""
    if _OF_WORKLOADS[1] not in other.annotations:
        return dict(annotations)
    return {
        key: value
        for key, value in annotations.items()
        if key not in _OF_WORKLOADS or key not in other.annotations
    }


def info_of_flavors(flavors: Iterable[ResourceFlavor]) -> PodSetInfo:
    """Return what flavors add to pods: of two with one label of nodes, the later one's counts."""
    selector: dict[str, str] = {}
    tolerations: tuple[Part, ...] = ()
    for flavor in flavors:
        selector |= flavor.spec.node_labels
        own = msgspec.to_builtins(flavor.spec.tolerations)
        tolerations = _joined(tolerations, own, _toleration)
    return PodSetInfo(node_selector=selector, tolerations=tolerations)


def info_of_update(update: Mapping[str, Any]) -> PodSetInfo:
    """Return what an admission check asks for in one of its ``podSetUpdates``.

    :raises ConflictError: for what is no such update.
    """
    for name in ("labels", "annotations", "nodeSelector"):
        texts = update.get(name) or {}
        if not isinstance(texts, Mapping) or not all(isinstance(v, str) for v in texts.values()):
            raise ConflictError(f"podSetUpdates: {name}: expected texts, got {str(texts)[:40]}")
    parts = update.get("tolerations") or ()
    if not isinstance(parts, (list, tuple)) or not all(isinstance(one, Mapping) for one in parts):
        raise ConflictError(f"podSetUpdates: tolerations: expected objects, got {str(parts)[:40]}")
    return PodSetInfo(
        update.get("labels") or {},
        update.get("annotations") or {},
        update.get("nodeSelector") or {},
        tuple(update.get("tolerations") or ()),
    )


def _agreed(what: str, own: Mapping[str, str], other: Mapping[str, str]) -> dict[str, str]:
    for key, value in other.items():
        if own.get(key, value) != value:
            raise ConflictError(f'{what} "{key}": "{own[key]}" and "{value}" exclude each other')
    return {**own, **other}


def _joined(own: tuple[Part, ...], other: Iterable[Part], key: Any) -> tuple[Part, ...]:
    found = {key(one): one for one in own}
    return (*own, *(one for one in other if found.setdefault(key(one), one) is one))


def _toleration(one: Part) -> tuple[Any, ...]:
    """Return what two tolerations that mean the same have in common."""
    names = ("key", "value", "effect", "tolerationSeconds")
    return (one.get("operator") or "Equal", *(one.get(name) or None for name in names))


def _gate(one: Part) -> Any:
    return one.get("name")
