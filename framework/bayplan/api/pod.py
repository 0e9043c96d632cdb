"""Pod: the fields that scheduling reads."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from bayplan.api.meta import ApiStruct, LabelSelector, ObjectMeta, explicit
from bayplan.api.quantity import Quantity
from bayplan.api.volume_claim import PersistentVolumeClaimTemplate

__all__ = [
    "DEFAULT_SCHEDULER",
    "Affinity",
    "AllocatedResourceStatus",
    "Container",
    "ContainerPort",
    "ContainerState",
    "ContainerStateTerminated",
    "ContainerStatus",
    "DeviceHealth",
    "ExtendedResourceClaimStatus",
    "ExtendedResourceMapping",
    "NodeAffinity",
    "NodeSelector",
    "NodeSelectorRequirement",
    "NodeSelectorTerm",
    "Pod",
    "PodAffinity",
    "PodAffinityTerm",
    "PodCondition",
    "PodResourceClaim",
    "PodResourceClaimStatus",
    "PodSpec",
    "PodStatus",
    "PodTemplate",
    "PreferredSchedulingTerm",
    "ResourceRequirements",
    "SchedulingGate",
    "SecurityContext",
    "Toleration",
    "TopologySpreadConstraint",
    "WeightedPodAffinityTerm",
    "failed_devices",
]

DEFAULT_SCHEDULER = "default-scheduler"
"""The schedulerName of pods that state none: Kubernetes' own scheduler."""

ResourceList = dict[str, Quantity]
TaintEffect = Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"]
InclusionPolicy = Literal["Honor", "Ignore"]


class ContainerClaim(ApiStruct, frozen=True):
    """resources.claims[]: a pod claim that this container uses."""

    name: str
    request: str = ""


class ResourceRequirements(ApiStruct, frozen=True):
    """Requests and limits of a container or of a whole pod."""

    requests: ResourceList = {}
    limits: ResourceList = {}
    claims: tuple[ContainerClaim, ...] = ()


class ContainerPort(ApiStruct, frozen=True):
    """A port of a container; ``host_port`` 0 means none on the host."""

    container_port: int = 0
    host_port: int = 0
    host_ip: str = msgspec.field(default="", name="hostIP")
    protocol: Literal["", "TCP", "UDP", "SCTP"] = explicit("TCP")


class SecurityContext(ApiStruct, frozen=True):
    """containers[].securityContext."""

    privileged: bool = False


class Container(ApiStruct, frozen=True):
    """A container; an init container with restartPolicy Always is a sidecar."""

    name: str = ""
    image: str = ""
    resources: ResourceRequirements = ResourceRequirements()
    ports: tuple[ContainerPort, ...] = ()
    restart_policy: str = ""
    security_context: SecurityContext | None = None


class NodeSelectorRequirement(ApiStruct, frozen=True):
    """One requirement on a node's labels, or in matchFields on its name."""

    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    values: tuple[str, ...] = ()


class NodeSelectorTerm(ApiStruct, frozen=True):
    """Requirements that all have to hold; an empty term selects nothing."""

    match_expressions: tuple[NodeSelectorRequirement, ...] = ()
    match_fields: tuple[NodeSelectorRequirement, ...] = ()


class NodeSelector(ApiStruct, frozen=True):
    """Terms, at least one of which has to hold."""

    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()


class PreferredSchedulingTerm(ApiStruct, frozen=True):
    """A node selector term with a weight, 1 to 100."""

    weight: int
    preference: NodeSelectorTerm


class NodeAffinity(ApiStruct, frozen=True):
    """affinity.nodeAffinity."""

    required: NodeSelector | None = msgspec.field(
        default=None, name="requiredDuringSchedulingIgnoredDuringExecution"
    )
    preferred: tuple[PreferredSchedulingTerm, ...] = msgspec.field(
        default=(), name="preferredDuringSchedulingIgnoredDuringExecution"
    )


class PodAffinityTerm(ApiStruct, frozen=True):
    """Pods by label and namespace, in relation to a topology key."""

    topology_key: str
    label_selector: LabelSelector | None = None
    namespaces: tuple[str, ...] = ()
    namespace_selector: LabelSelector | None = None
    match_label_keys: tuple[str, ...] = ()
    mismatch_label_keys: tuple[str, ...] = ()


class WeightedPodAffinityTerm(ApiStruct, frozen=True):
    """A pod affinity term with a weight, 1 to 100."""

    weight: int
    pod_affinity_term: PodAffinityTerm


class PodAffinity(ApiStruct, frozen=True):
    """affinity.podAffinity and affinity.podAntiAffinity."""

    required: tuple[PodAffinityTerm, ...] = msgspec.field(
        default=(), name="requiredDuringSchedulingIgnoredDuringExecution"
    )
    preferred: tuple[WeightedPodAffinityTerm, ...] = msgspec.field(
        default=(), name="preferredDuringSchedulingIgnoredDuringExecution"
    )


class Affinity(ApiStruct, frozen=True):
    """spec.affinity."""

    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class Toleration(ApiStruct, frozen=True):
    """A taint that the pod tolerates; an empty key with Exists tolerates all."""

    key: str = ""
    operator: Literal["", "Exists", "Equal", "Gt", "Lt"] = explicit("Equal")
    value: str = ""
    effect: TaintEffect = ""
    toleration_seconds: int | None = None


