"""Claims in the embedded cluster: the claim controller, and what a scheduler writes to claims.

The controller makes claims from templates, frees those of pods that have ended, and deletes them
with their pods, as kube-controller-manager does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from bayplan.api import ObjectMeta, OwnerReference, Pod, ResourceClaim, ResourceClaimTemplate
from bayplan.api.dra import (
    CONSUMER_LIMIT,
    DELETE_PROTECTION,
    EXTENDED_RESOURCE_CLAIM,
    POD_CLAIM_NAME,
    ConsumerReference,
    ResourceClaimStatus,
)
from bayplan.api.pod import ExtendedResourceClaimStatus, PodResourceClaimStatus
from bayplan.cluster.protocol import (
    CreateClaim,
    ReleaseClaim,
    ReserveClaim,
    WatchEvent,
    WatchType,
)
from bayplan.errors import ClusterError, Conflict, NotFound

if TYPE_CHECKING:
    from bayplan.cluster.embedded.store import MemoryCluster

__all__ = ["ClaimController", "write_claim"]

_LONGEST_BASE = 57
"""Characters of a generated name before the five that make it unique."""


class ClaimController:
    """Makes, frees and removes the claims of pods."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self._cluster = cluster
        self._waiting: dict[str, dict[str, None]] = {}
        self._owned: dict[str, dict[str, None]] = {}
        cluster.watch(self.handle)

    def handle(self, event: WatchEvent) -> None:
        """Act on a pod, a template or a claim that changed."""
        obj = event.obj
        if event.type is WatchType.RESYNC:
            self._resync()
        elif isinstance(obj, Pod):
            self._pod(event.type, obj)
        elif isinstance(obj, ResourceClaimTemplate) and event.type is not WatchType.DELETED:
            key = f"{obj.metadata.namespace}/{obj.metadata.name}"
            for pod_key in self._waiting.pop(key, {}):
                pod = self._cluster.get(Pod, pod_key)
                if pod is not None:
                    self._pod(WatchType.MODIFIED, pod)
        elif isinstance(obj, ResourceClaim):
            self._claim(event.type, obj)

    def _pod(self, type_: WatchType, pod: Pod) -> None:
        extended = pod.status.extended_resource_claim_status
        if not pod.spec.resource_claims and not extended and pod.metadata.uid not in self._owned:
            return
        if type_ is WatchType.DELETED or pod.status.phase in ("Succeeded", "Failed"):
            self._over(pod)
        elif pod.metadata.deletion_timestamp is None:
            self._make_claims(pod)

    def _resync(self) -> None:
        """Look at everything anew after a lost watch."""
        alive = {pod.metadata.uid for pod in self._cluster.list(Pod)}
        for claim in self._cluster.list(ResourceClaim):
            owners = [r.uid for r in claim.metadata.owner_references if r.kind == "Pod"]
            if owners and not alive.intersection(owners):
                self._cluster.delete(ResourceClaim, claim.key)
            for reference in claim.status.reserved_for:
                current = self._cluster.get(ResourceClaim, claim.key)
                if current is not None and reference.uid not in alive:
                    self._drop(current, reference.uid)
        for pod in self._cluster.list(Pod):
            self._pod(WatchType.MODIFIED, pod)

    # Making ----------------------------------------------------------------------------------

    def _make_claims(self, pod: Pod) -> None:
        current = self._cluster.get(Pod, pod.key)
        if current is None or current.metadata.uid != pod.metadata.uid:
            return
        pod = current
        known = {status.name for status in pod.status.resource_claim_statuses}
        made: list[PodResourceClaimStatus] = []
        for wanted in pod.spec.resource_claims:
            template_name = wanted.resource_claim_template_name
            if template_name is None or wanted.name in known:
                continue
            key = f"{pod.metadata.namespace}/{template_name}"
            template = self._cluster.get(ResourceClaimTemplate, key)
            if template is None:
                self._waiting.setdefault(key, {})[pod.key] = None
                continue
            claim = self._make_claim(pod, wanted.name, template)
            made.append(PodResourceClaimStatus(wanted.name, claim.metadata.name))
        if made:
            statuses = (*pod.status.resource_claim_statuses, *made)
            status = replace(pod.status, resource_claim_statuses=statuses)
            self._cluster.update(replace(pod, status=status))

    def _make_claim(self, pod: Pod, name: str, template: ResourceClaimTemplate) -> ResourceClaim:
        meta = template.spec.metadata
        base = f"{pod.metadata.name}-{name}-"
        if len(base) > _LONGEST_BASE:
            base = f"{base[: _LONGEST_BASE - 1]}-"
        claim = ResourceClaim(
            ObjectMeta(
                generate_name=base,
                namespace=pod.metadata.namespace,
                labels=meta.labels,
                annotations={**meta.annotations, POD_CLAIM_NAME: name},
                owner_references=(_owner(pod),),
            ),
            template.spec.spec,
        )
        return self._cluster.create(claim)

    # Freeing ---------------------------------------------------------------------------------

    def _over(self, pod: Pod) -> None:
        """Free the claims of a pod that has ended, and delete those that were made for it."""
        names = [claim.resource_claim_name for claim in pod.spec.resource_claims]
        names += [status.resource_claim_name for status in pod.status.resource_claim_statuses]
        extended = pod.status.extended_resource_claim_status
        if extended is not None:
            names.append(extended.resource_claim_name)
        names += self._owned.get(pod.metadata.uid, {})
        for name in dict.fromkeys(names):
            key = f"{pod.metadata.namespace}/{name}"
            claim = self._cluster.get(ResourceClaim, key) if name is not None else None
            if claim is None:
                continue
            made_for_it = any(r.uid == pod.metadata.uid for r in claim.metadata.owner_references)
            if made_for_it:
                self._cluster.delete(ResourceClaim, key)
                claim = self._cluster.get(ResourceClaim, key)
            if claim is not None:
                self._drop(claim, pod.metadata.uid)

    def _drop(self, claim: ResourceClaim, pod_uid: str) -> None:
        left = tuple(r for r in claim.status.reserved_for if r.uid != pod_uid)
        if left == claim.status.reserved_for and not _may_go(claim):
            return
        status = replace(claim.status, reserved_for=left)
        self._settle(replace(claim, status=status))

    def _claim(self, type_: WatchType, claim: ResourceClaim) -> None:
        for reference in claim.metadata.owner_references:
            owned = self._owned.setdefault(reference.uid, {})
            if type_ is WatchType.DELETED:
                owned.pop(claim.metadata.name, None)
            else:
                owned[claim.metadata.name] = None
            if not owned:
                del self._owned[reference.uid]
        current = self._cluster.get(ResourceClaim, claim.key)
        if current is not None and _may_go(current):
            self._settle(current)

    def _settle(self, claim: ResourceClaim) -> None:
        """Store a claim; one that is being deleted loses its allocation, then its finalizer."""
        if _may_go(claim):
            if claim.status.allocation is not None:
                claim = replace(claim, status=replace(claim.status, allocation=None, devices=()))
                claim = self._cluster.update(claim)
            finalizers = tuple(f for f in claim.metadata.finalizers if f != DELETE_PROTECTION)
            claim = replace(claim, metadata=replace(claim.metadata, finalizers=finalizers))
        self._cluster.update(claim)


