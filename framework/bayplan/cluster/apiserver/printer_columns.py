"""The columns that ``kubectl get`` prints, with the names of the real API server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import msgspec

from bayplan.cluster.apiserver import printer_cells as cells
from bayplan.cluster.apiserver.jsonpath import find_path
from bayplan.cluster.apiserver.printer_cells import NONE
from bayplan.cluster.apiserver.resources import PrinterColumn, Resource
from bayplan.cluster.apiserver.selectors import at_path

__all__ = ["TableColumn", "fields_of"]

Content = Mapping[str, Any]
Cell = Callable[[Content, datetime], Any]


class TableColumn(msgspec.Struct, frozen=True):
    """A column of a table; ``cell`` renders an object's value at a time."""

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


def _count(name: str, path: str, default: int = 0) -> TableColumn:
    return TableColumn(name, _at(path, default), type="integer")


def _size(name: str, path: str) -> TableColumn:
    return TableColumn(name, _of(lambda c: len(at_path(c, path) or ())), type="integer")


def _wide(path: str, selector: str = "") -> tuple[TableColumn, ...]:
    """Return the wide columns of a workload."""
    fields = (
        TableColumn("Containers", _of(lambda c: cells.containers(c, path, "name")), wide=True),
        TableColumn("Images", _of(lambda c: cells.containers(c, path, "image")), wide=True),
    )
    if not selector:
        return fields
    return (*fields, TableColumn("Selector", _of(lambda c: cells.selector(c, selector)), wide=True))


_NAME = TableColumn("Name", _at("metadata.name"))
_AGE = TableColumn("Age", _age())
_CREATED = TableColumn("Created At", _at("metadata.creationTimestamp"))
_PHASE = TableColumn("Status", _at("status.phase"))
_TEMPLATE = "spec.template.spec"
_ROLE = (
    TableColumn(
        "Role", _of(lambda c: f"{at_path(c, 'roleRef.kind')}/{at_path(c, 'roleRef.name')}")
    ),
    _AGE,
)
_GANG = (_count("Min Member", "spec.minMember"), _PHASE, _AGE)

