"""Whole admission cycles of the reference's vectors: objects in, cycles, objects compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kueue_objects import (
    NOW,
    Case,
    cluster_queue,
    cohort,
    flavor,
    local_queue,
    namespaces,
    workload,
)

from bayplan.api.kueue import KueueWorkload, QuotaAdmission
from bayplan.api.quantity import Quantity
from bayplan_plugins.queues.cluster_queue import Admission, CycleResult, Settings, UsageSharing
from bayplan_plugins.queues.cluster_queue.amounts import amount_in
from bayplan_plugins.queues.cluster_queue.store import KueueObject

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
RELEASED: Mapping[str, Any] = {"preemptors_first": False}
"""What the release chooses otherwise than bayplan, where a case does not say it."""


def settings(case: Case, **given: Any) -> Settings:
    """Return settings with a case's feature gates, and else those of the release."""
    gates = case.get("feature_gates") or {}
    chosen = {GATES[gate]: on for gate, on in gates.items() if gate in GATES}
    if case.get("quota_check_strategy") == "IgnoreUndeclared":
        chosen["ignore_undeclared"] = True
    return Settings(**{**RELEASED, **chosen, **given})


def usage_sharing(case: Case) -> UsageSharing | None:
    """Return the settings of admission fair sharing of a case."""
    given = case.get("afs_config")
    if given is None:
        return None
    return UsageSharing(
        given.get("usageHalfLifeTime", 0.0),
        given.get("usageSamplingInterval", 300.0),
        given.get("resourceWeights", {}),
    )


def loaded(admission: Admission, objects: Iterable[KueueObject]) -> Admission:
    """Return an admission that knows the objects."""
    for obj in objects:
        admission.set(obj, NOW)
    return admission


def objects_of(case: Case) -> list[KueueObject]:
    """Return all objects of a case but its workloads."""
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
    chosen = settings(case, fair_sharing=case.get("fair_sharing", False))
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
    for queue, count in expected.get("skipped_preemptions", {}).items():
        assert result.outcome.skipped_preemptions.get(queue, 0) == count, queue
    for queue, counts in expected.get("preemption_target_recomputations", {}).items():
        assert result.outcome.recomputed.get(queue, {}) == counts, queue


def schedule_context(case: Case) -> None:
    """Run a cycle, delete workloads, and run another, in which the search goes on."""
    given, fixture = case["input"], case["fixture"]
    objects: list[KueueObject] = [
        *map(flavor, fixture.get("flavors", ())),
        *map(cohort, fixture.get("cohorts", ())),
        *map(cluster_queue, given["cqs"]),
        *map(cluster_queue, fixture.get("cluster_queues", ())),
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
    for gone in given.get("delete_workloads", ()):
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
    for name, amounts in case.get("initial_usage", {}).items():
        local = next(one for one in case["local_queues"] if one["name"] == name)
        consumed = {r: amount_in(r, Quantity(q)) for r, q in amounts.items()}
        assert ledger is not None
        ledger.restore(f"{local['namespace']}/{name}", consumed, NOW)
    before = [workload(one) for one in case["workloads"]]
    loaded(admission, before)
    gone = case.get("delete_local_queue_before_cycles")
    if gone is not None:
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
    conditions = {one.type: one for one in found.status.conditions}
    for one in wanted.get("conditions", ()):
        got = conditions.pop(one["type"], None)
        assert got is not None, f"{found.key} has no condition {one['type']}"
        shown = (got.status, got.reason, got.message)
        assert shown == (one["status"], one["reason"], one["message"]), found.key
    assert not conditions, f"{found.key} has further conditions: {sorted(conditions)}"
    admission = found.status.admission
    assert _admission(admission) == _wanted_admission(wanted.get("admission")), found.key
    if "resource_requests" in wanted:
        got_requests = {
            one.name: {r: amount_in(r, q) for r, q in one.resources.items()}
            for one in found.status.resource_requests
        }
        assert got_requests == {
            one["name"]: {r: amount_in(r, Quantity(q)) for r, q in one.get("resources", {}).items()}
            for one in wanted["resource_requests"]
        }
    if "scheduling_stats" in wanted:
        stats = found.status.scheduling_stats
        assert stats is not None
        got_counts = [(one.reason, one.count) for one in stats.evictions]
        assert got_counts == [
            (one["reason"], one["count"]) for one in wanted["scheduling_stats"]["evictions"]
        ]


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


def _wanted_admission(wanted: Case | None) -> object:
    if wanted is None:
        return None
    return wanted["cluster_queue"], [
        (
            one["name"],
            one.get("flavors", {}),
            {r: amount_in(r, Quantity(q)) for r, q in one.get("usage", {}).items()},
            one.get("count"),
        )
        for one in wanted["pod_sets"]
    ]


def compare_assignments(admission: Admission, expected: Mapping[str, Case]) -> None:
    """Compare the admissions of all workloads that have one."""
    found = {
        key: _admission(one.status.admission)
        for key, one in admission.store.workloads.items()
        if one.status.admission is not None
    }
    assert found == {key: _wanted_admission(one) for key, one in expected.items()}


def _compare_queues(admission: Admission, expected: Case) -> None:
    active = {n: set(q.active) for n, q in admission.store.pending.items() if q.active}
    parked = {n: set(q.parked) for n, q in admission.store.pending.items() if q.parked}
    wanted_active = {n: set(keys) for n, keys in expected.get("left", {}).items() if keys}
    wanted_parked = {
        n: set(keys) for n, keys in expected.get("inadmissible_left", {}).items() if keys
    }
    assert (active, parked) == (wanted_active, wanted_parked)


def _compare_events(result: CycleResult, case: Case) -> None:
    """Compare which events there are; of their texts those that do not tell the time."""
    wanted = case["expected"].get("events", case.get("events"))
    if wanted is None:
        return
    found = {(one.workload, one.type, one.reason) for one in result.events}
    for one in wanted:
        key = f"{one['key']['namespace']}/{one['key']['name']}"
        assert (key, one["event_type"], one["reason"]) in found
        text = one.get("message", "").partition("; Flavors considered: ")[2]
        if text:
            messages = [e.message for e in result.events if e.workload == key]
            assert any(message.endswith(f"; Flavors considered: {text}") for message in messages)
