"""The objects that workloads own: pods, ReplicaSets, ControllerRevisions; how pods are created."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from bayplan.api import (
    AiElasticJob,
    ApiObject,
    ControllerRevision,
    DaemonSet,
    Deployment,
    ElasticJob,
    Job,
    JobSet,
    ObjectMeta,
    OwnerReference,
    Pod,
    PodCondition,
    PyTorchJob,
    RayCluster,
    RayJob,
    ReplicaSet,
    StatefulSet,
    kind_of,
)
from bayplan.api.operated import OperatedObject
from bayplan.api.pod import PodSpec, PodTemplate
from bayplan.api.selectors import compile_selector
from bayplan.cluster.embedded.owner_references import controller_of, reference_to
from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.dialects.reading import is_index
from bayplan.errors import AlreadyExists, InputError

__all__ = [
    "Child",
    "Children",
    "Operated",
    "Owner",
    "Template",
    "alive",
    "available_at",
    "is_available",
    "is_ready",
    "part_of",
    "reference_of",
    "template_at",
    "template_of",
]

Owner = Job | ReplicaSet | StatefulSet | Deployment | DaemonSet
Operated = JobSet | PyTorchJob | RayJob | RayCluster | ElasticJob | OperatedObject
"""Owners whose controllers are not Kubernetes' own."""
Child = Pod | ControllerRevision | Owner | Operated
Content = dict[str, Any]


class Template(msgspec.Struct, frozen=True):
    """A pod template, typed and as JSON; ``content`` is None when all fields are typed."""

    typed: PodTemplate
    content: Content | None = None

    def json(self) -> Content:
        """Return the template as JSON."""
        if self.content is not None:
            return self.content
        plain: Content = msgspec.to_builtins(self.typed, enc_hook=lambda quantity: quantity.text)
        return plain


class PodOverrides(msgspec.Struct, frozen=True):
    """Metadata that a pod gets beyond its template's."""

    name: str = ""
    generate_name: str = ""
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    annotations: dict[str, str] = msgspec.field(default_factory=dict)


def template_of(cluster: MemoryCluster, owner: Owner) -> Template:
    """Return the template of a workload."""
    return template_at(cluster, owner, owner.spec.template, "template")


def template_at(
    cluster: MemoryCluster, owner: ApiObject, typed: PodTemplate, *path: str | int
) -> Template:
    """Return a pod template of an object.

    :param path: where the template is in the object's spec.
    """
    return Template(typed, part_of(cluster, owner, *path))


def part_of(cluster: MemoryCluster, owner: ApiObject, *path: str | int) -> Content | None:
    """Return the JSON at a path in an object's spec, None when only its typed fields are known."""
    content: Any = cluster.content_of(owner)
    if content is None:
        return None
    content = content.get("spec", {})
    for step in path:
        if isinstance(step, int):
            content = content[step]
        else:
            content = content.get(step) or {}
    return dict(content)


def alive(pod: Pod) -> bool:
    """Return whether a pod is pending or running and not being deleted."""
    return pod.status.phase in ("Pending", "Running") and pod.metadata.deletion_timestamp is None


def is_ready(pod: Pod) -> bool:
    """Return whether a pod runs and is ready; a pod without a Ready condition counts as ready."""
    ready = _ready_condition(pod)
    return pod.status.phase == "Running" and (ready is None or ready.status == "True")


def _ready_condition(pod: Pod) -> PodCondition | None:
    return next((c for c in pod.status.conditions if c.type == "Ready"), None)


def available_at(cluster: MemoryCluster, pod: Pod, min_ready_seconds: int) -> float | None:
    """Return when a pod becomes available (virtual seconds), None when it is not ready."""
    if not is_ready(pod):
        return None
    if not min_ready_seconds:
        return cluster.now
    ready = _ready_condition(pod)
    since = ready.last_transition_time if ready is not None else pod.status.start_time
    return cluster.seconds_of(since or pod.metadata.creation_timestamp) + min_ready_seconds


def is_available(cluster: MemoryCluster, pod: Pod, min_ready_seconds: int) -> bool:
    """Return whether a pod has been ready for minReadySeconds."""
    at = available_at(cluster, pod, min_ready_seconds)
    return at is not None and at <= cluster.now


