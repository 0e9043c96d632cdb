"""Objects of resource.k8s.io: what bayplan's own checks of manifests do not cover."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from bayplan.api.dra_validation import LONGEST_EXPRESSION
from bayplan.cluster.api_errors import Cause
from bayplan.cluster.apiserver.validation.conditions import conditions
from bayplan.cluster.apiserver.validation.formats import (
    duplicate,
    forbidden,
    immutable,
    items,
    label,
    label_value,
    mapping,
    named,
    qualified,
    required,
    subdomain,
    too_long,
    too_many,
    unique,
    wrong,
)
from bayplan.cluster.apiserver.validation.selectors import node_selector

__all__ = [
    "claim_problems",
    "claim_status_problems",
    "class_problems",
    "slice_problems",
    "template_problems",
]

Content = Mapping[str, Any]

_MOST_USERS = 256


# Specs -------------------------------------------------------------------------------------------


def claim_problems(after: Content, before: Content | None) -> Iterator[Cause]:
    """Yield what is wrong with a ResourceClaim."""
    spec = mapping(after.get("spec"))
    yield from _claim_spec(spec, "spec")
    if before is not None:
        yield from immutable(before.get("spec"), after.get("spec"), "spec")


def template_problems(after: Content, before: Content | None) -> Iterator[Cause]:
    """Yield what is wrong with a ResourceClaimTemplate."""
    spec = mapping(after.get("spec"))
    meta = mapping(spec.get("metadata"))
    for key, value in mapping(meta.get("labels")).items():
        yield from named(qualified(key), "spec.metadata.labels", key)
        yield from named(label_value(str(value)), "spec.metadata.labels", value)
    for key in mapping(meta.get("annotations")):
        problems = qualified(key.lower(), "a valid annotation key")
        yield from named(problems, "spec.metadata.annotations", key)
    for field in ("name", "generateName", "namespace"):
        if meta.get(field):
            yield forbidden(f"spec.metadata.{field}", "cannot be set")
    yield from _claim_spec(mapping(spec.get("spec")), "spec.spec")
    if before is not None:
        yield from immutable(before.get("spec"), after.get("spec"), "spec")


def _claim_spec(spec: Content, path: str) -> Iterator[Cause]:
    devices = mapping(spec.get("devices"))
    for field in ("constraints", "config"):
        for index, one in items(devices.get(field)):
            yield from unique(
                one.get("requests") or (), f"{path}.devices.{field}[{index}].requests"
            )


def class_problems(after: Content, before: Content | None) -> Iterator[Cause]:
    """Yield what is wrong with a DeviceClass."""
    name = mapping(after.get("spec")).get("extendedResourceName")
    if not isinstance(name, str) or "/" not in name:
        return
    native = name.partition("/")[0].endswith("kubernetes.io")
    if native or name.startswith("requests.") or list(qualified(name)):
        yield wrong("spec.extendedResourceName", name, "must be a valid extended resource name")


def slice_problems(after: Content, before: Content | None) -> Iterator[Cause]:
    """Yield what is wrong with a ResourceSlice."""
    spec = mapping(after.get("spec"))
    if spec.get("nodeName"):
        yield from named(subdomain(spec["nodeName"]), "spec.nodeName", spec["nodeName"])
    for index, device in items(spec.get("devices")):
        path = f"spec.devices[{index}]"
        for place, taint in items(device.get("taints")):
            where = f"{path}.taints[{place}]"
            key, value = taint.get("key") or "", taint.get("value") or ""
            if key:
                yield from named(qualified(key), f"{where}.key", key)
            yield from named(label_value(value), f"{where}.value", value)
        given = [f for f in _BINDING if device.get(f)]
        if len(given) == 1:
            other = _BINDING[1 - _BINDING.index(given[0])]
            yield wrong(f"{path}.{other}", None, f"{other} are required to use {given[0]}")
    if before is not None:
        old = mapping(before.get("spec"))
        pools = [mapping(one.get("pool")).get("name") for one in (old, spec)]
        for field in ("driver", "nodeName"):
            yield from immutable(old.get(field), spec.get(field), f"spec.{field}")
        yield from immutable(pools[0], pools[1], "spec.pool.name")


_BINDING = ("bindingConditions", "bindingFailureConditions")


# The status of a claim ---------------------------------------------------------------------------


def claim_status_problems(after: Content, before: Content | None) -> Iterator[Cause]:
    """Yield what is wrong with the status of a ResourceClaim."""
    status, old = mapping(after.get("status")), mapping((before or {}).get("status"))
    allocation = status.get("allocation")
    results = [one for _, one in items(_results(allocation))]
    if allocation is not None and allocation != old.get("allocation"):
        yield from _allocation(mapping(allocation), _requests(after))
    if status.get("reservedFor") != old.get("reservedFor"):
        yield from _users(status, allocation)
    if old.get("allocation") is not None and allocation is not None:
        yield from immutable(old["allocation"], allocation, "status.allocation")
    places = [tuple(one.get(field) for field in _PLACE) for one in results]
    yield from _devices(status.get("devices"), places)


def _results(allocation: Any) -> Any:
    return mapping(mapping(allocation).get("devices")).get("results")


def _requests(claim: Content) -> set[str]:
    """Return the names of a claim's requests, with those of its alternatives."""
    names = set()
    devices = mapping(mapping(claim.get("spec")).get("devices"))
    for _, request in items(devices.get("requests")):
        names.add(str(request.get("name")))
        for _, sub in items(request.get("firstAvailable")):
            names.add(f"{request.get('name')}/{sub.get('name')}")
    return names


