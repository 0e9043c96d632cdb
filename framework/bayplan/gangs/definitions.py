"""Keeps the directory of gangs in step with the objects that define them."""

from __future__ import annotations

import logging
from collections.abc import Callable

from bayplan.api import (
    ApiObject,
    CompositePodGroup,
    NativePodGroup,
    OwnerReference,
    Pod,
    Workload,
)
from bayplan.api.gang import Gang, Membership
from bayplan.api.object_key import object_key
from bayplan.dialects import gang_of
from bayplan.dialects.composite_groups import with_tree
from bayplan.dialects.kubernetes import template_of
from bayplan.gangs.directory import GangDirectory
from bayplan.gangs.owned import MINIMUM_ANNOTATION, OwnedGangs, source_of
from bayplan.snapshot import Snapshot

__all__ = ["GangDefinitions"]


_MOST_ALONE = 10_000
"""So many owners of unknown kinds are remembered."""
_log = logging.getLogger("bayplan.scheduler")


class GangDefinitions:
    """Reads gangs from pod groups, Workloads and what owns pods, once the snapshot holds them."""

    def __init__(self, gangs: GangDirectory, snapshot: Snapshot) -> None:
        self._gangs = gangs
        self._snapshot = snapshot
        self._owned = OwnedGangs(snapshot)
        self._changed: set[str] = set()
        self._of_owners: dict[str, Gang] = {}
        """The gangs that owners define, by key."""
        self._alone: dict[str, set[str]] = {}
        """The UIDs of pods of owners of unknown kinds, by theirs."""
        self._logged: dict[tuple[str, str], str] = {}
        """What was said of kinds whose pods no rule groups, by version and kind."""

    # Gangs of owners -------------------------------------------------------------------------

    def of_owner(self, pod: Pod, waits: Callable[[OwnerReference], bool]) -> Membership:
        """Return a pod's place in the gang of what owns it, and define that gang.

        :param waits: tells whether the pod waits for an owner that is not there.
        """
        found = self._owned.member(pod)
        missing = found.missing
        if missing is not None and waits(missing):
            what = f"{missing.kind} {missing.name}"
            return Membership(None, problem=f"waits for its owner {what} to be seen")
        if missing is not None:
            found = self._owned.member(pod, without_missing=True)
        gang = found.gang
        # The pods of a job have one object for their gang, so nothing is compared for each.
        if gang is not None and self._of_owners.get(gang.key) is not gang:
            self._of_owners[gang.key] = gang
            self._changed |= self._gangs.define(gang, found.source)
        if found.unknown is not None and not pod.spec.node_name:
            self._see_alone(pod, found.unknown)
        return found.membership

    def _see_alone(self, pod: Pod, owner: OwnerReference) -> None:
        """Log once of each kind whose pods no rule groups, when an object of it has two of them."""
        kind = owner.api_version, owner.kind
        if kind not in self._logged:
            if len(self._alone) > _MOST_ALONE:
                self._alone.clear()
            pods = self._alone.setdefault(owner.uid, set())
            pods.add(pod.metadata.uid)
            if len(pods) > 1:
                self._logged[kind] = _advice(owner)
                self._alone.clear()
                _log.warning("%s", self._logged[kind])

    def ungrouped(self) -> tuple[str, ...]:
        """Return what to do about kinds several of whose pods no rule groups, one text a kind."""
        return tuple(self._logged.values())

    def advice(self, pod: Pod) -> str:
        """Return what to do where a pod may belong to a gang that no rule knows; "" if not."""
        unknown = self._owned.member(pod, without_missing=True).unknown
        return _advice(unknown) if unknown is not None else ""

    def take_changed(self) -> set[str]:
        """Return the keys of the gangs that pods have defined since the last call."""
        changed, self._changed = self._changed, set()
        return changed

    def owner_changed(self, owner: ApiObject, deleted: bool) -> tuple[set[str], set[str]]:
        """Apply a change of an object that may own pods.

        :returns: the keys of the gangs that changed, and of those whose pods have to be read again,
            because they are in another gang now, or in none.
        """
        changed: set[str] = set()
        moved: set[str] = set()
        for key in self._owned.gangs_of(owner):
            gang = None if deleted else self._gang_of_members(key)
            if gang is not None:
                self._of_owners[key] = gang
                changed |= self._gangs.define(gang, source_of(owner))
                continue
            self._of_owners.pop(key, None)
            moved.add(key)
            changed |= self._gangs.undefine(key, source_of(owner))
        if deleted:
            self._owned.forget(owner)
        return changed, moved

    def is_above(self, owner: ApiObject, pod: Pod) -> bool:
        """Tell whether an object owns a pod, itself or through others."""
        return any(one is owner for one in self._owned.chain(pod).owners)

    def _gang_of_members(self, key: str) -> Gang | None:
        """Return a gang as its members have it now, None if none is in it."""
        members = self._gangs.all().get(key)
        if members is None:
            return None
        for info in (*members.pending.values(), *(pod for pod, _ in members.bound.values())):
            found = self._owned.member(info.pod)
            if found.gang is not None and found.gang.key == key:
                return found.gang
        return None

    # Gangs that are objects ------------------------------------------------------------------

    def update(self, obj: ApiObject, deleted: bool) -> set[str]:
        """Apply an object's definition; return the keys of the gangs that changed."""
        changed = self._define(obj, deleted)
        if isinstance(obj, Workload):
            for group in self._groups_of(object_key(obj)):
                changed |= self._define(group, deleted=False)
        if isinstance(obj, CompositePodGroup) or (
            isinstance(obj, NativePodGroup) and obj.spec.parent_composite_pod_group_name
        ):
            # A tree says for each of its groups which others belong to it.
            for group in self._in_trees(obj.metadata.namespace):
                changed |= self._define(group, deleted=False)
        return changed

    def _in_trees(self, namespace: str) -> list[ApiObject]:
        """Return the pod groups of a namespace that are parts of composite groups."""
        return [
            group
            for group in self._snapshot.objects(NativePodGroup).values()
            if group.metadata.namespace == namespace and group.spec.parent_composite_pod_group_name
        ]

    def _define(self, obj: ApiObject, deleted: bool) -> set[str]:
        source = source_of(obj)
        gang = gang_of(obj, self._snapshot.objects(Workload))
        if gang is not None and isinstance(obj, NativePodGroup):
            groups = self._snapshot.objects(NativePodGroup)
            gang = with_tree(gang, obj, groups, self._snapshot.objects(CompositePodGroup))
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


def _advice(owner: OwnerReference) -> str:
    group = owner.api_version.rpartition("/")[0]
    kind = f"{owner.kind}.{group}" if group else owner.kind
    return (
        f"pods of {kind} are placed one by one: no rule says which of them belong together. "
        f"If they are a gang, annotate them with {MINIMUM_ANNOTATION}: "
        'the number of pods; if they are not, with bayplan.dev/gang: "false"'
    )
