"""What each write of a scheduler does to the objects of the embedded cluster."""

from __future__ import annotations

from contextlib import suppress

from msgspec.structs import replace

from bayplan.api import (
    ApiObject,
    Node,
    ObjectMeta,
    PersistentVolume,
    PersistentVolumeClaim,
    Pod,
    PodCondition,
    ResourceClaim,
)
from bayplan.api.conditions import stamped
from bayplan.api.dra import (
    CONSUMER_LIMIT,
    DELETE_PROTECTION,
    EXTENDED_RESOURCE_CLAIM,
    ConsumerReference,
    ResourceClaimStatus,
)
from bayplan.api.pod import ExtendedResourceClaimStatus
from bayplan.api.times import seconds_of
from bayplan.api.volumes import SELECTED_NODE, is_available, is_kept_for
from bayplan.api.volumes import reference_to as volume_reference
from bayplan.cluster.embedded.admission import with_condition, with_spec
from bayplan.cluster.embedded.disruption_budgets import take_disruption
from bayplan.cluster.embedded.field_patches import with_fields
from bayplan.cluster.embedded.object_store import ObjectStore
from bayplan.cluster.embedded.owner_references import reference_to
from bayplan.cluster.node_lock import lock_for
from bayplan.cluster.protocol import (
    Bind,
    BindLock,
    BindVolume,
    CreateClaim,
    CreateObject,
    DeleteObject,
    Evict,
    PatchAnnotations,
    PatchFields,
    PatchPodStatus,
    PatchStatus,
    PutConfigMap,
    ReleaseClaim,
    ReserveClaim,
    SelectNode,
)
from bayplan.errors import AlreadyExists, ClusterError, Conflict, Invalid, NotFound

__all__ = ["ObjectWrite", "bind", "carry_out"]

_LONGEST_BASE = 57
"""Characters of a generated name before the five that make it unique."""

PodWrite = Bind | Evict | PatchPodStatus
ClaimWrite = ReserveClaim | ReleaseClaim | CreateClaim
VolumeWrite = BindVolume | SelectNode
MetaWrite = (
    PatchStatus | PatchAnnotations | PatchFields | CreateObject | DeleteObject | PutConfigMap
)
ObjectWrite = PodWrite | ClaimWrite | VolumeWrite | MetaWrite
"""Every write except events."""


def carry_out(store: ObjectStore, write: ObjectWrite) -> None:
    """Carry out a write now.

    :raises ClusterError: when the write is refused.
    """
    if isinstance(write, MetaWrite):
        _write_object(store, write)
    elif isinstance(write, ReserveClaim):
        _reserve_claim(store, write)
    elif isinstance(write, ReleaseClaim):
        _release_claim(store, write)
    elif isinstance(write, CreateClaim):
        _create_claim(store, write)
    elif isinstance(write, BindVolume | SelectNode):
        _write_volume(store, write)
    else:
        _write_pod(store, write)


def _write_object(store: ObjectStore, write: MetaWrite) -> None:
    if isinstance(write, PutConfigMap):
        exists = store.get(type(write.config_map), write.config_map.key) is not None
        (store.update if exists else store.create)(write.config_map)
    elif isinstance(write, CreateObject):
        if write.obj.metadata.resource_version:
            raise Invalid("resourceVersion should not be set on objects to be created")
        with suppress(AlreadyExists):
            store.create(write.obj)
    elif isinstance(write, DeleteObject):
        obj = store.get(write.type, write.key)
        if obj is not None and write.uid in ("", obj.metadata.uid):
            store.delete(write.type, write.key, 0 if write.by_force else None)
    else:
        obj = store.get(write.type, write.key)
        if obj is None:
            raise NotFound(f"{write.type.__name__} {write.key} does not exist")
        store.update(_patched(store, obj, write))


def _patched(
    store: ObjectStore, obj: ApiObject, write: PatchStatus | PatchAnnotations | PatchFields
) -> ApiObject:
    if isinstance(write, PatchFields):
        if write.uid and obj.metadata.uid != write.uid:
            raise Conflict(f"{write.type.__name__} {write.key} was recreated meanwhile")
        return with_fields(obj, write.fields)
    if isinstance(write, PatchAnnotations):
        wanted = {**obj.metadata.annotations, **write.annotations}
        annotations = {name: text for name, text in wanted.items() if text is not None}
        return replace(obj, metadata=replace(obj.metadata, annotations=annotations))
    status = stamped(write.status, getattr(obj, "status", None), store.timestamp())
    return replace(obj, status=status)


