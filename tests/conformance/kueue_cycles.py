"""Whole admission cycles of the reference's vectors: objects in, cycles, objects compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tests.conformance.case_format import UnknownFieldError, checked
from tests.conformance.kueue_objects import (
    NOW,
    Case,
    cluster_queue,
    cohort,
    flavor,
    local_queue,
    namespaces,
    workload,
)

from bayplan.api.kueue import (
    AdmissionCheckState,
    KueueCondition,
    KueueWorkload,
    PodSetRequest,
    QuotaAdmission,
    SchedulingStats,
)
from bayplan.api.quantity import Quantity
from bayplan_plugins.queues.kueue import Admission, CycleResult, Settings, UsageSharing
from bayplan_plugins.queues.kueue.amounts import amount_in
from bayplan_plugins.queues.kueue.store import KueueObject

_TOPOLOGY = "kueue.x-k8s.io/v1beta2"
GATES = {
    "PartialAdmission": "partial_admission",
    "PrioritySortingWithinCohort": "priority_across_queues",
    "ElasticJobsViaWorkloadSlices": "elastic_slices",
    "ConcurrentAdmission": "concurrent_admission",
    "RecomputeAssignmentUponPreemptionTargetsOverlap": "recompute_overlaps",
    "PriorityBoost": "boosted_priorities",
    "MultiKueueOrchestratedPreemption": "preemption_gates",
    "PrioritizePreemptorWorkloads": "preemptors_first",
    "FairSharingPreemptWithinNominal": "nominal_regardless",
    "FairSharingPrioritizeNonBorrowing": "lenders_first",
    "FairSharingReevaluatePreemptionCandidates": "second_look",
    "SchedulingEquivalenceHashing": "equivalence_hashing",
}


LASTING = frozenset(
    (
        "FlavorFungibility",
        "FlavorFungibilityPreserveScanProgress",
        "ReclaimablePods",
        "UnadmittedWorkloadsObservability",
    )
)
"""Gates that cannot be turned off here."""
OF_NO_ACCOUNT = frozenset(
    (
        "SchedulerLibraryIntegration",
        "TASCacheNodeMatchResults",
        "TASCachingRemainingResources",
        "TASFailedNodeReplacementFailFast",
        "TASMultiLayerTopology",
        "TASRecomputeAssignmentWithinSchedulingCycle",
        "TopologyAwareScheduling",
        "VectorizedResourceRequests",
        "WorkloadRequestUseMergePatch",
    )
)
"""Gates of how Kueue computes, writes, and places on topologies: no part of these cases."""
BUFFER = "SchedulerTimestampPreemptionBuffer"
"""A gate that Kueue no longer has; what it chose is gone with it."""
SPECIAL = frozenset(("AdmissionFairSharing", BUFFER))
"""Gates that choose settings of their own."""
KNOWN_GATES = LASTING | OF_NO_ACCOUNT | SPECIAL | GATES.keys()
RELEASED: Mapping[str, Any] = {"preemptors_first": False}
"""What the release chooses otherwise than bayplan, where a case does not say it."""


def settings(case: Case, **given: Any) -> Settings:
    """Return settings with a case's feature gates, and else those of the release."""
    gates = case["feature_gates"]
    chosen = {GATES[gate]: on for gate, on in gates.items() if gate in GATES}
    if gates.get(BUFFER):
        raise UnknownFieldError(f"nobody reads the gate {BUFFER}")
    strategy = case["quota_check_strategy"]
    if strategy not in ("", "BlockUndeclared", "IgnoreUndeclared"):
        raise UnknownFieldError(f"nobody reads the quota_check_strategy {strategy}")
    chosen["ignore_undeclared"] = strategy == "IgnoreUndeclared"
    return Settings(**{**RELEASED, **chosen, **given})


def usage_sharing(case: Case) -> UsageSharing | None:
    """Return the settings of admission fair sharing of a case."""
    given = case.get("afs_config")
    if given is None:
        return None
    return UsageSharing(
        given["usageHalfLifeTime"], given["usageSamplingInterval"], given["resourceWeights"]
    )


def loaded(admission: Admission, objects: Iterable[KueueObject]) -> Admission:
    """Return an admission that knows the objects."""
    for obj in objects:
        admission.set(obj, NOW)
    return admission