def _may_go(claim: ResourceClaim) -> bool:
    """Whether a claim that is being deleted is used by nobody any more."""
    marked = claim.metadata.deletion_timestamp is not None
    return marked and not claim.status.reserved_for and bool(claim.metadata.finalizers)


def _owner(pod: Pod) -> OwnerReference:
    return OwnerReference("Pod", pod.metadata.name, pod.metadata.uid, "v1", controller=True)


# What a scheduler writes ---------------------------------------------------------------------


def write_claim(cluster: MemoryCluster, write: ReserveClaim | ReleaseClaim | CreateClaim) -> None:
    """Carry out a scheduler's write to a claim.

    :raises ClusterError: when it cannot be done.
    """
    if isinstance(write, ReserveClaim):
        _reserve(cluster, write)
    elif isinstance(write, ReleaseClaim):
        _release(cluster, write)
    else:
        _create(cluster, write)


def _found(cluster: MemoryCluster, key: str, uid: str) -> ResourceClaim:
    claim = cluster.get(ResourceClaim, key)
    if claim is None:
        raise NotFound(f"ResourceClaim {key} does not exist")
    if uid and claim.metadata.uid != uid:
        raise Conflict(f"ResourceClaim {key} was made anew since")
    return claim


def _reserve(cluster: MemoryCluster, write: ReserveClaim) -> None:
    claim = _found(cluster, write.claim, write.uid)
    if claim.metadata.deletion_timestamp is not None:
        raise Conflict(f"ResourceClaim {write.claim} is being deleted")
    allocation = claim.status.allocation
    if write.allocation is not None:
        if allocation is not None and allocation != write.allocation:
            raise Conflict(f"claim {write.claim} got allocated elsewhere in the meantime")
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
        claim = cluster.update(
            replace(claim, metadata=replace(claim.metadata, finalizers=finalizers))
        )
    status = replace(claim.status, allocation=allocation, reserved_for=reserved)
    cluster.update(replace(claim, status=status))


def _release(cluster: MemoryCluster, write: ReleaseClaim) -> None:
    claim = _found(cluster, write.claim, write.uid)
    left = tuple(r for r in claim.status.reserved_for if r.uid != write.pod_uid)
    status = replace(claim.status, reserved_for=left)
    if write.deallocate and not left:
        status = ResourceClaimStatus()
    if status != claim.status:
        cluster.update(replace(claim, status=status))


def _create(cluster: MemoryCluster, write: CreateClaim) -> None:
    pod = cluster.get(Pod, write.pod)
    if pod is None or pod.metadata.uid != write.pod_uid:
        raise NotFound(f"Pod {write.pod} does not exist")
    name = f"{pod.metadata.name}-extended-resources-"
    meta = ObjectMeta(
        generate_name=name if len(name) <= _LONGEST_BASE else f"{name[: _LONGEST_BASE - 1]}-",
        namespace=pod.metadata.namespace,
        annotations={EXTENDED_RESOURCE_CLAIM: "true"},
        owner_references=(_owner(pod),),
        finalizers=(DELETE_PROTECTION,),
    )
    claim = cluster.create(ResourceClaim(meta, write.claim.spec))
    consumer = ConsumerReference("pods", pod.metadata.name, pod.metadata.uid)
    cluster.update(replace(claim, status=ResourceClaimStatus(write.allocation, (consumer,))))
    extended = ExtendedResourceClaimStatus(claim.metadata.name, tuple(write.mappings))
    status = replace(pod.status, extended_resource_claim_status=extended)
    cluster.update(replace(pod, status=status))
