"""The specs of pods and of pod templates, and the status of pods."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from bayplan.api.quantity import Quantity, is_quantity
from bayplan.cluster.api_errors import Cause
from bayplan.cluster.apiserver.validation.formats import (
    between,
    duplicate,
    forbidden,
    immutable,
    ip_address,
    items,
    label,
    label_value,
    mapping,
    named,
    qualified,
    required,
    subdomain,
    unique,
    unsupported,
    wrong,
)
from bayplan.cluster.apiserver.validation.selectors import label_selector, node_selector

__all__ = ["pod_problems", "pod_spec_problems", "pod_status_problems", "tolerations"]

Content = Mapping[str, Any]

_RESTART = ("Always", "OnFailure", "Never")
_DNS = ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None")
_PULL = ("Always", "IfNotPresent", "Never")
_POLICIES = ("Honor", "Ignore")
_FIELD_PATHS = re.compile(
    r"metadata\.(name|namespace|uid|annotations\['.+'\]|labels\['.+'\])|spec\.(nodeName|"
    r"serviceAccountName)|status\.(hostIP|hostIPs|podIP|podIPs)"
)
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def pod_problems(after: Content, before: Content | None) -> Iterator[Cause]:
    """Yield what is wrong with a pod."""
    yield from pod_spec_problems(mapping(after.get("spec")), "spec")


def pod_spec_problems(spec: Content, path: str) -> Iterator[Cause]:
    """Yield what is wrong with the spec of a pod or of a pod template."""
    yield from _containers(spec, path)
    yield from _volumes(spec, path)
    yield from _choices(spec, path)
    yield from _names(spec, path)
    yield from _gates(spec, path)
    yield from tolerations(spec.get("tolerations"), f"{path}.tolerations")
    yield from _claims(spec, path)
    yield from _affinity(mapping(spec.get("affinity")), f"{path}.affinity")
    yield from _spread(spec, path)
    yield from _pod_resources(spec, path)


# Containers --------------------------------------------------------------------------------------


def _containers(spec: Content, path: str) -> Iterator[Cause]:
    names: list[Any] = []
    ports: list[str] = []
    volumes = [one.get("name") for _, one in items(spec.get("volumes"))]
    if not spec.get("containers"):
        yield required(f"{path}.containers")
    for field in ("containers", "initContainers"):
        for index, one in items(spec.get(field)):
            where = f"{path}.{field}[{index}]"
            name = one.get("name") or ""
            if not name:
                yield required(f"{where}.name")
            else:
                yield from named(label(name), f"{where}.name", name)
            if name and name in names:
                yield duplicate(f"{where}.name", name)
            names.append(name)
            yield from _container(one, where, volumes)
            yield from _ports(one, where, spec, ports if field == "containers" else [])
            policy = one.get("restartPolicy")
            if field == "initContainers" and policy not in (None, *_RESTART):
                yield unsupported(f"{where}.restartPolicy", policy, sorted(_RESTART))


def _container(one: Content, path: str, volumes: list[Any]) -> Iterator[Cause]:
    image = one.get("image") or ""
    if not image:
        yield required(f"{path}.image")
    elif image != image.strip():
        yield wrong(f"{path}.image", image, "must not have leading or trailing whitespace")
    if one.get("imagePullPolicy") not in (None, "", *_PULL):
        yield unsupported(f"{path}.imagePullPolicy", one["imagePullPolicy"], _PULL)
    for index, variable in items(one.get("env")):
        yield from _variable(variable, f"{path}.env[{index}]")
    for index, mount in items(one.get("volumeMounts")):
        where = f"{path}.volumeMounts[{index}]"
        if not mount.get("name"):
            yield required(f"{where}.name")
        elif mount["name"] not in volumes:
            yield Cause("FieldValueNotFound", f'Not found: "{mount["name"]}"', f"{where}.name")
        if not mount.get("mountPath"):
            yield required(f"{where}.mountPath")
    yield from _resources(mapping(one.get("resources")), f"{path}.resources")


def _variable(variable: Content, path: str) -> Iterator[Cause]:
    name = variable.get("name") or ""
    if not name:
        yield required(f"{path}.name")
    elif not re.fullmatch(r"[ -<>-~]+", name):
        why = (
            "a valid environment variable name must consist only of printable ASCII characters "
            "other than '='"
        )
        yield wrong(f"{path}.name", name, why)
    source = variable.get("valueFrom")
    if isinstance(source, dict) and variable.get("value"):
        yield wrong(f"{path}.valueFrom", "", "may not be specified when `value` is not empty")
    field = mapping(mapping(source).get("fieldRef")).get("fieldPath")
    if isinstance(field, str) and not _FIELD_PATHS.fullmatch(field):
        why = f"error converting fieldPath: field label not supported: {field}"
        yield wrong(f"{path}.valueFrom.fieldRef.fieldPath", field, why)


def _ports(one: Content, path: str, spec: Content, taken: list[str]) -> Iterator[Cause]:
    for index, port in items(one.get("ports")):
        where = f"{path}.ports[{index}]"
        name, number, host = port.get("name"), port.get("containerPort"), port.get("hostPort")
        if not number:
            yield required(f"{where}.containerPort")
        if isinstance(name, str) and len(name) > 15:
            yield wrong(f"{where}.name", name, "must be no more than 15 characters")
        elif isinstance(name, str) and name and not re.fullmatch(r"[-a-z0-9]+", name):
            why = "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)"
            yield wrong(f"{where}.name", name, why)
        if not host:
            continue
        if spec.get("hostNetwork") and host != number:
            why = "must match `containerPort` when `hostNetwork` is true"
            yield wrong(f"{where}.hostPort", host, why)
        key = f"{port.get('protocol') or 'TCP'}/{port.get('hostIP') or ''}/{host}"
        if key in taken:
            yield duplicate(f"{where}.hostPort", key)
        taken.append(key)


# Resources ---------------------------------------------------------------------------------------

_HUGE = "hugepages-"


def _resources(resources: Content, path: str) -> Iterator[Cause]:
    requests = mapping(resources.get("requests"))
    limits = mapping(resources.get("limits"))
    for field, amounts in (("limits", limits), ("requests", requests)):
        for name, amount in amounts.items():
            yield from _amount(name, amount, f"{path}.{field}[{name}]")
    for name, amount in requests.items():
        if _native(name) or not ("/" in name or name.startswith(_HUGE)):
            continue
        limit = limits.get(name)
        if limit is None:
            yield required(f"{path}.limits", "Limit must be set for non overcommitable resources")
        elif _parsed(limit) != _parsed(amount):
            yield wrong(f"{path}.requests", amount, f"must be equal to {name} limit of {limit}")
    names = {*requests, *limits}
    if any(name.startswith(_HUGE) for name in names) and not names & {"cpu", "memory"}:
        yield forbidden(path, "HugePages require cpu or memory")
    used = [one.get("name") for _, one in items(resources.get("claims"))]
    yield from unique(used, f"{path}.claims")


def _amount(name: str, amount: Any, path: str) -> Iterator[Cause]:
    """Check a resource's name; extended resources have a domain."""
    if name.startswith(_HUGE):
        size = name.removeprefix(_HUGE)
        page, parsed = _parsed(size), _parsed(amount)
        if not page or (parsed is not None and (not parsed or parsed % page)):
            yield wrong(path, amount, f"{amount} is not positive integer multiple of {name}")
    elif "/" in name:
        problems = list(qualified(name))
        yield from named(problems, path, name)
        if not problems and name.startswith("requests."):
            yield wrong(path, name, "doesn't follow extended resource name standard")


