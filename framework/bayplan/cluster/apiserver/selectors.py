"""labelSelector and fieldSelector of list, watch and deletecollection."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from bayplan.cluster.api_errors import bad_request

if TYPE_CHECKING:
    from bayplan.cluster.apiserver.resources import Resource

__all__ = ["Predicate", "at_path", "field_predicate", "label_predicate"]

Content = Mapping[str, Any]
Predicate = Callable[[Content], bool]

_REQUIREMENT = re.compile(
    r"\s*(?:"
    r"(?P<absent>!)\s*(?P<missing>[^\s,=!()<>]+)"
    r"|(?P<key>[^\s,=!()<>]+)\s*"
    r"(?:(?P<operator>==|=|!=|>|<)\s*(?P<value>[^\s,=!()<>]*)"
    r"|(?P<set>in|notin)\s*\((?P<values>[^()]*)\))?"
    r")\s*(?:,|$)"
)
_FIELDS: Mapping[str, tuple[str, ...]] = {
    "pods": (
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "spec.hostNetwork",
        "status.phase",
        "status.podIP",
        "status.nominatedNodeName",
    ),
    "nodes": ("spec.unschedulable",),
    "namespaces": ("status.phase",),
    "secrets": ("type",),
    "jobs.batch": ("status.successful",),
    "resourceslices.resource.k8s.io": ("spec.nodeName", "spec.driver"),
    "replicasets.apps": ("status.replicas",),
    "events": (
        "involvedObject.kind",
        "involvedObject.namespace",
        "involvedObject.name",
        "involvedObject.uid",
        "involvedObject.apiVersion",
        "involvedObject.resourceVersion",
        "involvedObject.fieldPath",
        "reason",
        "reportingComponent",
        "source",
        "type",
    ),
}
_FALSE_BY_DEFAULT = ("spec.unschedulable", "spec.hostNetwork")


def label_predicate(text: str) -> Predicate | None:
    """Compile a label selector; None selects everything.

    :raises ApiError: 400, when it is invalid.
    """
    tests: list[Callable[[Mapping[str, str]], bool]] = []
    position = 0
    while position < len(text) and text.strip():
        match = _REQUIREMENT.match(text, position)
        if match is None or match.end() == position:
            raise bad_request(f"unable to parse requirement: found '{text[position:]}'")
        tests.append(_label_test(match))
        position = match.end()
    if not tests:
        return None

    def matches(content: Content) -> bool:
        labels = content["metadata"].get("labels") or {}
        return all(test(labels) for test in tests)

    return matches


def _label_test(match: re.Match[str]) -> Callable[[Mapping[str, str]], bool]:
    if match["absent"]:
        missing = match["missing"]
        return lambda labels: missing not in labels
    key, operator = match["key"], match["operator"] or match["set"]
    if operator is None:
        return lambda labels: key in labels
    if operator in (">", "<"):
        return _number_test(key, operator, match["value"])
    values = {v.strip() for v in match["values"].split(",")} if match["set"] else {match["value"]}
    if operator in ("!=", "notin"):
        return lambda labels: labels.get(key) not in values
    return lambda labels: labels.get(key) in values


def _number_test(key: str, operator: str, bound: str) -> Callable[[Mapping[str, str]], bool]:
    if not re.fullmatch(r"-?\d+", bound):
        raise bad_request("for 'Gt', 'Lt' operators, the value must be an integer")
    limit = int(bound)

    def test(labels: Mapping[str, str]) -> bool:
        text = labels.get(key, "")
        if not re.fullmatch(r"-?\d+", text):
            return False
        return int(text) > limit if operator == ">" else int(text) < limit

    return test


def field_predicate(text: str, resource: Resource) -> Predicate | None:
    """Compile a field selector; None selects everything.

    :raises ApiError: 400, for a field that the resource does not support.
    """
    full = f"{resource.plural}.{resource.group}" if resource.group else resource.plural
    supported = ("metadata.name", *(("metadata.namespace",) if resource.namespaced else ()))
    supported += (*_FIELDS.get(full, ()), *resource.selectable)
    tests: list[tuple[str, str, bool]] = []
    for term in filter(None, (part.strip() for part in text.split(","))):
        match = re.fullmatch(r"([^=!]+)(==|=|!=)(.*)", term)
        if match is None:
            raise bad_request(f"invalid selector: '{text}'; can't understand '{term}'")
        path, operator, value = match.groups()
        if path not in supported:
            raise bad_request(_unsupported(path, full))
        tests.append((path, value, operator != "!="))
    if not tests:
        return None

    def matches(content: Content) -> bool:
        return all((field_text(content, path) == value) is equal for path, value, equal in tests)

    return matches


def _unsupported(path: str, resource: str) -> str:
    if resource in _FIELDS:
        return f"field label not supported: {path}"
    return f'"{path}" is not a known field selector: only "metadata.name", "metadata.namespace"'


def field_text(content: Content, path: str) -> str:
    """Return a field's value as field selectors compare it."""
    if path == "source":
        return str(at_path(content, "source.component") or content.get("reportingComponent") or "")
    value = at_path(content, path)
    if value is None:
        return "false" if path in _FALSE_BY_DEFAULT else ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def at_path(content: Any, path: str) -> Any:
    """Return the value at a dotted path, None when there is none."""
    for step in path.split("."):
        content = content.get(step) if isinstance(content, Mapping) else None
    return content