_CORE: Mapping[str, tuple[TableColumn, ...]] = {
    "pods": (
        TableColumn("Ready", _of(cells.ready_containers)),
        TableColumn("Status", _of(cells.pod_state)),
        TableColumn("Restarts", _of(cells.restarts)),
        _AGE,
        TableColumn("IP", _at("status.podIP"), wide=True),
        TableColumn("Node", _at("spec.nodeName"), wide=True),
        TableColumn("Nominated Node", _at("status.nominatedNodeName"), wide=True),
        TableColumn("Readiness Gates", _at("status.none"), wide=True),
    ),
    "nodes": (
        TableColumn("Status", _of(cells.node_state)),
        TableColumn("Roles", _of(cells.roles)),
        _AGE,
        TableColumn("Version", _at("status.nodeInfo.kubeletVersion", "")),
        TableColumn("Internal-IP", _of(lambda c: cells.address(c, "InternalIP")), wide=True),
        TableColumn("External-IP", _of(lambda c: cells.address(c, "ExternalIP")), wide=True),
        TableColumn("OS-Image", _at("status.nodeInfo.osImage", "<unknown>"), wide=True),
        TableColumn("Kernel-Version", _at("status.nodeInfo.kernelVersion", "<unknown>"), wide=True),
        TableColumn(
            "Container-Runtime",
            _at("status.nodeInfo.containerRuntimeVersion", "<unknown>"),
            wide=True,
        ),
    ),
    "namespaces": (_PHASE, _AGE),
    "services": (
        TableColumn("Type", _at("spec.type", "ClusterIP")),
        TableColumn("Cluster-IP", _at("spec.clusterIP")),
        TableColumn(
            "External-IP", _of(lambda c: ",".join(at_path(c, "spec.externalIPs") or ()) or NONE)
        ),
        TableColumn("Port(s)", _of(cells.ports)),
        _AGE,
        TableColumn("Selector", _of(lambda c: cells.selector(c, "spec.selector")), wide=True),
    ),
    "configmaps": (_size("Data", "data"), _AGE),
    "secrets": (TableColumn("Type", _at("type", "Opaque")), _size("Data", "data"), _AGE),
    "endpoints": (TableColumn("Endpoints", _of(cells.endpoints)), _AGE),
    "limitranges": (_CREATED,),
    "resourcequotas": (
        TableColumn("Request", _of(lambda c: cells.quota(c, limits=False))),
        TableColumn("Limit", _of(lambda c: cells.quota(c, limits=True))),
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
        TableColumn("Volume", _at("spec.volumeName", "")),
        TableColumn("Capacity", _at("status.capacity.storage", "")),
        TableColumn("Access Modes", _of(lambda c: cells.access_modes(c, "status"))),
        TableColumn("StorageClass", _at("spec.storageClassName", "")),
        TableColumn("VolumeAttributesClass", _at("spec.volumeAttributesClassName", "<unset>")),
        _AGE,
        TableColumn("VolumeMode", _at("spec.volumeMode", "Filesystem"), wide=True),
    ),
    "persistentvolumes": (
        TableColumn("Capacity", _at("spec.capacity.storage", "")),
        TableColumn("Access Modes", _of(lambda c: cells.access_modes(c, "spec"))),
        TableColumn("Reclaim Policy", _at("spec.persistentVolumeReclaimPolicy", "Retain")),
        _PHASE,
        TableColumn("Claim", _of(cells.claim_of)),
        TableColumn("StorageClass", _at("spec.storageClassName", "")),
        TableColumn("VolumeAttributesClass", _at("spec.volumeAttributesClassName", "<unset>")),
        TableColumn("Reason", _at("status.reason", "")),
        _AGE,
        TableColumn("VolumeMode", _at("spec.volumeMode", "Filesystem"), wide=True),
    ),
}
_GROUPED: Mapping[str, tuple[TableColumn, ...]] = {
    "deployments.apps": (
        TableColumn("Ready", _share("status.readyReplicas", "spec.replicas")),
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
        TableColumn("Ready", _share("status.readyReplicas", "spec.replicas")),
        _AGE,
        *_wide(_TEMPLATE),
    ),
    "daemonsets.apps": (
        _count("Desired", "status.desiredNumberScheduled"),
        _count("Current", "status.currentNumberScheduled"),
        _count("Ready", "status.numberReady"),
        _count("Up-to-date", "status.updatedNumberScheduled"),
        _count("Available", "status.numberAvailable"),
        TableColumn(
            "Node Selector", _of(lambda c: cells.pairs(at_path(c, f"{_TEMPLATE}.nodeSelector")))
        ),
        _AGE,
        *_wide(_TEMPLATE, "spec.selector"),
    ),
    "controllerrevisions.apps": (
        TableColumn("Controller", _of(cells.controller)),
        _count("Revision", "revision"),
        _AGE,
    ),
    "jobs.batch": (
        TableColumn("Status", _of(cells.job_state)),
        TableColumn("Completions", _of(cells.job_share)),
        TableColumn("Duration", cells.job_time),
        _AGE,
        *_wide(_TEMPLATE, "spec.selector"),
    ),
    "cronjobs.batch": (
        TableColumn("Schedule", _at("spec.schedule")),
        TableColumn("Timezone", _at("spec.timeZone")),
        TableColumn("Suspend", _of(lambda c: str(bool(at_path(c, "spec.suspend"))))),
        _size("Active", "status.active"),
        TableColumn("Last Schedule", _at("status.lastScheduleTime")),
        _AGE,
        *_wide("spec.jobTemplate.spec.template.spec", "spec.jobTemplate.spec.selector"),
    ),
    "horizontalpodautoscalers.autoscaling": (
        TableColumn("Reference", _of(cells.scale_target)),
        TableColumn("Targets", _of(cells.scale_metrics)),
        _count("MinPods", "spec.minReplicas", 1),
        _count("MaxPods", "spec.maxReplicas"),
        _count("Replicas", "status.currentReplicas"),
        _AGE,
    ),
    "endpointslices.discovery.k8s.io": (
        TableColumn("AddressType", _at("addressType")),
        TableColumn(
            "Ports", _of(lambda c: ",".join(str(p.get("port", "*")) for p in c.get("ports", ())))
        ),
        TableColumn("Endpoints", _of(cells.slice_endpoints)),
        _AGE,
    ),
    "networkpolicies.networking.k8s.io": (
        TableColumn("Pod-Selector", _of(lambda c: cells.selector(c, "spec.podSelector"))),
        _AGE,
    ),
    "ingresses.networking.k8s.io": (
        TableColumn("Class", _at("spec.ingressClassName")),
        TableColumn("Hosts", _of(cells.hosts)),
        TableColumn("Address", _at("status.none", "")),
        TableColumn("Ports", _of(lambda c: "80, 443" if at_path(c, "spec.tls") else "80")),
        _AGE,
    ),
    "ingressclasses.networking.k8s.io": (
        TableColumn("Controller", _at("spec.controller")),
        TableColumn("Parameters", _at("spec.parameters.name")),
        _AGE,
    ),
    "runtimeclasses.node.k8s.io": (TableColumn("Handler", _at("handler")), _AGE),
    "validatingwebhookconfigurations.admissionregistration.k8s.io": (
        _size("Webhooks", "webhooks"),
        _AGE,
    ),
    "mutatingwebhookconfigurations.admissionregistration.k8s.io": (
        _size("Webhooks", "webhooks"),
        _AGE,
    ),
    "poddisruptionbudgets.policy": (
        TableColumn("Min Available", _at("spec.minAvailable", "N/A")),
        TableColumn("Max Unavailable", _at("spec.maxUnavailable", "N/A")),
        _count("Allowed Disruptions", "status.disruptionsAllowed"),
        _AGE,
    ),
    "roles.rbac.authorization.k8s.io": (_CREATED,),
    "clusterroles.rbac.authorization.k8s.io": (_CREATED,),
    "rolebindings.rbac.authorization.k8s.io": _ROLE,
    "clusterrolebindings.rbac.authorization.k8s.io": _ROLE,
    "priorityclasses.scheduling.k8s.io": (
        _count("Value", "value"),
        TableColumn("Global-Default", _at("globalDefault", False), type="boolean"),
        _AGE,
        TableColumn("PreemptionPolicy", _at("preemptionPolicy", "PreemptLowerPriority")),
    ),
    "leases.coordination.k8s.io": (TableColumn("Holder", _at("spec.holderIdentity", "")), _AGE),
    "storageclasses.storage.k8s.io": (
        TableColumn("Provisioner", _at("provisioner")),
        TableColumn("ReclaimPolicy", _at("reclaimPolicy", "Delete")),
        TableColumn("VolumeBindingMode", _at("volumeBindingMode", "Immediate")),
        TableColumn("AllowVolumeExpansion", _at("allowVolumeExpansion", False), type="boolean"),
        _AGE,
    ),
    "csinodes.storage.k8s.io": (_size("Drivers", "spec.drivers"), _AGE),
    "csistoragecapacities.storage.k8s.io": (_CREATED,),
    "volumeattachments.storage.k8s.io": (
        TableColumn("Attacher", _at("spec.attacher")),
        TableColumn("PV", _at("spec.source.persistentVolumeName", "")),
        TableColumn("Node", _at("spec.nodeName")),
        TableColumn("Attached", _at("status.attached", False), type="boolean"),
        _AGE,
    ),
    "resourceclaims.resource.k8s.io": (TableColumn("State", _of(cells.claim_state)), _AGE),
    "resourceslices.resource.k8s.io": (
        TableColumn("Node", _at("spec.nodeName", "<unset>")),
        TableColumn("Driver", _at("spec.driver")),
        TableColumn("Pool", _at("spec.pool.name")),
        _AGE,
    ),
    "customresourcedefinitions.apiextensions.k8s.io": (_CREATED,),
    "jobs.batch.volcano.sh": (
        TableColumn("Status", _at("status.state.phase", "")),
        _count("minAvailable", "spec.minAvailable"),
        _count("Runnings", "status.running"),
        _AGE,
        TableColumn("Queue", _at("spec.queue", "default"), wide=True),
    ),
    "jobsets.jobset.x-k8s.io": (
        TableColumn("TerminalState", _at("status.terminalState", "")),
        _count("Restarts", "status.restarts"),
        TableColumn("Suspended", _at("spec.suspend", "")),
        _AGE,
    ),
    "pytorchjobs.kubeflow.org": (
        TableColumn("State", _of(cells.newest_condition)),
        _AGE,
    ),
    "rayclusters.ray.io": (
        _count("desired workers", "status.desiredWorkerReplicas"),
        _count("available workers", "status.availableWorkerReplicas"),
        TableColumn("status", _at("status.state", "")),
        _AGE,
    ),
    "rayjobs.ray.io": (
        TableColumn("job status", _at("status.jobStatus", "")),
        TableColumn("deployment status", _at("status.jobDeploymentStatus", "")),
        TableColumn("ray cluster name", _at("status.rayClusterName", "")),
        TableColumn("start time", _at("status.startTime", "")),
        TableColumn("end time", _at("status.endTime", "")),
        _AGE,
    ),
    "podgroups.scheduling.volcano.sh": (
        TableColumn("Status", _at("status.phase", "")),
        _count("minMember", "spec.minMember", 1),
        _count("Runnings", "status.running"),
        _AGE,
        TableColumn("Queue", _at("spec.queue", "default"), wide=True),
    ),
    "podgroups.scheduling.k8s.io": (
        TableColumn("Policy", _of(cells.gang_policy)),
        TableColumn("Workload", _of(cells.gang_workload)),
        TableColumn("Scheduled", _of(cells.gang_scheduled)),
        _AGE,
    ),
    "podgroups.scheduling.run.ai": (
        _count("Min Member", "spec.minMember", 1),
        _PHASE,
        TableColumn("Queue", _at("spec.queue")),
        _AGE,
    ),
    "workloads.scheduling.k8s.io": (
        TableColumn("Controller", _at("spec.controllerRef.name")),
        _size("Pod Group Templates", "spec.podGroupTemplates"),
        _AGE,
    ),
    "hypernodes.topology.volcano.sh": (
        TableColumn("Tier", _at("spec.tier")),
        TableColumn("TierName", _at("spec.tierName", "")),
        TableColumn("NodeCount", _at("status.nodeCount", "")),
        _AGE,
    ),
    "topologies.kueue.x-k8s.io": (TableColumn("Levels", _of(cells.levels)), _AGE),
    "topologies.kai.scheduler": (TableColumn("Levels", _of(cells.levels)), _AGE),
}
_EVENTS = (
    TableColumn("Last Seen", cells.last_seen),
    TableColumn("Type", _at("type", "")),
    TableColumn("Reason", _at("reason", "")),
    TableColumn("Object", _of(cells.involved)),
    TableColumn("Subobject", _at("involvedObject.fieldPath", ""), wide=True),
    TableColumn("Source", _at("source.component", ""), wide=True),
    TableColumn("Message", _at("message", "")),
    TableColumn("First Seen", _age("firstTimestamp"), wide=True),
    TableColumn("Count", _at("count", 1), wide=True),
    TableColumn("Name", _at("metadata.name"), wide=True),
)


def fields_of(resource: Resource) -> tuple[TableColumn, ...]:
    """Return the columns of a resource, from its CRD if that has some."""
    full = f"{resource.plural}.{resource.group}" if resource.group else resource.plural
    if full == "events":
        return _EVENTS
    if resource.columns:
        return (_NAME, *(_custom(column) for column in resource.columns))
    known = _CORE.get(full) or _GROUPED.get(full)
    if known is None:
        known = _GANG if resource.custom and resource.kind == "PodGroup" else (_AGE,)
    return (_NAME, *known)


def _custom(column: PrinterColumn) -> TableColumn:
    def cell(content: Content, now: datetime) -> Any:
        value = find_path(content, column.path)
        if column.type == "date":
            return cells.age(value, now) if value else ""
        return "" if value is None else value

    kind = "string" if column.type == "date" else column.type
    return TableColumn(column.name, cell, column.wide, kind)
