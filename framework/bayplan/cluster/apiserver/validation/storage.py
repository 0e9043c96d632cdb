"""Volumes, their claims and classes, and the drivers of nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bayplan.api.quantity import Quantity, is_quantity
from bayplan.cluster.api_errors import Cause
from bayplan.cluster.apiserver.validation.formats import (
    at_least,
    forbidden,
    immutable,
    items,
    mapping,
    named,
    required,
    subdomain,
    unique,
    unsupported,
    wrong,
)
from bayplan.cluster.apiserver.validation.selectors import label_selector, node_selector

__all__ = [
    "csi_node_problems",
    "storage_class_problems",
    "volume_claim_problems",
    "volume_problems",
]

Content = Mapping[str, Any]

_CHANGEABLE = ("volumeName", "volumeAttributesClassName")
_NO_SOURCES = frozenset(
    {
        "capacity",
        "accessModes",
        "claimRef",
        "persistentVolumeReclaimPolicy",
        "storageClassName",
        "mountOptions",
        "volumeMode",
        "nodeAffinity",
        "volumeAttributesClassName",
    }
)
"""The fields of a volume's spec that are no kinds of storage."""


def volume_claim_problems(after: Content, before: Content | None) -> Iterator[Cause]:
    """Yield what is wrong with a PersistentVolumeClaim."""
    spec = mapping(after.get("spec"))
    size = mapping(mapping(spec.get("resources")).get("requests")).get("storage")
    if _is_zero(size):
        yield wrong("spec.resources[storage]", size, "must be greater than zero")
    yield from _class_name(spec)
    yield from label_selector(spec.get("selector"), "spec.selector")
    if before is not None and _claim_changed(mapping(before.get("spec")), spec, before):
        why = (
            "spec is immutable after creation except resources.requests and "
            "volumeAttributesClassName for bound claims"
        )
        yield forbidden("spec", why)


def _claim_changed(old: Content, new: Content, before: Content) -> bool:
    """Return whether a claim changes in what has to stay; a bound claim may ask for more."""
    bound = mapping(before.get("status")).get("phase") == "Bound"
    changeable = (*_CHANGEABLE, *(("resources",) if bound else ()))
    if old.get("storageClassName") is None:
        changeable += ("storageClassName",)
    fixed = [{k: v for k, v in one.items() if k not in changeable} for one in (old, new)]
    return fixed[0] != fixed[1]


def volume_problems(after: Content, before: Content | None) -> Iterator[Cause]:
    """Yield what is wrong with a PersistentVolume."""
    spec = mapping(after.get("spec"))
    capacity = mapping(spec.get("capacity"))
    if len(capacity) > 1:
        yield unsupported("spec.capacity", capacity, ("storage",))
    if _is_zero(capacity.get("storage")):
        why = "must be greater than zero"
        yield wrong("spec.capacity[storage]", capacity["storage"], why)
    yield from _class_name(spec)
    sources = [field for field in spec if field not in _NO_SOURCES and spec[field] is not None]
    if not sources:
        yield required("spec", "must specify a volume type")
    for field in sorted(sources)[1:]:
        yield forbidden(f"spec.{field}", "may not specify more than 1 volume type")
    wanted = mapping(spec.get("nodeAffinity")).get("required")
    if isinstance(wanted, dict):
        yield from node_selector(wanted, "spec.nodeAffinity.required")
    elif "local" in sources:
        yield required("spec.nodeAffinity", "Local volume requires node affinity")


def storage_class_problems(after: Content, before: Content | None) -> Iterator[Cause]:
    """Yield what is wrong with a StorageClass."""
    if not after.get("provisioner"):
        yield required("provisioner")
    for index, term in items(after.get("allowedTopologies")):
        path = f"allowedTopologies[{index}].matchLabelExpressions"
        for place, one in items(term.get("matchLabelExpressions")):
            if not one.get("values"):
                yield required(f"{path}[{place}].values")
    if before is not None:
        for field in ("provisioner", "parameters"):
            yield from immutable(before.get(field), after.get(field), field)
        for field, default in (("reclaimPolicy", "Delete"), ("volumeBindingMode", "Immediate")):
            values = [one.get(field) or default for one in (before, after)]
            yield from immutable(values[0], values[1], field)


def csi_node_problems(after: Content, before: Content | None) -> Iterator[Cause]:
    """Yield what is wrong with a CSINode."""
    drivers = [one for _, one in items(mapping(after.get("spec")).get("drivers"))]
    for index, driver in enumerate(drivers):
        path = f"spec.drivers[{index}]"
        for field in ("name", "nodeID"):
            if not driver.get(field):
                yield required(f"{path}.{field}")
        count = mapping(driver.get("allocatable")).get("count")
        yield from at_least(0, count, f"{path}.allocatable.count")
    yield from unique([driver.get("name") for driver in drivers], "spec.drivers", ".name")


def _class_name(spec: Content) -> Iterator[Cause]:
    name = spec.get("storageClassName")
    if name:
        yield from named(subdomain(name), "spec.storageClassName", name)


def _is_zero(amount: Any) -> bool:
    return is_quantity(amount) and Quantity(amount).number == 0
