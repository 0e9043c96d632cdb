"""The RayCluster controller: a head pod and groups of workers.

Names, labels and conditions are those of ray-project/kuberay. A pod that succeeded stays: the work
that its duration stands for is done.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from bayplan.api import Pod, RayCluster
from bayplan.api.meta import Condition
from bayplan.api.pod import PodTemplate
from bayplan.api.ray import NO_MAXIMUM, RayClusterStatus, WorkerGroup
from bayplan.cluster.embedded.children import (
    Children,
    PodOverrides,
    Template,
    is_ready,
    template_at,
)
from bayplan.cluster.embedded.store import MemoryCluster

__all__ = ["CLUSTER_LABEL", "OPERATOR", "TYPE_LABEL", "RayClusterController"]

CLUSTER_LABEL = "ray.io/cluster"
TYPE_LABEL = "ray.io/node-type"
OPERATOR = "ray.io/kuberay-operator"
_GROUP = "ray.io/group"
_HEAD = "headgroup"
_SUSPENDING, _SUSPENDED = "RayClusterSuspending", "RayClusterSuspended"
_PROVISIONED, _HEAD_READY = "RayClusterProvisioned", "HeadPodReady"
_BY_USER = "UserRequestSuspend"


class RayClusterController:
    """Creates the pods of Ray clusters, and writes the status of the clusters."""

    def __init__(self, cluster: MemoryCluster, children: Children) -> None:
        self._cluster = cluster
        self._children = children

    def reconcile(self, owner: RayCluster) -> None:
        """Bring the pods of a Ray cluster in line with it, and write its status."""
        if owner.spec.managed_by not in (None, OPERATOR):
            return
        if owner.spec.suspend:
            for pod in self._children.pods(owner):
                self._children.delete(pod)
        else:
            self._make_head(owner)
            for place, group in enumerate(owner.spec.worker_group_specs):
                self._scale(owner, group, place)
        status = self._status(owner, self._children.pods(owner))
        if status != owner.status:
            self._cluster.update(replace(owner, status=status))

    def _of(self, owner: RayCluster, group: str) -> list[Pod]:
        """Return the pods of a group until they are gone; failed ones are deleted.

        KubeRay counts those that end, too: on a node that is silent nobody takes their place.
        """
        found = []
        for pod in self._children.pods(owner):
            if pod.metadata.labels.get(_GROUP) != group:
                continue
            if pod.status.phase == "Failed":
                self._children.delete(pod)
            else:
                found.append(pod)
        return found

    def _make_head(self, owner: RayCluster) -> None:
        if not self._of(owner, _HEAD):
            marks = PodOverrides(
                name=f"{owner.metadata.name}-head", labels=_labels(owner, "head", _HEAD)
            )
            typed = owner.spec.head_group_spec.template
            found = template_at(self._cluster, owner, typed, "headGroupSpec", "template")
            self._children.make(owner, _with_autoscaler(owner, found), marks)

    def _scale(self, owner: RayCluster, group: WorkerGroup, place: int) -> None:
        """Create or delete workers of a group; its scale strategy names those that go first."""
        named = group.scale_strategy.workers_to_delete
        left = []
        for pod in self._of(owner, group.group_name):
            if pod.metadata.name in named:
                self._children.delete(pod)
            else:
                left.append(pod)
        surplus = len(left) - group.wanted * group.num_of_hosts
        if surplus > 0 and not (owner.spec.enable_in_tree_autoscaling and not group.suspend):
            # Those without a node go first, then the newest.
            left.reverse()
            order = sorted(left, key=lambda pod: bool(pod.spec.node_name))
            for pod in order[:surplus]:
                self._children.delete(pod)
        for _ in range(-surplus):
            marks = PodOverrides(
                generate_name=f"{owner.metadata.name}-{group.group_name}-worker-",
                labels=_labels(owner, "worker", group.group_name),
            )
            self._make(owner, group.template, marks, "workerGroupSpecs", place)

    def _make(
        self, owner: RayCluster, template: PodTemplate, marks: PodOverrides, *path: str | int
    ) -> None:
        found = template_at(self._cluster, owner, template, *path, "template")
        self._children.make(owner, found, marks)

    def _status(self, owner: RayCluster, pods: list[Pod]) -> RayClusterStatus:
        old, groups = owner.status, owner.spec.worker_group_specs
        workers = [pod for pod in pods if pod.metadata.labels.get(TYPE_LABEL) == "worker"]
        heads = [pod for pod in pods if pod.metadata.labels.get(TYPE_LABEL) == "head"]
        status = replace(
            old,
            desired_worker_replicas=sum(one.wanted * one.num_of_hosts for one in groups),
            min_worker_replicas=sum(one.min_replicas * one.num_of_hosts for one in groups),
            max_worker_replicas=min(
                NO_MAXIMUM, sum(one.max_replicas * one.num_of_hosts for one in groups)
            ),
            ready_worker_replicas=sum(is_ready(pod) for pod in workers),
            available_worker_replicas=sum(pod.status.phase == "Running" for pod in workers),
            observed_generation=self._cluster.generation_of(owner),
        )
        if owner.spec.suspend:
            return self._suspended(status, gone=not pods)
        status = self._resumed(status)
        ready = any(is_ready(pod) for pod in heads)
        reason = "HeadPodRunningAndReady" if ready else "HeadPodNotFound"
        if heads or _has(status, _HEAD_READY):
            status = self._with(status, _HEAD_READY, ready, reason)
        wanted = status.desired_worker_replicas
        if ready and status.ready_worker_replicas >= wanted:
            status = replace(status, state="ready")
            return self._with(status, _PROVISIONED, True, "AllPodRunningAndReadyFirstTime")
        if _has(status, _PROVISIONED):
            return status
        return self._with(status, _PROVISIONED, False, "RayClusterPodsProvisioning")

    def _suspended(self, status: RayClusterStatus, gone: bool) -> RayClusterStatus:
        """Return the status of a suspended cluster, whose pods have to be gone at last."""
        if not gone:
            return self._with(status, _SUSPENDING, True, _BY_USER)
        if _has(status, _SUSPENDING):
            status = self._with(status, _SUSPENDING, False, _SUSPENDED)
        for kind in (_PROVISIONED, _HEAD_READY):
            if _has(status, kind):
                status = self._with(status, kind, False, _SUSPENDED)
        status = self._with(status, _SUSPENDED, True, _BY_USER)
        return replace(status, state="suspended")

    def _resumed(self, status: RayClusterStatus) -> RayClusterStatus:
        for kind in (_SUSPENDING, _SUSPENDED):
            if _has(status, kind):
                status = self._with(status, kind, False, "UserRequestResume")
        return status

    def _with(
        self, status: RayClusterStatus, kind: str, true: bool, reason: str
    ) -> RayClusterStatus:
        known = {c.type: c for c in status.conditions}
        before, value = known.get(kind), str(true)
        if before is None or before.status != value:
            now = self._cluster.timestamp()
            known[kind] = Condition(kind, value, reason, last_transition_time=now)
        return replace(status, conditions=tuple(known.values()))


def _with_autoscaler(owner: RayCluster, template: Template) -> Template:
    """Return the template of a head with the container that sizes the cluster, if it has one."""
    autoscaler = owner.spec.autoscaler
    if autoscaler is None:
        return template
    content = template.content
    if content is not None:
        made = msgspec.to_builtins(autoscaler, enc_hook=lambda quantity: quantity.text)
        spec = content.get("spec") or {}
        content = {**content, "spec": {**spec, "containers": [*spec["containers"], made]}}
    return Template(owner.spec.head, content)


def _has(status: RayClusterStatus, kind: str) -> bool:
    return any(c.type == kind for c in status.conditions)


def _labels(owner: RayCluster, kind: str, group: str) -> dict[str, str]:
    name = owner.metadata.name
    return {
        "ray.io/is-ray-node": "yes",
        CLUSTER_LABEL: name,
        TYPE_LABEL: kind,
        _GROUP: group,
        "ray.io/identifier": f"{name}-{kind}",
        "app.kubernetes.io/name": "kuberay",
        "app.kubernetes.io/created-by": "kuberay-operator",
    }
