"""Conditions (meta/v1 Condition) in a status."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from bayplan.cluster.api_errors import Cause
from bayplan.cluster.apiserver.validation.formats import (
    duplicate,
    items,
    named,
    qualified,
    required,
    too_long,
    unsupported,
    wrong,
)

__all__ = ["conditions"]

_STATUSES = ("False", "True", "Unknown")
_LONGEST_REASON, _LONGEST_MESSAGE = 1024, 32768
_REASON = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")
_REASON_RULE = (
    "a condition reason must start with alphabetic character, optionally followed by a string of "
    "alphanumeric characters or '_,:', and must end with an alphanumeric character or '_' (e.g. "
    "'my_name',  or 'MY_NAME',  or 'MyName',  or 'ReasonA,ReasonB',  or 'ReasonA:ReasonB', regex "
    f"used for validation is '{_REASON.pattern}')"
)


def conditions(value: Any, path: str) -> Iterator[Cause]:
    """Yield what is wrong with a list of conditions."""
    seen: set[str] = set()
    for index, condition in items(value):
        where = f"{path}[{index}]"
        kind, state = condition.get("type") or "", condition.get("status") or ""
        if kind in seen:
            yield duplicate(f"{where}.type", kind)
        seen.add(kind)
        yield from named(qualified(kind), f"{where}.type", kind)
        if state not in _STATUSES:
            yield unsupported(f"{where}.status", state, _STATUSES)
        if (condition.get("observedGeneration") or 0) < 0:
            generation = condition["observedGeneration"]
            why = "must be greater than or equal to zero"
            yield wrong(f"{where}.observedGeneration", generation, why)
        if not condition.get("lastTransitionTime"):
            yield required(f"{where}.lastTransitionTime")
        yield from _reason(condition.get("reason") or "", f"{where}.reason")
        if len(condition.get("message") or "") > _LONGEST_MESSAGE:
            yield too_long(f"{where}.message", _LONGEST_MESSAGE)


def _reason(reason: str, path: str) -> Iterator[Cause]:
    if not reason:
        yield required(path)
    elif not _REASON.fullmatch(reason):
        yield wrong(path, reason, _REASON_RULE)
    if len(reason) > _LONGEST_REASON:
        yield too_long(path, _LONGEST_REASON)
