"""Fingerprints of what plugins are given, to find out what one of them changed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from enum import Enum

import msgspec
import numpy as np

from bayplan.plugin.base import NOTES, CycleState
from bayplan.snapshot import NodeTable, PodInfo, Snapshot

__all__ = ["Fingerprints", "changed", "of_objects", "of_state"]

Fingerprints = Mapping[object, object]
"""By name or key, a value that stays equal while the thing it stands for is unchanged."""

_DEPTH = 8
_encode = msgspec.json.Encoder(enc_hook=str).encode
_decode = msgspec.json.decode


class _Whole(msgspec.Struct, frozen=True):
    """A node or a pod at once: which of its parts differ is asked only of those that do."""

    encoded: bytes
    derived: Mapping[str, object] = {}
    """What is made of the object, by name."""

    def parts(self, of: str) -> Iterator[tuple[str, object]]:
        """Yield the fingerprints of the parts, by name."""
        obj = _decode(self.encoded)
        metadata = obj.pop("metadata", {})
        for name in ("labels", "annotations"):
            yield f"the {name} of {of}", (metadata.get(name), self.derived.get(name))
        yield f"the metadata of {of}", metadata
        for name in ("spec", "status"):
            yield f"the {name} of {of}", obj.get(name)
        yield f"the requests of {of}", self.derived.get("requests")
        yield f"what is derived of {of}", self.derived.get("rest")


def changed(before: Fingerprints, after: Fingerprints) -> list[str]:
    """Return what differs, by name."""
    keys = dict.fromkeys([*before, *after])
    found: list[str] = []
    for key in keys:
        old, new = before.get(key), after.get(key)
        if old == new:
            continue
        if isinstance(old, _Whole) and isinstance(new, _Whole):
            parts = changed(dict(old.parts(str(key))), dict(new.parts(str(key))))
            # Where it is but an order within a part, the whole is named.
            found += parts or [str(key)]
        else:
            found.append(str(key))
    return found


def of_objects(snapshot: Snapshot, pods: Iterable[PodInfo] = ()) -> dict[object, object]:
    """Return the fingerprints of everything in the snapshot, and of these pods."""
    found: dict[object, object] = dict(_of_table(snapshot.nodes))
    for node in snapshot.nodes.nodes:
        found[f"node {node.metadata.name}"] = _Whole(_encode(node))
    for pod in (*(pod for pod, _ in snapshot.placed.values()), *pods):
        found[f"pod {pod.key}"] = _of_pod(pod)
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


def _of_pod(pod: PodInfo) -> _Whole:
    facts = pod.facts
    requests = (tuple(facts.requests.items()), tuple(facts.scoring_requests.items()))
    rest = (pod.priority, pod.gang, pod.rank, pod.role, pod.uid, pod.name, pod.namespace)
    derived = {
        "labels": tuple(pod.labels.items()),
        "requests": requests,
        "rest": (*rest, id(facts), id(pod.pod)),
    }
    return _Whole(_encode(pod.pod), derived)


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