# Pods ----------------------------------------------------------------------------------------


def _write_pod(store: ObjectStore, write: PodWrite) -> None:
    pod = store.get(Pod, write.pod)
    if pod is None:
        raise NotFound(f"Pod {write.pod} does not exist")
    if write.uid and pod.metadata.uid != write.uid:
        raise Conflict(f"Pod {write.pod} was recreated meanwhile")
    if isinstance(write, Bind):
        if store.get(Node, write.node) is None:
            raise NotFound(f"Node {write.node} does not exist")
        bind(store, pod, write)
    elif isinstance(write, Evict):
        _evict(store, pod, write)
    else:
        _patch_pod_status(store, pod, write)


def bind(store: ObjectStore, pod: Pod, write: Bind) -> None:
    """Give a pod its node.

    :raises Conflict: when the pod has a node or is being deleted.
    :raises Locked: while another pod has the lock that the binding needs.
    """
    if pod.spec.node_name:
        raise Conflict(f"Pod {pod.key} is on node {pod.spec.node_name} already")
    if pod.metadata.deletion_timestamp is not None:
        raise Conflict(f"Pod {pod.key} is being deleted")
    if write.lock is not None and not write.lock.own:
        # Nobody else binds pods here.
        _take_lock(store, write, write.lock)
    condition = PodCondition("PodScheduled", "True", last_transition_time=store.timestamp())
    pod = with_condition(with_spec(pod, node_name=write.node), condition)
    if write.annotations or write.labels:
        annotations = {**pod.metadata.annotations, **write.annotations}
        wanted = {**pod.metadata.labels, **write.labels}
        labels = {name: text for name, text in wanted.items() if text is not None}
        pod = replace(pod, metadata=replace(pod.metadata, annotations=annotations, labels=labels))
    store.update(pod)


def _take_lock(store: ObjectStore, write: Bind, lock: BindLock) -> None:
    node = store.get(Node, write.node)
    assert node is not None, "the binding's node exists"
    annotations = node.metadata.annotations
    now = seconds_of(store.timestamp())
    text = lock_for(write, annotations, now, lambda key: store.get(Pod, key) is not None)
    meta = replace(node.metadata, annotations={**annotations, lock.annotation: text})
    store.update(replace(node, metadata=meta))


def _evict(store: ObjectStore, pod: Pod, write: Evict) -> None:
    take_disruption(store, pod)
    condition = PodCondition(
        "DisruptionTarget", "True", "PreemptionByScheduler", write.message, store.timestamp()
    )
    store.update(with_condition(pod, condition))
    store.delete(Pod, pod.key)


def _patch_pod_status(store: ObjectStore, pod: Pod, write: PatchPodStatus) -> None:
    condition = replace(write.condition, last_transition_time=store.timestamp())
    pod = with_condition(pod, condition)
    if write.nominated_node is not None:
        status = replace(pod.status, nominated_node_name=write.nominated_node)
        pod = replace(pod, status=status)
    store.update(pod)


# Resource claims -----------------------------------------------------------------------------


def _claim(store: ObjectStore, key: str, uid: str) -> ResourceClaim:
    claim = store.get(ResourceClaim, key)
    if claim is None:
        raise NotFound(f"ResourceClaim {key} does not exist")
    if uid and claim.metadata.uid != uid:
        raise Conflict(f"ResourceClaim {key} was recreated meanwhile")
    return claim


def _reserve_claim(store: ObjectStore, write: ReserveClaim) -> None:
    claim = _claim(store, write.claim, write.uid)
    if claim.metadata.deletion_timestamp is not None:
        raise Conflict(f"ResourceClaim {write.claim} is being deleted")
    users = {reference.uid for reference in claim.status.reserved_for}
    if write.replaces and users <= {write.pod_uid}:
        claim = replace(claim, status=ResourceClaimStatus())
    allocation = claim.status.allocation
    if write.allocation is not None:
        if allocation is not None and allocation != write.allocation:
            raise Conflict(f"claim {write.claim} was allocated elsewhere in the meantime")
        allocation = write.allocation
    elif allocation is None:
        raise Conflict(f"claim {write.claim} lost its allocation in the meantime")
    namespace, _, name = write.pod.partition("/")
    assert namespace == claim.metadata.namespace, "pods use claims of their own namespace"
    consumer = ConsumerReference("pods", name, write.pod_uid)
    reserved = claim.status.reserved_for
    if all(reference.uid != write.pod_uid for reference in reserved):
        reserved = (*reserved, consumer)
    if len(reserved) > CONSUMER_LIMIT:
        raise ClusterError(
            f"claim {write.claim} is reserved for {CONSUMER_LIMIT} pods already, which is the limit"
        )
    if DELETE_PROTECTION not in claim.metadata.finalizers:
        finalizers = (*claim.metadata.finalizers, DELETE_PROTECTION)
        claim = store.update(
            replace(claim, metadata=replace(claim.metadata, finalizers=finalizers))
        )
    status = replace(claim.status, allocation=allocation, reserved_for=reserved)
    store.update(replace(claim, status=status))


