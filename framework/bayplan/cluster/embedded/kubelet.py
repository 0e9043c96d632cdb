"""The virtual kubelet of the embedded cluster: starts bound pods and completes them in time."""

from __future__ import annotations

from msgspec.structs import replace

from bayplan.api import (
    DaemonSet,
    Node,
    PersistentVolumeClaim,
    Pod,
    PodCondition,
    ReplicaSet,
    ResourceClaim,
    StatefulSet,
)
from bayplan.api.node_state import is_silent
from bayplan.api.volumes import is_bound, is_owned, used_claims
from bayplan.cluster.embedded.admission import with_condition
from bayplan.cluster.embedded.kubelet_admission import KubeletAdmission
from bayplan.cluster.embedded.owner_references import controller_of
from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.cluster.protocol import Event, WatchEvent, WatchType
from bayplan.errors import ClusterError, InputError
from bayplan.inputs.durations import DURATION_ANNOTATION, parse_duration

__all__ = ["VirtualKubelet"]

_SERVICES: dict[str, type[ReplicaSet | StatefulSet | DaemonSet]] = {
    "ReplicaSet": ReplicaSet,
    "StatefulSet": StatefulSet,
    "DaemonSet": DaemonSet,
}
"""Kinds whose pods run without end: one that ends is replaced."""


