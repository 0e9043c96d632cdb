"""Selectors of labels and of nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bayplan.cluster.api_errors import Cause
from bayplan.cluster.apiserver.validation.formats import (
    forbidden,
    items,
    label_value,
    mapping,
    named,
    qualified,
    required,
    subdomain,
    wrong,
)

__all__ = ["label_selector", "node_selector"]

Content = Mapping[str, Any]


def label_selector(selector: Any, path: str) -> Iterator[Cause]:
    """Yield what is wrong with a LabelSelector."""
    selector = mapping(selector)
    for key, value in mapping(selector.get("matchLabels")).items():
        yield from named(qualified(key), f"{path}.matchLabels", key)
        yield from named(label_value(str(value)), f"{path}.matchLabels", value)
    for index, one in items(selector.get("matchExpressions")):
        where = f"{path}.matchExpressions[{index}]"
        operator, values = one.get("operator") or "", one.get("values") or []
        if operator in ("In", "NotIn") and not values:
            why = "must be specified when `operator` is 'In' or 'NotIn'"
            yield required(f"{where}.values", why)
        elif operator in ("Exists", "DoesNotExist") and values:
            why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            yield forbidden(f"{where}.values", why)
        elif operator not in ("In", "NotIn", "Exists", "DoesNotExist"):
            yield wrong(f"{where}.operator", operator, "not a valid selector operator")
        key = one.get("key") or ""
        yield from named(qualified(key), f"{where}.key", key)
        for place, value in enumerate(values):
            yield from named(label_value(str(value)), f"{where}.values[{place}]", value)


def node_selector(selector: Content, path: str, alone: bool = False) -> Iterator[Cause]:
    """Yield what is wrong with a NodeSelector.

    :param alone: whether it stands for one term, whose path is ``path``.
    """
    terms = selector.get("nodeSelectorTerms")
    if not terms:
        yield required(f"{path}.nodeSelectorTerms", "must have at least one node selector term")
    for index, term in items(terms):
        where = path if alone else f"{path}.nodeSelectorTerms[{index}]"
        for place, one in items(term.get("matchExpressions")):
            yield from _expression(one, f"{where}.matchExpressions[{place}]")
        for place, one in items(term.get("matchFields")):
            yield from _field(one, f"{where}.matchFields[{place}]")


def _expression(one: Content, path: str) -> Iterator[Cause]:
    operator, values = one.get("operator") or "", one.get("values") or []
    if operator in ("In", "NotIn") and not values:
        yield required(f"{path}.values", "must be specified when `operator` is 'In' or 'NotIn'")
    elif operator in ("Exists", "DoesNotExist") and values:
        why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
        yield forbidden(f"{path}.values", why)
    elif operator in ("Gt", "Lt") and len(values) != 1:
        why = "must be specified single value when `operator` is 'Lt' or 'Gt'"
        yield required(f"{path}.values", why)
    elif operator not in ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"):
        yield wrong(f"{path}.operator", operator, "not a valid selector operator")
    key = one.get("key") or ""
    yield from named(qualified(key), f"{path}.key", key)
    for place, value in enumerate(values):
        yield from named(label_value(str(value)), f"{path}.values[{place}]", value)


def _field(one: Content, path: str) -> Iterator[Cause]:
    operator, values = one.get("operator") or "", one.get("values") or []
    if operator not in ("In", "NotIn"):
        yield wrong(f"{path}.operator", operator, "not a valid selector operator")
    elif len(values) != 1:
        why = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"
        yield required(f"{path}.values", why)
    if one.get("key") != "metadata.name":
        yield wrong(f"{path}.key", one.get("key") or "", "not a valid field selector key")
    else:
        for place, value in enumerate(values):
            yield from named(subdomain(str(value)), f"{path}.values[{place}]", value)