def objects_of(case: Case) -> list[KueueObject]:
    """Return all objects of a case but its workloads."""
    for topology in case.get("topologies", ()):
        # A flavor may name it; its levels are for those who place pods.
        checked(_TOPOLOGY, "Topology", topology)
    return [
        *namespaces(case.get("namespaces", {})),
        *map(flavor, case.get("flavors", ())),
        *map(cohort, case.get("cohorts", ())),
        *map(cluster_queue, case.get("cluster_queues", ())),
        *map(local_queue, case.get("local_queues", ())),
    ]


# Cases -------------------------------------------------------------------------------------


def schedule_cycle(case: Case) -> None:
    """Run one cycle with all pending workloads queued."""
    chosen = settings(case, fair_sharing=case["fair_sharing"])
    admission = loaded(Admission(chosen), objects_of(case))
    before = [workload(one) for one in case["workloads"]]
    loaded(admission, before)
    result = admission.cycle(NOW)
    expected = case["expected"]
    _compare_objects(admission, {one.key: one for one in before}, expected["workloads"])
    if "assignments" in expected:
        compare_assignments(admission, expected["assignments"])
    _compare_queues(admission, expected)
    _compare_events(result, case)
    for queue, count in expected["skipped_preemptions"].items():
        assert result.outcome.skipped_preemptions.get(queue, 0) == count, queue
    for queue, counts in expected["preemption_target_recomputations"].items():
        assert result.outcome.recomputed.get(queue, {}) == counts, queue


def schedule_context(case: Case) -> None:
    """Run a cycle, delete workloads, and run another, in which the search goes on."""
    given, fixture = case["input"], case["fixture"]
    objects: list[KueueObject] = [
        *map(flavor, (*fixture["resource_flavors"], *fixture["flavors"])),
        *map(cohort, fixture["cohorts"]),
        *map(cluster_queue, given["cqs"]),
        *map(cluster_queue, fixture["cluster_queues"]),
        *map(local_queue, fixture["queues"]),
    ]
    known = {o.metadata.name for o in objects}
    for name in {
        f for q in given["cqs"] for g in q.get("resource_groups", ()) for f in _names(g)
    } - known:
        objects.append(flavor({"name": name}))
    admission = loaded(Admission(settings(case)), objects)
    loaded(admission, [workload(one) for one in given["workloads"]])
    admission.cycle(NOW)
    expected = case["expected"]
    for one in expected["workloads"]:
        key = f"{one['namespace']}/{one['name']}"
        _compare_workload(admission.store.workloads[key], one)
    for gone in given["delete_workloads"]:
        found = admission.store.workloads[f"{gone['namespace']}/{gone['name']}"]
        admission.delete(found, NOW)
    admission.cycle(NOW)
    compare_assignments(admission, expected["admissions_on_second_schedule"])


def _names(group: Case) -> list[str]:
    return [one["flavor"] for one in group["flavors"]]


def schedule_afs(case: Case) -> None:
    """Run cycles in which LocalQueues take turns by their usage over time."""
    chosen = settings(case, usage_sharing=usage_sharing(case))
    admission = loaded(Admission(chosen), objects_of(case))
    ledger = admission.store.ledger
    for name, amounts in case["initial_usage"].items():
        local = next(one for one in case["local_queues"] if one["name"] == name)
        consumed = {r: amount_in(r, Quantity(q)) for r, q in amounts.items()}
        assert ledger is not None
        ledger.restore(f"{local['namespace']}/{name}", consumed, NOW)
    before = [workload(one) for one in case["workloads"]]
    loaded(admission, before)
    gone = case["delete_local_queue_before_cycles"]
    if gone:
        # Upstream deletes the object before its queue manager hears of it.
        del admission.store.local_queues[f"default/{gone}"]
    for _ in range(case["cycles"]):
        admission.cycle(NOW)
    _compare_objects(admission, {one.key: one for one in before}, case["expected"]["workloads"])


# Comparison --------------------------------------------------------------------------------


def _compare_objects(
    admission: Admission, before: Mapping[str, KueueWorkload], expected: Mapping[str, Case]
) -> None:
    for key, wanted in expected.items():
        found = admission.store.workloads[key]
        if wanted.get("unchanged"):
            assert found == before[key], f"{key} changed: {found.status}"
        else:
            _compare_workload(found, wanted)