class TopologySpreadConstraint(ApiStruct, frozen=True):
    """spec.topologySpreadConstraints[]."""

    max_skew: int
    topology_key: str
    when_unsatisfiable: Literal["DoNotSchedule", "ScheduleAnyway"]
    label_selector: LabelSelector | None = None
    min_domains: int | None = None
    match_label_keys: tuple[str, ...] = ()
    node_affinity_policy: InclusionPolicy = explicit("Honor")
    node_taints_policy: InclusionPolicy = explicit("Ignore")


class SchedulingGate(ApiStruct, frozen=True):
    """A gate that has to be removed before the pod may be scheduled."""

    name: str


class PodResourceClaim(ApiStruct, frozen=True):
    """spec.resourceClaims[]: the name of a claim, or of a template to create one from."""

    name: str
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class PersistentVolumeClaimSource(ApiStruct, frozen=True):
    """volumes[].persistentVolumeClaim."""

    claim_name: str
    read_only: bool = False


class EphemeralVolumeSource(ApiStruct, frozen=True):
    """volumes[].ephemeral: a claim named ``<pod>-<volume>`` is created for the pod."""

    volume_claim_template: PersistentVolumeClaimTemplate


class Volume(ApiStruct, frozen=True):
    """A volume; only the sources that restrict placement are read, and those of the node."""

    name: str = ""
    persistent_volume_claim: PersistentVolumeClaimSource | None = None
    ephemeral: EphemeralVolumeSource | None = None
    csi: dict[str, Any] | None = None
    empty_dir: dict[str, Any] | None = None
    host_path: dict[str, Any] | None = None


class SchedulingGroup(ApiStruct, frozen=True):
    """spec.schedulingGroup: the pod group of scheduling.k8s.io that the pod belongs to."""

    pod_group_name: str = ""


class PodSpec(ApiStruct, frozen=True):
    """spec of a pod."""

    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    overhead: ResourceList = {}
    resources: ResourceRequirements | None = None
    node_name: str = ""
    node_selector: dict[str, str] = {}
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] = ()
    topology_spread_constraints: tuple[TopologySpreadConstraint, ...] = ()
    priority: int | None = None
    priority_class_name: str = ""
    preemption_policy: Literal["PreemptLowerPriority", "Never"] | None = None
    scheduling_gates: tuple[SchedulingGate, ...] = ()
    scheduling_group: SchedulingGroup | None = None
    scheduler_name: str = explicit(DEFAULT_SCHEDULER)
    resource_claims: tuple[PodResourceClaim, ...] = ()
    volumes: tuple[Volume, ...] = ()
    host_network: bool = False
    active_deadline_seconds: int | None = None
    restart_policy: str = explicit("Always")
    termination_grace_period_seconds: int = explicit(30)


class PodCondition(ApiStruct, frozen=True):
    """status.conditions[]."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


class PodResourceClaimStatus(ApiStruct, frozen=True):
    """status.resourceClaimStatuses[]: the claim created from a template, None if none is needed."""

    name: str
    resource_claim_name: str | None = None


class ExtendedResourceMapping(ApiStruct, frozen=True):
    """requestMappings[]: which request stands for a container's extended resource."""

    container_name: str
    resource_name: str
    request_name: str


class ExtendedResourceClaimStatus(ApiStruct, frozen=True):
    """status.extendedResourceClaimStatus: the claim that stands for extended resources."""

    resource_claim_name: str
    request_mappings: tuple[ExtendedResourceMapping, ...] = ()


class ContainerStateTerminated(ApiStruct, frozen=True):
    """state.terminated: when the container ended."""

    finished_at: str | None = None


class ContainerState(ApiStruct, frozen=True):
    """state of a container."""

    terminated: ContainerStateTerminated | None = None


class DeviceHealth(ApiStruct, frozen=True):
    """allocatedResourcesStatus[].resources[]: what the kubelet says of one device."""

    resource_id: str = msgspec.field(default="", name="resourceID")
    health: str = ""


class AllocatedResourceStatus(ApiStruct, frozen=True):
    """containerStatuses[].allocatedResourcesStatus[]: a resource, and its devices."""

    name: str = ""
    resources: tuple[DeviceHealth, ...] = ()


class ContainerStatus(ApiStruct, frozen=True):
    """status.containerStatuses[]."""

    name: str = ""
    state: ContainerState = ContainerState()
    allocated_resources_status: tuple[AllocatedResourceStatus, ...] = ()


class PodStatus(ApiStruct, frozen=True):
    """status of a pod."""

    phase: str = explicit("Pending")
    reason: str = ""
    message: str = ""
    conditions: tuple[PodCondition, ...] = ()
    nominated_node_name: str = ""
    start_time: str | None = None
    container_statuses: tuple[ContainerStatus, ...] = ()
    resource_claim_statuses: tuple[PodResourceClaimStatus, ...] = ()
    extended_resource_claim_status: ExtendedResourceClaimStatus | None = None


class Pod(ApiStruct, frozen=True):
    """v1 Pod."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = explicit(PodSpec())
    status: PodStatus = explicit(PodStatus())

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.metadata.namespace}/{self.metadata.name}"


class PodTemplate(ApiStruct, frozen=True):
    """spec.template of the controllers."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = explicit(PodSpec())


def failed_devices(pod: Pod) -> tuple[str, ...]:
    """Return the devices of a pod that its kubelet finds unhealthy, such as nvidia.com/gpu GPU-1.

    A kubelet that does not know says nothing against them.
    """
    return tuple(
        f"{resource.name} {device.resource_id}"
        for status in pod.status.container_statuses
        for resource in status.allocated_resources_status
        for device in resource.resources
        if device.health == "Unhealthy"
    )
