"""Changed manifests on top of a snapshot: what ``kubectl apply`` would make of them.

A change that the API server refuses, such as another template of a Job, replaces the object with
the pods it owns, as ``kubectl replace --force`` does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from bayplan.api import (
    ApiObject,
    Job,
    PersistentVolumeClaim,
    Pod,
    ResourceClaim,
    StatefulSet,
    VolcanoJob,
)
from bayplan.api.objects import Kind, decode_object

__all__ = ["SnapshotChanges"]

Key = tuple[type, str]


def _pod(obj: Any) -> object:
    return replace(obj.spec, node_name="", scheduling_gates=(), tolerations=())


def _job(obj: Any) -> object:
    return (obj.spec.template.spec, obj.spec.completion_mode)


def _stateful_set(obj: Any) -> object:
    spec = obj.spec
    return (spec.selector, spec.pod_management_policy, spec.volume_claim_templates)


def _volcano_job(obj: Any) -> object:
    return [(task.name, task.template.spec) for task in obj.spec.tasks]


def _spec(obj: Any) -> object:
    return obj.spec


_IMMUTABLE: Mapping[type, Callable[[Any], object]] = {
    Pod: _pod,
    Job: _job,
    StatefulSet: _stateful_set,
    VolcanoJob: _volcano_job,
    ResourceClaim: _spec,
    PersistentVolumeClaim: _spec,
}
"""What of a kind's objects the API server never lets change."""


@dataclasses.dataclass
class SnapshotChanges:
    """Collects the objects that files change, and puts them into a snapshot's."""

    notes: list[str] = dataclasses.field(default_factory=list)
    _changed: dict[Key, ApiObject] = dataclasses.field(default_factory=dict)
    _replaced: dict[str, str] = dataclasses.field(default_factory=dict)

    def change(
        self,
        kind: Kind,
        key: Key,
        old: ApiObject,
        archived: dict[str, Any],
        content: dict[str, Any],
    ) -> tuple[ApiObject, dict[str, Any]]:
        """Return what an object becomes, with its content.

        :param archived: the object's content in the snapshot.
        :param content: what the file says.
        :raises DecodeError: when both together are no such object.
        """
        from bayplan.cluster.apiserver.patches import strategic_patch

        merged = strategic_patch(archived, content)
        new = decode_object(dataclasses.replace(kind, whole=False), merged)
        part = _IMMUTABLE.get(type(new))
        if part is not None and part(old) != part(new):
            self.notes.append(
                f"{kind.name} {key[1]} differs in fields that cannot be changed: "
                "it and its pods were replaced"
            )
            self._replaced[old.metadata.uid] = key[1]
            new, merged = decode_object(kind, content), content
        self._changed[key] = new
        return new, merged

    def applied(
        self, objects: Iterable[ApiObject], key_of: Callable[[ApiObject], str]
    ) -> list[ApiObject]:
        """Return a snapshot's objects after the changes, in their order."""
        return [
            self._changed.get((type(obj), key_of(obj)), obj)
            for obj in objects
            if not self.is_gone(obj)
        ]

    def is_gone(self, obj: ApiObject) -> bool:
        """Whether an object belonged to one that was replaced."""
        owners = obj.metadata.owner_references if self._replaced else ()
        return any(owner.uid and owner.uid in self._replaced for owner in owners)