class Children:
    """Indexes objects by the uid of their controller, oldest first."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self._cluster = cluster
        self._owned: dict[str, dict[tuple[type, str], Child]] = {}
        self._orphans: dict[str, dict[tuple[type, str], Child]] = {}

    def changed(self, child: Child, gone: bool) -> OwnerReference | None:
        """Index a child; return its controller's reference."""
        owner = controller_of(child.metadata)
        key = (type(child), self._cluster.key_of(child))
        orphans = self._orphans.setdefault(child.metadata.namespace, {})
        orphans.pop(key, None)
        if owner is None:
            if not gone and isinstance(child, Pod | ReplicaSet | ControllerRevision):
                orphans[key] = child
            return None
        owned = self._owned.setdefault(owner.uid, {})
        if gone:
            owned.pop(key, None)
            if not owned:
                del self._owned[owner.uid]
        else:
            owned[key] = child
        return owner

    def pods(self, owner: Owner | Operated) -> list[Pod]:
        """Return the pods of a workload as they are now."""
        return [child for child in self._current(owner) if isinstance(child, Pod)]

    def sets(self, owner: Deployment) -> list[ReplicaSet]:
        """Return the ReplicaSets of a Deployment as they are now."""
        return [child for child in self._current(owner) if isinstance(child, ReplicaSet)]

    def jobs(self, owner: JobSet | RayJob) -> list[Job]:
        """Return the Jobs of an object as they are now."""
        return [child for child in self._current(owner) if isinstance(child, Job)]

    def ray_clusters(self, owner: RayJob) -> list[RayCluster]:
        """Return the Ray clusters of a Ray job as they are now."""
        return [child for child in self._current(owner) if isinstance(child, RayCluster)]

    def all(self, owner: Owner | Operated) -> list[Child]:
        """Return all that an object owns, revisions first."""
        found = self._current(owner)
        return sorted(found, key=lambda child: not isinstance(child, ControllerRevision))

    def revisions(self, owner: Owner) -> list[ControllerRevision]:
        """Return the ControllerRevisions of a workload, the oldest revision first."""
        found = [c for c in self._current(owner) if isinstance(c, ControllerRevision)]
        return sorted(found, key=lambda one: (one.revision, one.metadata.name))

    def _current(self, owner: Owner | Operated) -> list[Child]:
        found: list[Child] = []
        for (type_, key), child in self._owned.get(owner.metadata.uid, {}).items():
            current = self._cluster.get(type_, key)
            if current is None or current.metadata.uid != child.metadata.uid:
                continue
            controller = controller_of(current.metadata)
            if controller is not None and controller.uid == owner.metadata.uid:
                found.append(current)
        return found

    def adopt(self, owner: Owner) -> None:
        """Adopt the orphans that a new workload selects.

        A workload recreated after ``--cascade=orphan`` gets its objects back.
        """
        if isinstance(owner, Job):
            return
        selector = compile_selector(owner.spec.selector)
        types = _ADOPTED[type(owner)]
        orphans = self._orphans.get(owner.metadata.namespace, {})
        for (type_, key), orphan in list(orphans.items()):
            if type_ not in types or not selector.matches(orphan.metadata.labels):
                continue
            child = self._cluster.get(type_, key)
            if child is None or controller_of(child.metadata) is not None:
                continue
            if child.metadata.deletion_timestamp is None and _may_be_of(owner, child):
                meta = child.metadata
                owners = (*meta.owner_references, reference_of(owner))
                meta = replace(meta, owner_references=owners, resource_version="")
                self.keep(self._cluster.update(replace(child, metadata=meta)))

    def keep(self, child: Child) -> None:
        """Index a new child before its watch event arrives."""
        self.changed(child, gone=False)

    def make(
        self,
        owner: Owner | Operated,
        template: Template,
        marks: PodOverrides,
        spec: PodSpec | None = None,
        extra: Content | None = None,
    ) -> Pod | None:
        """Create a pod; return None when its name is taken or it is refused.

        :param spec: the pod's spec, when it differs from the template's.
        :param extra: untyped fields of the spec.
        """
        typed = template.typed
        meta = ObjectMeta(
            name=marks.name,
            generate_name=marks.generate_name,
            namespace=owner.metadata.namespace,
            labels={**typed.metadata.labels, **marks.labels},
            annotations={**typed.metadata.annotations, **marks.annotations},
            owner_references=(reference_of(owner),),
        )
        wanted = Pod(meta, spec if spec is not None else typed.spec)
        try:
            pod = self._create(wanted, template, extra)
        except AlreadyExists:
            # Another pod has the name: wait until it is free.
            return None
        except InputError as exc:
            self._cluster.report(owner, exc)
            return None
        self.keep(pod)
        return pod

    def _create(self, pod: Pod, template: Template, extra: Content | None) -> Pod:
        if template.content is None:
            return self._cluster.create(pod)
        spec = {**template.content.get("spec", {}), **(extra or {})}
        content = {"apiVersion": "v1", "kind": "Pod", "metadata": {}, "spec": spec}
        return self._cluster.create_from(pod, content, Pod(spec=template.typed.spec))

    def create(self, owner: Operated, wanted: ApiObject) -> None:
        """Create an object of an owner; what refuses it is reported on the owner."""
        meta = replace(wanted.metadata, owner_references=(reference_of(owner),))
        made: ApiObject = replace(wanted, metadata=meta)
        try:
            made = self._cluster.create(made)
        except AlreadyExists:
            return
        except InputError as exc:
            self._cluster.report(owner, exc)
            return
        if isinstance(made, Child):
            self.keep(made)

    def delete(self, pod: Pod) -> None:
        """Delete a pod that is not being deleted yet."""
        if pod.metadata.deletion_timestamp is None:
            self._cluster.delete(Pod, pod.key)


def reference_of(owner: Owner | Operated) -> OwnerReference:
    """Return the reference that names the controller of what an object owns."""
    if isinstance(owner, OperatedObject):
        kind = kind_of(owner)
        return reference_to(owner, f"{kind.group}/{kind.versions[0]}")
    return reference_to(owner, _API_VERSIONS[type(owner)])


def _may_be_of(owner: Owner, child: Child) -> bool:
    """Return whether a workload may adopt a child; StatefulSets decide by its name."""
    if not isinstance(owner, StatefulSet) or not isinstance(child, Pod):
        return True
    head, _, ordinal = child.metadata.name.rpartition("-")
    return head == owner.metadata.name and is_index(ordinal)


_ADOPTED: dict[type, tuple[type, ...]] = {
    Deployment: (ReplicaSet,),
    ReplicaSet: (Pod,),
    StatefulSet: (Pod, ControllerRevision),
    DaemonSet: (Pod, ControllerRevision),
}
_API_VERSIONS: dict[type, str] = {
    Job: "batch/v1",
    Deployment: "apps/v1",
    ReplicaSet: "apps/v1",
    StatefulSet: "apps/v1",
    DaemonSet: "apps/v1",
    JobSet: "jobset.x-k8s.io/v1alpha2",
    PyTorchJob: "kubeflow.org/v1",
    RayJob: "ray.io/v1",
    RayCluster: "ray.io/v1",
    ElasticJob: "bayplan.dev/v1alpha1",
    AiElasticJob: "ai.example.com/v1",
}
