"""Which nodes can serve a pod's volumes, and which volumes its claims get on one."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

import msgspec
import numpy as np

from bayplan import PodInfo
from bayplan.api import PersistentVolume, PersistentVolumeClaim
from bayplan.api.volumes import SELECTED_NODE, ClaimNeeds, is_bound, is_owned, needs_of
from bayplan.plugin.hookspecs import BoolColumn, IntColumn
from bayplan.snapshot import Snapshot
from bayplan_plugins.shared.volumes.lookup import claim_of, is_delayed, not_found, used_by
from bayplan_plugins.volume_binding.ledger import VolumeChoice, VolumeLedger
from bayplan_plugins.volume_binding.provisioning import Provisioning
from bayplan_plugins.volume_binding.table import NO_VOLUME

__all__ = [
    "AFFINITY",
    "GONE",
    "NO_STORAGE",
    "NO_VOLUMES",
    "UNBOUND",
    "OpenClaim",
    "PodVolumes",
    "VolumeFinder",
]

AFFINITY = "node(s) didn't match PersistentVolume's node affinity"
GONE = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"
NO_VOLUMES = "node(s) didn't find available persistent volumes to bind"
NO_STORAGE = "node(s) did not have enough free storage"
UNBOUND = "pod has unbound immediate PersistentVolumeClaims"


class OpenClaim(msgspec.Struct, frozen=True):
    """A claim that is bound once the pod has a node.

    ``kept`` is the volume that is kept for it; ``selected`` the node for which a volume is already
    being provisioned ("" for none).
    """

    claim: PersistentVolumeClaim
    needs: ClaimNeeds
    kept: PersistentVolume | None
    selected: str


class PodVolumes(msgspec.Struct):
    """A pod's claims, the smallest open one first; ``problem`` refuses every node."""

    problem: str = ""
    bound: list[tuple[PersistentVolumeClaim, PersistentVolume | None]] = msgspec.field(
        default_factory=list
    )
    open: list[OpenClaim] = msgspec.field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.problem or self.bound or self.open)


