"""Kueue's objects (kueue.x-k8s.io), in the shape of v1beta2.

Older versions are converted to this shape before decoding (:mod:`bayplan.api.kueue_versions`).
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from bayplan.api.meta import ApiStruct, Condition, LabelSelector, ObjectMeta, explicit
from bayplan.api.node import Taint
from bayplan.api.pod import PodTemplate, Toleration
from bayplan.api.quantity import Quantity

__all__ = [
    "AdmissionCheck",
    "AdmissionCheckSpec",
    "AdmissionCheckState",
    "AdmissionCheckStatus",
    "AssignedPodSet",
    "BorrowWithinCohort",
    "CheckParameters",
    "CheckPodSetUpdates",
    "ClusterQueue",
    "ClusterQueuePreemption",
    "ClusterQueueSpec",
    "ClusterQueueStatus",
    "ClusterSource",
    "Cohort",
    "CohortSpec",
    "EvictionCount",
    "FairSharing",
    "FlavorFungibility",
    "FlavorQuotas",
    "KubeConfig",
    "KueueCondition",
    "KueueWorkload",
    "KueueWorkloadSpec",
    "KueueWorkloadStatus",
    "LocalQueue",
    "LocalQueueSpec",
    "MultiKueueCluster",
    "MultiKueueClusterSpec",
    "MultiKueueConfig",
    "MultiKueueConfigSpec",
    "PodSet",
    "PodSetRequest",
    "PreemptionGateState",
    "ProvisioningRequestConfig",
    "ProvisioningRequestConfigSpec",
    "QuotaAdmission",
    "ReclaimablePods",
    "RequeueState",
    "ResourceFlavor",
    "ResourceFlavorSpec",
    "ResourceGroup",
    "ResourceQuota",
    "RetryStrategy",
    "SchedulingStats",
    "SelectorUpdate",
    "WorkloadPriorityClass",
]

StopPolicy = Literal["", "None", "Hold", "HoldAndDrain"]
PreemptionPolicy = Literal["Never", "LowerPriority", "LowerOrNewerEqualPriority", "Any"]


KueueCondition = Condition


# Quotas ------------------------------------------------------------------------------------


class ResourceQuota(ApiStruct, frozen=True):
    """resourceGroups[].flavors[].resources[]: the quota of one resource in one flavor.

    Without ``borrowing_limit`` the queue may borrow all that the cohort lends, without
    ``lending_limit`` the cohort may use all that is idle.
    """

    name: str
    nominal_quota: Quantity
    borrowing_limit: Quantity | None = None
    lending_limit: Quantity | None = None


class FlavorQuotas(ApiStruct, frozen=True):
    """resourceGroups[].flavors[]."""

    name: str
    resources: tuple[ResourceQuota, ...] = ()


class ResourceGroup(ApiStruct, frozen=True):
    """resourceGroups[]: resources that get one flavor together, and the flavors in order."""

    covered_resources: tuple[str, ...] = ()
    flavors: tuple[FlavorQuotas, ...] = ()


class FairSharing(ApiStruct, frozen=True):
    """fairSharing: the weight of a queue or a cohort among its siblings."""

    weight: Quantity | None = None


class FairSharingStatus(ApiStruct, frozen=True):
    """status.fairSharing: the weighted share times 1000."""

    weighted_share: int = explicit(0)


# ClusterQueue ------------------------------------------------------------------------------


class FlavorFungibility(ApiStruct, frozen=True):
    """spec.flavorFungibility: whether the search goes on when a flavor borrows or preempts."""

    when_can_borrow: Literal["MayStopSearch", "TryNextFlavor"] = explicit("MayStopSearch")
    when_can_preempt: Literal["MayStopSearch", "TryNextFlavor"] = explicit("TryNextFlavor")
    preference: Literal["", "BorrowingOverPreemption", "PreemptionOverBorrowing"] = ""


class BorrowWithinCohort(ApiStruct, frozen=True):
    """spec.preemption.borrowWithinCohort: preemption in other queues while this one borrows."""

    policy: Literal["Never", "LowerPriority"] = explicit("Never")
    max_priority_threshold: int | None = None


class ClusterQueuePreemption(ApiStruct, frozen=True):
    """spec.preemption."""

    reclaim_within_cohort: PreemptionPolicy = explicit("Never")
    borrow_within_cohort: BorrowWithinCohort | None = None
    within_cluster_queue: Literal["Never", "LowerPriority", "LowerOrNewerEqualPriority"] = explicit(
        "Never"
    )


class AdmissionCheckRule(ApiStruct, frozen=True):
    """spec.admissionChecksStrategy.admissionChecks[]; without flavors it holds for all."""

    name: str
    on_flavors: tuple[str, ...] = ()


class AdmissionChecksStrategy(ApiStruct, frozen=True):
    """spec.admissionChecksStrategy."""

    admission_checks: tuple[AdmissionCheckRule, ...] = ()


class AdmissionScope(ApiStruct, frozen=True):
    """spec.admissionScope."""

    admission_mode: Literal["UsageBasedAdmissionFairSharing", "NoAdmissionFairSharing"]


class MigrationConstraints(ApiStruct, frozen=True):
    """spec.concurrentAdmissionPolicy.migration.constraints."""

    last_acceptable_flavor_name: str = ""


class Migration(ApiStruct, frozen=True):
    """spec.concurrentAdmissionPolicy.migration."""

    mode: str = ""
    constraints: MigrationConstraints | None = None


class ConcurrentAdmissionPolicy(ApiStruct, frozen=True):
    """spec.concurrentAdmissionPolicy: variants of a workload, one for each flavor."""

    migration: Migration = Migration()


class ClusterQueueSpec(ApiStruct, frozen=True):
    """spec of a ClusterQueue. Without ``namespace_selector`` no namespace may use it."""

    resource_groups: tuple[ResourceGroup, ...] = ()
    cohort_name: str = ""
    queueing_strategy: Literal["BestEffortFIFO", "StrictFIFO"] = explicit("BestEffortFIFO")
    namespace_selector: LabelSelector | None = None
    flavor_fungibility: FlavorFungibility = explicit(FlavorFungibility())
    preemption: ClusterQueuePreemption = explicit(ClusterQueuePreemption())
    admission_checks_strategy: AdmissionChecksStrategy = AdmissionChecksStrategy()
    stop_policy: StopPolicy = ""
    fair_sharing: FairSharing | None = None
    admission_scope: AdmissionScope | None = None
    concurrent_admission_policy: ConcurrentAdmissionPolicy | None = None


class ResourceUsage(ApiStruct, frozen=True):
    """flavorsUsage[].resources[]: what is used, and the part of it that is borrowed."""

    name: str
    total: Quantity = explicit(Quantity(0))
    borrowed: Quantity = explicit(Quantity(0))


class FlavorUsage(ApiStruct, frozen=True):
    """status.flavorsUsage[] and status.flavorsReservation[]."""

    name: str
    resources: tuple[ResourceUsage, ...] = ()


class ClusterQueueStatus(ApiStruct, frozen=True):
    """status of a ClusterQueue."""

    conditions: tuple[KueueCondition, ...] = ()
    flavors_reservation: tuple[FlavorUsage, ...] = ()
    flavors_usage: tuple[FlavorUsage, ...] = ()
    pending_workloads: int = 0
    reserving_workloads: int = 0
    admitted_workloads: int = 0
    fair_sharing: FairSharingStatus | None = None


class ClusterQueue(ApiStruct, frozen=True):
    """kueue.x-k8s.io ClusterQueue."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ClusterQueueSpec = explicit(ClusterQueueSpec())
    status: ClusterQueueStatus = ClusterQueueStatus()


