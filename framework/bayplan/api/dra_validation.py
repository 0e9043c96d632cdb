"""The API server's checks of objects of resource.k8s.io (limits of Kubernetes 1.36).

CEL expressions are not compiled here; the allocator reports those that do not compile.
"""

from __future__ import annotations

import json
import re
from collections import Counter as Tally
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from bayplan.api.dra import (
    CapacityRequestPolicy,
    Device,
    DeviceAttribute,
    DeviceClaim,
    DeviceClass,
    DeviceConfiguration,
    DeviceConstraint,
    DeviceRequest,
    DeviceSelector,
    DeviceTaint,
    DeviceTaintRule,
    ExactDeviceRequest,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceSlice,
    ResourceSliceSpec,
)
from bayplan.api.pod import NodeSelector, Toleration

__all__ = [
    "LONGEST_EXPRESSION",
    "SEMVER",
    "claim_problems",
    "class_problems",
    "slice_problems",
    "taint_rule_problems",
    "template_problems",
]

Problem = tuple[str, str]

LONGEST_EXPRESSION = 10 * 1024
"""The most bytes of a CEL expression, and of opaque parameters."""
SEMVER = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)"
    r"(-(?P<pre>(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)"
    r"(\.(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*))?"
    r"(\+[0-9a-zA-Z-]+(\.[0-9a-zA-Z-]+)*)?",
    re.ASCII,
)
"""Semantic Versioning 2.0.0."""

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_EFFECTS = ("None", "NoSchedule", "NoExecute")
_MODES = ("", "ExactCount", "All")
_STANDARD = ("pcieRoot", "pciBusID", "numaNode")


# Slices --------------------------------------------------------------------------------------


def slice_problems(obj: ResourceSlice) -> Iterator[Problem]:
    """Yield (JSON path, message) for each problem of a slice."""
    spec = obj.spec
    if len(spec.driver) > 63 or not _SUBDOMAIN.fullmatch(spec.driver):
        yield "$.spec.driver", f'"{spec.driver}" is not a DNS subdomain of at most 63 characters'
    parts = spec.pool.name.split("/")
    if len(spec.pool.name) > 253 or not all(_SUBDOMAIN.fullmatch(part) for part in parts):
        yield (
            "$.spec.pool.name",
            f'"{spec.pool.name}" is not a pool name: expected DNS subdomains joined with "/", '
            "at most 253 characters",
        )
    if spec.pool.generation < 0:
        yield "$.spec.pool.generation", f"expected 0 or more, got {spec.pool.generation}"
    if spec.pool.resource_slice_count < 1:
        count = spec.pool.resource_slice_count
        yield "$.spec.pool.resourceSliceCount", f"expected 1 or more, got {count}"
    yield from _one_place(_places(spec), "$.spec")
    yield from _single_term(spec.node_selector, "$.spec.nodeSelector")
    if spec.devices and spec.shared_counters:
        yield (
            "$.spec.sharedCounters",
            "a slice holds devices or sharedCounters, not both; counters go into a slice of "
            "their own in the same pool",
        )
    yield from _devices(spec)
    yield from _counter_sets(spec)


def _places(holder: ResourceSliceSpec | Device) -> list[str]:
    chosen = {
        "nodeName": bool(holder.node_name),
        "nodeSelector": holder.node_selector is not None,
        "allNodes": holder.all_nodes,
    }
    if isinstance(holder, ResourceSliceSpec):
        chosen["perDeviceNodeSelection"] = holder.per_device_node_selection
    return [name for name, given in chosen.items() if given]


def _one_place(given: Sequence[str], path: str) -> Iterator[Problem]:
    if len(given) != 1:
        got = " and ".join(given) or "none of them"
        names = "nodeName, nodeSelector, allNodes"
        if path == "$.spec":
            names += ", perDeviceNodeSelection"
        yield path, f"expected exactly one of {names}, got {got}"


def _single_term(selector: NodeSelector | None, path: str) -> Iterator[Problem]:
    if selector is not None and len(selector.node_selector_terms) != 1:
        count = len(selector.node_selector_terms)
        yield f"{path}.nodeSelectorTerms", f"expected exactly 1 term, got {count}"