def _native(name: str) -> bool:
    return name.partition("/")[0].endswith("kubernetes.io") and "/" in name


def _parsed(amount: Any) -> Any:
    """Return an amount as a number, None when it is not a quantity."""
    return Quantity(amount).number if is_quantity(amount) else None


def _pod_resources(spec: Content, path: str) -> Iterator[Cause]:
    resources = mapping(spec.get("resources"))
    path = f"{path}.resources"
    for field in ("limits", "requests"):
        for name in mapping(resources.get(field)):
            if name not in ("cpu", "memory") and not name.startswith(_HUGE):
                yield unsupported(f"{path}.{field}[{name}]", name, ("cpu", _HUGE, "memory"))
    if resources:
        yield from _resources(resources, path)
    for name, amount in mapping(resources.get("requests")).items():
        total = sum(
            _parsed(mapping(mapping(one.get("resources")).get("requests")).get(name, "0")) or 0
            for _, one in items(spec.get("containers"))
        )
        own = _parsed(amount)
        if own is not None and own < total:
            why = f"must be greater than or equal to aggregate container requests of {total}"
            yield wrong(f"{path}.requests[{name}]", amount, why)


# The rest of a spec ------------------------------------------------------------------------------


def _choices(spec: Content, path: str) -> Iterator[Cause]:
    for field, known in (("restartPolicy", _RESTART), ("dnsPolicy", _DNS)):
        if spec.get(field) not in (None, "", *known):
            yield unsupported(f"{path}.{field}", spec[field], known)
    system = mapping(spec.get("os")).get("name")
    if spec.get("os") is not None and system not in ("linux", "windows"):
        yield unsupported(f"{path}.os", system, ("linux", "windows"))
    yield from between(
        1, 2**31 - 1, spec.get("activeDeadlineSeconds"), f"{path}.activeDeadlineSeconds"
    )