class VolumeFinder:
    """Finds nodes and volumes for the pods of one snapshot."""

    def __init__(self, snapshot: Snapshot, ledger: VolumeLedger) -> None:
        self._snapshot = snapshot
        self._ledger = ledger
        self.provisioning = Provisioning(snapshot, ledger.labels)

    def volumes_of(self, pod: PodInfo) -> PodVolumes:
        """Return a pod's current claims."""
        found = PodVolumes()
        unbound = False
        for used in used_by(pod):
            claim = claim_of(pod, used, self._snapshot)
            problem = _problem(pod, used.name, claim, used.ephemeral)
            if problem or claim is None:
                return PodVolumes(problem)
            if is_bound(claim):
                volumes = self._snapshot.objects(PersistentVolume)
                found.bound.append((claim, volumes.get(claim.spec.volume_name)))
            elif is_delayed(claim, self._snapshot) and not claim.spec.volume_name:
                found.open.append(self._open(claim))
            else:
                unbound = True
        found.open.sort(key=lambda one: one.needs.size)
        return PodVolumes(UNBOUND) if unbound else found

    def _open(self, claim: PersistentVolumeClaim) -> OpenClaim:
        selected = claim.metadata.annotations.get(SELECTED_NODE, "")
        choice = self._ledger.assumed(claim)
        if choice is not None and not choice.volume:
            selected = choice.node
        kept = None if selected else self._ledger.kept_for(claim)
        return OpenClaim(claim, needs_of(claim), kept, selected)

    def key(self, volumes: PodVolumes) -> Hashable:
        """Return a key that is equal for claims that every node serves equally."""
        bound = tuple(v.affinity if v is not None else GONE for _, v in volumes.bound)
        to_bind = tuple(
            (
                one.needs,
                one.selected,
                (one.kept.metadata.name, one.kept.affinity) if one.kept is not None else None,
                self._ledger.version(one.needs.storage_class),
            )
            for one in volumes.open
        )
        return volumes.problem, bound, to_bind

    # All nodes -------------------------------------------------------------------------------

    def refused(self, volumes: PodVolumes) -> Iterator[tuple[str, BoolColumn]]:
        """Yield why nodes are refused, as columns over all nodes."""
        nodes = len(self._snapshot.nodes)
        for _, volume in volumes.bound:
            if volume is None:
                yield GONE, np.ones(nodes, dtype=np.bool_)
            elif volume.affinity is not None:
                yield AFFINITY, ~self.reached(volume)
        missing, full = self._lacking(volumes.open)
        yield NO_VOLUMES, missing
        yield NO_STORAGE, full

    def reached(self, volume: PersistentVolume) -> BoolColumn:
        """Return, per row, whether a volume can be reached."""
        labels = self._ledger.labels
        return labels.mask(labels.selected(volume.affinity))

    def _lacking(self, claims: Sequence[OpenClaim]) -> tuple[BoolColumn, BoolColumn]:
        """Return the nodes without volumes for the claims, and those without enough storage."""
        missing = np.zeros(len(self._snapshot.nodes), dtype=np.bool_)
        full = np.zeros(len(missing), dtype=np.bool_)
        for one, matched in zip(claims, self._matched(claims), strict=True):
            if one.kept is not None:
                # No other one is provisioned: the claim would be bound to the one that is kept.
                missing |= ~matched
            elif one.selected:
                name = one.needs.storage_class
                missing |= ~self.provisioning.reaches(name, one.selected)
            to_make = ~(matched | missing | full)
            if to_make.any():
                missing |= to_make & ~self.provisioning.is_possible(one.needs.storage_class)
                full |= to_make & ~missing & ~self.provisioning.has_room(one.needs)
        return missing, full

    def _matched(self, claims: Sequence[OpenClaim]) -> list[BoolColumn]:
        """Return, for each claim, the nodes where it gets an existing volume."""
        nodes = len(self._snapshot.nodes)
        first = [self._first(one) for one in claims]
        found = [column != NO_VOLUME for column in first]
        contested = np.zeros(nodes, dtype=np.bool_)
        searching = [i for i, one in enumerate(claims) if not one.kept and not one.selected]
        for place, i in enumerate(searching):
            for j in searching[:place]:
                if claims[i].needs.storage_class == claims[j].needs.storage_class:
                    contested |= (first[i] == first[j]) & found[i]
        for row in np.flatnonzero(contested).tolist():
            for column, volume in zip(found, self._on_row(claims, row), strict=True):
                column[row] = volume is not None
        return found

    def _first(self, one: OpenClaim) -> IntColumn:
        nodes = len(self._snapshot.nodes)
        if one.selected:
            return np.full(nodes, NO_VOLUME, dtype=np.int64)
        if one.kept is not None:
            return np.where(self.reached(one.kept), 0, NO_VOLUME)
        return self._ledger.table(one.needs.storage_class).first(one.needs, nodes)

    # One node --------------------------------------------------------------------------------

    def choose(self, volumes: PodVolumes, row: int) -> tuple[VolumeChoice, ...] | str:
        """Return what the open claims get on a node, or why the node is refused."""
        for reason, mask in self.refused(PodVolumes(bound=volumes.bound)):
            if mask[row]:
                return reason
        node = self._snapshot.nodes.names[row]
        chosen: list[VolumeChoice] = []
        for one, volume in zip(volumes.open, self._on_row(volumes.open, row), strict=True):
            if volume is not None:
                chosen.append(VolumeChoice(one.claim, node, volume.metadata.name))
                continue
            reason = self._refusal(one, row)
            if reason:
                return reason
            chosen.append(VolumeChoice(one.claim, one.selected or node))
        return tuple(chosen)

    def lacking_on(self, volumes: PodVolumes, row: int) -> list[OpenClaim]:
        """Return the open claims that get no volume on a node."""
        return [
            one
            for one, volume in zip(volumes.open, self._on_row(volumes.open, row), strict=True)
            if volume is None and self._refusal(one, row)
        ]

    def _refusal(self, one: OpenClaim, row: int) -> str:
        """Return why no volume can be provisioned for a claim on a node; "" if one can."""
        name = one.needs.storage_class
        if one.kept is not None:
            return NO_VOLUMES
        if one.selected and not self.provisioning.reaches(name, one.selected)[row]:
            return NO_VOLUMES
        if not self.provisioning.is_possible(name)[row]:
            return NO_VOLUMES
        return "" if self.provisioning.has_room(one.needs)[row] else NO_STORAGE

    def _on_row(self, claims: Sequence[OpenClaim], row: int) -> list[PersistentVolume | None]:
        """Return the existing volume that each claim gets on a node; claims choose in order."""
        found: list[PersistentVolume | None] = []
        taken: dict[str, set[int]] = {}
        for one in claims:
            volume = None
            if one.kept is not None:
                volume = one.kept if self.reached(one.kept)[row] else None
            elif not one.selected:
                name = one.needs.storage_class
                but = taken.setdefault(name, set())
                table = self._ledger.table(name)
                place = table.first_on(one.needs, row, but)
                if place != NO_VOLUME:
                    but.add(place)
                    volume = table.volumes[place]
            found.append(volume)
        return found


def _problem(pod: PodInfo, name: str, claim: PersistentVolumeClaim | None, ephemeral: bool) -> str:
    """Return what about a claim refuses every node; "" for nothing."""
    if claim is None:
        if ephemeral:
            wanted = f'create the persistentvolumeclaim "{name}"'
            return f"waiting for ephemeral volume controller to {wanted}"
        return not_found("persistentvolumeclaim", name)
    if claim.status.phase == "Lost":
        volume = claim.spec.volume_name
        return f'persistentvolumeclaim "{name}" bound to non-existent persistentvolume "{volume}"'
    if claim.metadata.deletion_timestamp is not None:
        return f'persistentvolumeclaim "{name}" is being deleted'
    if ephemeral and not is_owned(claim, pod.uid):
        return f"PVC {claim.key} was not created for pod {pod.key} (pod is not owner)"
    return ""