def _devices(spec: ResourceSliceSpec) -> Iterator[Problem]:
    heavy = any(
        device.taints
        or device.consumes_counters
        or any(_is_list(value) for value in device.attributes.values())
        for device in spec.devices
    )
    most = 64 if heavy else 128
    if len(spec.devices) > most:
        why = ", as some have taints, counters or list attributes" if heavy else ""
        yield "$.spec.devices", f"at most {most} devices{why}, got {len(spec.devices)}"
    yield from _unique(
        [device.name for device in spec.devices],
        "$.spec.devices[{}].name",
        "two devices of this slice are named {}",
    )
    for index, device in enumerate(spec.devices):
        yield from _device(device, spec, f"$.spec.devices[{index}]")


def _device(device: Device, spec: ResourceSliceSpec, path: str) -> Iterator[Problem]:
    if not _LABEL.fullmatch(device.name):
        yield f"{path}.name", f'"{device.name}" is not a DNS label of at most 63 characters'
    if len(device.attributes) + len(device.capacity) > 32:
        count = len(device.attributes) + len(device.capacity)
        yield path, f"at most 32 attributes and capacities, got {count}"
    total = sum(len(_values(value)) for value in device.attributes.values())
    if total > 48:
        yield f"{path}.attributes", f"at most 48 values in all attributes, got {total}"
    for name, attribute in device.attributes.items():
        where = f'{path}.attributes["{name}"]'
        yield from _qualified(name, where)
        yield from _attribute(attribute, where)
    for name, capacity in device.capacity.items():
        where = f'{path}.capacity["{name}"]'
        yield from _qualified(name, where)
        if capacity.request_policy is not None:
            yield from _policy(capacity.request_policy, f"{where}.requestPolicy")
            if not device.allow_multiple_allocations:
                yield f"{where}.requestPolicy", "needs allowMultipleAllocations: true"
    if len(device.consumes_counters) > 2:
        count = len(device.consumes_counters)
        yield f"{path}.consumesCounters", f"at most 2 counter sets, got {count}"
    yield from _unique(
        [used.counter_set for used in device.consumes_counters],
        f"{path}.consumesCounters[{{}}].counterSet",
        "counter set {} is named twice",
    )
    for index, used in enumerate(device.consumes_counters):
        if not used.counters:
            yield f"{path}.consumesCounters[{index}].counters", "is required"
    places = _places(device)
    if spec.per_device_node_selection:
        yield from _one_place(places, path)
    elif places:
        yield f"{path}.{places[0]}", "is allowed with perDeviceNodeSelection: true only"
    yield from _single_term(device.node_selector, f"{path}.nodeSelector")
    yield from _at_most(device.taints, 16, f"{path}.taints", "taints")
    for index, taint in enumerate(device.taints):
        yield from _taint(taint, f"{path}.taints[{index}]")
    for field, conditions in (
        ("bindingConditions", device.binding_conditions),
        ("bindingFailureConditions", device.binding_failure_conditions),
    ):
        yield from _at_most(conditions, 4, f"{path}.{field}", "conditions")


def _attribute(attribute: DeviceAttribute, path: str) -> Iterator[Problem]:
    names = ("int", "bool", "string", "version", "ints", "bools", "strings", "versions")
    fields = (
        attribute.integer,
        attribute.boolean,
        attribute.string,
        attribute.version,
        attribute.integers,
        attribute.booleans,
        attribute.strings,
        attribute.versions,
    )
    given = [name for name, value in zip(names, fields, strict=True) if value is not None]
    if len(given) != 1:
        got = " and ".join(given) or "none of them"
        yield path, f"expected exactly one of {', '.join(names)}, got {got}"
        return
    for text in (attribute.string, *(attribute.strings or ())):
        if text is not None and len(text) > 64:
            yield f"{path}.{given[0]}", f"at most 64 characters, got {len(text)}"
    for text in (attribute.version, *(attribute.versions or ())):
        if text is not None and (len(text) > 64 or not SEMVER.fullmatch(text)):
            yield (
                f"{path}.{given[0]}",
                f'"{text[:80]}" is not a semantic version such as "1.2.3" of at most 64 characters',
            )