def _names(spec: Content, path: str) -> Iterator[Cause]:
    for field, rule in (
        ("nodeName", subdomain),
        ("hostname", label),
        ("subdomain", label),
        ("serviceAccountName", subdomain),
        ("runtimeClassName", subdomain),
        ("priorityClassName", subdomain),
    ):
        name = spec.get(field)
        if name:
            yield from named(rule(name), f"{path}.{field}", name)
    group = spec.get("schedulingGroup")
    if isinstance(group, dict):
        where, name = f"{path}.schedulingGroup.podGroupName", group.get("podGroupName")
        if name is None:
            yield wrong(where, None, "must specify one of: `podGroupName`")
        else:
            yield from named(subdomain(name), where, name)
    for key, value in mapping(spec.get("nodeSelector")).items():
        yield from named(qualified(key), f"{path}.nodeSelector", key)
        yield from named(label_value(str(value)), f"{path}.nodeSelector", value)


def _gates(spec: Content, path: str) -> Iterator[Cause]:
    where = f"{path}.schedulingGates"
    names = [gate.get("name") or "" for _, gate in items(spec.get("schedulingGates"))]
    for index, name in enumerate(names):
        yield from named(qualified(name), f"{where}[{index}]", name)
    yield from unique(names, where)
    if names and spec.get("nodeName"):
        why = "cannot be set until all schedulingGates have been cleared"
        yield forbidden(f"{path}.nodeName", why)


def tolerations(value: Any, path: str) -> Iterator[Cause]:
    """Yield what is wrong with a list of tolerations."""
    for index, one in items(value):
        where = f"{path}[{index}]"
        key, operator = one.get("key") or "", one.get("operator") or ""
        value_, effect = one.get("value") or "", one.get("effect") or ""
        if key:
            yield from named(qualified(key), f"{where}.key", key)
        elif operator != "Exists":
            why = (
                'operator must be Exists when `key` is empty, which means "match all values and '
                'all keys"'
            )
            yield wrong(f"{where}.operator", operator, why)
        if one.get("tolerationSeconds") is not None and effect != "NoExecute":
            why = "effect must be 'NoExecute' when `tolerationSeconds` is set"
            yield wrong(f"{where}.effect", effect, why)
        if operator in ("", "Equal"):
            yield from named(label_value(value_), f"{where}.operator", value_)
        elif operator == "Exists" and value_:
            why = "value must be empty when `operator` is 'Exists'"
            yield wrong(f"{where}.operator", value_, why)
        elif operator in ("Gt", "Lt"):
            yield unsupported(f"{where}.operator", operator, ("Equal", "Exists", "Lt", "Gt"))


def _claims(spec: Content, path: str) -> Iterator[Cause]:
    for index, claim in items(spec.get("resourceClaims")):
        where = f"{path}.resourceClaims[{index}]"
        name = claim.get("name")
        if name:
            yield from named(label(name), f"{where}.name", name)
        for field in ("resourceClaimName", "resourceClaimTemplateName"):
            if claim.get(field) is not None:
                yield from named(subdomain(claim[field]), f"{where}.{field}", claim[field])


def _volumes(spec: Content, path: str) -> Iterator[Cause]:
    for index, volume in items(spec.get("volumes")):
        where = f"{path}.volumes[{index}]"
        name = volume.get("name") or ""
        if not name:
            yield required(f"{where}.name")
        else:
            yield from named(label(name), f"{where}.name", name)
        sources = [field for field in volume if field != "name" and volume[field] is not None]
        for field in sources[1:]:
            yield forbidden(f"{where}.{field}", "may not specify more than 1 volume type")
        ephemeral = volume.get("ephemeral")
        if isinstance(ephemeral, dict) and not ephemeral.get("volumeClaimTemplate"):
            yield required(f"{where}.ephemeral.volumeClaimTemplate")


