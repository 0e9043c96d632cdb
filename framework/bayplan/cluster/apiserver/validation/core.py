"""Nodes, namespaces, config maps, secrets, services, events and leases."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping
from typing import Any

from bayplan.api.quantity import Quantity, is_quantity
from bayplan.cluster.api_errors import Cause
from bayplan.cluster.apiserver.validation.formats import (
    at_least,
    between,
    duplicate,
    forbidden,
    immutable,
    items,
    label_value,
    mapping,
    named,
    qualified,
    required,
    too_long,
    unsupported,
    wrong,
)

__all__ = [
    "config_map_problems",
    "event_problems",
    "lease_problems",
    "new_event_problems",
    "node_problems",
    "node_status_problems",
    "secret_problems",
    "service_problems",
]

Content = Mapping[str, Any]

_MOST_DATA = 2**20
_KEY = "[-._a-zA-Z0-9]+"
_KEY_TEXT = (
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. "
    f"'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '{_KEY}')"
)


# Nodes -------------------------------------------------------------------------------------------


def node_problems(after: Content, before: Content | None) -> Iterator[Cause]:
    """Yield what is wrong with a Node."""
    spec = mapping(after.get("spec"))
    yield from _taints(spec.get("taints"), "metadata.taints")
    for index, text in enumerate(spec.get("podCIDRs") or ()):
        try:
            ipaddress.ip_network(text)
        except ValueError:
            why = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"
            yield wrong(f"spec.podCIDRs[{index}]", text, why)
    if before is None:
        yield from node_status_problems(after, None)
        return
    old = mapping(before.get("spec"))
    for field, path, what in (
        ("podCIDRs", "podCIDRs", "podCIDR"),
        ("providerID", "providerID", "providerID"),
    ):
        if old.get(field) and old[field] != spec.get(field):
            why = f'node updates may not change {what} except from "" to valid'
            yield forbidden(f"spec.{path}", why)


def node_status_problems(after: Content, before: Content | None) -> Iterator[Cause]:
    """Yield what is wrong with the status of a Node."""
    status = mapping(after.get("status"))
    for field in ("capacity", "allocatable"):
        for name, amount in mapping(status.get(field)).items():
            if "/" not in name or not is_quantity(amount):
                continue
            if not isinstance(Quantity(amount).number, int):
                yield wrong(f"status.{field}.{name}", amount, "must be an integer")


def _taints(value: Any, path: str) -> Iterator[Cause]:
    seen = []
    for index, taint in items(value):
        where = f"{path}[{index}]"
        key, text, effect = (taint.get(field) or "" for field in ("key", "value", "effect"))
        yield from named(qualified(key), f"{where}.key", key)
        yield from named(label_value(text), f"{where}.value", text)
        if (key, effect) in seen:
            shown = {"Key": key, "Value": text, "Effect": effect, "TimeAdded": None}
            made = duplicate(where, shown)
            why = f"{made.message}: taints must be unique by key and effect pair"
            yield Cause(made.reason, why, where)
        seen.append((key, effect))


# Config maps and secrets -------------------------------------------------------------------------


def config_map_problems(after: Content, before: Content | None) -> Iterator[Cause]:
    """Yield what is wrong with a ConfigMap."""
    data, binary = mapping(after.get("data")), mapping(after.get("binaryData"))
    yield from _data((("data", data), ("binaryData", binary)))
    for key in data:
        if key in binary:
            yield wrong(f"data[{key}]", key, "duplicate of key present in binaryData")
    if before is not None:
        yield from _still(after, before, ("data", "binaryData"))


def secret_problems(after: Content, before: Content | None) -> Iterator[Cause]:
    """Yield what is wrong with a Secret."""
    yield from _data((("data", mapping(after.get("data"))),))
    if before is not None:
        yield from immutable(before.get("type") or "Opaque", after.get("type") or "Opaque", "type")
        yield from _still(after, before, ("data",))


def _data(fields: tuple[tuple[str, Content], ...]) -> Iterator[Cause]:
    size = 0
    for field, data in fields:
        for key, value in data.items():
            size += len(str(value).encode())
            if len(key) > 253:
                yield wrong(f"{field}[{key}]", key, "must be no more than 253 characters")
            if not re.fullmatch(_KEY, key):
                yield wrong(f"{field}[{key}]", key, _KEY_TEXT)
            elif key in (".", ".."):
                yield wrong(f"{field}[{key}]", key, f"must not be '{key}'")
    if size > _MOST_DATA:
        yield too_long("[]" if len(fields) > 1 else "data", _MOST_DATA)


def _still(after: Content, before: Content, fields: tuple[str, ...]) -> Iterator[Cause]:
    """Refuse changes of what is immutable."""
    why = "field is immutable when `immutable` is set"
    if before.get("immutable"):
        if not after.get("immutable"):
            yield forbidden("immutable", why)
        for field in fields:
            if before.get(field) != after.get(field):
                yield forbidden(field, why)


# Services ----------------------------------------------------------------------------------------

_SERVICES = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")


def service_problems(after: Content, before: Content | None) -> Iterator[Cause]:
    """Yield what is wrong with a Service."""
    spec = mapping(after.get("spec"))
    kind = spec.get("type") or "ClusterIP"
    if kind not in _SERVICES:
        yield unsupported("spec.type", kind, _SERVICES)
    ports = [port for _, port in items(spec.get("ports"))]
    if not ports and kind != "ExternalName" and spec.get("clusterIP") != "None":
        yield required("spec.ports")
    for index, port in enumerate(ports):
        where, number = f"spec.ports[{index}]", port.get("port") or 0
        if len(ports) > 1 and not port.get("name"):
            yield required(f"{where}.name")
        yield from between(1, 65535, number, f"{where}.port")
        yield from between(1, 65535, port.get("targetPort", number), f"{where}.targetPort")


# Leases ------------------------------------------------------------------------------------------


def lease_problems(after: Content, before: Content | None) -> Iterator[Cause]:
    """Yield what is wrong with a Lease."""
    spec = mapping(after.get("spec"))
    seconds = spec.get("leaseDurationSeconds")
    if isinstance(seconds, int) and seconds <= 0:
        yield wrong("spec.leaseDurationSeconds", seconds, "must be greater than 0")
    yield from at_least(0, spec.get("leaseTransitions"), "spec.leaseTransitions")


# Events ------------------------------------------------------------------------------------------

_UNSET = ("firstTimestamp", "lastTimestamp", "count", "source")
_FIXED = ("involvedObject", "reason", "type", "action", "message", "related")
_LENGTHS = {"message": 1024, "action": 128, "reason": 128, "reportingInstance": 128}


def event_problems(after: Content, before: Content | None) -> Iterator[Cause]:
    """Yield what is wrong with an Event, in core v1; those with an eventTime are the new ones."""
    namespace = mapping(after.get("involvedObject")).get("namespace") or ""
    own = after["metadata"].get("namespace") or ""
    if namespace != own and (namespace or own != "default"):
        yield wrong("involvedObject.namespace", namespace, "does not match event.namespace")


def new_event_problems(after: Content, before: Content | None) -> Iterator[Cause]:
    """Yield what is wrong with an Event that came by events.k8s.io/v1, as core v1."""
    if before is not None:
        for field in _FIXED:
            yield from immutable(before.get(field), after.get(field), field)
        yield from _series(after)
        return
    if not after.get("eventTime"):
        yield required("eventTime")
    yield from _series(after)
    controller = after.get("reportingComponent") or ""
    if not controller:
        yield required("reportingController")
    yield from named(qualified(controller), "reportingController", controller)
    for field in ("reportingInstance", "action", "reason"):
        if not after.get(field):
            yield required(field)
    for field, most in _LENGTHS.items():
        if len(after.get(field) or "") > most:
            yield wrong(field, "", f"can have at most {most} characters")
    if after.get("type") not in ("Normal", "Warning"):
        yield wrong("type", "", f"has invalid value: {after.get('type') or ''}")
    for field in _UNSET:
        if after.get(field):
            yield wrong(field, "", "needs to be unset")


def _series(event: Content) -> Iterator[Cause]:
    series = event.get("series")
    if isinstance(series, dict):
        if (series.get("count") or 0) < 2:
            yield wrong("series.count", "", "should be at least 2")
        if not series.get("lastObservedTime"):
            yield required("series.lastObservedTime")