def _allocation(allocation: Content, names: set[str]) -> Iterator[Cause]:
    path = "status.allocation.devices.results"
    for index, result in items(_results(allocation)):
        where = f"{path}[{index}]"
        if result.get("request") not in names:
            why = (
                "must be the name of a request in the claim or the name of a request and a "
                "subrequest separated by '/'"
            )
            yield wrong(f"{where}.request", result.get("request") or "", why)
        yield from _named(result, "driver", where)
        yield from _named(result, "pool", where)
        yield from _named(result, "device", where)
    selector = allocation.get("nodeSelector")
    if isinstance(selector, dict):
        yield from node_selector(selector, "status.allocation.nodeSelector")


_RULES = {"driver": subdomain, "device": label}


def _named(result: Content, field: str, path: str) -> Iterator[Cause]:
    name, where = result.get(field) or "", f"{path}.{field}"
    if not name:
        yield required(where)
    elif field == "pool":
        for part in name.split("/"):
            yield from named(subdomain(part), where, name)
    else:
        yield from named(_RULES[field](name), where, name)


def _users(status: Content, allocation: Any) -> Iterator[Cause]:
    path = "status.reservedFor"
    users = [one for _, one in items(status.get("reservedFor"))]
    if len(users) > _MOST_USERS:
        yield too_many(path, len(users), _MOST_USERS)
    for index, user in enumerate(users):
        for field in ("resource", "name", "uid"):
            if not user.get(field):
                yield required(f"{path}[{index}].{field}")
    seen: list[Any] = []
    for index, user in enumerate(users):
        if user.get("uid") in seen:
            yield duplicate(f"{path}[{index}]", user["uid"])
        seen.append(user.get("uid"))
    if users and allocation is None:
        yield forbidden(path, "may not be specified when `allocated` is not set")


_PLACE = ("driver", "pool", "device")


def _devices(value: Any, allocated: list[tuple[Any, ...]]) -> Iterator[Cause]:
    seen = []
    for index, device in items(value):
        where = f"status.devices[{index}]"
        place = tuple(device.get(field) for field in _PLACE)
        shown = dict(zip(("Driver", "Pool", "Device"), place, strict=True))
        shown["ShareID"] = device.get("shareID") or ""
        if place not in allocated:
            yield wrong(where, shown, "must be an allocated device in the claim")
        if place in seen:
            yield duplicate(where, shown)
        seen.append(place)
        yield from conditions(device.get("conditions"), f"{where}.conditions")
        if len(msgspec.json.encode(device.get("data"))) > LONGEST_EXPRESSION:
            yield too_long(f"{where}.data", LONGEST_EXPRESSION)
        for place_, text in enumerate(mapping(device.get("networkData")).get("ips") or ()):
            try:
                if "/" not in text:
                    raise ValueError(text)
                ipaddress.ip_interface(text)
            except ValueError:
                why = "must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)"
                yield wrong(f"{where}.networkData.ips[{place_}]", text, why)
