"""Keeps the directory of gangs in step with the objects that define them."""

from __future__ import annotations

from bayplan.api import ApiObject, NativePodGroup, Workload, kind_of
from bayplan.api.object_key import object_key
from bayplan.dialects import gang_of
from bayplan.dialects.kubernetes import template_of
from bayplan.gangs.directory import GangDirectory
from bayplan.snapshot import Snapshot

__all__ = ["GangDefinitions"]


class GangDefinitions:
    """Reads gangs from pod groups, Workloads and Jobs, once the snapshot holds these objects."""

    def __init__(self, gangs: GangDirectory, snapshot: Snapshot) -> None:
        self._gangs = gangs
        self._snapshot = snapshot

    def update(self, obj: ApiObject, deleted: bool) -> set[str]:
        """Apply an object's definition; return the keys of the gangs that changed."""
        changed = self._define(obj, deleted)
        if isinstance(obj, Workload):
            for group in self._groups_of(object_key(obj)):
                changed |= self._define(group, deleted=False)
        return changed

    def _define(self, obj: ApiObject, deleted: bool) -> set[str]:
        kind = kind_of(obj)
        source = f"{kind.name} of {kind.group}"
        gang = gang_of(obj, self._snapshot.objects(Workload))
        if gang is None:
            # A Job may have dropped its topology annotations.
            known = object_key(obj) in self._gangs.all()
            return self._gangs.undefine(object_key(obj), source) if known else set()
        if deleted:
            return self._gangs.undefine(gang.key, source)
        return self._gangs.define(gang, source)

    def _groups_of(self, workload: str) -> list[ApiObject]:
        """Return the pod groups that take their policy from a Workload."""
        found: list[ApiObject] = []
        for group in self._snapshot.objects(NativePodGroup).values():
            template = template_of(group)
            if template is not None and template[0] == workload:
                found.append(group)
        return found