def _values(attribute: DeviceAttribute) -> Sequence[Any]:
    for found in (
        attribute.integers,
        attribute.booleans,
        attribute.strings,
        attribute.versions,
    ):
        if found is not None:
            return found
    return (None,)


def _is_list(attribute: DeviceAttribute) -> bool:
    lists = (attribute.integers, attribute.booleans, attribute.strings, attribute.versions)
    return any(found is not None for found in lists)


def _qualified(name: str, path: str) -> Iterator[Problem]:
    domain, slash, identifier = name.rpartition("/")
    if slash and (len(domain) > 63 or not _SUBDOMAIN.fullmatch(domain)):
        yield path, f'"{domain}" is not a domain: a DNS subdomain of at most 63 characters'
    if len(identifier) > 32 or not _IDENTIFIER.fullmatch(identifier):
        yield (
            path,
            f'"{identifier}" is not an identifier: letters, digits and "_", not beginning with a '
            "digit, at most 32 characters",
        )


def _policy(policy: CapacityRequestPolicy, path: str) -> Iterator[Problem]:
    values, span = policy.valid_values, policy.valid_range
    if values and span is not None:
        yield path, "expected one of validValues and validRange, got both"
    if (values or span is not None) and policy.default is None:
        yield f"{path}.default", "is required with validValues or validRange"
    yield from _at_most(values, 10, f"{path}.validValues", "values")
    amounts = [value.amount for value in values]
    if amounts != sorted(set(amounts)):
        yield f"{path}.validValues", "expected rising amounts"
    default = policy.default.amount if policy.default is not None else None
    if values and default is not None and default not in amounts:
        yield f"{path}.default", "is not one of validValues"
    if span is None:
        return
    low, high, step = span.min.amount, span.max, span.step
    if high is not None and high.amount < low:
        yield f"{path}.validRange.max", f"is less than min, {span.min.text}"
    if step is not None and step.amount <= 0:
        yield f"{path}.validRange.step", f"expected more than 0, got {step.text}"
    elif step is not None:
        for name, amount in (("max", high.amount if high else None), ("default", default)):
            if amount is not None and (amount - low) % step.amount:
                where = f"{path}.validRange.max" if name == "max" else f"{path}.default"
                yield where, f"is not min plus a multiple of step, {step.text}"
    if default is not None and (default < low or (high is not None and default > high.amount)):
        yield f"{path}.default", "is outside of validRange"


def _counter_sets(spec: ResourceSliceSpec) -> Iterator[Problem]:
    yield from _at_most(spec.shared_counters, 8, "$.spec.sharedCounters", "counter sets")
    yield from _unique(
        [counters.name for counters in spec.shared_counters],
        "$.spec.sharedCounters[{}].name",
        "two counter sets of this slice are named {}",
    )
    for index, counters in enumerate(spec.shared_counters):
        path = f"$.spec.sharedCounters[{index}]"
        if not _LABEL.fullmatch(counters.name):
            yield f"{path}.name", f'"{counters.name}" is not a DNS label of at most 63 characters'
        if not 1 <= len(counters.counters) <= 32:
            yield f"{path}.counters", f"expected 1 to 32 counters, got {len(counters.counters)}"


def _taint(taint: DeviceTaint, path: str) -> Iterator[Problem]:
    if not taint.key:
        yield f"{path}.key", "must not be empty"
    if taint.effect not in _EFFECTS:
        yield f"{path}.effect", f'expected one of {", ".join(_EFFECTS)}, got "{taint.effect}"'


# Claims --------------------------------------------------------------------------------------


def claim_problems(obj: ResourceClaim) -> Iterator[Problem]:
    """Yield (JSON path, message) for each problem of a claim."""
    yield from _claim(obj.spec.devices, "$.spec.devices")


def template_problems(obj: ResourceClaimTemplate) -> Iterator[Problem]:
    """Yield (JSON path, message) for each problem of a claim template."""
    yield from _claim(obj.spec.spec.devices, "$.spec.spec.devices")