# Cohort, LocalQueue, ResourceFlavor, WorkloadPriorityClass -----------------------------------


class CohortSpec(ApiStruct, frozen=True):
    """spec of a Cohort."""

    parent_name: str = ""
    resource_groups: tuple[ResourceGroup, ...] = ()
    fair_sharing: FairSharing | None = None


class CohortStatus(ApiStruct, frozen=True):
    """status of a Cohort."""

    fair_sharing: FairSharingStatus | None = None


class Cohort(ApiStruct, frozen=True):
    """kueue.x-k8s.io Cohort."""

    metadata: ObjectMeta = ObjectMeta()
    spec: CohortSpec = CohortSpec()
    status: CohortStatus = CohortStatus()


class LocalQueueSpec(ApiStruct, frozen=True):
    """spec of a LocalQueue."""

    cluster_queue: str = ""
    stop_policy: StopPolicy = ""
    fair_sharing: FairSharing | None = None


class AdmissionFairSharingStatus(ApiStruct, frozen=True):
    """status.fairSharing.admissionFairSharingStatus: the decayed usage, and when it was taken."""

    consumed_resources: dict[str, Quantity] = explicit({})
    last_update: str | None = None


class LocalQueueFairSharingStatus(ApiStruct, frozen=True):
    """status.fairSharing of a LocalQueue."""

    weighted_share: int = explicit(0)
    admission_fair_sharing_status: AdmissionFairSharingStatus | None = None


