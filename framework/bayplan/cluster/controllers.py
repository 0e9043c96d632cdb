"""The workload controllers of the embedded cluster: pods for Jobs, ReplicaSets and the rest.

They name, label and replace pods as the controllers of kube-controller-manager do, as far as a
scheduler and its users can see it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from bayplan.api import (
    Deployment,
    Job,
    ObjectMeta,
    OwnerReference,
    PersistentVolumeClaim,
    Pod,
    ReplicaSet,
    StatefulSet,
)
from bayplan.api.meta import LabelSelector
from bayplan.api.pod import PersistentVolumeClaimSource, PodTemplate, Volume
from bayplan.cluster.protocol import WatchEvent, WatchType
from bayplan.dialects.reading import is_index
from bayplan.errors import AlreadyExists, InputError
from bayplan.manifests import object_key

if TYPE_CHECKING:
    from bayplan.cluster.memory import MemoryCluster

__all__ = ["WorkloadControllers"]

Owner = Job | ReplicaSet | StatefulSet | Deployment
_API_VERSIONS = {
    Job: "batch/v1",
    ReplicaSet: "apps/v1",
    StatefulSet: "apps/v1",
    Deployment: "apps/v1",
}


class WorkloadControllers:
    """Creates and replaces the pods of the workloads in an embedded cluster."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self._cluster = cluster
        self._pods: dict[str, dict[str, Pod]] = {}
        self._finished: dict[str, set[int | str]] = {}
        self._failures: dict[str, int] = {}
        self._dirty: dict[str, tuple[type[Owner], str]] = {}
        cluster.watch(self.handle)

    def handle(self, event: WatchEvent) -> None:
        """Bring a workload to its desired state after it, or a pod of it, changed."""
        obj = event.obj
        if isinstance(obj, Pod):
            self._pod_changed(event.type, obj)
        elif isinstance(obj, Job | ReplicaSet | StatefulSet | Deployment):
            if event.type is WatchType.DELETED:
                self._delete_children(obj)
            else:
                self._request(type(obj), object_key(obj), obj.metadata.uid)

    def _request(self, kind: type[Owner], key: str, uid: str) -> None:
        """Reconcile a workload once this instant's events are all known."""
        if not self._dirty:
            self._cluster.clock.call_later(0, self._reconcile_all)
        self._dirty[uid] = (kind, key)

    def _reconcile_all(self) -> None:
        dirty, self._dirty = self._dirty, {}
        for uid, (kind, key) in dirty.items():
            owner = self._cluster.get(kind, key)
            if owner is not None and owner.metadata.uid == uid:
                self._reconcile(owner)

    def _pod_changed(self, type_: WatchType, pod: Pod) -> None:
        reference = next((r for r in pod.metadata.owner_references if r.controller), None)
        if reference is None:
            return
        children = self._pods.setdefault(reference.uid, {})
        if type_ is WatchType.DELETED:
            children.pop(pod.key, None)
        else:
            children[pod.key] = pod
        kinds: dict[str, type[Owner]] = {
            "Job": Job,
            "ReplicaSet": ReplicaSet,
            "StatefulSet": StatefulSet,
        }
        kind = kinds.get(reference.kind)
        if kind is None:
            return
        self._request(kind, f"{pod.metadata.namespace}/{reference.name}", reference.uid)

    def _reconcile(self, owner: Owner) -> None:
        if isinstance(owner, Deployment):
            self._deployment(owner)
        elif isinstance(owner, Job):
            self._job(owner)
        elif isinstance(owner, ReplicaSet):
            self._replica_set(owner)
        else:
            self._stateful_set(owner)

    def _children(self, owner: Owner) -> list[Pod]:
        found = self._pods.get(owner.metadata.uid, {}).values()
        return [
            current
            for pod in found
            if (current := self._cluster.get(Pod, pod.key)) is not None
            and current.metadata.uid == pod.metadata.uid
        ]

    def _delete_children(self, owner: Owner) -> None:
        if isinstance(owner, Deployment):
            for replica_set in self._cluster.list(ReplicaSet):
                if _owned_by(replica_set.metadata, owner):
                    self._cluster.delete(ReplicaSet, object_key(replica_set))
            return
        for pod in self._children(owner):
            if _owned_by(pod.metadata, owner):
                self._cluster.delete(Pod, pod.key)

    def _make(
        self,
        owner: Owner,
        template: PodTemplate,
        name: str = "",
        generate_name: str = "",
        labels: dict[str, str] | None = None,
        annotations: dict[str, str] | None = None,
    ) -> None:
        meta = ObjectMeta(
            name=name,
            generate_name=generate_name,
            namespace=owner.metadata.namespace,
            labels={**template.metadata.labels, **(labels or {})},
            annotations={**template.metadata.annotations, **(annotations or {})},
            owner_references=(_reference(owner),),
        )
        try:
            pod = self._cluster.create(Pod(meta, template.spec))
        except AlreadyExists:
            # A pod of somebody else has the name: a controller waits until it is free.
            return
        except InputError as exc:
            self._cluster.report(owner, exc)
            return
        self._pods.setdefault(owner.metadata.uid, {})[pod.key] = pod

    def _replica_set(self, owner: ReplicaSet) -> None:
        alive = [pod for pod in self._children(owner) if _alive(pod)]
        for _ in range(owner.spec.replicas - len(alive)):
            self._make(owner, owner.spec.template, generate_name=f"{owner.metadata.name}-")
        surplus = len(alive) - owner.spec.replicas
        # Pods without a node go first, then the youngest.
        youngest_first = [p for p in reversed(alive) if not p.spec.node_name]
        youngest_first += [p for p in reversed(alive) if p.spec.node_name]
        for pod in youngest_first[: max(0, surplus)]:
            self._cluster.delete(Pod, pod.key)

    def _deployment(self, owner: Deployment) -> None:
        content = msgspec.json.encode(owner.spec.template, enc_hook=lambda q: q.text)
        digest = hashlib.sha256(content).hexdigest()[:10]
        name = f"{owner.metadata.name}-{digest}"
        key = f"{owner.metadata.namespace}/{name}"
        labels = {"pod-template-hash": digest}
        selector = owner.spec.selector or LabelSelector()
        template_meta = owner.spec.template.metadata
        template = replace(
            owner.spec.template,
            metadata=replace(template_meta, labels={**template_meta.labels, **labels}),
        )
        spec = replace(
            owner.spec,
            selector=replace(selector, match_labels={**selector.match_labels, **labels}),
            template=template,
        )
        current = self._cluster.get(ReplicaSet, key)
        if current is None:
            meta = ObjectMeta(
                name=name,
                namespace=owner.metadata.namespace,
                labels=template.metadata.labels,
                owner_references=(_reference(owner),),
            )
            self._cluster.create(ReplicaSet(meta, spec))
        elif current.spec.replicas != owner.spec.replicas:
            self._cluster.update(replace(current, spec=spec))
        for other in self._cluster.list(ReplicaSet):
            if (
                _owned_by(other.metadata, owner)
                and object_key(other) != key
                and other.spec.replicas
            ):
                self._cluster.update(replace(other, spec=replace(other.spec, replicas=0)))

    def _stateful_set(self, owner: StatefulSet) -> None:
        by_name = {pod.metadata.name: pod for pod in self._children(owner)}
        ordered = owner.spec.pod_management_policy == "OrderedReady"
        for ordinal in range(owner.spec.replicas):
            name = f"{owner.metadata.name}-{ordinal}"
            pod = by_name.get(name)
            if pod is None:
                labels = {
                    "statefulset.kubernetes.io/pod-name": name,
                    "apps.kubernetes.io/pod-index": str(ordinal),
                }
                template = self._with_claims(owner, name)
                self._make(owner, template, name=name, labels=labels)
            if ordered and (pod is None or not _running(pod)):
                return
        surplus = [pod for name, pod in by_name.items() if _ordinal(name) >= owner.spec.replicas]
        for pod in sorted(surplus, key=lambda p: -_ordinal(p.metadata.name)):
            self._cluster.delete(Pod, pod.key)
            if ordered:
                return

    def _with_claims(self, owner: StatefulSet, pod: str) -> PodTemplate:
        """Make the claims of one pod that do not exist yet; return its template with them."""
        template = owner.spec.template
        wanted = owner.spec.volume_claim_templates
        if not wanted:
            return template
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
        volumes = {volume.name: volume for volume in template.spec.volumes}
        for one in wanted:
            source = PersistentVolumeClaimSource(f"{one.metadata.name}-{pod}")
            volumes[one.metadata.name] = Volume(one.metadata.name, source)
        return replace(template, spec=replace(template.spec, volumes=tuple(volumes.values())))

    def _job(self, owner: Job) -> None:
        spec, uid = owner.spec, owner.metadata.uid
        pods = self._children(owner)
        done = self._finished.setdefault(uid, set())
        failed = 0
        for pod in pods:
            if pod.status.phase == "Succeeded":
                done.add(_completion_index(pod) if _indexed(owner) else pod.metadata.uid)
            failed += pod.status.phase == "Failed"
        self._failures[uid] = max(self._failures.get(uid, 0), failed)
        active = [pod for pod in pods if _alive(pod)]
        if spec.suspend or self._failures[uid] > spec.backoff_limit:
            for pod in active:
                self._cluster.delete(Pod, pod.key)
            return
        total = spec.completions if spec.completions is not None else spec.parallelism
        # A job without completions is done once any pod has succeeded.
        left = 0 if spec.completions is None and done else total - len(done)
        room = min(spec.parallelism, left) - len(active)
        labels = {
            "batch.kubernetes.io/job-name": owner.metadata.name,
            "job-name": owner.metadata.name,
            "batch.kubernetes.io/controller-uid": uid,
            "controller-uid": uid,
        }
        if not _indexed(owner):
            for _ in range(room):
                prefix = f"{owner.metadata.name}-"
                self._make(owner, spec.template, generate_name=prefix, labels=labels)
            return
        taken = done | {_completion_index(pod) for pod in active}
        free: Iterable[int] = (i for i in range(total) if i not in taken)
        key = "batch.kubernetes.io/job-completion-index"
        for _, index in zip(range(room), free, strict=False):
            mark = {key: str(index)}
            prefix = f"{owner.metadata.name}-{index}-"
            self._make(
                owner,
                spec.template,
                generate_name=prefix,
                labels={**labels, **mark},
                annotations=mark,
            )


def _reference(owner: Owner) -> OwnerReference:
    kind = type(owner)
    meta = owner.metadata
    return OwnerReference(kind.__name__, meta.name, meta.uid, _API_VERSIONS[kind], controller=True)


def _owned_by(meta: ObjectMeta, owner: Owner) -> bool:
    return any(reference.uid == owner.metadata.uid for reference in meta.owner_references)


def _alive(pod: Pod) -> bool:
    return pod.status.phase in ("Pending", "Running") and pod.metadata.deletion_timestamp is None


def _running(pod: Pod) -> bool:
    return _alive(pod) and pod.status.phase == "Running"


def _indexed(job: Job) -> bool:
    return job.spec.completion_mode == "Indexed"


def _completion_index(pod: Pod) -> int:
    text = pod.metadata.annotations.get("batch.kubernetes.io/job-completion-index", "")
    return int(text) if is_index(text) else -1


def _ordinal(name: str) -> int:
    text = name.rsplit("-", 1)[-1]
    return int(text) if is_index(text) else -1
