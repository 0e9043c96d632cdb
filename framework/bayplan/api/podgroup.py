"""Pod groups of every ecosystem, each in the shape of its own API."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from bayplan.api.meta import ApiStruct, LabelSelector, ObjectMeta, explicit
from bayplan.api.quantity import Quantity

__all__ = [
    "KAI_TIMES",
    "LAST_EVICTION",
    "LAST_START",
    "STALE_SINCE",
    "CompositePodGroup",
    "GroupCondition",
    "KaiPodGroup",
    "KaiPodGroupStatus",
    "NativePodGroup",
    "PodGroup",
    "PodGroupSpec",
    "PodGroupStatus",
    "QuotaDetails",
    "SchedulerPluginsPodGroup",
    "SchedulingCondition",
    "UnschedulableDetails",
    "UnschedulableReason",
    "VolcanoPodGroup",
    "Workload",
]


class GroupCondition(ApiStruct, frozen=True):
    """status.conditions[] of pod groups."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


class PodGroupSpec(ApiStruct, frozen=True):
    """spec of a pod group."""

    min_member: int = explicit(1)
    min_resources: dict[str, Quantity] = {}
    schedule_timeout_seconds: int | None = None


class PodGroupStatus(ApiStruct, frozen=True):
    """status of a pod group."""

    phase: str = ""
    scheduled: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0


class SchedulerPluginsPodGroupStatus(ApiStruct, frozen=True):
    """status of a pod group of scheduler-plugins: without the number of pods on nodes."""

    phase: str = ""
    running: int = 0
    succeeded: int = 0
    failed: int = 0