class LocalQueueStatus(ApiStruct, frozen=True):
    """status of a LocalQueue."""

    conditions: tuple[KueueCondition, ...] = ()
    pending_workloads: int = 0
    reserving_workloads: int = 0
    admitted_workloads: int = 0
    flavors_reservation: tuple[FlavorUsage, ...] = ()
    flavors_usage: tuple[FlavorUsage, ...] = ()
    fair_sharing: LocalQueueFairSharingStatus | None = None


class LocalQueue(ApiStruct, frozen=True):
    """kueue.x-k8s.io LocalQueue."""

    metadata: ObjectMeta = ObjectMeta()
    spec: LocalQueueSpec = explicit(LocalQueueSpec())
    status: LocalQueueStatus = LocalQueueStatus()


class ResourceFlavorSpec(ApiStruct, frozen=True):
    """spec of a ResourceFlavor: the labels and taints of its nodes."""

    node_labels: dict[str, str] = {}
    node_taints: tuple[Taint, ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    topology_name: str = ""


class ResourceFlavor(ApiStruct, frozen=True):
    """kueue.x-k8s.io ResourceFlavor."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ResourceFlavorSpec = ResourceFlavorSpec()


class CheckParameters(ApiStruct, frozen=True):
    """spec.parameters of an AdmissionCheck: the object that configures it."""

    api_group: str = ""
    kind: str = ""
    name: str = ""


class AdmissionCheckSpec(ApiStruct, frozen=True):
    """spec of an AdmissionCheck; it never changes."""

    controller_name: str = ""
    parameters: CheckParameters | None = None


class AdmissionCheckStatus(ApiStruct, frozen=True):
    """status of an AdmissionCheck."""

    conditions: tuple[KueueCondition, ...] = ()


class AdmissionCheck(ApiStruct, frozen=True):
    """kueue.x-k8s.io AdmissionCheck."""

    metadata: ObjectMeta = ObjectMeta()
    spec: AdmissionCheckSpec = AdmissionCheckSpec()
    status: AdmissionCheckStatus = AdmissionCheckStatus()


class RetryStrategy(ApiStruct, frozen=True):
    """spec.retryStrategy: the n-th retry waits base * 2^(n-1) seconds, at most the maximum."""

    backoff_limit_count: int = explicit(3)
    backoff_base_seconds: int = explicit(60)
    backoff_max_seconds: int = explicit(1800)


class SelectorUpdate(ApiStruct, frozen=True):
    """spec.podSetUpdates.nodeSelector[]: a label whose value the request's details say."""

    key: str
    value_from_provisioning_class_detail: str = ""


class CheckPodSetUpdates(ApiStruct, frozen=True):
    """spec.podSetUpdates of a ProvisioningRequestConfig."""

    node_selector: tuple[SelectorUpdate, ...] = ()


class ProvisioningRequestConfigSpec(ApiStruct, frozen=True):
    """spec of a ProvisioningRequestConfig."""

    provisioning_class_name: str = ""
    parameters: dict[str, str] = {}
    managed_resources: tuple[str, ...] = ()
    retry_strategy: RetryStrategy | None = None
    pod_set_updates: CheckPodSetUpdates | None = None
    pod_set_merge_policy: Literal[
        "", "IdenticalPodTemplates", "IdenticalWorkloadSchedulingRequirements"
    ] = ""


class ProvisioningRequestConfig(ApiStruct, frozen=True):
    """kueue.x-k8s.io ProvisioningRequestConfig: the parameters of a provisioning check."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ProvisioningRequestConfigSpec = ProvisioningRequestConfigSpec()


class KubeConfig(ApiStruct, frozen=True):
    """How to connect to a cluster: the key ``kubeconfig`` of a Secret, or a file."""

    location: str
    location_type: Literal["Secret", "Path"] = explicit("Secret")


class ClusterProfileRef(ApiStruct, frozen=True):
    """The ClusterProfile of a cluster."""

    name: str


class ClusterSource(ApiStruct, frozen=True):
    """spec.clusterSource of a MultiKueueCluster: one of both."""

    kube_config: KubeConfig | None = None
    cluster_profile_ref: ClusterProfileRef | None = None


class MultiKueueClusterSpec(ApiStruct, frozen=True):
    """spec of a MultiKueueCluster; v1beta1 has the kubeconfig itself."""

    cluster_source: ClusterSource = ClusterSource()
    kube_config: KubeConfig | None = None


class MultiKueueClusterStatus(ApiStruct, frozen=True):
    """status of a MultiKueueCluster."""

    conditions: tuple[KueueCondition, ...] = ()


class MultiKueueCluster(ApiStruct, frozen=True):
    """kueue.x-k8s.io MultiKueueCluster: a cluster that runs jobs of others."""

    metadata: ObjectMeta = ObjectMeta()
    spec: MultiKueueClusterSpec = MultiKueueClusterSpec()
    status: MultiKueueClusterStatus = MultiKueueClusterStatus()

    @property
    def kube_config(self) -> KubeConfig | None:
        """How to connect to it, None where a ClusterProfile says it."""
        return self.spec.cluster_source.kube_config or self.spec.kube_config


class MultiKueueConfigSpec(ApiStruct, frozen=True):
    """spec of a MultiKueueConfig: the names of its clusters, the preferred first."""

    clusters: tuple[str, ...] = ()
    quota_management: Literal["", "Manual", "Automated"] = ""


class MultiKueueConfig(ApiStruct, frozen=True):
    """kueue.x-k8s.io MultiKueueConfig: the parameters of a check that sends jobs to clusters."""

    metadata: ObjectMeta = ObjectMeta()
    spec: MultiKueueConfigSpec = MultiKueueConfigSpec()


class WorkloadPriorityClass(ApiStruct, frozen=True):
    """kueue.x-k8s.io WorkloadPriorityClass."""

    value: int
    metadata: ObjectMeta = ObjectMeta()
    description: str = ""


# Workload ----------------------------------------------------------------------------------


class TopologyConstraint(ApiStruct, frozen=True):
    """topologyRequest.podsetSliceRequiredTopologyConstraints[]."""

    topology: str
    size: int = 0


class PodSetTopologyRequest(ApiStruct, frozen=True):
    """podSets[].topologyRequest."""

    required: str = ""
    preferred: str = ""
    unconstrained: bool = False
    pod_index_label: str = ""
    pod_set_group_name: str = ""
    pod_set_slice_required_topology: str = ""
    pod_set_slice_size: int | None = None
    sub_group_index_label: str = ""
    sub_group_count: int | None = None
    slices: tuple[TopologyConstraint, ...] = msgspec.field(
        default=(), name="podsetSliceRequiredTopologyConstraints"
    )


class PodSet(ApiStruct, frozen=True):
    """spec.podSets[]: pods of one template; with ``min_count`` fewer of them may be admitted."""

    name: str = explicit("main")
    template: PodTemplate = explicit(PodTemplate())
    count: int = explicit(1)
    min_count: int | None = None
    topology_request: PodSetTopologyRequest | None = None


class PriorityClassRef(ApiStruct, frozen=True):
    """spec.priorityClassRef: a WorkloadPriorityClass or a PriorityClass of pods."""

    group: str = ""
    kind: str = ""
    name: str = ""


class PreemptionGate(ApiStruct, frozen=True):
    """spec.preemptionGates[]: while one is closed, the workload preempts nothing."""

    name: str


class PreemptionGateState(ApiStruct, frozen=True):
    """status.preemptionGates[]: what a gate was set to; one that is not here is closed."""

    name: str
    position: str = explicit("Closed")
    last_transition_time: str | None = None


class KueueWorkloadSpec(ApiStruct, frozen=True):
    """spec of a Workload. ``priority`` is the priority class's value."""

    pod_sets: tuple[PodSet, ...] = ()
    queue_name: str = ""
    priority_class_ref: PriorityClassRef | None = None
    priority: int | None = None
    active: bool | None = None
    maximum_execution_time_seconds: int | None = None
    preemption_gates: tuple[PreemptionGate, ...] = ()


class AssignedPodSet(ApiStruct, frozen=True):
    """status.admission.podSetAssignments[]: the flavor of each resource, and what all pods use."""

    name: str = explicit("main")
    flavors: dict[str, str] = {}
    resource_usage: dict[str, Quantity] = {}
    count: int | None = None
    topology_assignment: dict[str, Any] | None = None
    delayed_topology_request: str = ""


class QuotaAdmission(ApiStruct, frozen=True):
    """status.admission: the queue whose quota the workload uses."""

    cluster_queue: str
    pod_set_assignments: tuple[AssignedPodSet, ...] = ()


class RequeueState(ApiStruct, frozen=True):
    """status.requeueState: how often the workload was requeued, and when it may run again."""

    count: int | None = None
    requeue_at: str | None = None


class ReclaimablePods(ApiStruct, frozen=True):
    """status.reclaimablePods[]: pods of a pod set that need no quota any more."""

    name: str
    count: int = 0


class AdmissionCheckState(ApiStruct, frozen=True):
    """status.admissionChecks[]."""

    name: str
    state: Literal["Pending", "Ready", "Retry", "Rejected"]
    message: str = explicit("")
    last_transition_time: str | None = None
    pod_set_updates: tuple[dict[str, Any], ...] = ()
    requeue_after_seconds: int | None = None
    retry_count: int | None = None


class PodSetRequest(ApiStruct, frozen=True):
    """status.resourceRequests[]: what a pod set that waits asks for."""

    name: str
    resources: dict[str, Quantity] = {}


class EvictionCount(ApiStruct, frozen=True):
    """status.schedulingStats.evictions[]."""

    reason: str
    underlying_cause: str = explicit("")
    count: int = 0


class SchedulingStats(ApiStruct, frozen=True):
    """status.schedulingStats."""

    evictions: tuple[EvictionCount, ...] = ()


class UnhealthyNode(ApiStruct, frozen=True):
    """status.unhealthyNodes[]."""

    name: str


class KueueWorkloadStatus(ApiStruct, frozen=True):
    """status of a Workload."""

    conditions: tuple[KueueCondition, ...] = ()
    admission: QuotaAdmission | None = None
    requeue_state: RequeueState | None = None
    reclaimable_pods: tuple[ReclaimablePods, ...] = ()
    admission_checks: tuple[AdmissionCheckState, ...] = ()
    resource_requests: tuple[PodSetRequest, ...] = ()
    accumulated_past_execution_time_seconds: int | None = None
    scheduling_stats: SchedulingStats | None = None
    nominated_cluster_names: tuple[str, ...] = ()
    cluster_name: str | None = None
    unhealthy_nodes: tuple[UnhealthyNode, ...] = ()
    preemption_gates: tuple[PreemptionGateState, ...] = ()


class KueueWorkload(ApiStruct, frozen=True):
    """kueue.x-k8s.io Workload."""

    metadata: ObjectMeta = ObjectMeta()
    spec: KueueWorkloadSpec = explicit(KueueWorkloadSpec())
    status: KueueWorkloadStatus = KueueWorkloadStatus()

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.metadata.namespace}/{self.metadata.name}"
