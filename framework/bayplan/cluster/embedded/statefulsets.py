"""The StatefulSet controller, as k8s.io/kubernetes pkg/controller/statefulset."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from msgspec.structs import replace

from bayplan.api import (
    ControllerRevision,
    ObjectMeta,
    PersistentVolumeClaim,
    Pod,
    StatefulSet,
)
from bayplan.api.pod import PersistentVolumeClaimSource, PodSpec, Volume
from bayplan.api.workloads import StatefulSetStatus
from bayplan.cluster.embedded.children import (
    Children,
    PodOverrides,
    available_at,
    is_available,
    is_ready,
)
from bayplan.cluster.embedded.int_or_percent import amount_of
from bayplan.cluster.embedded.revisions import REVISION_LABEL, Revisions, template_in
from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.dialects.reading import is_index

__all__ = ["StatefulSetController"]

_COMPONENT = "statefulset-controller"
_POD_NAME = "statefulset.kubernetes.io/pod-name"
_POD_INDEX = "apps.kubernetes.io/pod-index"


class _RolloutRevisions(msgspec.Struct, frozen=True):
    """The revisions of a rollout: the one before it, and the one after."""

    current: ControllerRevision
    update: ControllerRevision


class StatefulSetController:
    """Creates and replaces the pods of StatefulSets, in order or in parallel."""

    def __init__(self, cluster: MemoryCluster, children: Children) -> None:
        self._cluster = cluster
        self._children = children
        self._revisions = Revisions(cluster, children)

    def reconcile(self, owner: StatefulSet) -> float | None:
        """Reconcile a StatefulSet; return when to do so again, None for never."""
        pods = {_ordinal(pod.metadata.name): pod for pod in self._children.pods(owner)}
        pods.pop(-1, None)
        versions = self._versions(owner, pods)
        self._act(owner, versions, pods)
        pods = {_ordinal(pod.metadata.name): pod for pod in self._children.pods(owner)}
        self._count(owner, versions, pods)
        self._revisions.truncate(owner, _used(versions, pods.values()))
        least = owner.spec.min_ready_seconds
        times = [available_at(self._cluster, pod, least) for pod in pods.values()]
        return min((at for at in times if at is not None and at > self._cluster.now), default=None)

    # Revisions ---------------------------------------------------------------------------

    def _versions(self, owner: StatefulSet, pods: Mapping[int, Pod]) -> _RolloutRevisions:
        carried = [pod.metadata.labels.get(REVISION_LABEL, "") for pod in pods.values()]
        prefix = f"{owner.metadata.name}-"
        adopted = next((c.removeprefix(prefix) for c in carried if c.startswith(prefix)), "")
        update = self._revisions.sync(owner, adopted)
        known = {one.metadata.name: one for one in self._children.revisions(owner)}
        return _RolloutRevisions(known.get(owner.status.current_revision, update), update)

    def _version_for(
        self, owner: StatefulSet, versions: _RolloutRevisions, ordinal: int
    ) -> ControllerRevision:
        """Return the revision in which to create a pod."""
        strategy = owner.spec.update_strategy
        start = owner.spec.ordinals.start
        if versions.current == versions.update or strategy.type != "RollingUpdate":
            return versions.update
        rolling = strategy.rolling_update
        old = rolling is not None and ordinal < start + rolling.partition
        return versions.current if old else versions.update

    # Pods --------------------------------------------------------------------------------

    def _act(self, owner: StatefulSet, versions: _RolloutRevisions, pods: dict[int, Pod]) -> None:
        ordered = owner.spec.pod_management_policy == "OrderedReady"
        start = owner.spec.ordinals.start
        wanted = range(start, start + owner.spec.replicas)
        for ordinal in wanted:
            if self._keep_up(owner, versions, ordinal, pods.get(ordinal)) and ordered:
                return
        surplus = sorted((o for o in pods if o not in wanted), reverse=True)
        for ordinal in surplus:
            self._end(owner, pods[ordinal])
            if ordered:
                return
        if owner.spec.update_strategy.type == "RollingUpdate":
            self._roll(owner, versions, pods, wanted)

    def _keep_up(
        self, owner: StatefulSet, versions: _RolloutRevisions, ordinal: int, pod: Pod | None
    ) -> bool:
        """Create a missing pod; return whether the next ordinals have to wait."""
        if pod is not None and pod.status.phase in ("Failed", "Succeeded"):
            if pod.metadata.deletion_timestamp is None:
                self._end(owner, pod)
            pod = self._cluster.get(Pod, pod.key)
        if pod is None:
            self._make(owner, self._version_for(owner, versions, ordinal), ordinal)
            return True
        if pod.metadata.deletion_timestamp is not None:
            return True
        return not is_available(self._cluster, pod, owner.spec.min_ready_seconds)

    def _roll(
        self,
        owner: StatefulSet,
        versions: _RolloutRevisions,
        pods: Mapping[int, Pod],
        wanted: range,
    ) -> None:
        """Delete pods of an old revision, highest ordinal first, up to maxUnavailable at once."""
        rolling = owner.spec.update_strategy.rolling_update
        partition = rolling.partition if rolling is not None else 0
        most = 1
        if rolling is not None and rolling.max_unavailable is not None:
            most = max(1, amount_of(rolling.max_unavailable, owner.spec.replicas, up=True))
        least = owner.spec.min_ready_seconds
        missing = sum(
            o not in pods
            or pods[o].metadata.deletion_timestamp is not None
            or not is_available(self._cluster, pods[o], least)
            for o in wanted
        )
        name = versions.update.metadata.name
        for ordinal in reversed(wanted):
            pod = pods.get(ordinal)
            if ordinal < wanted.start + partition or pod is None:
                continue
            if pod.metadata.deletion_timestamp is not None:
                if most == 1:
                    return
                continue
            available = is_available(self._cluster, pod, least)
            # An unlabeled pod counts as current.
            if pod.metadata.labels.get(REVISION_LABEL, name) == name:
                if not available and most == 1:
                    return
                continue
            # Replacing an unavailable pod costs nothing.
            if available and missing >= most:
                return
            missing += available
            self._end(owner, pod)
            if most == 1:
                return

    def _make(self, owner: StatefulSet, revision: ControllerRevision, ordinal: int) -> None:
        name = f"{owner.metadata.name}-{ordinal}"
        labels = {
            _POD_NAME: name,
            _POD_INDEX: str(ordinal),
            REVISION_LABEL: revision.metadata.name,
        }
        template = template_in(revision, self._cluster)
        spec = self._with_claims(owner, template.typed.spec, name)
        extra = {"hostname": name}
        if owner.spec.service_name:
            extra["subdomain"] = owner.spec.service_name
        if self._children.make(
            owner, template, PodOverrides(name=name, labels=labels), spec, extra
        ):
            text = f"Create Pod {name} in StatefulSet {owner.metadata.name} successful"
            self._cluster.record_event(owner, _COMPONENT, "SuccessfulCreate", text)

    def _end(self, owner: StatefulSet, pod: Pod) -> None:
        if pod.metadata.deletion_timestamp is None:
            self._children.delete(pod)
            text = f"Delete Pod {pod.metadata.name} in StatefulSet {owner.metadata.name} successful"
            self._cluster.record_event(owner, _COMPONENT, "SuccessfulDelete", text)

    def _with_claims(self, owner: StatefulSet, spec: PodSpec, pod: str) -> PodSpec:
        """Create the missing volume claims of a pod; return its spec with them."""
        wanted = owner.spec.volume_claim_templates
        if not wanted:
            return spec
        namespace = owner.metadata.namespace
        for one in wanted:
            name = f"{one.metadata.name}-{pod}"
            if self._cluster.get(PersistentVolumeClaim, f"{namespace}/{name}") is None:
                meta = ObjectMeta(
                    name=name,
                    namespace=namespace,
                    labels=one.metadata.labels,
                    annotations=one.metadata.annotations,
                )
                self._cluster.create(PersistentVolumeClaim(meta, one.spec))
        volumes = {volume.name: volume for volume in spec.volumes}
        for one in wanted:
            source = PersistentVolumeClaimSource(f"{one.metadata.name}-{pod}")
            volumes[one.metadata.name] = Volume(one.metadata.name, source)
        return replace(spec, volumes=tuple(volumes.values()))

    # Status ------------------------------------------------------------------------------

    def _count(
        self, owner: StatefulSet, versions: _RolloutRevisions, found: Mapping[int, Pod]
    ) -> None:
        pods = list(found.values())
        living = [p for p in pods if p.metadata.deletion_timestamp is None]
        current, update = versions.current.metadata.name, versions.update.metadata.name
        of = [p.metadata.labels.get(REVISION_LABEL) for p in living]
        ready = sum(is_ready(p) for p in pods)
        updated, replicas = of.count(update), len(pods)
        least = owner.spec.min_ready_seconds
        available = sum(is_available(self._cluster, p, least) for p in pods)
        rolled = owner.spec.update_strategy.type == "RollingUpdate"
        if rolled and updated == replicas == ready == owner.spec.replicas:
            current = update
        status = StatefulSetStatus(
            observed_generation=self._cluster.generation_of(owner),
            replicas=replicas,
            ready_replicas=ready or None,
            current_replicas=of.count(current) or None,
            updated_replicas=updated or None,
            available_replicas=available,
            current_revision=current,
            update_revision=update,
            collision_count=0,
        )
        if status != owner.status:
            self._cluster.update(replace(owner, status=status))


def _used(versions: _RolloutRevisions, pods: Iterable[Pod]) -> set[str]:
    names = {versions.current.metadata.name, versions.update.metadata.name}
    return names | {pod.metadata.labels.get(REVISION_LABEL, "") for pod in pods}


def _ordinal(name: str) -> int:
    text = name.rsplit("-", 1)[-1]
    return int(text) if is_index(text) else -1
