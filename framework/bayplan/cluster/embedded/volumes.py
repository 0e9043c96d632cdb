"""Volumes in the embedded cluster: binding, provisioning and reclaiming.

It does what a scheduler sees of three parts of Kubernetes: the persistent volume controller, the
controller for generic ephemeral volumes, and the provisioners of storage classes.
"""

from __future__ import annotations

from msgspec.structs import replace

from bayplan.api import (
    CSINode,
    Node,
    ObjectMeta,
    PersistentVolume,
    PersistentVolumeClaim,
    Pod,
    StorageClass,
)
from bayplan.api.pod import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Volume
from bayplan.api.storage import (
    CSIVolumeSource,
    PersistentVolumeClaimStatus,
    PersistentVolumeSpec,
    PersistentVolumeStatus,
    VolumeNodeAffinity,
)
from bayplan.api.volumes import (
    BIND_COMPLETED,
    BOUND_BY_CONTROLLER,
    NO_PROVISIONER,
    SELECTED_NODE,
    STORAGE,
    class_of,
    is_available,
    is_bound,
    is_kept_for,
    is_owned,
    needs_of,
    reference_to,
    size_of,
    used_claims,
)
from bayplan.cluster.embedded.owner_references import reference_to as owner_reference_to
from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.cluster.embedded.writes import carry_out
from bayplan.cluster.protocol import SelectNode, WatchEvent, WatchType
from bayplan.naming import natural_key

__all__ = ["VolumeController"]

_HOSTNAME = "kubernetes.io/hostname"
_PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"
_DELAYED = "WaitForFirstConsumer"