def class_problems(obj: DeviceClass) -> Iterator[Problem]:
    """Yield (JSON path, message) for each problem of a class."""
    yield from _selectors(obj.spec.selectors, "$.spec.selectors")
    yield from _at_most(obj.spec.config, 32, "$.spec.config", "configurations")
    for index, config in enumerate(obj.spec.config):
        yield from _config(config, f"$.spec.config[{index}]")
        if config.requests:
            yield f"$.spec.config[{index}].requests", "is not allowed in a class"
    name = obj.spec.extended_resource_name
    if name is not None and "/" not in name:
        yield (
            "$.spec.extendedResourceName",
            f'"{name}" is not an extended resource such as "example.com/gpu"',
        )


def taint_rule_problems(obj: DeviceTaintRule) -> Iterator[Problem]:
    """Yield (JSON path, message) for each problem of a taint rule."""
    yield from _taint(obj.spec.taint, "$.spec.taint")


def _claim(claim: DeviceClaim, path: str) -> Iterator[Problem]:
    yield from _at_most(claim.requests, 32, f"{path}.requests", "requests")
    yield from _unique(
        [request.name for request in claim.requests],
        f"{path}.requests[{{}}].name",
        "two requests are named {}",
    )
    for index, request in enumerate(claim.requests):
        yield from _request(request, f"{path}.requests[{index}]")
    names = {request.name for request in claim.requests}
    names |= {f"{r.name}/{sub.name}" for r in claim.requests for sub in r.first_available}
    yield from _at_most(claim.constraints, 32, f"{path}.constraints", "constraints")
    for index, constraint in enumerate(claim.constraints):
        yield from _constraint(constraint, names, f"{path}.constraints[{index}]")
    yield from _at_most(claim.config, 32, f"{path}.config", "configurations")
    for index, config in enumerate(claim.config):
        yield from _config(config, f"{path}.config[{index}]")
        yield from _references(config.requests, names, f"{path}.config[{index}].requests")


def _request(request: DeviceRequest, path: str) -> Iterator[Problem]:
    if not _LABEL.fullmatch(request.name):
        yield f"{path}.name", f'"{request.name}" is not a DNS label of at most 63 characters'
    if (request.exactly is not None) == bool(request.first_available):
        got = "both" if request.first_available else "none of them"
        yield (
            path,
            f"expected exactly one of exactly and firstAvailable, got {got}; deviceClassName, "
            'selectors, count and the like belong under "exactly"',
        )
        return
    if request.exactly is not None:
        yield from _exactly(request.exactly, f"{path}.exactly")
    yield from _at_most(request.first_available, 8, f"{path}.firstAvailable", "alternatives")
    yield from _unique(
        [sub.name for sub in request.first_available],
        f"{path}.firstAvailable[{{}}].name",
        "two alternatives are named {}",
    )
    for index, sub in enumerate(request.first_available):
        where = f"{path}.firstAvailable[{index}]"
        if not _LABEL.fullmatch(sub.name):
            yield f"{where}.name", f'"{sub.name}" is not a DNS label of at most 63 characters'
        if sub.admin_access is not None:
            yield f"{where}.adminAccess", "is not allowed in an alternative"
        yield from _exactly(sub, where)


def _exactly(request: ExactDeviceRequest, path: str) -> Iterator[Problem]:
    name = request.device_class_name
    if not name:
        yield f"{path}.deviceClassName", "is required"
    elif len(name) > 253 or not _SUBDOMAIN.fullmatch(name):
        yield f"{path}.deviceClassName", f'"{name}" is not a name'
    yield from _selectors(request.selectors, f"{path}.selectors")
    if request.allocation_mode not in _MODES:
        yield (
            f"{path}.allocationMode",
            f'expected ExactCount or All, got "{request.allocation_mode}"',
        )
    if request.allocation_mode == "All" and request.count is not None:
        yield f"{path}.count", "is not allowed with allocationMode All"
    elif request.count is not None and request.count < 1:
        yield f"{path}.count", f"expected 1 or more, got {request.count}"
    for key, amount in request.capacity.requests.items() if request.capacity else ():
        if amount.amount < 0:
            where = f'{path}.capacity.requests["{key}"]'
            yield where, f"expected an amount of 0 or more, got {amount.text}"
    yield from _at_most(request.tolerations, 16, f"{path}.tolerations", "tolerations")
    for index, toleration in enumerate(request.tolerations):
        yield from _toleration(toleration, f"{path}.tolerations[{index}]")


