"""Extended resources that device classes serve, instead of the device plugin of a node."""

from __future__ import annotations

from collections.abc import Iterable

from bayplan.api import DeviceClass
from bayplan.api.dra import IMPLICIT_RESOURCE_PREFIX
from bayplan.snapshot import Snapshot

__all__ = ["served_by_classes"]


def served_by_classes(names: Iterable[str], snapshot: Snapshot) -> frozenset[str]:
    """Return the resources that some device class serves."""
    wanted = [name for name in names if "/" in name]
    classes = snapshot.objects(DeviceClass)
    if not wanted or not classes:
        return frozenset()
    named = {obj.spec.extended_resource_name for obj in classes.values()}
    return frozenset(
        name
        for name in wanted
        if name in named
        or (
            name.startswith(IMPLICIT_RESOURCE_PREFIX)
            and name.removeprefix(IMPLICIT_RESOURCE_PREFIX) in classes
        )
    )