def _release_claim(store: ObjectStore, write: ReleaseClaim) -> None:
    claim = _claim(store, write.claim, write.uid)
    left = tuple(r for r in claim.status.reserved_for if r.uid != write.pod_uid)
    status = replace(claim.status, reserved_for=left)
    if write.deallocate and not left:
        status = ResourceClaimStatus()
    if status != claim.status:
        store.update(replace(claim, status=status))


def _create_claim(store: ObjectStore, write: CreateClaim) -> None:
    pod = store.get(Pod, write.pod)
    if pod is None or pod.metadata.uid != write.pod_uid:
        raise NotFound(f"Pod {write.pod} does not exist")
    name = f"{pod.metadata.name}-extended-resources-"
    meta = ObjectMeta(
        generate_name=name if len(name) <= _LONGEST_BASE else f"{name[: _LONGEST_BASE - 1]}-",
        namespace=pod.metadata.namespace,
        annotations={EXTENDED_RESOURCE_CLAIM: "true"},
        owner_references=(reference_to(pod, "v1"),),
        finalizers=(DELETE_PROTECTION,),
    )
    claim = store.create(ResourceClaim(meta, write.claim.spec))
    consumer = ConsumerReference("pods", pod.metadata.name, pod.metadata.uid)
    store.update(replace(claim, status=ResourceClaimStatus(write.allocation, (consumer,))))
    extended = ExtendedResourceClaimStatus(claim.metadata.name, tuple(write.mappings))
    status = replace(pod.status, extended_resource_claim_status=extended)
    store.update(replace(pod, status=status))


# Volumes -------------------------------------------------------------------------------------


def _write_volume(store: ObjectStore, write: VolumeWrite) -> None:
    claim = store.get(PersistentVolumeClaim, write.claim)
    if claim is None:
        raise NotFound(f"PersistentVolumeClaim {write.claim} does not exist")
    if write.uid and claim.metadata.uid != write.uid:
        raise Conflict(f"PersistentVolumeClaim {write.claim} was recreated meanwhile")
    if claim.metadata.deletion_timestamp is not None:
        raise Conflict(f"PersistentVolumeClaim {write.claim} is being deleted")
    if isinstance(write, BindVolume):
        _bind_volume(store, write.volume, claim)
    else:
        _select_node(store, write.node, claim)


def _bind_volume(store: ObjectStore, name: str, claim: PersistentVolumeClaim) -> None:
    volume = store.get(PersistentVolume, name)
    if volume is None:
        raise NotFound(f"PersistentVolume {name} does not exist")
    if claim.spec.volume_name not in ("", name):
        raise Conflict(f"claim {claim.key} is bound to {claim.spec.volume_name} already")
    if is_kept_for(volume, claim):
        if volume.spec.claim_ref == volume_reference(claim):
            return
    elif not is_available(volume):
        raise Conflict(f"PersistentVolume {name} is no longer available")
    spec = replace(volume.spec, claim_ref=volume_reference(claim))
    store.update(replace(volume, spec=spec))


def _select_node(store: ObjectStore, node: str, claim: PersistentVolumeClaim) -> None:
    annotations = dict(claim.metadata.annotations)
    selected = annotations.pop(SELECTED_NODE, "")
    if selected == node:
        return
    if claim.spec.volume_name:
        raise Conflict(f"claim {claim.key} is bound to {claim.spec.volume_name} already")
    if node and selected:
        raise Conflict(f"claim {claim.key} is being provisioned for node {selected}")
    if node:
        annotations[SELECTED_NODE] = node
    store.update(replace(claim, metadata=replace(claim.metadata, annotations=annotations)))
