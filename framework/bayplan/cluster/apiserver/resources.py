"""The resources of the API server: built-in ones, those that bayplan reads, and those of CRDs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec

from bayplan.api import KINDS, ApiObject, ControllerRevision, Kind
from bayplan.api.configmap import ConfigMap
from bayplan.api.meta import ApiStruct, ObjectMeta
from bayplan.api.workloads import StoredPodTemplate
from bayplan.cluster.apiserver.conversion import converter
from bayplan.schemas import RecordType

__all__ = ["SCALED", "PrinterColumn", "Resource", "Resources", "make_type"]

Convert = Callable[[dict[str, Any]], dict[str, Any]]


class PrinterColumn(msgspec.Struct, frozen=True):
    """An additional printer column of a CRD; ``path`` is a JSON path."""

    name: str
    path: str
    type: str = "string"
    wide: bool = False


@dataclass(frozen=True)
class Resource:
    """A served resource; all of its versions share one store.

    :param versions: the served versions; the first is the storage version.
    :param status: whether it has a ``/status`` subresource.
    :param custom: whether it comes from a CRD, here or on a real cluster.
    :param schemas: types by version, from the schemas of its CRD.
    :param open_api: the schema that values are checked against, from its CRD.
    :param inert: why its objects have no effect, "" when they have one.
    """

    group: str
    plural: str
    kind: str
    versions: tuple[str, ...]
    type: type[ApiObject]
    namespaced: bool = True
    status: bool = False
    custom: bool = False
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    singular: str = ""
    columns: tuple[PrinterColumn, ...] = ()
    selectable: tuple[str, ...] = ()
    known: Kind | None = None
    schemas: Mapping[str, RecordType] = field(default_factory=dict, hash=False)
    open_api: Mapping[str, Any] | None = field(default=None, hash=False)
    inert: str = ""
    verbs: tuple[str, ...] = field(
        default=(
            "create",
            "delete",
            "deletecollection",
            "get",
            "list",
            "patch",
            "update",
            "watch",
        )
    )

    @property
    def storage_version(self) -> str:
        """The version that objects are stored in."""
        return self.versions[0]

    def api_version(self, version: str) -> str:
        """Return ``group/version``, as apiVersion has it."""
        return f"{self.group}/{version}" if self.group else version

    def key(self, namespace: str, name: str) -> str:
        """Return the key under which an object is stored."""
        return f"{namespace}/{name}" if self.namespaced else name

    def outgoing(self, version: str) -> Convert | None:
        """Return the conversion of stored objects to a version, None when none is needed."""
        stored = self.versions[0]
        return None if version == stored else converter(self.group, stored, version)

    def incoming(self, version: str) -> Convert | None:
        """Return the conversion of a version to stored objects, None when none is needed."""
        stored = self.versions[0]
        return None if version == stored else converter(self.group, version, stored)


def make_type(name: str) -> type[ApiObject]:
    """Return a struct with metadata only, for a kind that bayplan does not read."""
    made = msgspec.defstruct(
        name,
        [("metadata", ObjectMeta, ObjectMeta())],
        bases=(ApiStruct,),
        frozen=True,
        rename="camel",
        omit_defaults=True,
    )
    return cast("type[ApiObject]", made)


SCALED = ("deployments", "replicasets", "statefulsets")
"""The resources of the group apps with a ``/scale`` subresource."""
_SHORT_NAMES: Mapping[str, tuple[str, ...]] = {
    "pods": ("po",),
    "nodes": ("no",),
    "namespaces": ("ns",),
    "services": ("svc",),
    "deployments.apps": ("deploy",),
    "replicasets.apps": ("rs",),
    "statefulsets.apps": ("sts",),
    "daemonsets.apps": ("ds",),
    "replicationcontrollers": ("rc",),
    "cronjobs.batch": ("cj",),
    "endpoints": ("ep",),
    "horizontalpodautoscalers.autoscaling": ("hpa",),
    "ingresses.networking.k8s.io": ("ing",),
    "limitranges": ("limits",),
    "podgroups.scheduling.sigs.k8s.io": ("pg", "pgs"),
    "podgroups.scheduling.x-k8s.io": ("pg", "pgs"),
    "hypernodes.topology.volcano.sh": ("hn",),
    "poddisruptionbudgets.policy": ("pdb",),
    "priorityclasses.scheduling.k8s.io": ("pc",),
    "jobs.batch.volcano.sh": ("vcjob", "vj"),
    "podgroups.scheduling.volcano.sh": ("pg", "vg", "podgroup-v1beta1"),
    "configmaps": ("cm",),
    "serviceaccounts": ("sa",),
    "events": ("ev",),
    "persistentvolumeclaims": ("pvc",),
    "persistentvolumes": ("pv",),
    "networkpolicies.networking.k8s.io": ("netpol",),
    "resourcequotas": ("quota",),
    "storageclasses.storage.k8s.io": ("sc",),
    "customresourcedefinitions.apiextensions.k8s.io": ("crd", "crds"),
}
_ALL = {"pods", "services", "deployments", "replicasets", "statefulsets", "daemonsets", "jobs"} | {
    "cronjobs",
    "horizontalpodautoscalers",
    "replicationcontrollers",
}
_WITHOUT_STATUS = {
    "deviceclasses",
    "resourceclaimtemplates",
    "resourceslices",
    "priorityclasses",
    "noderesourcetopologies",
    "storageclasses",
    "csinodes",
    "csidrivers",
    "csistoragecapacities",
    "workloads.scheduling.k8s.io",
    "multikueueconfigs",
    "configmaps",
    "leases",
    "controllerrevisions",
    "commands",
}
_CUSTOM = (
    "ai.example.com",
    "batch.volcano.sh",
    "bayplan.dev",
    "bus.volcano.sh",
    "jobset.x-k8s.io",
    "kubeflow.org",
    "ray.io",
    "scheduling.sigs.k8s.io",
    "scheduling.x-k8s.io",
    "scheduling.volcano.sh",
    "scheduling.run.ai",
    "topology.volcano.sh",
    "kueue.x-k8s.io",
    "kai.scheduler",
    "scheduling.koordinator.sh",
    "topology.node.k8s.io",
)
_RBAC = "rbac.authorization.k8s.io"
_STORAGE = "storage.k8s.io"
_ADMISSION = "admissionregistration.k8s.io"
_OTHERS = (
    # (group, kind, versions, namespaced, status)
    ("", "Event", ("v1",), True, False),
    ("", "Secret", ("v1",), True, False),
    ("", "ServiceAccount", ("v1",), True, False),
    ("", "PersistentVolumeClaim", ("v1",), True, True),
    ("", "PersistentVolume", ("v1",), False, True),
    ("", "ReplicationController", ("v1",), True, True),
    ("", "LimitRange", ("v1",), True, False),
    ("", "ResourceQuota", ("v1",), True, True),
    ("", "Endpoints", ("v1",), True, False),
    ("", "PodTemplate", ("v1",), True, False),
    ("batch", "CronJob", ("v1",), True, True),
    ("autoscaling", "HorizontalPodAutoscaler", ("v2", "v1"), True, True),
    ("discovery.k8s.io", "EndpointSlice", ("v1",), True, False),
    ("networking.k8s.io", "NetworkPolicy", ("v1",), True, False),
    ("networking.k8s.io", "Ingress", ("v1",), True, True),
    ("networking.k8s.io", "IngressClass", ("v1",), False, False),
    ("node.k8s.io", "RuntimeClass", ("v1",), False, False),
    (_ADMISSION, "ValidatingWebhookConfiguration", ("v1",), False, False),
    (_ADMISSION, "MutatingWebhookConfiguration", ("v1",), False, False),
    (_STORAGE, "StorageClass", ("v1",), False, False),
    (_STORAGE, "CSINode", ("v1",), False, False),
    (_STORAGE, "CSIDriver", ("v1",), False, False),
    (_STORAGE, "CSIStorageCapacity", ("v1",), True, False),
    (_STORAGE, "VolumeAttachment", ("v1",), False, True),
    (_RBAC, "Role", ("v1",), True, False),
    (_RBAC, "RoleBinding", ("v1",), True, False),
    (_RBAC, "ClusterRole", ("v1",), False, False),
    (_RBAC, "ClusterRoleBinding", ("v1",), False, False),
    ("apiextensions.k8s.io", "CustomResourceDefinition", ("v1",), False, True),
)
_WITHOUT_EFFECT: Mapping[tuple[str, str], str] = {
    ("", "Endpoints"): "no pod has an address",
    ("", "LimitRange"): "no request is compared with it",
    ("", "ReplicationController"): "no controller makes its pods; use a Deployment",
    ("", "PodTemplate"): "no controller uses it",
    ("", "ResourceQuota"): "no request is compared with it",
    ("autoscaling", "HorizontalPodAutoscaler"): "nothing is measured that it could scale by",
    ("batch", "CronJob"): "no controller makes its Jobs; use kubectl create job --from",
    ("discovery.k8s.io", "EndpointSlice"): "no pod has an address",
    ("networking.k8s.io", "Ingress"): "there is no network between pods",
    ("networking.k8s.io", "IngressClass"): "there is no network between pods",
    ("networking.k8s.io", "NetworkPolicy"): "there is no network between pods",
    ("node.k8s.io", "RuntimeClass"): "nothing runs in containers",
    (_ADMISSION, "ValidatingWebhookConfiguration"): "no webhook is called",
    (_ADMISSION, "MutatingWebhookConfiguration"): "no webhook is called",
}
"""Kinds that are stored without effect, and why."""
CONFIG_MAP = Kind("", "ConfigMap", ("v1",), ConfigMap)
CONTROLLER_REVISION = Kind("apps", "ControllerRevision", ("v1",), ControllerRevision)
POD_TEMPLATE = Kind("", "PodTemplate", ("v1",), StoredPodTemplate)


class Resources:
    """All resources, by group and plural, and by the type of their objects.

    :param without: API groups to leave out, as on a cluster without their CRDs.
    """

    def __init__(self, without: Collection[str] = ()) -> None:
        self.changes = 0
        """How often a resource was added or removed."""
        self._by_name: dict[tuple[str, str], Resource] = {}
        self._by_type: dict[type, Resource] = {}
        self._aliases: dict[tuple[str, str], Resource] = {}
        for resource in _built_in():
            if resource.group not in without:
                self.add(resource)
        events = self._by_name["", "events"]
        self._aliases["events.k8s.io", "events"] = events

    def all(self) -> list[Resource]:
        """Return all resources, those of CRDs last."""
        return list(self._by_name.values())

    def add(self, resource: Resource) -> None:
        """Serve a resource from now on."""
        self.changes += 1
        self._by_name[resource.group, resource.plural] = resource
        self._by_type[resource.type] = resource

    def remove(self, resource: Resource) -> None:
        """Serve a resource no longer."""
        self.changes += 1
        del self._by_name[resource.group, resource.plural]
        del self._by_type[resource.type]

    def find(self, group: str, version: str, plural: str) -> Resource | None:
        """Return a resource, None when this version of the group does not have it."""
        alias = self._aliases.get((group, plural))
        if alias is not None:
            return alias if version == "v1" else None
        resource = self._by_name.get((group, plural))
        return resource if resource is not None and version in resource.versions else None

    def named(self, group: str, plural: str) -> Resource | None:
        """Return a resource in any version, None when there is none."""
        return self._by_name.get((group, plural))

    def of_kind(self, group: str, kind: str) -> Resource | None:
        """Return the resource of a kind."""
        for resource in self._by_name.values():
            if resource.group == group and resource.kind == kind:
                return resource
        return None

    def of(self, type_: type) -> Resource:
        """Return the resource whose objects have a type."""
        return self._by_type[type_]

    def knows(self, type_: type) -> bool:
        """Return whether objects of a type are served."""
        return type_ in self._by_type

    def groups(self) -> dict[str, list[str]]:
        """Return the versions of each group, the preferred one first."""
        found: dict[str, list[str]] = {}
        for resource in self._by_name.values():
            versions = found.setdefault(resource.group, [])
            versions += [v for v in resource.versions if v not in versions]
        for group, _ in self._aliases:
            found[group] = ["v1"]
        # Stable versions first.
        return {
            g: sorted(v, key=lambda text: "alpha" in text or "beta" in text)
            for g, v in found.items()
        }

    def served(self, group: str, version: str) -> list[tuple[str, Resource]]:
        """Return (plural, resource) of all resources of a group's version."""
        own = [
            (r.plural, r)
            for r in self._by_name.values()
            if r.group == group and version in r.versions
        ]
        aliases = [(plural, r) for (g, plural), r in self._aliases.items() if g == group]
        return sorted(own + aliases, key=lambda pair: pair[0])


def _built_in() -> Iterable[Resource]:
    for kind in (*KINDS.values(), CONFIG_MAP, CONTROLLER_REVISION, POD_TEMPLATE):
        custom = kind.group in _CUSTOM
        names = {kind.plural, f"{kind.plural}.{kind.group}"}
        status = names.isdisjoint(_WITHOUT_STATUS)
        yield _resource(kind, status, custom, known=True)
    for group, name, versions, namespaced, status in _OTHERS:
        if (group, name) not in KINDS:
            made = Kind(group, name, versions, make_type(name), namespaced)
            yield _resource(made, status, custom=False, known=False)


def _resource(kind: Kind, status: bool, custom: bool, known: bool) -> Resource:
    full = f"{kind.plural}.{kind.group}" if kind.group else kind.plural
    return Resource(
        kind.group,
        kind.plural,
        kind.name,
        kind.versions,
        kind.type,
        namespaced=kind.namespaced,
        status=status,
        custom=custom,
        short_names=_SHORT_NAMES.get(full, ()),
        categories=("all",) if kind.plural in _ALL and not custom else (),
        singular=kind.name.lower(),
        known=kind if known else None,
        inert=_WITHOUT_EFFECT.get((kind.group, kind.name), ""),
    )
