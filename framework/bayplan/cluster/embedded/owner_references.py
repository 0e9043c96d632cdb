"""Owner references: which object controls another one."""

from __future__ import annotations

from bayplan.api import ApiObject, ObjectMeta, OwnerReference
from bayplan.api.objects import kind_of

__all__ = ["controller_of", "reference_to"]


def reference_to(owner: ApiObject, api_version: str) -> OwnerReference:
    """Return the owner reference that names the controller of an object."""
    meta = owner.metadata
    return OwnerReference(kind_of(owner).name, meta.name, meta.uid, api_version, controller=True)


def controller_of(meta: ObjectMeta) -> OwnerReference | None:
    """Return the reference to an object's controller, None when it has none."""
    return next((r for r in meta.owner_references if r.controller), None)
