"""What Kueue's cases may say, kind by kind; objects of the API are read in ``kueue_objects``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET, UnsetType
from tests.conformance.case_format import Common, Number, Part, complete

__all__ = ["Info", "UsageSharingConfig", "completed"]

Object = dict[str, Any]
"""An object of the API in short forms, read where it is made."""
Usage = dict[str, dict[str, Number]]
"""Amounts by flavor and resource."""
Selection = dict[str, list[str]]


class _Case(Common, kw_only=True):
    feature_gates: dict[str, bool] = {}
    quota_check_strategy: str = ""
    unproven: str = ""
    row: Object = {}


class UsageSharingConfig(Part, kw_only=True):
    """The configuration admissionFairSharing; times are seconds."""

    usageHalfLifeTime: Number = 0
    usageSamplingInterval: Number = 300
    resourceWeights: dict[str, Number] = {}


class _World(_Case, kw_only=True):
    """The objects around workloads."""

    namespaces: dict[str, dict[str, str]] = {}
    flavors: list[Object] = []
    cohorts: list[Object] = []
    cluster_queues: list[Object] = []
    local_queues: list[Object] = []
    topologies: list[Object] = []
    limit_ranges: list[Object] = []
    fair_sharing: bool = False
    afs_config: UsageSharingConfig | UnsetType = UNSET


# Quotas ------------------------------------------------------------------------------------


class _AvailableInput(Part, kw_only=True):
    cluster_queues: list[Object] = []
    cohorts: list[Object] = []
    usage: dict[str, Usage] = {}


class _AvailableExpected(Part, kw_only=True):
    available: dict[str, Usage] = {}
    potentially_available: dict[str, Usage] = {}


class Available(_Case, kw_only=True):
    """available."""

    input: _AvailableInput = _AvailableInput()
    expected: _AvailableExpected = _AvailableExpected()


class _NodeShare(Part, kw_only=True):
    node: str
    kind: str = "cluster_queue"
    dominant_share: Number = 0
    dominant_resource: str = ""
    borrowing: bool = False


class DominantShares(_Case, kw_only=True):
    """dominant-share."""

    cluster_queues: list[Object] = []
    cohorts: list[Object] = []
    usage_of_cq: Usage = {}
    extra_request: Usage = {}
    expected: list[_NodeShare] = []


class _Column(Part, kw_only=True):
    flavor: str = ""
    resource: str = ""


class _Share(Part, kw_only=True):
    fair_weight: Number = 0
    unweighted_ratio: Number = 0
    dominant_resource: str = ""
    borrowing: bool = False
    borrowed_frs: list[_Column] = []


class _SharingInput(Part, kw_only=True):
    drs: _Share | UnsetType = UNSET
    usage: Usage = {}
    requested_frs: Usage = {}


class _SharingExpected(Part, kw_only=True):
    want: str = ""
    borrowing: bool = False
    borrowing_on_requested: bool = False


class _SharingFixture(Part, kw_only=True):
    cq: Object = {}
    lending_cq: Object = {}


class FairSharingUnit(_Case, kw_only=True):
    """fair-sharing-unit."""

    input: _SharingInput = _SharingInput()
    expected: _SharingExpected = _SharingExpected()
    fixture: _SharingFixture = _SharingFixture()


# Preemption --------------------------------------------------------------------------------


class _GivenFlavor(Part, kw_only=True):
    flavor: str
    mode: str = ""
    tried_flavor_idx: int = 0


class _GivenPodSet(Part, kw_only=True):
    name: str = "main"
    count: int | UnsetType = UNSET
    flavors: dict[str, _GivenFlavor] = {}


class _Preempted(Part, kw_only=True):
    workload: str
    reason: str = ""
    message: str | UnsetType = UNSET
    already_evicted: bool = False


class _PreemptionExpected(Part, kw_only=True):
    preempted: list[_Preempted] = []
    preempted_count: int | UnsetType = UNSET
    workloads_changed: list[str] | UnsetType = UNSET


class Preemption(_World, kw_only=True):
    """preemption and preemption-fair."""

    admitted: list[Object] = []
    incoming: Object
    target_cluster_queue: str
    assignment: list[_GivenPodSet] = []
    strategies: list[str] = []
    strategies_defaulted: bool = False
    expected: _PreemptionExpected = _PreemptionExpected()


class _OrderingInput(Part, kw_only=True):
    flavors: list[Object] = []
    cohorts: list[Object] = []
    cluster_queues: list[Object] = []
    admitted: list[Object] = []
    preemptor_cq: str = ""
    candidate_cqs: list[str] = []
    actions: list[str] = []


class _Order(Part, kw_only=True):
    order: list[str] = []


class FairOrdering(_Case, kw_only=True):
    """fair-ordering."""

    input: _OrderingInput = _OrderingInput()
    expected: _Order = _Order()


class _Candidate(Part, kw_only=True):
    workload: Object
    cluster_queue: str = ""
    local_queue_fs_usage: Number | UnsetType = UNSET


class _Candidates(Part, kw_only=True):
    candidates: list[_Candidate] = []


class _CandidateNames(Part, kw_only=True):
    candidates: list[str] = []


class CandidateOrder(_Case, kw_only=True):
    """preemption-candidate-order."""

    input: _Candidates = _Candidates()
    expected: _CandidateNames = _CandidateNames()


class _Yes(Part, kw_only=True):
    want: bool = False


class _PolicyInput(Part, kw_only=True):
    preemptor: Object
    candidate: Object
    policy: str = "Never"


class PreemptionPolicy(_Case, kw_only=True):
    """preemption-policy."""

    input: _PolicyInput
    expected: _Yes = _Yes()


class _MessageInput(Part, kw_only=True):
    preemptor: Object
    reason: str = ""
    preemptor_path: str = ""
    preemptee_path: str = ""


class _Text(Part, kw_only=True):
    want: str = ""


class PreemptionMessage(_Case, kw_only=True):
    """preemption-message."""

    input: _MessageInput
    expected: _Text = _Text()


class _BoostInput(Part, kw_only=True):
    wl: Object


class _BoostExpected(Part, kw_only=True):
    effective: int = 0
    base: int = 0
    boost: int = 0


class PriorityBoost(_Case, kw_only=True):
    """priority-boost."""

    input: _BoostInput
    expected: _BoostExpected = _BoostExpected()


class _PriorityInput(Part, kw_only=True):
    workload: Object


class _PriorityExpected(Part, kw_only=True):
    want: int | UnsetType = UNSET
    priority: int | UnsetType = UNSET
    boost: int | UnsetType = UNSET
    err: bool = False


class Priority(_Case, kw_only=True):
    """priority."""

    input: _PriorityInput
    expected: _PriorityExpected = _PriorityExpected()


# Flavors -----------------------------------------------------------------------------------


class _Oracle(Part, kw_only=True):
    possibility: str = "Preempt"
    borrowing_after: int = 0


class _Replaced(Part, kw_only=True):
    workload: Object | UnsetType = UNSET


class _Attempt(Part, kw_only=True):
    flavor: str
    mode: str = "NoFit"
    borrow: int = 0
    reasons: list[str] = []
    no_fit_reason: str = ""
    preemption_possibility: str = ""


class _AssignedPodSet(Part, kw_only=True):
    name: str = "main"
    count: int = 0
    flavors: dict[str, _GivenFlavor] = {}
    requests: dict[str, str] | UnsetType = UNSET
    reasons: list[str] = []
    error: Object | UnsetType = UNSET
    attempts: list[_Attempt] = []


class _QuotaUsage(Part, kw_only=True):
    assigned: Usage = {}


class _AssignedUsage(Part, kw_only=True):
    quota: _QuotaUsage = _QuotaUsage()


class _AssignmentExpected(Part, kw_only=True):
    pod_sets: list[_AssignedPodSet] = []
    borrowing: int = 0
    no_fit_reason: str = ""
    usage: _AssignedUsage = _AssignedUsage()


class _FlavorsExpected(Part, kw_only=True):
    representative_mode: str = "NoFit"
    assignment: _AssignmentExpected | UnsetType = UNSET
    flavors: dict[str, str] | UnsetType = UNSET


class AssignFlavors(_World, kw_only=True):
    """assign-flavors."""

    pod_sets: list[Object] = []
    reclaimable_pods: list[Object] = []
    target_cluster_queue: str
    allowed_flavors: list[str] | UnsetType = UNSET
    preemption_oracle: dict[str, dict[str, _Oracle]] = {}
    replaced_workload_slice: _Replaced | UnsetType = UNSET
    expected: _FlavorsExpected = _FlavorsExpected()


class _FlavorWay(Part, kw_only=True):
    preemption_mode: str = "noFit"
    borrowing_level: int = 0


class _PreferenceInput(Part, kw_only=True):
    a: _FlavorWay = _FlavorWay()
    b: _FlavorWay = _FlavorWay()
    config: Object = {}


class _Preferred(Part, kw_only=True):
    preferred: bool = False


class FlavorPreference(_Case, kw_only=True):
    """flavor-preference."""

    input: _PreferenceInput = _PreferenceInput()
    expected: _Preferred = _Preferred()


class _TotalFlavor(Part, kw_only=True):
    name: str
    mode: str = ""
    tried_flavor_idx: int = 0


class _TotalPodSet(Part, kw_only=True):
    name: str = "main"
    count: int = 0
    flavors: dict[str, _TotalFlavor] = {}
    requests: dict[str, str] = {}


class Info(Part, kw_only=True):
    """A workload that a queue considers."""

    workload: Object
    cluster_queue: str = ""


class _TotalFields(Part, kw_only=True):
    pod_sets: list[_TotalPodSet] = []
    replace_workload_slice: Info | UnsetType = UNSET


class _TotalArgs(Part, kw_only=True):
    wl: Info


class _TotalInput(Part, kw_only=True):
    fields: _TotalFields = _TotalFields()
    args: _TotalArgs


class _TotalExpected(Part, kw_only=True):
    want: Usage = {}


class AssignmentTotal(_Case, kw_only=True):
    """assignment-total."""

    input: _TotalInput
    expected: _TotalExpected = _TotalExpected()


class _SearchInput(Part, kw_only=True):
    pod_sets: list[Object] = []
    count_limit: int = 0


class _SearchExpected(Part, kw_only=True):
    count: int = 0
    found: bool = False


class PartialAdmissionSearch(_Case, kw_only=True):
    """partial-admission-search."""

    input: _SearchInput = _SearchInput()
    expected: _SearchExpected = _SearchExpected()


# Order -------------------------------------------------------------------------------------


class _Borrowing(Part, kw_only=True):
    borrowing: int = 0


class _Entry(Part, kw_only=True):
    workload: Object
    assignment: _Borrowing = _Borrowing()
    is_preemptor: bool = False


class _WorkloadOrdering(Part, kw_only=True):
    pods_ready_requeuing_timestamp: str = "Eviction"


class _EntryOrderInput(Part, kw_only=True):
    input: list[_Entry] = []
    workload_ordering: _WorkloadOrdering = _WorkloadOrdering()


class EntryOrder(_Case, kw_only=True):
    """entry-order."""

    input: _EntryOrderInput = _EntryOrderInput()
    expected: _Order = _Order()


class _CompareInput(Part, kw_only=True):
    a: _Entry
    b: _Entry
    drs_values: dict[str, _Share] = {}
    requested_frs: dict[str, Usage] = {}


class _Less(Part, kw_only=True):
    less: bool = False


class EntryCompare(_Case, kw_only=True):
    """entry-compare."""

    input: _CompareInput
    expected: _Less = _Less()


class _ReserveInput(Part, kw_only=True):
    assignment_mode: str = ""
    assignment_usage: Usage = {}
    cq_usage: Usage = {}
    borrowing: int = 0
    assignment_borrowing: int = 0


class _Reserved(Part, kw_only=True):
    reserved: Usage = {}


class _QueueFixture(Part, kw_only=True):
    cq: Object


class ResourcesToReserve(_Case, kw_only=True):
    """resources-to-reserve."""

    input: _ReserveInput = _ReserveInput()
    expected: _Reserved = _Reserved()
    fixture: _QueueFixture


# Queues ------------------------------------------------------------------------------------


class _RequeuedEntry(Part, kw_only=True):
    status: str = ""
    inadmissible_msg: str = ""
    quota_reserved_reason: str = ""


class _RequeueInput(Part, kw_only=True):
    e: _RequeuedEntry = _RequeuedEntry()


class _RequeueExpected(Part, kw_only=True):
    workloads: Selection = {}
    inadmissible: Selection = {}
    status: Object | UnsetType = UNSET
    status_updates: int = 0


class Requeue(_Case, kw_only=True):
    """requeue."""

    input: _RequeueInput = _RequeueInput()
    expected: _RequeueExpected = _RequeueExpected()


class _LastAssignment(Part, kw_only=True):
    last_tried_flavor_idx: list[dict[str, int]] = []


class _QueueInput(Part, kw_only=True):
    workloads_to_add: list[Object] = []
    workloads_to_update: list[Object] = []
    workloads_to_delete: list[Object] = []
    inadmissible_workloads_to_requeue: list[Info] = []
    admissible_workloads_to_requeue: list[Info] = []
    queue_inadmissible_workloads: bool = False
    workload_info: Info | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    last_assignment: _LastAssignment | UnsetType = UNSET
    w1: Object | UnsetType = UNSET
    w2: Object | UnsetType = UNSET
    workload_ordering: _WorkloadOrdering = _WorkloadOrdering()
    cq: Object | UnsetType = UNSET
    lqs: list[Object] = []
    afs_config: UsageSharingConfig | UnsetType = UNSET
    init_consumed_resources: dict[str, dict[str, str]] = {}
    wls: list[Object] = []
    strategy: str = "BestEffortFIFO"
    hash_to_record: str = ""
    heap_workloads: dict[str, str] = {}
    inadmissible_hashes: list[str] = []
    push_hash: str = ""


class _QueueExpected(Part, kw_only=True):
    active_workloads: list[str] = []
    pending: int = 0
    inadmissible_workloads_requeued: int = 0
    want: bool = False
    inadmissible: bool | int = False
    sticky: bool | UnsetType = UNSET
    expected: str = ""
    wl: Object | UnsetType = UNSET
    moved: int = 0
    active: int = 0
    hash: bool = False


class Queue(_Case, kw_only=True):
    """queue."""

    input: _QueueInput = _QueueInput()
    expected: _QueueExpected = _QueueExpected()


# Usage over time ---------------------------------------------------------------------------


class _PenaltyOp(Part, kw_only=True):
    wl: str
    push: dict[str, str] | UnsetType = UNSET


class _PenaltyInput(Part, kw_only=True):
    ops: list[_PenaltyOp] = []


class _PenaltyExpected(Part, kw_only=True):
    has: bool = False
    milli: dict[str, Number] = {}


class UsagePenalty(_Case, kw_only=True):
    """afs-penalty."""

    input: _PenaltyInput = _PenaltyInput()
    expected: _PenaltyExpected = _PenaltyExpected()


class _UsageInput(Part, kw_only=True):
    afs_config: UsageSharingConfig | UnsetType = UNSET
    admission_mode: str = ""
    wl: Object


class UsageUnit(_Case, kw_only=True):
    """afs-unit."""

    input: _UsageInput
    expected: _Yes = _Yes()


# Slices ------------------------------------------------------------------------------------


class _Client(Part, kw_only=True):
    objects: list[Object] = []


class _Named(Part, kw_only=True):
    name: str = ""
    uid: str = ""


class _Gvk(Part, kw_only=True):
    group: str = ""
    version: str = ""
    kind: str = ""


class _QueueSnapshot(Part, kw_only=True):
    workloads: dict[str, Info] = {}


class _Snapshot(Part, kw_only=True):
    cluster_queues: dict[str, _QueueSnapshot] = {}


class _SlicesArgs(Part, kw_only=True):
    object: Object = {}
    wl: Object | UnsetType = UNSET
    clnt: _Client = _Client()
    job_object: _Named = _Named()
    job_object_gvk: _Gvk = _Gvk()
    job_pod_sets: list[Object] = []
    snap: _Snapshot | UnsetType = UNSET
    old_counts: dict[str, int] = {}
    new_counts: dict[str, int] = {}


class _SlicesInput(Part, kw_only=True):
    args: _SlicesArgs = _SlicesArgs()
    workloads: list[Object] = []


class _SlicesExpected(Part, kw_only=True):
    want: Any = None
    err: bool = False


class WorkloadSlices(_Case, kw_only=True):
    """workload-slices."""

    input: _SlicesInput = _SlicesInput()
    expected: _SlicesExpected = _SlicesExpected()


# Cycles ------------------------------------------------------------------------------------


class _EventKey(Part, kw_only=True):
    name: str
    namespace: str = ""


class _Event(Part, kw_only=True):
    key: _EventKey
    event_type: str
    reason: str
    message: str = ""


class _CycleExpected(Part, kw_only=True):
    workloads: dict[str, Object] = {}
    assignments: dict[str, Object] | UnsetType = UNSET
    left: Selection = {}
    inadmissible_left: Selection = {}
    skipped_preemptions: dict[str, int] = {}
    preemption_target_recomputations: dict[str, dict[str, int]] = {}
    events: list[_Event] | UnsetType = UNSET


class ScheduleCycle(_World, kw_only=True):
    """schedule-cycle."""

    workloads: list[Object] = []
    expected: _CycleExpected = _CycleExpected()


class _ContextInput(Part, kw_only=True):
    cqs: list[Object] = []
    workloads: list[Object] = []
    delete_workloads: list[_EventKey] = []


class _ContextFixture(Part, kw_only=True):
    queues: list[Object] = []
    cohorts: list[Object] = []
    cluster_queues: list[Object] = []
    resource_flavors: list[Object] = []
    flavors: list[Object] = []


class _ContextExpected(Part, kw_only=True):
    workloads: list[Object] = []
    admissions_on_second_schedule: dict[str, Object] = {}


class ScheduleContext(_Case, kw_only=True):
    """schedule-context."""

    input: _ContextInput = _ContextInput()
    fixture: _ContextFixture = _ContextFixture()
    expected: _ContextExpected = _ContextExpected()


class ScheduleUsage(_World, kw_only=True):
    """schedule-afs."""

    workloads: list[Object] = []
    initial_usage: dict[str, dict[str, str]] = {}
    delete_local_queue_before_cycles: str = ""
    cycles: int = 1
    expected: _CycleExpected = _CycleExpected()


_FORMATS: dict[str, type[_Case]] = {
    "available": Available,
    "dominant-share": DominantShares,
    "fair-sharing-unit": FairSharingUnit,
    "preemption": Preemption,
    "preemption-fair": Preemption,
    "fair-ordering": FairOrdering,
    "preemption-candidate-order": CandidateOrder,
    "preemption-policy": PreemptionPolicy,
    "preemption-message": PreemptionMessage,
    "priority-boost": PriorityBoost,
    "priority": Priority,
    "assign-flavors": AssignFlavors,
    "flavor-preference": FlavorPreference,
    "assignment-total": AssignmentTotal,
    "partial-admission-search": PartialAdmissionSearch,
    "entry-order": EntryOrder,
    "entry-compare": EntryCompare,
    "resources-to-reserve": ResourcesToReserve,
    "requeue": Requeue,
    "queue": Queue,
    "afs-penalty": UsagePenalty,
    "afs-unit": UsageUnit,
    "workload-slices": WorkloadSlices,
    "schedule-cycle": ScheduleCycle,
    "schedule-context": ScheduleContext,
    "schedule-afs": ScheduleUsage,
}


def completed(case: Mapping[str, Any]) -> dict[str, Any]:
    """Return a case with all fields of its kind.

    :raises UnknownFieldError: for a field that the kind does not have.
    """
    return complete(_FORMATS[case["kind"]], case)
