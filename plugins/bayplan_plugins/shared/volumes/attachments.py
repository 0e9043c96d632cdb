"""How many volumes of each CSI driver are in use on each node, and how many a node takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
import numpy as np

from bayplan import PodInfo
from bayplan.api import CSINode, PersistentVolume, PersistentVolumeClaim, StorageClass
from bayplan.api.volumes import UsedClaim, class_of
from bayplan.plugin.hookspecs import IntColumn
from bayplan.snapshot import Snapshot
from bayplan_plugins.shared.volumes.lookup import ClaimUsers, claim_of, used_by

__all__ = ["Attachments", "CsiVolume"]

_UNLIMITED = np.iinfo(np.int64).max // 2


class CsiVolume(msgspec.Struct, frozen=True):
    """A volume by its driver and the driver's handle; by the claim's key until it has one."""

    driver: str
    handle: str


class Attachments:
    """Counts of volumes per node, kept up to date as pods, claims and volumes change."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._users = snapshot.shared(ClaimUsers, ClaimUsers)
        self._of_pod: dict[str, tuple[str, tuple[CsiVolume, ...]]] = {}
        self._nodes_of: dict[CsiVolume, dict[str, int]] = {}
        self._used: dict[str, dict[str, int]] = {}
        self._used_columns: dict[str, tuple[int, IntColumn]] = {}
        self._limits: dict[str, dict[str, int]] = {}
        self._limit_columns: dict[str, tuple[int, IntColumn]] = {}
        snapshot.on_pod(self._on_pod)
        snapshot.on_object(PersistentVolumeClaim, self._on_claim)
        snapshot.on_object(PersistentVolume, self._on_volume)
        snapshot.on_object(StorageClass, self._on_class)
        snapshot.on_object(CSINode, self._on_csi_node)
        for csi_node in snapshot.objects(CSINode).values():
            self._on_csi_node(None, csi_node)
        for pod, node in snapshot.placed.values():
            self._on_pod(pod, node, True)

    # Asking ----------------------------------------------------------------------------------

    def volumes_of(self, pod: PodInfo) -> Iterator[CsiVolume]:
        """Yield the known volumes of CSI drivers that a pod uses."""
        for used in used_by(pod):
            volume = self.volume_of(pod, used)
            if volume is not None:
                yield volume

    def volume_of(self, pod: PodInfo, used: UsedClaim) -> CsiVolume | None:
        """Return the volume behind a claim of a pod, or the one that it will get."""
        claim = claim_of(pod, used, self._snapshot)
        if claim is None:
            return None
        volume = self._snapshot.objects(PersistentVolume).get(claim.spec.volume_name)
        if volume is not None:
            csi = volume.spec.csi
            return CsiVolume(csi.driver, csi.volume_handle) if csi is not None else None
        found = self._snapshot.objects(StorageClass).get(class_of(claim))
        return CsiVolume(found.provisioner, f"claim {claim.key}") if found is not None else None

    def nodes_of(self, volume: CsiVolume) -> Iterable[str]:
        """Return the nodes on which a volume is in use."""
        return self._nodes_of.get(volume, ())

    def is_limited(self, driver: str) -> bool:
        """Tell whether any node states how many volumes of a driver it takes."""
        return driver in self._limits

    def limit(self, driver: str) -> IntColumn:
        """Return, per row, how many volumes of a driver a node takes; huge if it does not say."""
        return self._column(driver, self._limits, self._limit_columns, _UNLIMITED)

    def used(self, driver: str) -> IntColumn:
        """Return, per row, how many volumes of a driver are in use."""
        return self._column(driver, self._used, self._used_columns, 0)

    def _column(
        self,
        driver: str,
        numbers: dict[str, dict[str, int]],
        columns: dict[str, tuple[int, IntColumn]],
        default: int,
    ) -> IntColumn:
        nodes = self._snapshot.nodes
        kept = columns.get(driver)
        if kept is None or kept[0] != nodes.epoch or len(kept[1]) != len(nodes):
            column = np.full(len(nodes), default, dtype=np.int64)
            for node, number in numbers.get(driver, {}).items():
                if node in nodes.row_of:
                    column[nodes.row_of[node]] = number
            kept = columns[driver] = (nodes.epoch, column)
        return kept[1]

    # Keeping up ------------------------------------------------------------------------------

    def _on_pod(self, pod: PodInfo, node: str, placed: bool) -> None:
        if not pod.facts.uses_claims:
            return
        if placed:
            volumes = tuple(dict.fromkeys(self.volumes_of(pod)))
            self._of_pod[pod.uid] = (node, volumes)
            self._count(volumes, node, 1)
        else:
            _, volumes = self._of_pod.pop(pod.uid, ("", ()))
            self._count(volumes, node, -1)

    def _count(self, volumes: Iterable[CsiVolume], node: str, sign: int) -> None:
        for volume in volumes:
            nodes = self._nodes_of.setdefault(volume, {})
            before = nodes.get(node, 0)
            nodes[node] = before + sign
            if not nodes[node]:
                del nodes[node]
            if not nodes:
                del self._nodes_of[volume]
            if (before > 0) != (before + sign > 0):
                self._change_used(volume.driver, node, sign)

    def _change_used(self, driver: str, node: str, sign: int) -> None:
        numbers = self._used.setdefault(driver, {})
        numbers[node] = numbers.get(node, 0) + sign
        kept = self._used_columns.get(driver)
        row = self._snapshot.nodes.row_of.get(node)
        if kept is not None and kept[0] == self._snapshot.nodes.epoch and row is not None:
            kept[1][row] = numbers[node]

    def _recount(self, pods: Iterable[PodInfo]) -> None:
        """Recount pods whose claims changed or got their volumes."""
        for pod in list(pods):
            node, before = self._of_pod[pod.uid]
            volumes = tuple(dict.fromkeys(self.volumes_of(pod)))
            if volumes != before:
                self._count(before, node, -1)
                self._count(volumes, node, 1)
                self._of_pod[pod.uid] = (node, volumes)
                self._snapshot.touch((node,))

    def _on_claim(
        self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None
    ) -> None:
        claim = new or old
        assert claim is not None
        self._recount(self._users.of(claim.key).values())

    def _on_volume(self, old: PersistentVolume | None, new: PersistentVolume | None) -> None:
        volume = new or old
        assert volume is not None
        if volume.spec.claim_ref is not None:
            self._recount(self._users.of(volume.spec.claim_ref.key).values())

    def _on_class(self, old: StorageClass | None, new: StorageClass | None) -> None:
        everybody = (self._snapshot.placed[key][0] for key in list(self._snapshot.placed))
        self._recount(pod for pod in everybody if pod.uid in self._of_pod)

    def _on_csi_node(self, old: CSINode | None, new: CSINode | None) -> None:
        csi_node = new or old
        assert csi_node is not None
        node = csi_node.metadata.name
        for driver, limits in list(self._limits.items()):
            limits.pop(node, None)
            if not limits:
                del self._limits[driver]
        for said in new.spec.drivers if new is not None else ():
            if said.allocatable is not None and said.allocatable.count is not None:
                self._limits.setdefault(said.name, {})[node] = said.allocatable.count
        self._limit_columns.clear()
        self._snapshot.touch((node,))
