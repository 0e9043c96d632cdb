"""The key of an API object: how bayplan names it in indexes, messages and results."""

from __future__ import annotations

from bayplan.api.meta import ObjectMeta
from bayplan.api.objects import ApiObject, kind_of

__all__ = ["controller_key", "object_key"]


def object_key(obj: ApiObject) -> str:
    """Return ``namespace/name``, or ``name`` for a cluster-scoped object."""
    meta = obj.metadata
    return f"{meta.namespace}/{meta.name}" if kind_of(obj).namespaced else meta.name


def controller_key(meta: ObjectMeta) -> str:
    """Return the key of the controller that made an object, "" without one."""
    owner = next((one.name for one in meta.owner_references if one.controller), "")
    return f"{meta.namespace}/{owner}" if owner else ""
