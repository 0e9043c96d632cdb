"""Changed manifests on top of a snapshot, with the effect of ``kubectl apply``.

A change that the API server refuses, such as a new template of a Job, replaces the object and the
pods it owns, as ``kubectl replace --force`` does. A snapshot lacks the last applied manifest, so
the file counts as the whole object: fields that it does not name are removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from bayplan.api import (
    ApiObject,
    DaemonSet,
    Job,
    Namespace,
    Node,
    PersistentVolume,
    PersistentVolumeClaim,
    Pod,
    ResourceClaim,
    StatefulSet,
    VolcanoJob,
)
from bayplan.api.objects import DecodeError, Kind, decode_object
from bayplan.cluster.api_errors import ApiError
from bayplan.cluster.patches import strategic_patch

__all__ = ["SnapshotChanges", "patched"]

Key = tuple[type, str]


def _pod(obj: Any) -> object:
    images = [replace(one, image="") for one in obj.spec.containers]
    first = [replace(one, image="") for one in obj.spec.init_containers]
    return replace(
        obj.spec,
        scheduling_gates=(),
        tolerations=(),
        containers=tuple(images),
        init_containers=tuple(first),
    )


def _job(obj: Any) -> object:
    return (obj.spec.template.spec, obj.spec.completion_mode)


def _rolled(obj: Any) -> object:
    return (obj.spec.selector, obj.spec.template.spec)


def _volcano_job(obj: Any) -> object:
    return [(task.name, task.template.spec) for task in obj.spec.tasks]


def _spec(obj: Any) -> object:
    return obj.spec


_ENDS_PODS: Mapping[type, Callable[[Any], object]] = {
    Pod: _pod,
    Job: _job,
    StatefulSet: _rolled,
    DaemonSet: _rolled,
    VolcanoJob: _volcano_job,
    ResourceClaim: _spec,
    PersistentVolumeClaim: _spec,
}
"""Fields of a kind that cannot change without new pods.

Most are immutable. StatefulSets and DaemonSets roll out, but a snapshot does not show the revisions
of their pods, so all of them are recreated.
"""
_SHARED = (Node, Namespace, PersistentVolume)
"""Kinds that a file describes only in part: others write labels and the like."""
_KEPT = ("nodeName", "replicas", "volumeName", "parallelism", "completions", "priority")
"""Spec fields that others fill in when a file leaves them out."""
_SYSTEM = ("kubernetes.io", "k8s.io")


def _after(type_: type, archived: dict[str, Any], content: dict[str, Any]) -> dict[str, Any]:
    """Return an object after ``kubectl apply`` of a changed manifest.

    Fields that the file leaves out are removed, except those that the cluster adds.
    """
    if type_ in _SHARED:
        return patched(archived, content)
    meta, own = dict(archived.get("metadata") or {}), dict(content.get("metadata") or {})
    for field in ("labels", "annotations"):
        kept = {k: v for k, v in (meta.get(field) or {}).items() if _is_system(k)}
        meta[field] = {**kept, **(own.get(field) or {})}
    result = {**archived, **content, "metadata": {**own, **meta}}
    before, spec = archived.get("spec"), content.get("spec")
    if isinstance(before, dict) and isinstance(spec, dict):
        result["spec"] = {**{key: before[key] for key in _KEPT if key in before}, **spec}
    if "status" in archived:
        result["status"] = archived["status"]
    return result


def patched(before: Mapping[str, Any], content: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object with a manifest applied that describes it in part.

    :raises DecodeError: for a directive that a strategic merge patch does not have.
    """
    try:
        merged: dict[str, Any] = strategic_patch(before, content)
    except ApiError as exc:
        raise DecodeError(str(exc), "$") from None
    return merged


def _is_system(key: str) -> bool:
    return key.partition("/")[0].endswith(_SYSTEM) and "/" in key


class SnapshotChanges(msgspec.Struct):
    """Collects changed objects and merges them into a snapshot's."""

    notes: list[str] = msgspec.field(default_factory=list)
    _changed: dict[Key, ApiObject] = msgspec.field(default_factory=dict)
    _replaced: dict[str, str] = msgspec.field(default_factory=dict)

    def change(
        self,
        kind: Kind,
        key: Key,
        old: ApiObject,
        archived: dict[str, Any],
        content: dict[str, Any],
    ) -> tuple[ApiObject, dict[str, Any]]:
        """Return a changed object and its content.

        :param archived: the object's JSON in the snapshot.
        :param content: the object's JSON in the file.
        :raises DecodeError: when the result is not an object of its kind.
        """
        merged = _after(type(old), archived, content)
        new = decode_object(kind, merged)
        part = _ENDS_PODS.get(type(new))
        if part is not None and part(old) != part(new):
            pods = "" if isinstance(new, Pod) else ", and so were its pods"
            self.notes.append(
                f"{kind.name} {key[1]} cannot change like this: it was replaced{pods}"
            )
            self._replaced[old.metadata.uid] = key[1]
            new, merged = decode_object(kind, content), content
        self._changed[key] = new
        return new, merged

    def applied(
        self, objects: Iterable[ApiObject], key_of: Callable[[ApiObject], str]
    ) -> list[ApiObject]:
        """Return a snapshot's objects after the changes, in the snapshot's order."""
        return [
            self._changed.get((type(obj), key_of(obj)), obj)
            for obj in objects
            if not self.is_gone(obj)
        ]

    def is_gone(self, obj: ApiObject) -> bool:
        """Return whether an object's owner was replaced."""
        owners = obj.metadata.owner_references if self._replaced else ()
        return any(owner.uid and owner.uid in self._replaced for owner in owners)