class VolumeController:
    """Binds claims to volumes, provisions volumes, creates ephemeral claims, reclaims volumes."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self._cluster = cluster
        self._unbound: dict[str, dict[str, None]] = {}
        self._free: dict[str, dict[str, None]] = {}
        self._kept: dict[str, dict[str, None]] = {}
        for volume in cluster.list(PersistentVolume):
            self._index(volume)
        cluster.watch(self.handle)

    def handle(self, event: WatchEvent) -> None:
        """React to a change of a claim, a volume, a class or a pod."""
        obj, gone = event.obj, event.type is WatchType.DELETED
        if event.type is WatchType.RESYNC:
            self._resync()
        elif isinstance(obj, Pod):
            if obj.spec.volumes:
                self._pod(obj, gone)
        elif isinstance(obj, PersistentVolumeClaim):
            if gone:
                self._claim_gone(obj)
            else:
                self._claim(obj.key)
        elif isinstance(obj, PersistentVolume):
            self._volume(obj)
        elif isinstance(obj, StorageClass) and not gone:
            for key in list(self._unbound.get(obj.metadata.name, ())):
                self._claim(key)

    def _resync(self) -> None:
        """Reconcile everything after a lost watch."""
        cluster = self._cluster
        for index in (self._unbound, self._free, self._kept):
            index.clear()
        for pod in cluster.list(Pod):
            self._pod(pod, gone=False)
        alive = {pod.metadata.uid for pod in cluster.list(Pod)}
        for claim in cluster.list(PersistentVolumeClaim):
            owners = [r.uid for r in claim.metadata.owner_references if r.kind == "Pod"]
            if owners and not alive.intersection(owners):
                cluster.delete(PersistentVolumeClaim, claim.key)
        for volume in cluster.list(PersistentVolume):
            self._index(volume)
        for volume in cluster.list(PersistentVolume):
            self._volume(volume)
        for claim in cluster.list(PersistentVolumeClaim):
            self._claim(claim.key)

    # Claims of ephemeral volumes -------------------------------------------------------------

    def _pod(self, pod: Pod, gone: bool) -> None:
        meta = pod.metadata
        for volume, used in zip(_claiming(pod), used_claims(pod), strict=True):
            if volume.ephemeral is None:
                continue
            key = f"{meta.namespace}/{used.name}"
            claim = self._cluster.get(PersistentVolumeClaim, key)
            if gone:
                if claim is not None and is_owned(claim, meta.uid):
                    self._cluster.delete(PersistentVolumeClaim, key)
            elif claim is None and meta.deletion_timestamp is None:
                template = volume.ephemeral.volume_claim_template
                made = ObjectMeta(
                    name=used.name,
                    namespace=meta.namespace,
                    labels=template.metadata.labels,
                    annotations=template.metadata.annotations,
                    owner_references=(owner_reference_to(pod, "v1"),),
                )
                self._cluster.create(PersistentVolumeClaim(made, template.spec))

    # Claims ----------------------------------------------------------------------------------

    def _claim(self, key: str) -> None:
        """Bind a claim if that is possible now."""
        claim = self._cluster.get(PersistentVolumeClaim, key)
        if claim is None or claim.metadata.deletion_timestamp is not None:
            return
        waiting = self._unbound.setdefault(class_of(claim), {})
        waiting.pop(key, None)
        if is_bound(claim):
            self._check_bound(claim)
            return
        volume = self._volume_for(claim)
        if volume is None:
            waiting[key] = None
            self._set_phase(key, "Pending")
        else:
            self._bind(claim, volume)

    def _volume_for(self, claim: PersistentVolumeClaim) -> PersistentVolume | None:
        """Return the volume for a claim, provisioned if its class allows it."""
        if claim.spec.volume_name:
            named = self._cluster.get(PersistentVolume, claim.spec.volume_name)
            free = named is not None and (named.spec.claim_ref is None or is_kept_for(named, claim))
            return named if free else None
        needs = needs_of(claim)
        for name in self._kept.get(claim.key, ()):
            kept = self._cluster.get(PersistentVolume, name)
            if kept is not None and is_kept_for(kept, claim) and needs.holds(kept):
                return kept
        found = self._cluster.get(StorageClass, class_of(claim))
        node = claim.metadata.annotations.get(SELECTED_NODE, "")
        if found is not None and found.volume_binding_mode == _DELAYED and not node:
            return None
        return self._smallest(claim) or (self._provisioned(claim, found, node) if found else None)

    def _smallest(self, claim: PersistentVolumeClaim) -> PersistentVolume | None:
        """Return the smallest available volume that satisfies a claim."""
        if SELECTED_NODE in claim.metadata.annotations:
            return None
        needs = needs_of(claim)
        names = self._free.get(needs.storage_class, ())
        volumes = [v for n in names if (v := self._cluster.get(PersistentVolume, n)) is not None]
        fitting = [volume for volume in volumes if needs.are_met_by(volume)]
        return min(fitting, key=lambda v: (size_of(v), natural_key(v.metadata.name)), default=None)

    def _check_bound(self, claim: PersistentVolumeClaim) -> None:
        """Check whether a bound claim still has its volume."""
        volume = self._cluster.get(PersistentVolume, claim.spec.volume_name)
        if volume is None:
            self._set_phase(claim.key, "Lost")
        elif volume.spec.claim_ref is None or is_kept_for(volume, claim):
            self._bind(claim, volume)

    def _bind(self, claim: PersistentVolumeClaim, volume: PersistentVolume) -> None:
        """Bind a claim and a volume to each other, the volume first."""
        spec = replace(volume.spec, claim_ref=reference_to(claim))
        bound = replace(volume, spec=spec, status=PersistentVolumeStatus("Bound"))
        if bound != volume:
            self._cluster.update(bound)
        meta = claim.metadata
        annotations = {BOUND_BY_CONTROLLER: "yes", **meta.annotations, BIND_COMPLETED: "yes"}
        status = PersistentVolumeClaimStatus(
            "Bound", volume.spec.access_modes, volume.spec.capacity
        )
        done = replace(
            claim,
            metadata=replace(meta, annotations=annotations),
            spec=replace(claim.spec, volume_name=volume.metadata.name),
            status=status,
        )
        if done != claim:
            self._cluster.update(done)

    def _set_phase(self, key: str, phase: str) -> None:
        claim = self._cluster.get(PersistentVolumeClaim, key)
        if claim is not None and claim.status.phase != phase:
            self._cluster.update(replace(claim, status=replace(claim.status, phase=phase)))

    def _claim_gone(self, claim: PersistentVolumeClaim) -> None:
        self._unbound.get(class_of(claim), {}).pop(claim.key, None)
        for name in list(self._kept.get(claim.key, ())):
            volume = self._cluster.get(PersistentVolume, name)
            if volume is not None:
                self._volume(volume)

    # Volumes ---------------------------------------------------------------------------------

    def _volume(self, seen: PersistentVolume) -> None:
        """Bind, release or offer a volume, whichever applies now."""
        name = seen.metadata.name
        volume = self._cluster.get(PersistentVolume, name)
        self._free.get(class_of(seen), {}).pop(name, None)
        if seen.spec.claim_ref is not None:
            self._kept.get(seen.spec.claim_ref.key, {}).pop(name, None)
        if volume is None:
            if seen.spec.claim_ref is not None:
                self._claim(seen.spec.claim_ref.key)
            return
        self._index(volume)
        if volume.spec.claim_ref is not None:
            self._kept_volume(volume)
        elif volume.status.phase in ("", "Pending"):
            status = PersistentVolumeStatus("Available")
            self._cluster.update(replace(volume, status=status))
        elif is_available(volume):
            self._offer(volume)

    def _index(self, volume: PersistentVolume) -> None:
        """Index a volume by the claim it is reserved for, or as available."""
        if volume.spec.claim_ref is not None:
            self._kept.setdefault(volume.spec.claim_ref.key, {})[volume.metadata.name] = None
        elif is_available(volume):
            self._free.setdefault(class_of(volume), {})[volume.metadata.name] = None

    def _kept_volume(self, volume: PersistentVolume) -> None:
        """Bind a volume to its claim; release it when the claim is gone."""
        reference = volume.spec.claim_ref
        assert reference is not None
        claim = self._cluster.get(PersistentVolumeClaim, reference.key)
        has = claim.spec.volume_name if claim is not None and is_kept_for(volume, claim) else None
        policy = volume.spec.persistent_volume_reclaim_policy
        if has in ("", volume.metadata.name):
            self._claim(reference.key)
        elif has and reference.uid and policy == "Retain":
            # Two volumes were chosen for the claim at once; this one is unused.
            spec = replace(volume.spec, claim_ref=None)
            self._cluster.update(replace(volume, spec=spec, status=PersistentVolumeStatus()))
        elif reference.uid:
            self._release(volume)
        elif volume.status.phase != "Available":
            self._cluster.update(replace(volume, status=PersistentVolumeStatus("Available")))

    def _release(self, volume: PersistentVolume) -> None:
        if volume.spec.persistent_volume_reclaim_policy == "Delete":
            self._cluster.delete(PersistentVolume, volume.metadata.name)
        elif volume.status.phase != "Released":
            self._cluster.update(replace(volume, status=PersistentVolumeStatus("Released")))

    def _offer(self, volume: PersistentVolume) -> None:
        """Bind a volume that became available to the first pending claim it satisfies."""
        found = self._cluster.get(StorageClass, class_of(volume))
        if found is not None and found.volume_binding_mode == _DELAYED:
            return
        for key in list(self._unbound.get(class_of(volume), ())):
            claim = self._cluster.get(PersistentVolumeClaim, key)
            if claim is None or not needs_of(claim).are_met_by(volume):
                continue
            self._claim(key)
            now = self._cluster.get(PersistentVolume, volume.metadata.name)
            if now is None or not is_available(now):
                return

    # Making volumes --------------------------------------------------------------------------

    def _provisioned(
        self, claim: PersistentVolumeClaim, made_by: StorageClass, node: str
    ) -> PersistentVolume | None:
        """Provision a volume for a claim; return None when its class has no provisioner.

        When the selected node is gone, clears the selection so that the scheduler selects another.
        """
        if made_by.provisioner == NO_PROVISIONER:
            return None
        where = self._cluster.get(Node, node) if node else None
        if node and where is None:
            carry_out(self._cluster, SelectNode(claim.key, claim.metadata.uid, ""))
            return None
        name = f"pvc-{claim.metadata.uid}"
        known = self._cluster.get(PersistentVolume, name)
        if known is not None:
            return known
        spec = PersistentVolumeSpec(
            capacity={STORAGE: claim.spec.resources.requests[STORAGE]},
            access_modes=claim.spec.access_modes,
            claim_ref=reference_to(claim),
            storage_class_name=made_by.metadata.name,
            volume_mode=claim.spec.volume_mode,
            node_affinity=self._reach(made_by, where),
            csi=CSIVolumeSource(made_by.provisioner, name),
            persistent_volume_reclaim_policy=made_by.reclaim_policy,
            volume_attributes_class_name=claim.spec.volume_attributes_class_name,
        )
        meta = ObjectMeta(name=name, annotations={_PROVISIONED_BY: made_by.provisioner})
        return self._cluster.create(PersistentVolume(meta, spec))

    def _reach(self, made_by: StorageClass, node: Node | None) -> VolumeNodeAffinity | None:
        """Return the node affinity of a new volume, None when every node can reach it.

        A driver without a CSINode provisions local volumes.
        """
        if node is None:
            terms = made_by.allowed_topologies[:1]
            wanted = {r.key: r.values for term in terms for r in term.match_label_expressions}
        else:
            said = self._cluster.get(CSINode, node.metadata.name)
            driver = said.driver(made_by.provisioner) if said is not None else None
            keys = driver.topology_keys if driver is not None else (_HOSTNAME,)
            labels = {_HOSTNAME: node.metadata.name, **node.metadata.labels}
            wanted = {key: (labels[key],) for key in keys if key in labels}
        if not wanted:
            return None
        term = NodeSelectorTerm(
            tuple(NodeSelectorRequirement(key, "In", values) for key, values in wanted.items())
        )
        return VolumeNodeAffinity(NodeSelector((term,)))


def _claiming(pod: Pod) -> list[Volume]:
    return [v for v in pod.spec.volumes if v.persistent_volume_claim or v.ephemeral]
