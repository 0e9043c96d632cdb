"""Conditions (meta/v1 Condition) in a status, validated as the real API server validates them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from bayplan.cluster.apiserver.api_errors import Cause, invalid
from bayplan.cluster.apiserver.resources import Resource

__all__ = ["check_conditions"]

_KINDS = {("policy", "PodDisruptionBudget"), ("scheduling.k8s.io", "PodGroup")}
"""Kinds whose conditions are of this type; those of Pods, Nodes and Jobs are older and laxer."""

_STATUSES = ("False", "True", "Unknown")
_LONGEST_REASON, _LONGEST_MESSAGE = 1024, 32768
_NAME = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_NAME_RULE = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end "
    "with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for "
    f"validation is '{_NAME.pattern}')"
)
_REASON = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")
_REASON_RULE = (
    "a condition reason must start with alphabetic character, optionally followed by a string of "
    "alphanumeric characters or '_,:', and must end with an alphanumeric character or '_' (e.g. "
    "'my_name',  or 'MY_NAME',  or 'MyName',  or 'ReasonA,ReasonB',  or 'ReasonA:ReasonB', regex "
    f"used for validation is '{_REASON.pattern}')"
)


def check_conditions(resource: Resource, content: dict[str, Any]) -> None:
    """Refuse a status whose conditions are invalid.

    :param content: the object as it would be stored.
    :raises ApiError: 422, with every invalid field.
    """
    if (resource.group, resource.kind) not in _KINDS:
        return
    status = content.get("status")
    conditions = status.get("conditions") if isinstance(status, dict) else None
    causes = list(_problems(conditions if isinstance(conditions, list) else []))
    if causes:
        raise invalid(resource.group, resource.kind, content["metadata"]["name"], causes)


def _problems(conditions: list[dict[str, Any]]) -> Iterator[Cause]:
    seen: set[str] = set()
    for index, condition in enumerate(conditions):
        path = f"status.conditions[{index}]"
        kind, state = condition.get("type", ""), condition.get("status", "")
        if kind in seen:
            yield Cause("FieldValueDuplicate", f'Duplicate value: "{kind}"', f"{path}.type")
        seen.add(kind)
        yield from _type_problems(kind, f"{path}.type")
        if state not in _STATUSES:
            names = ", ".join(f'"{name}"' for name in _STATUSES)
            text = f'Unsupported value: "{state}": supported values: {names}'
            yield Cause("FieldValueNotSupported", text, f"{path}.status")
        if not condition.get("lastTransitionTime"):
            yield _required(f"{path}.lastTransitionTime")
        yield from _reason_problems(condition.get("reason", ""), f"{path}.reason")
        if len(condition.get("message", "")) > _LONGEST_MESSAGE:
            yield _too_long(f"{path}.message", _LONGEST_MESSAGE)


def _type_problems(kind: str, path: str) -> Iterator[Cause]:
    name = kind.rpartition("/")[2]
    if not name:
        yield Cause("FieldValueInvalid", 'Invalid value: "": name part must be non-empty', path)
    if not _NAME.fullmatch(name):
        yield Cause("FieldValueInvalid", f'Invalid value: "{kind}": {_NAME_RULE}', path)


def _reason_problems(reason: str, path: str) -> Iterator[Cause]:
    if not reason:
        yield _required(path)
    elif not _REASON.fullmatch(reason):
        yield Cause("FieldValueInvalid", f'Invalid value: "{reason}": {_REASON_RULE}', path)
    if len(reason) > _LONGEST_REASON:
        yield _too_long(path, _LONGEST_REASON)


def _required(path: str) -> Cause:
    return Cause("FieldValueRequired", "Required value", path)


def _too_long(path: str, most: int) -> Cause:
    return Cause("FieldValueTooLong", f"Too long: may not be more than {most} bytes", path)
