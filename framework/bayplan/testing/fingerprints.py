"""Fingerprints of what plugins are given, to find out what one of them changed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from enum import Enum

import msgspec
import numpy as np

from bayplan.api import Node
from bayplan.plugin.base import NOTES, CycleState
from bayplan.snapshot import NodeTable, PodInfo, Snapshot

__all__ = ["Fingerprints", "changed", "of_objects", "of_state"]

Fingerprints = Mapping[object, object]
"""By name or key, a value that stays equal while the thing it stands for is unchanged."""

_DEPTH = 8
_encode = msgspec.json.Encoder(enc_hook=str).encode


def changed(before: Fingerprints, after: Fingerprints) -> list[str]:
    """Return what differs, by name."""
    keys = dict.fromkeys([*before, *after])
    return [str(key) for key in keys if before.get(key) != after.get(key)]


def of_objects(snapshot: Snapshot, pods: Iterable[PodInfo] = ()) -> dict[object, object]:
    """Return the fingerprints of everything in the snapshot, and of these pods."""
    found: dict[object, object] = dict(_of_table(snapshot.nodes))
    for node in snapshot.nodes.nodes:
        found.update(_of_node(node))
    for pod, _ in snapshot.placed.values():
        found.update(_of_pod(pod))
    for pod in pods:
        found.update(_of_pod(pod))
    found["which pods are placed"] = tuple((key, n) for key, (_, n) in snapshot.placed.items())
    for kind, objects in snapshot._objects.items():
        for key, obj in objects.items():
            found[f"{kind.__name__} {key}"] = _encode(obj)
    return found


def _of_table(table: NodeTable) -> Iterator[tuple[str, object]]:
    yield "the names of the nodes", tuple(table.names)
    yield "the pods on nodes", tuple(tuple(on_node) for on_node in table.pods)
    yield "the column of cordoned nodes", table.unschedulable.tobytes()
    yield "the column of taints", table.taint_codes.tobytes()
    yield "the sets of taints", tuple(table.taint_sets)
    for name, column in table.allocatable_columns.items():
        yield f"the column of allocatable {name}", column.tobytes()
    for name, column in table.used_columns.items():
        # A column of zeros may be created or dropped at any time.
        if column.any():
            yield f"the column of used {name}", column.tobytes()
    for name in ("cpu", "memory"):
        yield f"the column of scoring_used {name}", table.scoring_used(name).tobytes()


def _of_node(node: Node) -> Iterator[tuple[str, object]]:
    name = node.metadata.name
    yield f"the labels of node {name}", _encode(node.metadata.labels)
    yield f"the annotations of node {name}", _encode(node.metadata.annotations)
    yield f"the metadata of node {name}", _encode(node.metadata)
    yield f"the spec of node {name}", _encode(node.spec)
    yield f"the status of node {name}", _encode(node.status)


def _of_pod(pod: PodInfo) -> Iterator[tuple[str, object]]:
    own = pod.pod
    yield f"the labels of pod {pod.key}", (_encode(own.metadata.labels), tuple(pod.labels.items()))
    yield f"the annotations of pod {pod.key}", _encode(own.metadata.annotations)
    yield f"the metadata of pod {pod.key}", _encode(own.metadata)
    yield f"the spec of pod {pod.key}", _encode(own.spec)
    yield f"the status of pod {pod.key}", _encode(own.status)
    facts = pod.facts
    requests = (tuple(facts.requests.items()), tuple(facts.scoring_requests.items()))
    yield f"the requests of pod {pod.key}", requests
    derived = (pod.priority, pod.gang, pod.rank, pod.role, pod.uid, pod.name, pod.namespace)
    yield f"what is derived of pod {pod.key}", (*derived, id(facts), id(own))


def of_state(state: CycleState) -> dict[object, object]:
    """Return the fingerprints of a cycle's state, by key; notes are shared by all plugins."""
    found: dict[object, object] = {}
    level: CycleState | None = state
    while level is not None:
        for key, value in level._values.items():
            if key is not NOTES and key not in found:
                found[key] = _of(value, _DEPTH)
        level = level._parent
    return found


def _of(value: object, depth: int) -> object:
    """Return a value's fingerprint; an opaque value counts by identity."""
    if value is None or isinstance(value, str | bytes | int | float | Enum):
        return value
    if isinstance(value, np.ndarray):
        return value.shape, value.dtype.str, value.tobytes()
    if depth == 0:
        return id(value)
    if isinstance(value, Mapping):
        return tuple((_of(k, depth - 1), _of(v, depth - 1)) for k, v in value.items())
    if isinstance(value, Sequence):
        return tuple(_of(part, depth - 1) for part in value)
    if isinstance(value, Set):
        return frozenset(_of(part, depth - 1) for part in value)
    if isinstance(value, msgspec.Struct) or dataclasses.is_dataclass(value):
        names = _field_names(type(value))
        return tuple(_of(getattr(value, name, None), depth - 1) for name in names)
    return id(value)


def _field_names(type_: type) -> Iterable[str]:
    if issubclass(type_, msgspec.Struct):
        return type_.__struct_fields__
    return getattr(type_, "__dataclass_fields__", ())
