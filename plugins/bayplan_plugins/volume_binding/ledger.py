"""Which volumes are free, and which are assumed for claims that are not bound yet."""

from __future__ import annotations

import msgspec

from bayplan import PodInfo
from bayplan.api import (
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
)
from bayplan.api.volumes import class_of, is_available, is_kept_for, needs_of
from bayplan.snapshot import Snapshot
from bayplan_plugins.shared.volumes.labels import LabelRows
from bayplan_plugins.volume_binding.table import VolumeTable

__all__ = ["VolumeChoice", "VolumeLedger"]

ClaimId = tuple[str, str]
_FEW = 8
"""Up to this many nodes that reach a volume are touched one by one when it is taken."""


class VolumeChoice(msgspec.Struct, frozen=True):
    """What was decided for one claim: a volume by name, or (``volume`` "") one to provision."""

    claim: PersistentVolumeClaim
    node: str
    volume: str = ""

    @property
    def key(self) -> ClaimId:
        """The claim's key and uid; a claim that was recreated is another one."""
        return _id_of(self.claim)


class _AssumedChoice(msgspec.Struct):
    """A choice, and the uids of the pods that rely on it."""

    choice: VolumeChoice
    pods: set[str] = msgspec.field(default_factory=set)


class VolumeLedger:
    """The volumes of a cluster and what was decided. All profiles of a scheduler share one.

    What a cycle decides counts at once, also for pods of the same unit, until the pod is bound or
    unreserved.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self.labels = LabelRows(snapshot)
        self._tables: dict[str, VolumeTable] = {}
        self._versions: dict[str, int] = {}
        self._version = 0
        self._kept: dict[str, dict[str, None]] = {}
        self._assumed: dict[ClaimId, _AssumedChoice] = {}
        self._taken: set[str] = set()
        self._choices: dict[str, tuple[VolumeChoice, ...]] = {}
        snapshot.on_object(PersistentVolume, self._on_volume)
        snapshot.on_object(StorageClass, self._on_other)
        snapshot.on_object(CSIDriver, self._on_other)
        snapshot.on_object(CSINode, self._on_other)
        snapshot.on_object(CSIStorageCapacity, self._on_other)
        for volume in snapshot.objects(PersistentVolume).values():
            self._on_volume(None, volume)

    # Asking ----------------------------------------------------------------------------------

    def table(self, storage_class: str) -> VolumeTable:
        """Return the volumes of a class that claims may take."""
        table = self._tables.get(storage_class)
        if table is None:
            table = self._tables[storage_class] = VolumeTable(self.labels)
        return table

    def version(self, storage_class: str) -> tuple[int, int]:
        """Return a value that changes whenever what a claim of a class could get may change.

        Volumes that few nodes reach do not change it: these nodes are touched instead.
        """
        return self._version, self._versions.get(storage_class, 0)

    def assumed(self, claim: PersistentVolumeClaim) -> VolumeChoice | None:
        """Return what was decided for a claim, None for nothing."""
        assumed = self._assumed.get(_id_of(claim))
        return assumed.choice if assumed is not None else None

    def kept_for(self, claim: PersistentVolumeClaim) -> PersistentVolume | None:
        """Return the volume that a claimRef or a decision keeps for a claim; None for none."""
        volumes = self._snapshot.objects(PersistentVolume)
        choice = self.assumed(claim)
        if choice is not None and choice.volume:
            return volumes.get(choice.volume)
        needs = needs_of(claim)
        for name in self._kept.get(claim.key, ()):
            volume = volumes[name]
            if is_kept_for(volume, claim) and needs.holds(volume):
                return volume
        return None

    def choices(self, pod: PodInfo) -> tuple[VolumeChoice, ...]:
        """Return what was decided for a pod's claims."""
        return self._choices.get(pod.uid, ())

    # Deciding --------------------------------------------------------------------------------

    def take(self, pod: PodInfo, choices: tuple[VolumeChoice, ...]) -> None:
        """Record what was decided for a pod."""
        self.leave(pod)
        if not choices:
            return
        self._choices[pod.uid] = choices
        for choice in choices:
            assumed = self._assumed.setdefault(choice.key, _AssumedChoice(choice))
            assumed.pods.add(pod.uid)
            if choice.volume and choice.volume not in self._taken:
                self._taken.add(choice.volume)
                self._withdraw(self._snapshot.objects(PersistentVolume)[choice.volume])

    def leave(self, pod: PodInfo) -> None:
        """Drop what was decided for a pod."""
        for choice in self._choices.pop(pod.uid, ()):
            assumed = self._assumed[choice.key]
            assumed.pods.discard(pod.uid)
            if assumed.pods:
                continue
            del self._assumed[choice.key]
            if choice.volume:
                self._taken.discard(choice.volume)
                volume = self._snapshot.objects(PersistentVolume).get(choice.volume)
                if volume is not None and is_available(volume):
                    self._offer(volume)

    def _offer(self, volume: PersistentVolume) -> None:
        self.table(class_of(volume)).offer(volume)
        self._changed(volume)

    def _withdraw(self, volume: PersistentVolume) -> None:
        self.table(class_of(volume)).set_free(volume.metadata.name, False)
        self._changed(volume)

    def _changed(self, volume: PersistentVolume) -> None:
        """Mark results as stale, because a volume became free or taken.

        If few nodes reach it, only their results are stale.
        """
        rows = self.labels.selected(volume.affinity)
        if len(rows) <= _FEW:
            self._snapshot.touch([self._snapshot.nodes.names[row] for row in rows])
        else:
            name = class_of(volume)
            self._versions[name] = self._versions.get(name, 0) + 1

    # Keeping up ------------------------------------------------------------------------------

    def _on_other(self, old: object, new: object) -> None:
        self._version += 1

    def _on_volume(self, old: PersistentVolume | None, new: PersistentVolume | None) -> None:
        if old is not None:
            self._forget(old, new)
        if new is None:
            return
        if new.spec.claim_ref is not None:
            self._kept.setdefault(new.spec.claim_ref.key, {})[new.metadata.name] = None
        if is_available(new) and new.metadata.name not in self._taken:
            self._offer(new)

    def _forget(self, old: PersistentVolume, new: PersistentVolume | None) -> None:
        """Undo what was recorded for the former version of a volume."""
        name = old.metadata.name
        if old.spec.claim_ref is not None:
            self._kept[old.spec.claim_ref.key].pop(name, None)
        if new is None or class_of(new) != class_of(old):
            self.table(class_of(old)).drop(name)
            self._changed(old)
        elif is_available(old):
            # The former version may have been reached from other nodes.
            self._withdraw(old)


def _id_of(claim: PersistentVolumeClaim) -> ClaimId:
    return claim.key, claim.metadata.uid
