"""Rules of Kubernetes about claims and volumes, for schedulers and controllers alike."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

import msgspec

from bayplan.api.pod import Pod
from bayplan.api.selectors import EVERYTHING, Selector, compile_selector
from bayplan.api.storage import (
    ObjectReference,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
)

__all__ = [
    "BIND_COMPLETED",
    "BOUND_BY_CONTROLLER",
    "DEFAULT_CLASS",
    "NO_PROVISIONER",
    "SELECTED_NODE",
    "STORAGE",
    "ClaimNeeds",
    "UsedClaim",
    "class_of",
    "default_class",
    "is_available",
    "is_bound",
    "is_kept_for",
    "is_owned",
    "needs_of",
    "reference_to",
    "size_of",
    "used_claims",
]

BIND_COMPLETED = "pv.kubernetes.io/bind-completed"
"""The annotation of a claim whose binding is complete on both sides."""
BOUND_BY_CONTROLLER = "pv.kubernetes.io/bound-by-controller"
"""The annotation of a claim or volume that was bound automatically, not by a user."""
SELECTED_NODE = "volume.kubernetes.io/selected-node"
"""The annotation of a claim by which a scheduler requests a volume from a provisioner."""
DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
"""The annotation of the class for claims that name no class."""
NO_PROVISIONER = "kubernetes.io/no-provisioner"
"""The provisioner of classes whose volumes are created by hand."""
STORAGE = "storage"
_BETA_CLASS = "volume.beta.kubernetes.io/storage-class"


class UsedClaim(msgspec.Struct, frozen=True):
    """A claim that a pod uses, by name; an ephemeral claim is created for the pod."""

    name: str
    ephemeral: bool = False


def used_claims(pod: Pod) -> list[UsedClaim]:
    """Return the claims that a pod's volumes name, or that are created for them."""
    found = []
    for volume in pod.spec.volumes:
        if volume.persistent_volume_claim is not None:
            found.append(UsedClaim(volume.persistent_volume_claim.claim_name))
        elif volume.ephemeral is not None:
            found.append(UsedClaim(f"{pod.metadata.name}-{volume.name}", ephemeral=True))
    return found


def is_owned(claim: PersistentVolumeClaim, pod_uid: str) -> bool:
    """Tell whether a claim was created for a pod's ephemeral volume."""
    return any(r.controller and r.uid == pod_uid for r in claim.metadata.owner_references)


def class_of(obj: PersistentVolumeClaim | PersistentVolume) -> str:
    """Return the name of the storage class, "" for none."""
    return obj.metadata.annotations.get(_BETA_CLASS) or obj.spec.storage_class_name or ""


def default_class(classes: Iterable[StorageClass]) -> StorageClass | None:
    """Return the class for claims that name none: the newest default, then the first by name."""
    defaults = [c for c in classes if c.metadata.annotations.get(DEFAULT_CLASS) == "true"]
    defaults.sort(key=lambda c: c.metadata.name)
    return max(defaults, key=lambda c: c.metadata.creation_timestamp or "", default=None)


def is_bound(claim: PersistentVolumeClaim) -> bool:
    """Tell whether a claim is bound, and the binding is complete on both sides."""
    return bool(claim.spec.volume_name) and BIND_COMPLETED in claim.metadata.annotations


def is_available(volume: PersistentVolume) -> bool:
    """Tell whether any claim may take a volume; a volume without a phase counts as available."""
    return (
        volume.spec.claim_ref is None
        and volume.status.phase in ("", "Available")
        and volume.metadata.deletion_timestamp is None
    )


def is_kept_for(volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
    """Tell whether a volume is bound to a claim, or reserved for it."""
    reference = volume.spec.claim_ref
    return (
        reference is not None
        and reference.key == claim.key
        and reference.uid in ("", claim.metadata.uid)
    )


def reference_to(claim: PersistentVolumeClaim) -> ObjectReference:
    """Return the claimRef of a volume that is bound to a claim."""
    meta = claim.metadata
    return ObjectReference("PersistentVolumeClaim", meta.namespace, meta.name, meta.uid, "v1")


def size_of(obj: PersistentVolumeClaim | PersistentVolume) -> int | Fraction:
    """Return the bytes that a claim requests or a volume holds."""
    if isinstance(obj, PersistentVolume):
        amounts = obj.spec.capacity
    else:
        amounts = obj.spec.resources.requests
    return amounts[STORAGE].number if STORAGE in amounts else 0


class ClaimNeeds(msgspec.Struct, frozen=True):
    """What a claim requires of its volume; claims with equal needs can take the same volumes."""

    storage_class: str
    size: int | Fraction
    access_modes: frozenset[str]
    selector: Selector
    volume_mode: str
    attributes_class: str

    def are_met_by(self, volume: PersistentVolume) -> bool:
        """Tell whether a volume meets the needs, regardless of its claim and its nodes."""
        spec = volume.spec
        return (
            class_of(volume) == self.storage_class
            and self.holds(volume)
            and self.access_modes.issubset(spec.access_modes)
            and self.selector.matches(volume.metadata.labels)
        )

    def holds(self, volume: PersistentVolume) -> bool:
        """Tell whether a volume is large enough and of the right kind.

        A volume that is reserved for the claim has to meet only this.
        """
        spec = volume.spec
        return (
            size_of(volume) >= self.size
            and spec.volume_mode == self.volume_mode
            and spec.volume_attributes_class_name == self.attributes_class
            and volume.metadata.deletion_timestamp is None
        )


def needs_of(claim: PersistentVolumeClaim) -> ClaimNeeds:
    """Return what a claim requires of its volume."""
    spec = claim.spec
    return ClaimNeeds(
        class_of(claim),
        size_of(claim),
        frozenset(spec.access_modes),
        EVERYTHING if spec.selector is None else compile_selector(spec.selector),
        spec.volume_mode,
        spec.volume_attributes_class_name,
    )
