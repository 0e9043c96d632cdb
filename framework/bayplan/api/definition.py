"""What users say of an object, apart from what is reported of it."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from bayplan.api.elastic_quota import REPORTED_ANNOTATIONS
from bayplan.api.objects import ApiObject
from bayplan.api.podgroup import KAI_TIMES

__all__ = ["same_definition"]

_REPORTED = REPORTED_ANNOTATIONS | KAI_TIMES


def same_definition(old: ApiObject | None, new: ApiObject) -> bool:
    """Tell whether an update changed only what is reported: the status, or such annotations."""
    if old is None:
        return False
    before, after = old.metadata, new.metadata
    changes: dict[str, object] = {"resource_version": before.resource_version}
    if _stated(before.annotations) == _stated(after.annotations):
        changes["annotations"] = before.annotations
    meta = replace(after, **changes)
    if hasattr(new, "status"):
        return bool(replace(new, metadata=meta, status=getattr(old, "status", None)) == old)
    return bool(replace(new, metadata=meta) == old)


def _stated(annotations: Mapping[str, str]) -> Mapping[str, str]:
    if annotations.keys().isdisjoint(_REPORTED):
        return annotations
    return {name: text for name, text in annotations.items() if name not in _REPORTED}
