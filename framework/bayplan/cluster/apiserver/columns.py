"""The columns that ``kubectl get`` prints, by resource; names as the real API server has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from bayplan.cluster.apiserver import cells
from bayplan.cluster.apiserver.cells import NONE
from bayplan.cluster.apiserver.jsonpath import find_path
from bayplan.cluster.apiserver.resources import Column, Resource
from bayplan.cluster.apiserver.selectors import at_path

__all__ = ["Field", "fields_of"]

Content = Mapping[str, Any]
Cell = Callable[[Content, datetime], Any]


@dataclass(frozen=True)
class Field:
    """A column: its name, and what it shows of an object at a time."""

    name: str
    cell: Cell
    wide: bool = False
    type: str = "string"


def _at(path: str, default: Any = NONE) -> Cell:
    def cell(content: Content, _: datetime) -> Any:
        value = at_path(content, path)
        return default if value is None or value == "" else value

    return cell


def _of(read: Callable[[Content], Any]) -> Cell:
    return lambda content, _: read(content)


def _age(path: str = "metadata.creationTimestamp") -> Cell:
    return lambda content, now: cells.age(at_path(content, path), now)


def _share(part: str, whole: str) -> Cell:
    return lambda content, _: f"{at_path(content, part) or 0}/{at_path(content, whole) or 0}"


def _count(name: str, path: str, default: int = 0) -> Field:
    return Field(name, _at(path, default), type="integer")


def _size(name: str, path: str) -> Field:
    return Field(name, _of(lambda c: len(at_path(c, path) or ())), type="integer")


def _wide(path: str, selector: str = "") -> tuple[Field, ...]:
    """Return the wide columns of what has a pod template."""
    fields = (
        Field("Containers", _of(lambda c: cells.containers(c, path, "name")), wide=True),
        Field("Images", _of(lambda c: cells.containers(c, path, "image")), wide=True),
    )
    if not selector:
        return fields
    return (*fields, Field("Selector", _of(lambda c: cells.selector(c, selector)), wide=True))


_NAME = Field("Name", _at("metadata.name"))
_AGE = Field("Age", _age())
_CREATED = Field("Created At", _at("metadata.creationTimestamp"))
_PHASE = Field("Status", _at("status.phase"))
_TEMPLATE = "spec.template.spec"
_ROLE = (
    Field("Role", _of(lambda c: f"{at_path(c, 'roleRef.kind')}/{at_path(c, 'roleRef.name')}")),
    _AGE,
)
_GANG = (_count("Min Member", "spec.minMember"), _PHASE, _AGE)

_CORE: Mapping[str, tuple[Field, ...]] = {
    "pods": (
        Field("Ready", _of(cells.ready_containers)),
        Field("Status", _of(cells.pod_state)),
        Field("Restarts", _of(cells.restarts)),
        _AGE,
        Field("IP", _at("status.podIP"), wide=True),
        Field("Node", _at("spec.nodeName"), wide=True),
        Field("Nominated Node", _at("status.nominatedNodeName"), wide=True),
        Field("Readiness Gates", _at("status.none"), wide=True),
    ),
    "nodes": (
        Field("Status", _of(cells.node_state)),
        Field("Roles", _of(cells.roles)),
        _AGE,
        Field("Version", _at("status.nodeInfo.kubeletVersion", "")),
        Field("Internal-IP", _of(lambda c: cells.address(c, "InternalIP")), wide=True),
        Field("External-IP", _of(lambda c: cells.address(c, "ExternalIP")), wide=True),
        Field("OS-Image", _at("status.nodeInfo.osImage", "<unknown>"), wide=True),
        Field("Kernel-Version", _at("status.nodeInfo.kernelVersion", "<unknown>"), wide=True),
        Field(
            "Container-Runtime",
            _at("status.nodeInfo.containerRuntimeVersion", "<unknown>"),
            wide=True,
        ),
    ),
    "namespaces": (_PHASE, _AGE),
    "services": (
        Field("Type", _at("spec.type", "ClusterIP")),
        Field("Cluster-IP", _at("spec.clusterIP")),
        Field("External-IP", _of(lambda c: ",".join(at_path(c, "spec.externalIPs") or ()) or NONE)),
        Field("Port(s)", _of(cells.ports)),
        _AGE,
        Field("Selector", _of(lambda c: cells.selector(c, "spec.selector")), wide=True),
    ),
    "configmaps": (_size("Data", "data"), _AGE),
    "secrets": (Field("Type", _at("type", "Opaque")), _size("Data", "data"), _AGE),
    "endpoints": (Field("Endpoints", _of(cells.endpoints)), _AGE),
    "limitranges": (_CREATED,),
    "resourcequotas": (
        Field("Request", _of(lambda c: cells.quota(c, limits=False))),
        Field("Limit", _of(lambda c: cells.quota(c, limits=True))),
        _AGE,
    ),
    "replicationcontrollers": (
        _count("Desired", "spec.replicas", 1),
        _count("Current", "status.replicas"),
        _count("Ready", "status.readyReplicas"),
        _AGE,
        *_wide(_TEMPLATE, "spec.selector"),
    ),
    "persistentvolumeclaims": (
        _PHASE,
        Field("Volume", _at("spec.volumeName", "")),
        Field("Capacity", _at("status.capacity.storage", "")),
        Field("Access Modes", _of(lambda c: cells.access_modes(c, "status"))),
        Field("StorageClass", _at("spec.storageClassName", "")),
        Field("VolumeAttributesClass", _at("spec.volumeAttributesClassName", "<unset>")),
        _AGE,
        Field("VolumeMode", _at("spec.volumeMode", "Filesystem"), wide=True),
    ),
    "persistentvolumes": (
        Field("Capacity", _at("spec.capacity.storage", "")),
        Field("Access Modes", _of(lambda c: cells.access_modes(c, "spec"))),
        Field("Reclaim Policy", _at("spec.persistentVolumeReclaimPolicy", "Retain")),
        _PHASE,
        Field("Claim", _of(cells.claim_of)),
        Field("StorageClass", _at("spec.storageClassName", "")),
        Field("VolumeAttributesClass", _at("spec.volumeAttributesClassName", "<unset>")),
        Field("Reason", _at("status.reason", "")),
        _AGE,
        Field("VolumeMode", _at("spec.volumeMode", "Filesystem"), wide=True),
    ),
}
_GROUPED: Mapping[str, tuple[Field, ...]] = {
    "deployments.apps": (
        Field("Ready", _share("status.readyReplicas", "spec.replicas")),
        _count("Up-to-date", "status.updatedReplicas"),
        _count("Available", "status.availableReplicas"),
        _AGE,
        *_wide(_TEMPLATE, "spec.selector"),
    ),
    "replicasets.apps": (
        _count("Desired", "spec.replicas", 1),
        _count("Current", "status.replicas"),
        _count("Ready", "status.readyReplicas"),
        _AGE,
        *_wide(_TEMPLATE, "spec.selector"),
    ),
    "statefulsets.apps": (
        Field("Ready", _share("status.readyReplicas", "spec.replicas")),
        _AGE,
        *_wide(_TEMPLATE),
    ),
    "daemonsets.apps": (
        _count("Desired", "status.desiredNumberScheduled"),
        _count("Current", "status.currentNumberScheduled"),
        _count("Ready", "status.numberReady"),
        _count("Up-to-date", "status.updatedNumberScheduled"),
        _count("Available", "status.numberAvailable"),
        Field("Node Selector", _of(lambda c: cells.pairs(at_path(c, f"{_TEMPLATE}.nodeSelector")))),
        _AGE,
        *_wide(_TEMPLATE, "spec.selector"),
    ),
    "controllerrevisions.apps": (
        Field("Controller", _of(cells.controller)),
        _count("Revision", "revision"),
        _AGE,
    ),
    "jobs.batch": (
        Field("Status", _of(cells.job_state)),
        Field("Completions", _of(cells.job_share)),
        Field("Duration", cells.job_time),
        _AGE,
        *_wide(_TEMPLATE, "spec.selector"),
    ),
    "cronjobs.batch": (
        Field("Schedule", _at("spec.schedule")),
        Field("Timezone", _at("spec.timeZone")),
        Field("Suspend", _of(lambda c: str(bool(at_path(c, "spec.suspend"))))),
        _size("Active", "status.active"),
        Field("Last Schedule", _at("status.lastScheduleTime")),
        _AGE,
        *_wide("spec.jobTemplate.spec.template.spec", "spec.jobTemplate.spec.selector"),
    ),
    "horizontalpodautoscalers.autoscaling": (
        Field("Reference", _of(cells.scale_target)),
        Field("Targets", _of(cells.scale_metrics)),
        _count("MinPods", "spec.minReplicas", 1),
        _count("MaxPods", "spec.maxReplicas"),
        _count("Replicas", "status.currentReplicas"),
        _AGE,
    ),
    "endpointslices.discovery.k8s.io": (
        Field("AddressType", _at("addressType")),
        Field(
            "Ports", _of(lambda c: ",".join(str(p.get("port", "*")) for p in c.get("ports", ())))
        ),
        Field("Endpoints", _of(cells.slice_endpoints)),
        _AGE,
    ),
    "networkpolicies.networking.k8s.io": (
        Field("Pod-Selector", _of(lambda c: cells.selector(c, "spec.podSelector"))),
        _AGE,
    ),
    "ingresses.networking.k8s.io": (
        Field("Class", _at("spec.ingressClassName")),
        Field("Hosts", _of(cells.hosts)),
        Field("Address", _at("status.none", "")),
        Field("Ports", _of(lambda c: "80, 443" if at_path(c, "spec.tls") else "80")),
        _AGE,
    ),
    "ingressclasses.networking.k8s.io": (
        Field("Controller", _at("spec.controller")),
        Field("Parameters", _at("spec.parameters.name")),
        _AGE,
    ),
    "runtimeclasses.node.k8s.io": (Field("Handler", _at("handler")), _AGE),
    "validatingwebhookconfigurations.admissionregistration.k8s.io": (
        _size("Webhooks", "webhooks"),
        _AGE,
    ),
    "mutatingwebhookconfigurations.admissionregistration.k8s.io": (
        _size("Webhooks", "webhooks"),
        _AGE,
    ),
    "poddisruptionbudgets.policy": (
        Field("Min Available", _at("spec.minAvailable", "N/A")),
        Field("Max Unavailable", _at("spec.maxUnavailable", "N/A")),
        _count("Allowed Disruptions", "status.disruptionsAllowed"),
        _AGE,
    ),
    "roles.rbac.authorization.k8s.io": (_CREATED,),
    "clusterroles.rbac.authorization.k8s.io": (_CREATED,),
    "rolebindings.rbac.authorization.k8s.io": _ROLE,
    "clusterrolebindings.rbac.authorization.k8s.io": _ROLE,
    "priorityclasses.scheduling.k8s.io": (
        _count("Value", "value"),
        Field("Global-Default", _at("globalDefault", False), type="boolean"),
        _AGE,
        Field("PreemptionPolicy", _at("preemptionPolicy", "PreemptLowerPriority")),
    ),
    "leases.coordination.k8s.io": (Field("Holder", _at("spec.holderIdentity", "")), _AGE),
    "storageclasses.storage.k8s.io": (
        Field("Provisioner", _at("provisioner")),
        Field("ReclaimPolicy", _at("reclaimPolicy", "Delete")),
        Field("VolumeBindingMode", _at("volumeBindingMode", "Immediate")),
        Field("AllowVolumeExpansion", _at("allowVolumeExpansion", False), type="boolean"),
        _AGE,
    ),
    "csinodes.storage.k8s.io": (_size("Drivers", "spec.drivers"), _AGE),
    "csistoragecapacities.storage.k8s.io": (_CREATED,),
    "volumeattachments.storage.k8s.io": (
        Field("Attacher", _at("spec.attacher")),
        Field("PV", _at("spec.source.persistentVolumeName", "")),
        Field("Node", _at("spec.nodeName")),
        Field("Attached", _at("status.attached", False), type="boolean"),
        _AGE,
    ),
    "resourceclaims.resource.k8s.io": (Field("State", _of(cells.claim_state)), _AGE),
    "resourceslices.resource.k8s.io": (
        Field("Node", _at("spec.nodeName", "<unset>")),
        Field("Driver", _at("spec.driver")),
        Field("Pool", _at("spec.pool.name")),
        _AGE,
    ),
    "customresourcedefinitions.apiextensions.k8s.io": (_CREATED,),
    "jobs.batch.volcano.sh": (
        Field("Status", _at("status.state.phase", "")),
        _count("minAvailable", "spec.minAvailable"),
        _count("Runnings", "status.running"),
        _AGE,
        Field("Queue", _at("spec.queue", "default"), wide=True),
    ),
    "podgroups.scheduling.volcano.sh": (
        Field("Status", _at("status.phase", "")),
        _count("minMember", "spec.minMember", 1),
        _count("Runnings", "status.running"),
        _AGE,
        Field("Queue", _at("spec.queue", "default"), wide=True),
    ),
    "podgroups.scheduling.k8s.io": (
        Field("Policy", _of(cells.gang_policy)),
        Field("Workload", _of(cells.gang_workload)),
        Field("Scheduled", _of(cells.gang_scheduled)),
        _AGE,
    ),
    "podgroups.scheduling.run.ai": (
        _count("Min Member", "spec.minMember", 1),
        _PHASE,
        Field("Queue", _at("spec.queue")),
        _AGE,
    ),
    "workloads.scheduling.k8s.io": (
        Field("Controller", _at("spec.controllerRef.name")),
        _size("Pod Group Templates", "spec.podGroupTemplates"),
        _AGE,
    ),
    "hypernodes.topology.volcano.sh": (
        Field("Tier", _at("spec.tier")),
        Field("TierName", _at("spec.tierName", "")),
        Field("NodeCount", _at("status.nodeCount", "")),
        _AGE,
    ),
    "topologies.kueue.x-k8s.io": (Field("Levels", _of(cells.levels)), _AGE),
    "topologies.kai.scheduler": (Field("Levels", _of(cells.levels)), _AGE),
}
_EVENTS = (
    Field("Last Seen", cells.last_seen),
    Field("Type", _at("type", "")),
    Field("Reason", _at("reason", "")),
    Field("Object", _of(cells.involved)),
    Field("Subobject", _at("involvedObject.fieldPath", ""), wide=True),
    Field("Source", _at("source.component", ""), wide=True),
    Field("Message", _at("message", "")),
    Field("First Seen", _age("firstTimestamp"), wide=True),
    Field("Count", _at("count", 1), wide=True),
    Field("Name", _at("metadata.name"), wide=True),
)


def fields_of(resource: Resource) -> tuple[Field, ...]:
    """Return the columns of a resource; those of a CRD that has some come from it."""
    full = f"{resource.plural}.{resource.group}" if resource.group else resource.plural
    if full == "events":
        return _EVENTS
    if resource.columns:
        return (_NAME, *(_custom(column) for column in resource.columns))
    known = _CORE.get(full) or _GROUPED.get(full)
    if known is None:
        known = _GANG if resource.custom and resource.kind == "PodGroup" else (_AGE,)
    return (_NAME, *known)


def _custom(column: Column) -> Field:
    def cell(content: Content, now: datetime) -> Any:
        value = find_path(content, column.path)
        if column.type == "date":
            return cells.age(value, now) if value else ""
        return "" if value is None else value

    kind = "string" if column.type == "date" else column.type
    return Field(column.name, cell, column.wide, kind)
