"""The Deployment controller, as k8s.io/kubernetes pkg/controller/deployment."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from bayplan.api import Deployment, ObjectMeta, ReplicaSet
from bayplan.api.meta import LabelSelector
from bayplan.api.workloads import ReplicaSetSpec
from bayplan.cluster.embedded.children import Children, Template, template_of
from bayplan.cluster.embedded.deployment_status import progress, status_of
from bayplan.cluster.embedded.owner_references import reference_to
from bayplan.cluster.embedded.revisions import digest_of
from bayplan.cluster.embedded.rollouts import (
    DESIRED,
    HISTORY,
    MAXIMUM,
    REVISION,
    RolloutLimits,
    new_size,
    number_in,
    old_sizes,
    proportional_sizes,
    revision_of,
)
from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.errors import AlreadyExists

__all__ = ["DeploymentController"]

_COMPONENT = "deployment-controller"
_HASH = "pod-template-hash"
_OWN = frozenset(
    (
        "kubectl.kubernetes.io/last-applied-configuration",
        "deprecated.deployment.rollback.to",
        REVISION,
        HISTORY,
        DESIRED,
        MAXIMUM,
    )
)
"""Annotations that are not copied from a Deployment to its ReplicaSets."""


class DeploymentController:
    """Rolls out Deployments, with one ReplicaSet for each template."""

    def __init__(self, cluster: MemoryCluster, children: Children) -> None:
        self._cluster = cluster
        self._children = children

    def reconcile(self, owner: Deployment) -> float | None:
        """Reconcile a Deployment; return when its progress deadline expires, None for never."""
        sets = self._sets(owner)
        if owner.spec.paused or _is_scaling(owner, sets):
            new = self._new_set(owner, sets)
            if new is not None:
                owner, new = self._annotated(owner, new, sets)
            self._scale_all(owner, self._sets(owner), new)
            if owner.spec.paused:
                self._clean_up(owner, new)
        elif owner.spec.strategy.type == "Recreate":
            owner, new = self._recreate(owner, sets)
        else:
            owner, new = self._roll(owner, sets)
        return self._report(owner, new)

    def _sets(self, owner: Deployment) -> list[ReplicaSet]:
        return [s for s in self._children.sets(owner) if s.metadata.deletion_timestamp is None]

    # ReplicaSets ------------------------------------------------------------------------

    def _new_set(self, owner: Deployment, sets: list[ReplicaSet]) -> ReplicaSet | None:
        """Return the ReplicaSet with the current template, None when there is none."""
        wanted = template_of(self._cluster, owner).json()
        for one in sets:
            if _without_hash(template_of(self._cluster, one).json()) == _without_hash(wanted):
                return one
        return None

    def _create(self, owner: Deployment, sets: list[ReplicaSet]) -> ReplicaSet:
        template = template_of(self._cluster, owner)
        collisions = 0
        while True:
            digest = digest_of(template.json(), collisions)
            size = new_size(owner, sets, 0)
            made, content = _replica_set(owner, template, digest, size)
            annotations = self._annotations(owner, sets, {})
            made = replace(made, metadata=replace(made.metadata, annotations=annotations))
            try:
                if content is None:
                    created = self._cluster.create(made)
                else:
                    created = self._cluster.create_from(made, content, ReplicaSet(spec=made.spec))
            except AlreadyExists:
                collisions += 1
                continue
            self._children.keep(created)
            if size:
                self._tell_scaling(owner, created, 0)
            return created

    def _annotations(
        self, owner: Deployment, others: list[ReplicaSet], own: dict[str, str]
    ) -> dict[str, str]:
        """Return the annotations of the newest ReplicaSet."""
        number = max((revision_of(one) for one in others), default=0) + 1
        kept = {k: v for k, v in owner.metadata.annotations.items() if k not in _OWN}
        before = number_in(own, REVISION)
        wanted = {**own, **kept, REVISION: str(max(number, before))}
        if before and number > before:
            history = [*filter(None, own.get(HISTORY, "").split(",")), str(before)]
            wanted[HISTORY] = ",".join(history)
        limits = RolloutLimits.of(owner)
        wanted.setdefault(DESIRED, str(owner.spec.replicas))
        wanted.setdefault(MAXIMUM, str(limits.most))
        return wanted

    def _annotated(
        self, owner: Deployment, new: ReplicaSet, sets: list[ReplicaSet]
    ) -> tuple[Deployment, ReplicaSet]:
        """Write the revision into the annotations of the new ReplicaSet and the Deployment."""
        others = [one for one in sets if one.metadata.uid != new.metadata.uid]
        annotations = self._annotations(owner, others, new.metadata.annotations)
        least = owner.spec.min_ready_seconds
        if annotations != new.metadata.annotations or new.spec.min_ready_seconds != least:
            meta = replace(new.metadata, annotations=annotations)
            spec = replace(new.spec, min_ready_seconds=least)
            new = self._cluster.update(replace(new, metadata=meta, spec=spec))
        revision = annotations[REVISION]
        if owner.metadata.annotations.get(REVISION) != revision:
            meta = replace(
                owner.metadata,
                annotations={**owner.metadata.annotations, REVISION: revision},
            )
            owner = self._cluster.update(replace(owner, metadata=meta))
        return owner, new

    def _scale(self, owner: Deployment, one: ReplicaSet, size: int) -> ReplicaSet:
        """Scale a ReplicaSet and record the Deployment's size in its annotations."""
        limits = RolloutLimits.of(owner)
        annotations = {
            **one.metadata.annotations,
            DESIRED: str(owner.spec.replicas),
            MAXIMUM: str(limits.most),
        }
        before = one.spec.replicas
        if size == before and annotations == one.metadata.annotations:
            return one
        meta = replace(one.metadata, annotations=annotations)
        scaled = self._cluster.update(
            replace(one, metadata=meta, spec=replace(one.spec, replicas=size))
        )
        if size != before:
            self._tell_scaling(owner, scaled, before)
        return scaled

    def _tell_scaling(self, owner: Deployment, one: ReplicaSet, before: int) -> None:
        after = one.spec.replicas
        way = "up" if after > before else "down"
        text = f"Scaled {way} replica set {one.metadata.name} from {before} to {after}"
        self._cluster.record_event(owner, _COMPONENT, "ScalingReplicaSet", text)

    # Ways of rolling out -----------------------------------------------------------------

    def _roll(
        self, owner: Deployment, sets: list[ReplicaSet]
    ) -> tuple[Deployment, ReplicaSet | None]:
        new = self._new_set(owner, sets)
        if new is None:
            new = self._create(owner, sets)
        owner, new = self._annotated(owner, new, self._sets(owner))
        sets = self._sets(owner)
        new = self._scale(owner, new, new_size(owner, sets, new.spec.replicas))
        sets = self._sets(owner)
        for one, size in old_sizes(owner, sets, new):
            self._scale(owner, one, size)
        self._clean_up(owner, new)
        return owner, new

    def _recreate(
        self, owner: Deployment, sets: list[ReplicaSet]
    ) -> tuple[Deployment, ReplicaSet | None]:
        new = self._new_set(owner, sets)
        old = [one for one in sets if new is None or one.metadata.uid != new.metadata.uid]
        active = [one for one in old if one.spec.replicas]
        for one in active:
            self._scale(owner, one, 0)
        if active or any(self._has_pods(one) for one in old):
            return owner, new
        if new is None:
            new = self._create(owner, sets)
        owner, new = self._annotated(owner, new, self._sets(owner))
        new = self._scale(owner, new, owner.spec.replicas)
        self._clean_up(owner, new)
        return owner, new

    def _has_pods(self, one: ReplicaSet) -> bool:
        phases = [pod.status.phase for pod in self._children.pods(one)]
        return any(phase not in ("Failed", "Succeeded") for phase in phases)

    def _scale_all(self, owner: Deployment, sets: list[ReplicaSet], new: ReplicaSet | None) -> None:
        """Scale all active ReplicaSets in proportion."""
        for one, size in proportional_sizes(owner, sets, new):
            self._scale(owner, one, size)

    def _clean_up(self, owner: Deployment, new: ReplicaSet | None) -> None:
        """Delete the oldest empty ReplicaSets once a rollout is complete."""
        uid = new.metadata.uid if new is not None else ""
        sets = self._sets(owner)
        status = status_of(owner, sets, new, self._cluster)
        if not owner.spec.paused and not status.complete(owner):
            return
        old = sorted((one for one in sets if one.metadata.uid != uid), key=revision_of)
        surplus = len(old) - owner.spec.revision_history_limit
        for one in old[: max(0, surplus)]:
            if not one.spec.replicas and not one.status.replicas:
                self._cluster.delete(ReplicaSet, self._cluster.key_of(one))

    # Status ------------------------------------------------------------------------------

    def _report(self, owner: Deployment, new: ReplicaSet | None) -> float | None:
        sets = self._sets(owner)
        if new is not None:
            new = next((s for s in sets if s.metadata.uid == new.metadata.uid), None)
        status, again = progress(owner, sets, new, self._cluster)
        if status != owner.status:
            self._cluster.update(replace(owner, status=status))
        return again


