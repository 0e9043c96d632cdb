"""What the scheduler asks of a cluster: tell me what is, take my writes.

Writes are plain data and answered by a callback, so that a backend may do them at once, in
tasks of its own, or not at all (a dry run).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Protocol, TypeAlias

import msgspec

from bayplan.api import ApiObject, PodCondition, ResourceClaim
from bayplan.api.configmap import ConfigMap
from bayplan.api.dra import AllocationResult
from bayplan.api.pod import ExtendedResourceMapping
from bayplan.errors import ClusterError

__all__ = [
    "Bind",
    "BindVolume",
    "Cluster",
    "CreateClaim",
    "Done",
    "Event",
    "Evict",
    "PatchPodStatus",
    "PatchStatus",
    "PutConfigMap",
    "ReleaseClaim",
    "ReserveClaim",
    "SelectNode",
    "WatchEvent",
    "WatchHandler",
    "WatchType",
    "Write",
]


class WatchType(Enum):
    """What a watch event tells. RESYNC: the watch broke; ``objects`` is all there is now."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    RESYNC = "RESYNC"


class WatchEvent(msgspec.Struct, frozen=True):
    """One change, with the object as it is after it (for DELETED: as it was)."""

    type: WatchType
    obj: ApiObject | None = None
    objects: Sequence[ApiObject] = ()


class Bind(msgspec.Struct, frozen=True):
    """Give a pod its node. ``uid`` guards against a pod of the same name made anew."""

    pod: str
    uid: str
    node: str
    annotations: Mapping[str, str] = {}


class Evict(msgspec.Struct, frozen=True):
    """End a pod gracefully to make room, with the reason for its DisruptionTarget condition."""

    pod: str
    uid: str
    message: str


class PatchPodStatus(msgspec.Struct, frozen=True):
    """Set one condition and, unless None, the nominated node ("" clears it)."""

    pod: str
    uid: str
    condition: PodCondition
    nominated_node: str | None = None


class PatchStatus(msgspec.Struct, frozen=True):
    """Replace the status of any other object."""

    type: type[ApiObject]
    key: str
    status: msgspec.Struct


class ReserveClaim(msgspec.Struct, frozen=True):
    """Let a pod use a claim, after giving the claim its allocation where it has none.

    The backend adds the finalizer first, then writes allocation and reservedFor in one update of
    the status, and tries again where the claim changed meanwhile. Conflict means that the claim
    got another allocation, or is another claim of that name (``uid``).
    """

    claim: str
    uid: str
    pod: str
    pod_uid: str
    allocation: AllocationResult | None = None


class ReleaseClaim(msgspec.Struct, frozen=True):
    """Take a pod out of a claim's reservedFor; ``deallocate`` where nobody is left."""

    claim: str
    uid: str
    pod_uid: str = ""
    deallocate: bool = False


class CreateClaim(msgspec.Struct, frozen=True):
    """Create the claim that stands for a pod's extended resources, allocated and reserved.

    The pod's status names the claim, and which request stands for which container's resource.
    """

    pod: str
    pod_uid: str
    claim: ResourceClaim
    allocation: AllocationResult
    mappings: Sequence[ExtendedResourceMapping]


class BindVolume(msgspec.Struct, frozen=True):
    """Keep a PersistentVolume for a claim: spec.claimRef is set to it, with its uid.

    ``volume`` is the volume's name, ``claim`` the claim's key. The volume controller completes the
    binding on both sides. A volume that is the claim's already is left as it is, and that counts as
    done. NotFound means that the volume or the claim is gone. Conflict means that another claim has
    the volume, that it is not Available or being deleted, that the claim is bound to another volume
    or being deleted, or is another claim of that name (``uid``).
    """

    volume: str
    claim: str
    uid: str


class SelectNode(msgspec.Struct, frozen=True):
    """Ask for a volume for a claim: annotate it with the node from which it will be used.

    The annotation is ``volume.kubernetes.io/selected-node``; the provisioner of the claim's class
    makes the volume, or takes the annotation away where it cannot. An empty ``node`` takes it away.
    Where the annotation says so already nothing is written, and that counts as done. NotFound means
    that the claim is gone. Conflict means that another node is selected, that the claim is bound or
    being deleted, or is another claim of that name (``uid``).
    """

    claim: str
    uid: str
    node: str


class PutConfigMap(msgspec.Struct, frozen=True):
    """Create a ConfigMap, or replace the one of its name."""

    config_map: ConfigMap


class Event(msgspec.Struct, frozen=True):
    """A Kubernetes event about a pod; ``type`` is Normal or Warning.

    ``about`` is the kind of the object where it is none about a pod; ``pod`` is its key then.
    ``component`` says who writes it, where it is not the scheduler itself.
    """

    pod: str
    type: str
    reason: str
    message: str
    node: str = ""
    about: str = "Pod"
    component: str = ""


Write: TypeAlias = (
    Bind
    | Evict
    | PatchPodStatus
    | PatchStatus
    | PutConfigMap
    | ReserveClaim
    | ReleaseClaim
    | CreateClaim
    | BindVolume
    | SelectNode
    | Event
)
Done: TypeAlias = Callable[[ClusterError | None], None]
WatchHandler: TypeAlias = Callable[[WatchEvent], None]


class Cluster(Protocol):
    """A backend."""

    @property
    def now(self) -> float:
        """The time in seconds."""

    def watch(self, handler: WatchHandler) -> None:
        """Deliver all objects as ADDED, then every change, one at a time and in order."""

    def submit(self, write: Write, done: Done | None = None) -> None:
        """Carry out a write and call ``done`` with None, or with why it was refused."""
