"""The LeaderWorkerSets that the operator of DisaggregatedSets makes: disaggregatedset.x-k8s.io/v1.

There is one for each slice and role. Their names have a revision, so that a changed role is another
set.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from bayplan.dialects.reading import entries_of

__all__ = ["sets_of"]

_GROUP = "disaggregatedset.x-k8s.io"
_TEMPLATES = ("leaderTemplate", "workerTemplate")
_DIGITS = 10


def sets_of(content: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the LeaderWorkerSets of a DisaggregatedSet, all as JSON.

    Groups of a role whose number an autoscaler sets are as many as the role says.

    :raises ValueError: for what is no list of objects, where one has to be.
    """
    meta, spec = content["metadata"], content.get("spec") or {}
    roles = entries_of(spec, "roles", "spec.")
    slices = spec.get("slices", 1)
    revision = _revision(roles)
    for part in range(slices if isinstance(slices, int) else 1):
        for role in roles:
            labels = {
                f"{_GROUP}/name": meta["name"],
                f"{_GROUP}/role": str(role.get("name")),
                f"{_GROUP}/slice": str(part),
                f"{_GROUP}/revision": revision,
            }
            name = f"{meta['name']}-{part}-{revision}-{role.get('name')}"
            yield _set_of(role, name, labels)


def _revision(roles: list[Mapping[str, Any]]) -> str:
    """Return a name for what the roles are, whatever their sizes."""
    given = [
        {
            **role,
            "spec": {
                key: value
                for key, value in (role.get("spec") or {}).items()
                if key not in ("replicas", "rolloutStrategy")
            },
        }
        for role in roles
    ]
    text = json.dumps(given, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def _set_of(role: Mapping[str, Any], name: str, labels: Mapping[str, str]) -> dict[str, Any]:
    spec = dict(role.get("spec") or {})
    template = dict(spec.get("leaderWorkerTemplate") or {})
    for key in _TEMPLATES:
        if isinstance(template.get(key), Mapping):
            template[key] = _labelled(template[key], labels)
    spec["leaderWorkerTemplate"] = template
    # The operator scales one set up and another down, so its sets never roll out by themselves.
    spec.pop("rolloutStrategy", None)
    own = role.get("metadata") or {}
    meta = {
        "name": name,
        "labels": {**(own.get("labels") or {}), **labels},
        "annotations": dict(own.get("annotations") or {}),
    }
    version = "leaderworkerset.x-k8s.io/v1"
    return {"apiVersion": version, "kind": "LeaderWorkerSet", "metadata": meta, "spec": spec}


def _labelled(template: Mapping[str, Any], labels: Mapping[str, str]) -> dict[str, Any]:
    meta = template.get("metadata") or {}
    return {**template, "metadata": {**meta, "labels": {**(meta.get("labels") or {}), **labels}}}