def _toleration(toleration: Toleration, path: str) -> Iterator[Problem]:
    if toleration.operator not in ("", "Exists", "Equal"):
        yield f"{path}.operator", f'expected Exists or Equal, got "{toleration.operator}"'
    if toleration.operator == "Exists" and toleration.value:
        yield f"{path}.value", "must be empty with operator Exists"
    if not toleration.key and toleration.operator != "Exists":
        yield f"{path}.operator", "must be Exists when the key is empty"


def _selectors(selectors: Sequence[DeviceSelector], path: str) -> Iterator[Problem]:
    yield from _at_most(selectors, 32, path, "selectors")
    for index, selector in enumerate(selectors):
        if selector.cel is None:
            yield f"{path}[{index}].cel", "is required"
            continue
        size = len(selector.cel.expression.encode())
        if not selector.cel.expression.strip():
            yield f"{path}[{index}].cel.expression", "must not be empty"
        elif size > LONGEST_EXPRESSION:
            yield (
                f"{path}[{index}].cel.expression",
                f"at most {LONGEST_EXPRESSION} bytes, got {size}",
            )


def _constraint(constraint: DeviceConstraint, names: set[str], path: str) -> Iterator[Problem]:
    given = {
        "matchAttribute": constraint.match_attribute,
        "distinctAttribute": constraint.distinct_attribute,
    }
    chosen = [(field, name) for field, name in given.items() if name is not None]
    if len(chosen) != 1:
        got = "both" if chosen else "none of them"
        yield path, f"expected exactly one of matchAttribute and distinctAttribute, got {got}"
    for field, name in chosen:
        if "/" not in name:
            domain = "resource.kubernetes.io" if name in _STANDARD else "<the driver's name>"
            yield (
                f"{path}.{field}",
                f'"{name}" has no domain, and an attribute in a constraint needs one; write '
                f'"{domain}/{name}"',
            )
        else:
            yield from _qualified(name, f"{path}.{field}")
    yield from _references(constraint.requests, names, f"{path}.requests")


def _references(requests: Iterable[str], names: set[str], path: str) -> Iterator[Problem]:
    for index, name in enumerate(requests):
        if name not in names:
            known = ", ".join(sorted(names)) or "none"
            yield f"{path}[{index}]", f'there is no request "{name}" in this claim ({known})'


def _config(config: DeviceConfiguration, path: str) -> Iterator[Problem]:
    if config.opaque is None:
        yield f"{path}.opaque", "is required"
        return
    driver = config.opaque.driver
    if len(driver) > 63 or not _SUBDOMAIN.fullmatch(driver):
        yield f"{path}.opaque.driver", f'"{driver}" is not a DNS subdomain'
    parameters = config.opaque.parameters
    if not isinstance(parameters, Mapping):
        yield f"{path}.opaque.parameters", "expected a mapping"
        return
    try:
        size = len(json.dumps(parameters, allow_nan=False))
    except (TypeError, ValueError) as exc:
        yield f"{path}.opaque.parameters", f"expected what JSON can hold: {exc}"
        return
    if size > LONGEST_EXPRESSION:
        yield f"{path}.opaque.parameters", f"at most {LONGEST_EXPRESSION} bytes of JSON, got {size}"


# Common --------------------------------------------------------------------------------------


def _at_most(items: Sequence[Any], most: int, path: str, what: str) -> Iterator[Problem]:
    if len(items) > most:
        yield path, f"at most {most} {what}, got {len(items)}"


def _unique(names: Sequence[str], path: str, message: str) -> Iterator[Problem]:
    seen: Tally[str] = Tally()
    for index, name in enumerate(names):
        seen[name] += 1
        if seen[name] == 2:
            yield path.format(index), message.format(f'"{name}"')
