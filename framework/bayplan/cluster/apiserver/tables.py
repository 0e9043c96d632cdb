"""Tables, as ``kubectl get`` asks for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from bayplan.cluster.apiserver.printer_cells import NONE
from bayplan.cluster.apiserver.printer_columns import TableColumn, fields_of
from bayplan.cluster.apiserver.resources import Resource
from bayplan.cluster.apiserver.watch_cache import StoredObject

__all__ = ["rows", "table"]


def table(resource: Resource, meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return a Table without its rows."""
    fields = fields_of(resource)
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": dict(meta),
        "columnDefinitions": [
            {
                "name": field.name,
                "type": field.type,
                "format": "name" if field is fields[0] else "",
                "description": "",
                "priority": int(field.wide),
            }
            for field in fields
        ],
    }


def rows(
    resource: Resource, records: Iterable[StoredObject], now: datetime, include: str = ""
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a Table of objects.

    :param include: the object in each row: None, Object, or (by default) Metadata.
    """
    fields = fields_of(resource)
    for record in records:
        cells = [_cell(field, record, now) for field in fields]
        yield {"cells": cells, "object": _included(record, include)}


def _cell(field: TableColumn, record: StoredObject, now: datetime) -> Any:
    """Return a cell, "" when an unvalidated object does not fit."""
    try:
        return field.cell(record.content, now)
    except (AttributeError, KeyError, TypeError, ValueError):
        return NONE


def _included(record: StoredObject, include: str) -> Any:
    if include == "None":
        return None
    if include == "Object":
        return record.content
    return {
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": record.content["metadata"],
    }
