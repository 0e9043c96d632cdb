"""The key of an API object: how bayplan names it in indexes, messages and results."""

from __future__ import annotations

from bayplan.api.objects import ApiObject, kind_of

__all__ = ["object_key"]


def object_key(obj: ApiObject) -> str:
    """Return ``namespace/name``, or ``name`` for a cluster-scoped object."""
    meta = obj.metadata
    return f"{meta.namespace}/{meta.name}" if kind_of(obj).namespaced else meta.name