def _is_scaling(owner: Deployment, sets: list[ReplicaSet]) -> bool:
    """Return whether spec.replicas changed since the ReplicaSets were scaled."""
    desired = {one.metadata.annotations.get(DESIRED) for one in sets if one.spec.replicas}
    return bool(desired - {None, str(owner.spec.replicas)})


def _without_hash(template: dict[str, Any]) -> dict[str, Any]:
    meta = template.get("metadata") or {}
    labels = {k: v for k, v in (meta.get("labels") or {}).items() if k != _HASH}
    meta = {k: v for k, v in meta.items() if k not in ("labels", "creationTimestamp")}
    return {**template, "metadata": {**meta, "labels": labels}}


def _replica_set(
    owner: Deployment, template: Template, digest: str, size: int
) -> tuple[ReplicaSet, dict[str, Any] | None]:
    """Return the ReplicaSet for a template, typed and (when the template has it) as JSON."""
    mark = {_HASH: digest}
    selector = owner.spec.selector or LabelSelector()
    meta = template.typed.metadata
    labels = {**meta.labels, **mark}
    spec = ReplicaSetSpec(
        replicas=size,
        selector=replace(selector, match_labels={**selector.match_labels, **mark}),
        template=replace(template.typed, metadata=replace(meta, labels=labels)),
        min_ready_seconds=owner.spec.min_ready_seconds,
    )
    made = ReplicaSet(
        ObjectMeta(
            name=f"{owner.metadata.name}-{digest}",
            namespace=owner.metadata.namespace,
            labels=labels,
            owner_references=(reference_to(owner, "apps/v1"),),
        ),
        spec,
    )
    if template.content is None:
        return made, None
    held = template.content
    marked = {**held, "metadata": {**(held.get("metadata") or {}), "labels": labels}}
    chosen: dict[str, Any] = {"matchLabels": {**selector.match_labels, **mark}}
    if selector.match_expressions:
        chosen["matchExpressions"] = [
            {"key": e.key, "operator": e.operator, "values": list(e.values)}
            for e in selector.match_expressions
        ]
    content: dict[str, Any] = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {},
        "spec": {"replicas": size, "selector": chosen, "template": marked},
    }
    if spec.min_ready_seconds:
        content["spec"]["minReadySeconds"] = spec.min_ready_seconds
    return made, content
