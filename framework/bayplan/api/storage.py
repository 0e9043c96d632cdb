"""Storage: claims, volumes, classes, and the objects that CSI drivers publish."""

from __future__ import annotations

from typing import Literal

import msgspec

from bayplan.api.meta import ApiStruct, LabelSelector, ObjectMeta, explicit
from bayplan.api.pod import NodeSelector
from bayplan.api.quantity import Quantity
from bayplan.api.volume_claim import AccessMode, PersistentVolumeClaimSpec, VolumeMode

__all__ = [
    "CSIDriver",
    "CSINode",
    "CSIStorageCapacity",
    "ObjectReference",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "StorageClass",
    "TopologySelectorTerm",
]

ReclaimPolicy = Literal["Retain", "Delete", "Recycle"]


class PersistentVolumeClaimStatus(ApiStruct, frozen=True):
    """status of a claim; Lost means that its volume is gone."""

    phase: Literal["", "Pending", "Bound", "Lost"] = ""
    access_modes: tuple[AccessMode, ...] = ()
    capacity: dict[str, Quantity] = {}


class PersistentVolumeClaim(ApiStruct, frozen=True):
    """v1 PersistentVolumeClaim."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PersistentVolumeClaimSpec = explicit(PersistentVolumeClaimSpec())
    status: PersistentVolumeClaimStatus = PersistentVolumeClaimStatus()

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.metadata.namespace}/{self.metadata.name}"


class ObjectReference(ApiStruct, frozen=True):
    """spec.claimRef: the claim that a volume is bound to, or reserved for if the uid is empty."""

    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    api_version: str = ""

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"


class CSIVolumeSource(ApiStruct, frozen=True):
    """spec.csi: the driver that serves a volume, and the volume's name with that driver."""

    driver: str
    volume_handle: str


class VolumeNodeAffinity(ApiStruct, frozen=True):
    """spec.nodeAffinity: the nodes from which a volume can be reached."""

    required: NodeSelector | None = None


class PersistentVolumeSpec(ApiStruct, frozen=True):
    """spec of a volume; CSI is the only source that is read."""

    capacity: dict[str, Quantity] = {}
    access_modes: tuple[AccessMode, ...] = ()
    claim_ref: ObjectReference | None = None
    storage_class_name: str = ""
    volume_mode: VolumeMode = explicit("Filesystem")
    node_affinity: VolumeNodeAffinity | None = None
    csi: CSIVolumeSource | None = None
    persistent_volume_reclaim_policy: ReclaimPolicy = explicit("Retain")
    volume_attributes_class_name: str = ""


class PersistentVolumeStatus(ApiStruct, frozen=True):
    """status of a volume; only an Available one may be bound."""

    phase: Literal["", "Pending", "Available", "Bound", "Released", "Failed"] = ""


class PersistentVolume(ApiStruct, frozen=True):
    """v1 PersistentVolume."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PersistentVolumeSpec = explicit(PersistentVolumeSpec())
    status: PersistentVolumeStatus = PersistentVolumeStatus()

    @property
    def affinity(self) -> NodeSelector | None:
        """The nodes from which the volume can be reached; None for all."""
        return self.spec.node_affinity.required if self.spec.node_affinity else None


class TopologySelectorRequirement(ApiStruct, frozen=True):
    """A node label and the values that it may have."""

    key: str
    values: tuple[str, ...] = ()


class TopologySelectorTerm(ApiStruct, frozen=True):
    """allowedTopologies[]: requirements that all have to hold."""

    match_label_expressions: tuple[TopologySelectorRequirement, ...] = ()


class StorageClass(ApiStruct, frozen=True):
    """storage.k8s.io/v1 StorageClass."""

    provisioner: str
    metadata: ObjectMeta = ObjectMeta()
    volume_binding_mode: Literal["Immediate", "WaitForFirstConsumer"] = explicit("Immediate")
    allowed_topologies: tuple[TopologySelectorTerm, ...] = ()
    reclaim_policy: ReclaimPolicy = explicit("Delete")


class VolumeNodeResources(ApiStruct, frozen=True):
    """drivers[].allocatable: the most volumes of the driver on the node, None for no limit."""

    count: int | None = None


class CSINodeDriver(ApiStruct, frozen=True):
    """spec.drivers[]: a driver on a node, and the node labels that locate its volumes."""

    name: str
    node_id: str = msgspec.field(default="", name="nodeID")
    topology_keys: tuple[str, ...] = ()
    allocatable: VolumeNodeResources | None = None


class CSINodeSpec(ApiStruct, frozen=True):
    """spec of a CSINode."""

    drivers: tuple[CSINodeDriver, ...] = ()


class CSINode(ApiStruct, frozen=True):
    """storage.k8s.io/v1 CSINode, named like its node."""

    metadata: ObjectMeta = ObjectMeta()
    spec: CSINodeSpec = CSINodeSpec()

    def driver(self, name: str) -> CSINodeDriver | None:
        """Return the entry of a driver, None if it does not run on the node."""
        return next((driver for driver in self.spec.drivers if driver.name == name), None)


class CSIDriverSpec(ApiStruct, frozen=True):
    """spec of a CSIDriver; ``storage_capacity`` says that it publishes CSIStorageCapacity."""

    storage_capacity: bool = False


class CSIDriver(ApiStruct, frozen=True):
    """storage.k8s.io/v1 CSIDriver."""

    metadata: ObjectMeta = ObjectMeta()
    spec: CSIDriverSpec = CSIDriverSpec()


class CSIStorageCapacity(ApiStruct, frozen=True):
    """storage.k8s.io/v1 CSIStorageCapacity: the capacity for volumes of a class on some nodes.

    Without ``node_topology`` no node can access it.
    """

    storage_class_name: str
    metadata: ObjectMeta = ObjectMeta()
    capacity: Quantity | None = None
    maximum_volume_size: Quantity | None = None
    node_topology: LabelSelector | None = None

    @property
    def largest(self) -> Quantity | None:
        """The size of the largest volume that can be created, None if unknown."""
        return self.capacity if self.maximum_volume_size is None else self.maximum_volume_size