def _affinity(affinity: Content, path: str) -> Iterator[Cause]:
    nodes = mapping(affinity.get("nodeAffinity"))
    where = f"{path}.nodeAffinity"
    if nodes.get(_REQUIRED) is not None:
        yield from node_selector(mapping(nodes[_REQUIRED]), f"{where}.{_REQUIRED}")
    for index, one in items(nodes.get(_PREFERRED)):
        at = f"{where}.{_PREFERRED}[{index}].preference"
        yield from node_selector({"nodeSelectorTerms": [one.get("preference")]}, at, alone=True)
    for field in ("podAffinity", "podAntiAffinity"):
        side, where = mapping(affinity.get(field)), f"{path}.{field}"
        for index, term in items(side.get(_REQUIRED)):
            yield from _pod_term(term, f"{where}.{_REQUIRED}[{index}]")
        for index, one in items(side.get(_PREFERRED)):
            term = mapping(one.get("podAffinityTerm"))
            yield from _pod_term(term, f"{where}.{_PREFERRED}[{index}].podAffinityTerm")


def _pod_term(term: Content, path: str) -> Iterator[Cause]:
    key = term.get("topologyKey")
    if key:
        yield from named(qualified(key), f"{path}.topologyKey", key)
    for name in term.get("namespaces") or ():
        yield from named(label(name), f"{path}.namespace", name)
    selector = term.get("labelSelector")
    yield from label_selector(selector, f"{path}.labelSelector")
    yield from label_selector(term.get("namespaceSelector"), f"{path}.namespaceSelector")
    others = term.get("mismatchLabelKeys") or ()
    for field in ("matchLabelKeys", "mismatchLabelKeys"):
        if term.get(field) and selector is None:
            why = "must not be specified when labelSelector is not set"
            yield forbidden(f"{path}.{field}", why)
    for index, name in enumerate(term.get("matchLabelKeys") or ()):
        if name in others:
            why = "exists in both matchLabelKeys and mismatchLabelKeys"
            yield wrong(f"{path}.matchLabelKeys[{index}]", name, why)


def _spread(spec: Content, path: str) -> Iterator[Cause]:
    pairs: list[str] = []
    for index, one in items(spec.get("topologySpreadConstraints")):
        where = f"{path}.topologySpreadConstraints[{index}]"
        yield from label_selector(one.get("labelSelector"), f"{where}.labelSelector")
        pair = f"{{{one.get('topologyKey')}, {one.get('whenUnsatisfiable')}}}"
        if pair in pairs:
            # The real server names the first constraint here.
            first = f"{path}.topologySpreadConstraints[{pairs.index(pair)}]"
            yield duplicate(f"{first}.{{topologyKey, whenUnsatisfiable}}", pair)
        pairs.append(pair)


# Status ------------------------------------------------------------------------------------------


def pod_status_problems(after: Content, before: Content | None) -> Iterator[Cause]:
    """Yield what is wrong with a pod's new status."""
    status, old = mapping(after.get("status")), mapping((before or {}).get("status"))
    nominated = status.get("nominatedNodeName")
    if nominated:
        yield from named(subdomain(nominated), "status.nominatedNodeName", nominated)
    for index, condition in items(status.get("conditions")):
        kind = condition.get("type") or ""
        yield from named(qualified(kind), f"status.conditions[{index}].Type", kind)
    names = [one.get("name") for _, one in items(mapping(after.get("spec")).get("resourceClaims"))]
    for index, one in items(status.get("resourceClaimStatuses")):
        if one.get("name") not in names:
            why = "must match the name of an entry in `spec.resourceClaims`"
            where = f"status.resourceClaimStatuses[{index}].name"
            yield wrong(where, one.get("name") or "", why)
    if old.get("qosClass") and status.get("qosClass"):
        yield from immutable(old["qosClass"], status.get("qosClass"), "status.qosClass")
    for index, one in items(status.get("hostIPs")):
        if index == 0 and one.get("ip") != status.get("hostIP"):
            yield wrong("status.hostIPs[0].ip", one.get("ip"), "must be equal to `hostIP`")
        yield from ip_address(one.get("ip"), f"status.hostIPs[{index}]")
    for index, one in items(status.get("podIPs")):
        yield from ip_address(one.get("ip"), f"status.podIPs[{index}]")
