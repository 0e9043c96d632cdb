"""What the scheduler needs of a cluster: watch events and writes.

A write is plain data and answered through a callback. So a backend may carry it out at once, in
a task, or not at all (a dry run).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

from bayplan.api import ApiObject, PodCondition, ResourceClaim
from bayplan.api.configmap import ConfigMap
from bayplan.api.dra import AllocationResult
from bayplan.api.pod import ExtendedResourceMapping
from bayplan.errors import ClusterError

__all__ = [
    "Bind",
    "BindLock",
    "BindVolume",
    "Cluster",
    "CreateClaim",
    "CreateObject",
    "DeleteObject",
    "Done",
    "Event",
    "Evict",
    "PatchAnnotations",
    "PatchFields",
    "PatchPodStatus",
    "PatchStatus",
    "PutConfigMap",
    "ReleaseClaim",
    "ReserveClaim",
    "SelectNode",
    "TemplateSource",
    "WatchEvent",
    "WatchHandler",
    "WatchType",
    "Write",
    "annotation_field",
    "pointer",
]


class WatchType(Enum):
    """The type of a watch event. RESYNC: the watch broke; ``objects`` holds everything."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    RESYNC = "RESYNC"


class WatchEvent(msgspec.Struct, frozen=True):
    """One change: the object after it; for DELETED, its last state."""

    type: WatchType
    obj: ApiObject | None = None
    objects: Sequence[ApiObject] = ()


class BindLock(msgspec.Struct, frozen=True):
    """An annotation of a node that one pod at a time has, from its binding on.

    The node's runtime serves the pod that the annotation names, and removes it. The value is the
    time and the pod's namespace and name, separated by commas. One that is older than ``seconds``
    was left behind, and is replaced.

    Pods on the node with the annotation ``marks`` whose uids are not ``known`` were bound by
    another scheduler, later than this binding was decided on: then it is refused, as there may be
    no room. It is refused, too, unless all pods that it ``needs``, by key, are on the node.

    An ``own`` lock is bayplan's, for nodes whose runtime has none. Nobody removes it: a pod that
    has a node holds it no longer. An elected leader takes none while it binds alone.

    An eviction may take the lock as well, so that no binding comes in between that needs the pod.
    """

    annotation: str
    seconds: float
    marks: str = ""
    known: frozenset[str] = frozenset()
    needs: frozenset[str] = frozenset()
    own: bool = False


class Bind(msgspec.Struct, frozen=True):
    """Bind a pod to a node. ``uid`` guards against a recreated pod of the same name.

    The backend takes the ``lock`` of the node first, and waits until it can have it. ``labels`` are
    set just before the binding; None removes one.
    """

    pod: str
    uid: str
    node: str
    annotations: Mapping[str, str] = {}
    lock: BindLock | None = None
    labels: Mapping[str, str | None] = {}


class Evict(msgspec.Struct, frozen=True):
    """Evict a pod for preemption; ``message`` goes into its DisruptionTarget condition.

    The backend takes the ``lock`` of the pod's ``node`` first, and gives it back.
    """

    pod: str
    uid: str
    message: str
    node: str = ""
    lock: BindLock | None = None


class PatchPodStatus(msgspec.Struct, frozen=True):
    """Set a pod's condition and, unless None, its nominated node ("" clears it)."""

    pod: str
    uid: str
    condition: PodCondition
    nominated_node: str | None = None


class PatchStatus(msgspec.Struct, frozen=True):
    """Replace the status of an object that is not a pod.

    ``awaited``: others go on once they see it, such as the controller that makes an admitted
    group's pods, so it is written at once.
    """

    type: type[ApiObject]
    key: str
    status: msgspec.Struct
    awaited: bool = False


class PatchAnnotations(msgspec.Struct, frozen=True):
    """Set annotations of an object that is not a pod, None removes one; its other ones stay."""

    type: type[ApiObject]
    key: str
    annotations: Mapping[str, str | None]


class TemplateSource(msgspec.Struct, frozen=True):
    """What a pod template is a copy of: the template at a JSON pointer of an object, "" for a pod.

    The copy gets the fields of the original's spec that bayplan's types do not hold, as long as
    the object is there.
    """

    type: type[ApiObject]
    key: str
    pointer: str = ""


class CreateObject(msgspec.Struct, frozen=True):
    """Create an object of a watched kind. One that exists already is left, which counts as done.

    ``fields`` are fields that bayplan's types do not hold, as in :class:`PatchFields`;
    ``templates`` says, by JSON pointer, which pod templates of the object are copies.
    """

    obj: ApiObject
    fields: Mapping[str, Any] = {}
    templates: Mapping[str, TemplateSource] = {}


def pointer(*names: str) -> str:
    """Return the JSON pointer (RFC 6901) that leads through fields of these names."""
    return "".join(f"/{name.replace('~', '~0').replace('/', '~1')}" for name in names)


def annotation_field(
    annotations: Mapping[str, str], name: str, value: str | None
) -> dict[str, Any]:
    """Return the field that sets an annotation; an object without any has no map to add it to.

    :param annotations: those that the object has.
    """
    if not annotations:
        return {pointer("metadata", "annotations"): {name: value}}
    return {pointer("metadata", "annotations", name): value}