def _compare_workload(found: KueueWorkload, wanted: Case) -> None:
    expected = workload(wanted)
    conditions = {one.type: one for one in found.status.conditions}
    for one in expected.status.conditions:
        got = conditions.pop(one.type, None)
        assert got is not None, f"{found.key} has no condition {one.type}"
        assert _said(got) == _said(one), found.key
        if one.observed_generation:
            assert got.observed_generation == one.observed_generation, (found.key, one.type)
    assert not conditions, f"{found.key} has further conditions: {sorted(conditions)}"
    assert _admission(found.status.admission) == _admission(expected.status.admission), found.key
    for name, (part, show) in _SHOWN.items():
        if name in wanted:
            got_part, part_ = getattr(found, part), getattr(expected, part)
            assert show(getattr(got_part, name)) == show(getattr(part_, name)), (found.key, name)
    unread = wanted.keys() - _SHOWN.keys() - _COMPARED
    if unread:
        raise UnknownFieldError(f"{found.key}: nobody compares {', '.join(sorted(unread))}")


def _said(condition: KueueCondition) -> tuple[str, ...]:
    return condition.status, condition.reason, condition.message


def _requested(requests: tuple[PodSetRequest, ...]) -> dict[str, dict[str, float]]:
    return {one.name: {r: amount_in(r, q) for r, q in one.resources.items()} for one in requests}


def _evictions(stats: SchedulingStats | None) -> list[tuple[str, str, int]]:
    counts = stats.evictions if stats is not None else ()
    return [(one.reason, one.underlying_cause, one.count) for one in counts]


def _states(checks: tuple[AdmissionCheckState, ...]) -> list[tuple[str, str]]:
    return [(one.name, one.state) for one in checks]


_SHOWN: Mapping[str, tuple[str, Callable[[Any], object]]] = {
    "resource_requests": ("status", _requested),
    "scheduling_stats": ("status", _evictions),
    "admission_checks": ("status", _states),
    "reclaimable_pods": ("status", list),
    "requeue_state": ("status", lambda state: state),
    "preemption_gates": ("spec", list),
    "priority": ("spec", lambda priority: priority),
    "labels": ("metadata", dict),
    "annotations": ("metadata", dict),
    "uid": ("metadata", str),
}
"""Fields of a workload that are compared where a case has them, with their part of the object."""
_COMPARED = frozenset(
    (
        *("name", "namespace", "queue", "pod_sets", "created", "unchanged"),
        *("conditions", "admission", "generation", "ownerReferences", "priority_class"),
    )
)
"""Those that no cycle changes, and those that are compared always."""


def _admission(admission: QuotaAdmission | None) -> object:
    if admission is None:
        return None
    return admission.cluster_queue, [
        (
            one.name,
            one.flavors,
            {r: amount_in(r, q) for r, q in one.resource_usage.items()},
            one.count,
        )
        for one in admission.pod_set_assignments
    ]


def compare_assignments(admission: Admission, expected: Mapping[str, Case]) -> None:
    """Compare the admissions of all workloads that have one."""
    found = {
        key: _admission(one.status.admission)
        for key, one in admission.store.workloads.items()
        if one.status.admission is not None
    }
    wanted = {key: workload({"admission": one}).status.admission for key, one in expected.items()}
    assert found == {key: _admission(one) for key, one in wanted.items()}


def _compare_queues(admission: Admission, expected: Case) -> None:
    active = {n: set(q.active) for n, q in admission.store.pending.items() if q.active}
    parked = {n: set(q.parked) for n, q in admission.store.pending.items() if q.parked}
    wanted_active = {n: set(keys) for n, keys in expected["left"].items() if keys}
    wanted_parked = {n: set(keys) for n, keys in expected["inadmissible_left"].items() if keys}
    assert (active, parked) == (wanted_active, wanted_parked)


def _compare_events(result: CycleResult, case: Case) -> None:
    """Compare which events there are; of their texts those that do not tell the time."""
    found = {(one.workload, one.type, one.reason) for one in result.events}
    for one in case["expected"].get("events", ()):
        key = f"{one['key']['namespace']}/{one['key']['name']}"
        assert (key, one["event_type"], one["reason"]) in found
        text = one["message"].partition("; Flavors considered: ")[2]
        if text:
            messages = [e.message for e in result.events if e.workload == key]
            assert any(message.endswith(f"; Flavors considered: {text}") for message in messages)