class VirtualKubelet:
    """Runs the pods of all nodes of an embedded cluster, those of silent kubelets excepted."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self._cluster = cluster
        self._started: set[str] = set()
        self._recorded: set[tuple[str, str]] = set()
        self._without_volumes: dict[str, None] = {}
        self._admission = KubeletAdmission()
        self._failed: set[str] = set()
        self._delayed: dict[str, dict[tuple[str, str], None]] = {}
        self.ends_pods = True
        """Whether pods end after their stated durations; else somebody calls :meth:`finish`."""
        cluster.watch(self.handle)

    def handle(self, event: WatchEvent) -> None:
        """Admit and start a pod that was bound, once its claims and volumes are ready."""
        pod = event.obj
        if isinstance(pod, PersistentVolumeClaim):
            for key in list(self._without_volumes):
                self._start(key)
            return
        if isinstance(pod, Node):
            self._node_changed(pod, event.type is WatchType.DELETED)
            self._catch_up(pod, event.type is WatchType.DELETED)
        if not isinstance(pod, Pod):
            return
        if event.type is WatchType.DELETED or pod.status.phase in ("Succeeded", "Failed"):
            self._admission.release(pod.metadata.uid)
        if event.type is WatchType.DELETED:
            self._started.discard(pod.metadata.uid)
            self._without_volumes.pop(pod.key, None)
        elif pod.spec.node_name and pod.metadata.uid not in self._started:
            self._started.add(pod.metadata.uid)
            if pod.status.phase == "Running":
                self._admission.count(pod)
            elif pod.status.phase != "Pending" or self._is_delayed(pod):
                return
            elif self._admit(pod.key):
                self._start(pod.key)

    def _node_changed(self, node: Node, gone: bool) -> None:
        """Update the Ready condition of the pods on a node that failed or recovered."""
        name = node.metadata.name
        bad = any(c.type == "Ready" and c.status != "True" for c in node.status.conditions)
        bad = bad and not gone
        if bad == (name in self._failed):
            return
        self._failed ^= {name}
        if gone:
            return
        for pod in self._cluster.list(Pod):
            if pod.spec.node_name == name and pod.status.phase == "Running":
                stamp = self._cluster.timestamp()
                ready = PodCondition("Ready", str(not bad), last_transition_time=stamp)
                self._cluster.update(with_condition(pod, ready))

    def _is_delayed(self, pod: Pod) -> bool:
        """Tell whether a pod's kubelet is silent; then what it has to do waits for its return."""
        name = pod.spec.node_name
        node = self._cluster.get(Node, name)
        if node is None or not is_silent(node):
            return False
        self._delayed.setdefault(name, {})[pod.key, pod.metadata.uid] = None
        return True

    def _catch_up(self, node: Node, gone: bool) -> None:
        """Start and complete the pods that waited for a kubelet that is back."""
        if is_silent(node) and not gone:
            return
        for key, uid in self._delayed.pop(node.metadata.name, ()):
            pod = self._cluster.get(Pod, key)
            if pod is None or pod.metadata.uid != uid or gone or pod.metadata.deletion_timestamp:
                continue
            if pod.status.phase == "Running":
                if self.ends_pods:
                    self.finish(key, uid)
            elif self._admit(key):
                self._start(key)

    def _admit(self, key: str) -> bool:
        """Admit a pod if its node has enough resources; otherwise fail it."""
        pod = self._cluster.get(Pod, key)
        node = self._cluster.get(Node, pod.spec.node_name) if pod is not None else None
        if pod is None or node is None or pod.metadata.deletion_timestamp is not None:
            return pod is not None
        refusal = self._admission.refusal(pod, node)
        if refusal is None:
            return True
        reason, message = refusal
        status = replace(pod.status, phase="Failed", reason=reason, message=message)
        self._cluster.update(replace(pod, status=status))
        self._cluster.submit(Event(key, "Warning", reason, message))
        return False

    def _start(self, key: str) -> None:
        pod = self._cluster.get(Pod, key)
        if pod is None or pod.status.phase != "Pending" or self._is_delayed(pod):
            return
        missing = self._missing_claim(pod)
        if missing:
            # The kubelet starts a pod only with all of its devices.
            self._started.discard(pod.metadata.uid)
            self._record_event(key, "FailedPrepareDynamicResources", missing)
            return
        missing = self._missing_volume(pod) if pod.spec.volumes else ""
        if missing:
            self._without_volumes[key] = None
            self._record_event(key, "FailedMount", missing)
            return
        self._without_volumes.pop(key, None)
        self._run(pod)

    def _record_event(self, key: str, reason: str, missing: str) -> None:
        """Record once why a pod does not start."""
        if (key, missing) not in self._recorded:
            self._recorded.add((key, missing))
            self._cluster.submit(Event(key, "Warning", reason, missing))

    def _run(self, pod: Pod) -> None:
        key = pod.key
        stamp = self._cluster.timestamp()
        ready = PodCondition("Ready", "True", last_transition_time=stamp)
        status = replace(
            pod.status,
            phase="Running",
            start_time=stamp,
            conditions=(*pod.status.conditions, ready),
        )
        self._cluster.update(replace(pod, status=status))
        text = pod.metadata.annotations.get(DURATION_ANNOTATION)
        if text is not None:
            try:
                seconds = parse_duration(text)
            except ValueError as exc:
                text = f"annotation {DURATION_ANNOTATION}: {exc}"
                self._cluster.report(pod, InputError(text, f"Pod {key}"))
                return
            uid = pod.metadata.uid
            if self.ends_pods:
                idle = self._is_replacement(pod)
                self._cluster.clock.call_later(seconds, lambda: self.finish(key, uid), idle)

    def _is_replacement(self, pod: Pod) -> bool:
        """Tell whether a service made a pod later: it is replaced without end, so nobody waits."""
        owner = controller_of(pod.metadata)
        type_ = _SERVICES.get(owner.kind) if owner is not None else None
        if owner is None or type_ is None:
            return False
        service = self._cluster.get(type_, f"{pod.metadata.namespace}/{owner.name}")
        created = pod.metadata.creation_timestamp
        return service is not None and service.metadata.creation_timestamp != created

    def _missing_claim(self, pod: Pod) -> str:
        """Return why a claim of the pod is not ready, "" when all are."""
        made = {s.name: s.resource_claim_name for s in pod.status.resource_claim_statuses}
        for wanted in pod.spec.resource_claims:
            name = wanted.resource_claim_name or made.get(wanted.name, "")
            if name is None:
                continue
            claim = self._cluster.get(ResourceClaim, f"{pod.metadata.namespace}/{name}")
            status = claim.status if claim is not None else None
            if (
                status is None
                or status.allocation is None
                or all(reference.uid != pod.metadata.uid for reference in status.reserved_for)
            ):
                return (
                    f'resource claim "{name or wanted.name}" is not allocated and reserved for '
                    "this pod, which came with its node"
                )
        return ""

    def _missing_volume(self, pod: Pod) -> str:
        """Return why a volume of the pod is not ready, "" when all are."""
        for used in used_claims(pod):
            key = f"{pod.metadata.namespace}/{used.name}"
            claim = self._cluster.get(PersistentVolumeClaim, key)
            if claim is None:
                return f'persistentvolumeclaim "{used.name}" not found'
            if not is_bound(claim) or claim.status.phase == "Lost":
                return f'persistentvolumeclaim "{used.name}" is not bound'
            if used.ephemeral and not is_owned(claim, pod.metadata.uid):
                return f'persistentvolumeclaim "{used.name}" was not created for this pod'
        return ""

    def finish(self, key: str, uid: str) -> None:
        """Let a pod succeed; on a node whose kubelet is silent, once it is back."""
        pod = self._cluster.get(Pod, key)
        if pod is None or pod.metadata.uid != uid or pod.metadata.deletion_timestamp is not None:
            return
        if self._is_delayed(pod):
            return
        conditions = tuple(c for c in pod.status.conditions if c.type != "Ready")
        status = replace(pod.status, phase="Succeeded", conditions=conditions)
        try:
            self._cluster.update(replace(pod, status=status))
        except ClusterError:
            return