class PatchFields(msgspec.Struct, frozen=True):
    """Set single fields of an object; all others stay, those that bayplan does not know, too.

    ``fields`` has JSON pointers (RFC 6901), such as ``/spec/suspend`` or
    ``/spec/replicatedJobs/0/template/spec``, with plain JSON values; None removes a field. What a
    pointer leads through must exist. ``subresource`` is where the fields are written, and
    ``templates`` says which pod templates in them are copies. NotFound: the object is gone.
    Conflict: it was recreated (``uid``), or a pointer leads nowhere.
    """

    type: type[ApiObject]
    key: str
    uid: str
    fields: Mapping[str, Any]
    subresource: Literal["", "status"] = ""
    templates: Mapping[str, TemplateSource] = {}


class DeleteObject(msgspec.Struct, frozen=True):
    """Delete an object; one that is gone already counts as done.

    ``by_force``: without the grace period that a pod has. Conflict: it was recreated (``uid``, ""
    for any).
    """

    type: type[ApiObject]
    key: str
    uid: str = ""
    by_force: bool = False


class ReserveClaim(msgspec.Struct, frozen=True):
    """Reserve a claim for a pod; allocate the claim first if it has no allocation.

    The backend adds the finalizer first, then writes allocation and reservedFor in one update of
    the status, and retries when the claim changed meanwhile. Conflict: the claim has another
    allocation, or was recreated (``uid``). With ``replaces``, the other allocation is cleared first
    if only this pod may use it.
    """

    claim: str
    uid: str
    pod: str
    pod_uid: str
    allocation: AllocationResult | None = None
    replaces: bool = False


class ReleaseClaim(msgspec.Struct, frozen=True):
    """Remove a pod from a claim's reservedFor; ``deallocate`` it when no pod is left."""

    claim: str
    uid: str
    pod_uid: str = ""
    deallocate: bool = False


class CreateClaim(msgspec.Struct, frozen=True):
    """Create the claim for a pod's extended resources, allocated and reserved.

    The pod's status names the claim and maps its requests to the containers' resources.
    """

    pod: str
    pod_uid: str
    claim: ResourceClaim
    allocation: AllocationResult
    mappings: Sequence[ExtendedResourceMapping]


class BindVolume(msgspec.Struct, frozen=True):
    """Reserve a PersistentVolume for a claim: set its spec.claimRef, with the uid.

    ``volume`` is the volume's name, ``claim`` the claim's key. The volume controller completes the
    binding. A volume that the claim already has is left as it is, which counts as done.
    NotFound: the volume or the claim is gone. Conflict: another claim has the volume, the volume
    is not Available or is being deleted, the claim is bound to another volume or is being
    deleted, or it was recreated (``uid``).
    """

    volume: str
    claim: str
    uid: str


class SelectNode(msgspec.Struct, frozen=True):
    """Request provisioning: annotate a claim with the node that will use it.

    The annotation is ``volume.kubernetes.io/selected-node``; the provisioner of the claim's class
    creates the volume, or removes the annotation when it cannot. An empty ``node`` removes it.
    An unchanged annotation is not written, which counts as done. NotFound: the claim is gone.
    Conflict: another node is selected, the claim is bound or is being deleted, or it was
    recreated (``uid``).
    """

    claim: str
    uid: str
    node: str


class PutConfigMap(msgspec.Struct, frozen=True):
    """Create or replace a ConfigMap."""

    config_map: ConfigMap


class Event(msgspec.Struct, frozen=True):
    """A Kubernetes event; ``type`` is Normal or Warning.

    ``about`` is the kind of the object, and ``pod`` its key, whatever the kind.
    ``component`` is the reporting component, "" for the scheduler. ``passing``: it only says why
    a pod has no node, so it need not be written if the pod gets one soon. ``annotations`` are the
    event's, for programs.
    """

    pod: str
    type: str
    reason: str
    message: str
    node: str = ""
    about: str = "Pod"
    component: str = ""
    passing: bool = False
    annotations: Mapping[str, str] = {}


Write: TypeAlias = (
    Bind
    | Evict
    | PatchPodStatus
    | PatchStatus
    | PatchAnnotations
    | PatchFields
    | CreateObject
    | DeleteObject
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
    """A backend of the scheduler."""

    @property
    def now(self) -> float:
        """The backend's time in seconds."""

    @property
    def unix_time(self) -> float:
        """The time in seconds since 1970, as objects' timestamps state it."""

    @property
    def in_order(self) -> bool:
        """Whether an object is always delivered before what it owns."""

    @property
    def writes(self) -> bool:
        """Whether writes are carried out; a dry run carries out none."""

    def watch(self, handler: WatchHandler) -> None:
        """Deliver all objects as ADDED, then every change, one at a time and in order."""

    def submit(self, write: Write, done: Done | None = None) -> None:
        """Carry out a write; call ``done`` with None, or with the error that refused it."""
