"""The spec of PersistentVolumeClaims; pods also have it, for generic ephemeral volumes."""

from __future__ import annotations

from typing import Literal

from bayplan.api.meta import ApiStruct, LabelSelector, ObjectMeta, explicit
from bayplan.api.quantity import Quantity

__all__ = [
    "AccessMode",
    "PersistentVolumeClaimSpec",
    "PersistentVolumeClaimTemplate",
    "VolumeMode",
    "VolumeResources",
]

AccessMode = Literal["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"]
VolumeMode = Literal["Filesystem", "Block"]


class VolumeResources(ApiStruct, frozen=True):
    """spec.resources of a claim; ``storage`` is the minimum size of its volume."""

    requests: dict[str, Quantity] = {}
    limits: dict[str, Quantity] = {}


class PersistentVolumeClaimSpec(ApiStruct, frozen=True):
    """spec of a claim. ``storage_class_name`` None means the default class, "" no class."""

    access_modes: tuple[AccessMode, ...] = ()
    resources: VolumeResources = VolumeResources()
    storage_class_name: str | None = None
    volume_mode: VolumeMode = explicit("Filesystem")
    volume_name: str = ""
    selector: LabelSelector | None = None
    volume_attributes_class_name: str = ""


class PersistentVolumeClaimTemplate(ApiStruct, frozen=True):
    """The claim to create for a generic ephemeral volume, or for a pod of a StatefulSet."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PersistentVolumeClaimSpec = explicit(PersistentVolumeClaimSpec())
