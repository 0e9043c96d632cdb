"""Names, labels, annotations, owners and finalizers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from bayplan.cluster.api_errors import Cause
from bayplan.cluster.apiserver.resources import Resource
from bayplan.cluster.apiserver.selectors import at_path
from bayplan.cluster.apiserver.validation.formats import (
    SUBDOMAIN,
    forbidden,
    items,
    label,
    label_value,
    named,
    qualified,
    subdomain,
    too_long,
    wrong,
)

__all__ = ["metadata_problems"]

Content = Mapping[str, Any]

_MOST_ANNOTATIONS = 262144
"""The most bytes in all annotations of an object."""


def metadata_problems(
    resource: Resource, content: Content, before: Content | None = None
) -> Iterator[Cause]:
    """Yield what is wrong with an object's metadata, and with that of its pod template.

    :param before: the object as it was.
    """
    meta = content["metadata"]
    old = before["metadata"] if before is not None else None
    yield from _names(resource, meta)
    yield from _labels(meta)
    yield from _annotations(meta)
    yield from _owners(meta)
    yield from _finalizers(meta, old)
    template = at_path(content, "spec.template.metadata")
    if not resource.custom and isinstance(template, dict):
        yield from _labels(template, "spec.template")
        yield from _annotations(template, "spec.template")


def _names(resource: Resource, meta: Content) -> Iterator[Cause]:
    name, prefix = meta.get("name"), meta.get("generateName")
    if isinstance(name, str) and name:
        yield from named(_name_problems(resource, name), "metadata.name", name)
    if isinstance(prefix, str) and prefix:
        # A hyphen at the end is fine: a suffix follows.
        tried = f"{prefix[:-1]}a" if prefix.endswith("-") else prefix
        yield from named(_name_problems(resource, tried), "metadata.generateName", prefix)


_LABELS = ("namespaces", "services", "statefulsets")
"""Kinds whose names are labels of DNS; those of others are subdomains."""
_UNCHECKED = ("events", "poddisruptionbudgets")
"""Kinds for whose names the real server knows no rule beyond those of paths."""


def _name_problems(resource: Resource, name: str) -> Iterator[str]:
    if resource.group == "rbac.authorization.k8s.io" or resource.plural in _UNCHECKED:
        yield from (f"may not contain '{mark}'" for mark in ("/", "%") if mark in name)
        return
    if resource.plural not in _LABELS:
        yield from subdomain(name)
    elif "." in name and re.fullmatch(SUBDOMAIN, name):
        yield "must not contain dots"
    else:
        yield from label(name)


def _owners(meta: Content) -> Iterator[Cause]:
    path = "metadata.ownerReferences"
    owners = [owner for _, owner in items(meta.get("ownerReferences"))]
    for owner in owners:
        version = str(owner.get("apiVersion") or "")
        if not version or version.count("/") > 1:
            yield wrong(f"{path}.apiVersion", version, "version must not be empty")
        for field in ("kind", "name", "uid"):
            if not owner.get(field):
                yield wrong(f"{path}.{field}", "", "must not be empty")
        if version == "v1" and owner.get("kind") == "Event":
            why = "/v1, Kind=Event is disallowed from being an owner"
            yield wrong(path, owner, why)
    leading = [owner for owner in owners if owner.get("controller")]
    if len(leading) > 1:
        first, second = (f"{one.get('kind')}/{one.get('name')}" for one in leading[:2])
        yield wrong(
            path,
            owners,
            "Only one reference can have Controller set to true. Found "
            f'"true" in references for {first} and {second}',
        )


_STANDARD_FINALIZERS = ("orphan", "foregroundDeletion", "kubernetes")


def _finalizers(meta: Content, old: Content | None) -> Iterator[Cause]:
    path = "metadata.finalizers"
    given = [one for one in meta.get("finalizers") or () if isinstance(one, str)]
    for index, name in enumerate(given):
        yield from named(qualified(name), path, name)
        if "/" not in name and name not in _STANDARD_FINALIZERS:
            why = "name is neither a standard finalizer name nor is it fully qualified"
            yield wrong(f"{path}[{index}]", name, why)
    if old is not None and old.get("deletionTimestamp"):
        new = [name for name in given if name not in (old.get("finalizers") or ())]
        if new:
            listed = ", ".join(f'"{name}"' for name in new)
            yield forbidden(
                path,
                "no new finalizers can be added if the object is being deleted, found new "
                f"finalizers []string{{{listed}}}",
            )


def _texts(found: Any) -> Mapping[str, Any]:
    """Return a mapping whose keys are strings, else an empty one: its type is checked elsewhere."""
    is_right = isinstance(found, dict) and all(isinstance(key, str) for key in found)
    return found if is_right else {}


def _labels(meta: Content, path: str = "metadata") -> Iterator[Cause]:
    for key, value in _texts(meta.get("labels")).items():
        yield from named(qualified(key), f"{path}.labels", key)
        if isinstance(value, str):
            yield from named(label_value(value), f"{path}.labels", value)


def _annotations(meta: Content, path: str = "metadata") -> Iterator[Cause]:
    annotations = _texts(meta.get("annotations"))
    for key in annotations:
        problems = qualified(key.lower(), "a valid annotation key")
        yield from named(problems, f"{path}.annotations", key)
    size = sum(len(key.encode()) + len(str(value).encode()) for key, value in annotations.items())
    if size > _MOST_ANNOTATIONS:
        yield too_long(f"{path}.annotations", _MOST_ANNOTATIONS)
