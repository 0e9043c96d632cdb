"""The resource claim controller, as k8s.io/kubernetes pkg/controller/resourceclaim.

It creates claims from templates, releases those of finished pods, deallocates what nobody uses any
more, and deletes generated claims with their pods.
"""

from __future__ import annotations

from msgspec.structs import replace

from bayplan.api import ObjectMeta, Pod, ResourceClaim, ResourceClaimTemplate
from bayplan.api.dra import (
    DELETE_PROTECTION,
    POD_CLAIM_NAME,
)
from bayplan.api.pod import PodResourceClaimStatus
from bayplan.cluster.embedded.owner_references import reference_to
from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.cluster.protocol import (
    WatchEvent,
    WatchType,
)

__all__ = ["ClaimController"]

_LONGEST_BASE = 57
"""Characters of a generated name before the five that make it unique."""


class ClaimController:
    """Creates, releases and deletes the claims of pods."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self._cluster = cluster
        self._waiting: dict[str, dict[str, None]] = {}
        self._owned: dict[str, dict[str, None]] = {}
        self._consumers: dict[str, frozenset[str]] = {}
        """The UIDs of the consumers of each claim, as it was seen last."""
        cluster.watch(self.handle)

    def handle(self, event: WatchEvent) -> None:
        """React to a change of a pod, a template or a claim."""
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
        """Reconcile everything after a lost watch."""
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
                owner_references=(reference_to(pod, "v1"),),
            ),
            template.spec.spec,
        )
        return self._cluster.create(claim)

    # Freeing ---------------------------------------------------------------------------------

    def _over(self, pod: Pod) -> None:
        """Release the claims of a finished pod, and delete those created for it."""
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
        """Take a pod off a claim's consumers; the claim is deallocated with its last one."""
        left = tuple(r for r in claim.status.reserved_for if r.uid != pod_uid)
        if left != claim.status.reserved_for:
            status = replace(claim.status, reserved_for=left)
            if not left and DELETE_PROTECTION in claim.metadata.finalizers:
                status = replace(status, allocation=None, devices=())
            claim = self._cluster.update(replace(claim, status=status))
            if claim.status.allocation is None:
                self._unprotect(claim)
        elif _may_go(claim):
            self._free(claim)

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
            self._free(current)
        self._drop_late(type_, claim)

    def _drop_late(self, type_: WatchType, claim: ResourceClaim) -> None:
        """Take off consumers that were added after their pod had gone: nobody else would."""
        if type_ is WatchType.DELETED:
            self._consumers.pop(claim.key, None)
            return
        before = self._consumers.get(claim.key, frozenset())
        now = self._consumers[claim.key] = frozenset(r.uid for r in claim.status.reserved_for)
        for reference in claim.status.reserved_for if type_ is WatchType.MODIFIED else ():
            if reference.resource != "pods" or reference.uid in before:
                continue
            pod = self._cluster.get(Pod, f"{claim.metadata.namespace}/{reference.name}")
            current = self._cluster.get(ResourceClaim, claim.key)
            if (pod is None or pod.metadata.uid != reference.uid) and current is not None:
                self._drop(current, reference.uid)
        if not now:
            del self._consumers[claim.key]

    def _free(self, claim: ResourceClaim) -> None:
        """Deallocate a claim that is being deleted, and let it go."""
        if claim.status.allocation is not None:
            status = replace(claim.status, allocation=None, devices=())
            claim = self._cluster.update(replace(claim, status=status))
        self._unprotect(claim)

    def _unprotect(self, claim: ResourceClaim) -> None:
        """Remove the finalizer of allocated claims; those of others stay."""
        left = tuple(one for one in claim.metadata.finalizers if one != DELETE_PROTECTION)
        if left != claim.metadata.finalizers:
            meta = replace(claim.metadata, finalizers=left)
            self._cluster.update(replace(claim, metadata=meta))


def _may_go(claim: ResourceClaim) -> bool:
    """Return whether a claim is being deleted, no longer used, and kept for its devices alone."""
    marked = claim.metadata.deletion_timestamp is not None
    return (
        marked and not claim.status.reserved_for and DELETE_PROTECTION in claim.metadata.finalizers
    )