class CountedPodGroup(ApiStruct, frozen=True):
    """What the pod groups of Koordinator and of scheduler-plugins have in common."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PodGroupSpec = explicit(PodGroupSpec())


class PodGroup(CountedPodGroup, frozen=True):
    """scheduling.sigs.k8s.io/v1alpha1 PodGroup, of Koordinator and older scheduler-plugins."""

    status: PodGroupStatus = PodGroupStatus()


class SchedulerPluginsPodGroup(CountedPodGroup, frozen=True):
    """scheduling.x-k8s.io/v1alpha1 PodGroup of scheduler-plugins."""

    status: SchedulerPluginsPodGroupStatus = SchedulerPluginsPodGroupStatus()


# Volcano -----------------------------------------------------------------------------------


class NetworkTopologySpec(ApiStruct, frozen=True):
    """networkTopology: hard with a highest tier by number or name, or soft."""

    mode: Literal["hard", "soft"] = explicit("hard")
    highest_tier_allowed: int | None = None
    highest_tier_name: str = ""


class SubGroupPolicy(ApiStruct, frozen=True):
    """subGroupPolicy[]: members that are placed together, by labels."""

    name: str
    network_topology: NetworkTopologySpec | None = None
    sub_group_size: int = explicit(1)
    min_sub_groups: int = 0
    label_selector: LabelSelector | None = None
    match_label_keys: tuple[str, ...] = ()


class VolcanoPodGroupSpec(ApiStruct, frozen=True):
    """spec of a Volcano pod group."""

    min_member: int = explicit(1)
    min_task_member: dict[str, int] = {}
    min_resources: dict[str, Quantity] = {}
    queue: str = explicit("default")
    priority_class_name: str = ""
    network_topology: NetworkTopologySpec | None = None
    sub_group_policy: tuple[SubGroupPolicy, ...] = ()


class ConditionedStatus(ApiStruct, frozen=True):
    """status of a pod group with a phase and conditions."""

    phase: str = ""
    conditions: tuple[GroupCondition, ...] = ()
    running: int = 0
    succeeded: int = 0
    failed: int = 0


class VolcanoPodGroup(ApiStruct, frozen=True):
    """scheduling.volcano.sh/v1beta1 PodGroup."""

    metadata: ObjectMeta = ObjectMeta()
    spec: VolcanoPodGroupSpec = explicit(VolcanoPodGroupSpec())
    status: ConditionedStatus = ConditionedStatus()


# KAI ---------------------------------------------------------------------------------------

LAST_EVICTION = "kai.scheduler/last-eviction-timestamp"
LAST_START = "kai.scheduler/last-start-timestamp"
STALE_SINCE = "kai.scheduler/stale-podgroup-timestamp"
KAI_TIMES = frozenset((LAST_EVICTION, LAST_START, STALE_SINCE))
"""The annotations in which a scheduler keeps the times of a KAI pod group, RFC 3339."""


class TopologyConstraint(ApiStruct, frozen=True):
    """topologyConstraint: levels are node labels of the named Topology."""

    topology: str = ""
    required_topology_level: str = ""
    preferred_topology_level: str = ""


class KaiSubGroup(ApiStruct, frozen=True):
    """subGroups[]."""

    name: str
    min_member: int = explicit(1)
    parent: str = ""
    topology_constraint: TopologyConstraint | None = None
    min_sub_group: int | None = None


class KaiPodGroupSpec(ApiStruct, frozen=True):
    """spec of a KAI pod group."""

    min_member: int = explicit(1)
    queue: str = ""
    priority_class_name: str = ""
    preemptibility: Literal["", "preemptible", "non-preemptible"] = ""
    topology_constraint: TopologyConstraint | None = None
    sub_groups: tuple[KaiSubGroup, ...] = ()
    min_sub_group: int | None = None
    preemption_delay: str = ""
    staleness_grace_period: str = ""


class QuotaDetails(ApiStruct, frozen=True):
    """details.queueDetails of a reason: the queue that refuses, and what was asked of it."""

    name: str = ""
    queue_requested_resources: dict[str, Quantity] = {}
    queue_deserved_resources: dict[str, Quantity] = {}
    queue_allocated_resources: dict[str, Quantity] = {}
    queue_allocated_non_preemptible_resources: dict[str, Quantity] = {}
    queue_resource_limits: dict[str, Quantity] = {}
    pod_group_requested_resources: dict[str, Quantity] = {}
    pod_group_requested_non_preemptible_resources: dict[str, Quantity] = {}


class UnschedulableDetails(ApiStruct, frozen=True):
    """details of a reason, for programs."""

    queue_details: QuotaDetails | None = None


class UnschedulableReason(ApiStruct, frozen=True):
    """reasons[] of a scheduling condition: a word such as OverLimit, and a text for people."""

    reason: str
    message: str = ""
    details: UnschedulableDetails | None = None


class SchedulingCondition(ApiStruct, frozen=True):
    """status.schedulingConditions[]: why a pod group does not fit on the nodes of a pool."""

    type: str
    node_pool: str = ""
    reason: str = ""
    message: str = ""
    reasons: tuple[UnschedulableReason, ...] = ()
    transition_id: str = msgspec.field(name="transitionID", default="")
    last_transition_time: str | None = None
    status: str = ""


class KaiPodGroupStatus(ApiStruct, frozen=True):
    """status of a KAI pod group: it has no phase."""

    conditions: tuple[GroupCondition, ...] = ()
    scheduling_conditions: tuple[SchedulingCondition, ...] = ()


class KaiPodGroup(ApiStruct, frozen=True):
    """scheduling.run.ai/v2alpha2 PodGroup."""

    metadata: ObjectMeta = ObjectMeta()
    spec: KaiPodGroupSpec = explicit(KaiPodGroupSpec())
    status: KaiPodGroupStatus = KaiPodGroupStatus()


# Kubernetes --------------------------------------------------------------------------------


class GangPolicy(ApiStruct, frozen=True):
    """schedulingPolicy.gang."""

    min_count: int = explicit(1)


class BasicPolicy(ApiStruct, frozen=True):
    """schedulingPolicy.basic: no gang."""


class SchedulingPolicy(ApiStruct, frozen=True):
    """schedulingPolicy: exactly one of basic and gang."""

    basic: BasicPolicy | None = None
    gang: GangPolicy | None = None


class TopologyKey(ApiStruct, frozen=True):
    """schedulingConstraints.topology[]: one domain per value of a node label."""

    key: str


class SchedulingConstraints(ApiStruct, frozen=True):
    """schedulingConstraints."""

    topology: tuple[TopologyKey, ...] = ()


DisruptionMode = str | dict[str, Any]
"""``Pod`` or ``PodGroup`` in v1alpha2; an object with ``single`` or ``all`` later."""


class PodGroupTemplate(ApiStruct, frozen=True):
    """podGroupTemplates[] of a Workload."""

    name: str
    scheduling_policy: SchedulingPolicy | None = None
    scheduling_constraints: SchedulingConstraints = SchedulingConstraints()
    disruption_mode: DisruptionMode = explicit("Pod")
    priority_class_name: str = ""


class WorkloadSpec(ApiStruct, frozen=True):
    """spec of a Workload."""

    pod_group_templates: tuple[PodGroupTemplate, ...] = ()


class Workload(ApiStruct, frozen=True):
    """scheduling.k8s.io Workload."""

    metadata: ObjectMeta = ObjectMeta()
    spec: WorkloadSpec = WorkloadSpec()


class WorkloadReference(ApiStruct, frozen=True):
    """podGroupTemplateRef.workload: a template of a Workload."""

    workload_name: str = ""
    pod_group_template_name: str = ""


class TemplateReference(ApiStruct, frozen=True):
    """podGroupTemplateRef."""

    workload: WorkloadReference | None = None


class TemplateName(ApiStruct, frozen=True):
    """workloadRef of 1.37: a template of a Workload."""

    workload_name: str = ""
    template_name: str = ""


class NativePodGroupSpec(ApiStruct, frozen=True):
    """spec of a Kubernetes pod group."""

    pod_group_template_ref: TemplateReference | None = None
    scheduling_policy: SchedulingPolicy | None = None
    scheduling_constraints: SchedulingConstraints = SchedulingConstraints()
    disruption_mode: DisruptionMode = ""
    priority_class_name: str = ""
    workload_ref: TemplateName | None = None
    parent_composite_pod_group_name: str = ""


class NativePodGroupStatus(ApiStruct, frozen=True):
    """status of a Kubernetes pod group; it counts no pods."""

    conditions: tuple[GroupCondition, ...] = ()


class NativePodGroup(ApiStruct, frozen=True):
    """scheduling.k8s.io PodGroup of Kubernetes 1.36 (v1alpha2) and 1.37 (v1alpha3, v1beta1)."""

    metadata: ObjectMeta = ObjectMeta()
    spec: NativePodGroupSpec = NativePodGroupSpec()
    status: NativePodGroupStatus = NativePodGroupStatus()


class CompositeGangPolicy(ApiStruct, frozen=True):
    """schedulingPolicy.gang of a composite group: how many of its groups have to run."""

    min_group_count: int = explicit(1)


class CompositePolicy(ApiStruct, frozen=True):
    """schedulingPolicy of a composite group: exactly one of basic and gang."""

    basic: BasicPolicy | None = None
    gang: CompositeGangPolicy | None = None


class CompositePodGroupSpec(ApiStruct, frozen=True):
    """spec of a CompositePodGroup."""

    parent_composite_pod_group_name: str = ""
    workload_ref: TemplateName | None = None
    scheduling_policy: CompositePolicy | None = None
    scheduling_constraints: SchedulingConstraints = SchedulingConstraints()
    disruption_mode: DisruptionMode = ""


class CompositePodGroup(ApiStruct, frozen=True):
    """scheduling.k8s.io CompositePodGroup of Kubernetes 1.37 (v1alpha3): groups of groups."""

    metadata: ObjectMeta = ObjectMeta()
    spec: CompositePodGroupSpec = CompositePodGroupSpec()
