"""The cases of the reference's vectors for Kueue, each through the code that admission runs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from msgspec import UNSET, UnsetType
from tests.conformance import kueue_cycles
from tests.conformance.case_format import Part, complete
from tests.conformance.kueue_cycles import loaded, objects_of, settings, usage_sharing
from tests.conformance.kueue_format import Info, UsageSharingConfig, completed
from tests.conformance.kueue_objects import (
    NOW,
    Case,
    cluster_queue,
    cohort,
    columns,
    local_queue,
    workload,
)

from bayplan.api.kueue import FlavorFungibility, KueueWorkload
from bayplan.api.objects import decode_part
from bayplan.api.quantity import Quantity
from bayplan.queues.tree import QueueTree
from bayplan_plugins.queues.kueue import (
    Admission,
    CycleResult,
    FairRule,
    Mode,
    RequeueOrder,
    Settings,
    anywhere,
)
from bayplan_plugins.queues.kueue.amounts import amount_in, resource_of
from bayplan_plugins.queues.kueue.conditions import Reason
from bayplan_plugins.queues.kueue.entry import Entry, State, to_reserve
from bayplan_plugins.queues.kueue.fair import TargetOrder
from bayplan_plugins.queues.kueue.flavor_assignment import (
    Assignment,
    FlavorChoice,
    PodSetAssignment,
    Possibility,
    Way,
    preferred,
    total_requests,
)
from bayplan_plugins.queues.kueue.flavor_search import ALLOWED_FLAVORS, FlavorSearch
from bayplan_plugins.queues.kueue.order import classical_order, fair_rank
from bayplan_plugins.queues.kueue.pending import PendingQueue, Requeue, may_run_again
from bayplan_plugins.queues.kueue.preemption import Preemptor
from bayplan_plugins.queues.kueue.quotas import QuotaForest, cohort_row_name, queues_of
from bayplan_plugins.queues.kueue.reduction import largest_counts
from bayplan_plugins.queues.kueue.shares import DominantShare, dominant_share
from bayplan_plugins.queues.kueue.slices import (
    choose_slice,
    is_elastic,
    latest_with_quota,
    normalize,
    replaced_key,
    replaced_slice,
    scaled_down,
    unfinished,
)
from bayplan_plugins.queues.kueue.snapshot import Snapshot
from bayplan_plugins.queues.kueue.usage_over_time import UsageLedger, pays_on_entry
from bayplan_plugins.queues.kueue.victims import (
    in_order,
    may_preempt,
    preemption_message,
)
from bayplan_plugins.queues.kueue.workloads import (
    WorkloadInfo,
    boost_of,
    priority_of,
)

_DEFAULT_SHARING = {"afs_config": complete(UsageSharingConfig, {})}
_MODES = {"NoFit": Mode.NO_FIT, "Preempt": Mode.PREEMPT, "Fit": Mode.FIT, "": Mode.NO_FIT}
_POSSIBILITIES = {
    "NoCandidates": Possibility.NO_CANDIDATES,
    "Preempt": Possibility.PREEMPT,
    "Reclaim": Possibility.RECLAIM,
}
_WAYS = {
    "noFit": Possibility.NO_FIT,
    "noPreemptionCandidates": Possibility.NO_CANDIDATES,
    "preempt": Possibility.PREEMPT,
    "reclaim": Possibility.RECLAIM,
    "fit": Possibility.FIT,
}


def run(case: Case) -> None:
    """Run a case and compare what comes out with what is expected.

    A field that is null says no more than one that is not there.
    """
    _RUN[case["kind"]](completed(case))


def _forest(case: Case) -> QuotaForest:
    queues = map(cluster_queue, case.get("cluster_queues", ()))
    cohorts = map(cohort, case.get("cohorts", ()))
    return QuotaForest(QueueTree(queues_of(queues, cohorts)))


# Quotas ------------------------------------------------------------------------------------


def _available(case: Case) -> None:
    forest = _forest(case["input"])
    for queue, usage in case["input"]["usage"].items():
        forest.add(forest.row_of[queue], columns(usage))
    for queue, wanted in case["expected"]["available"].items():
        for name, amount in columns(wanted).items():
            found = forest.available(forest.row_of[queue], name)
            assert found == amount, (queue, name)
    for queue, wanted in case["expected"]["potentially_available"].items():
        for name, amount in columns(wanted).items():
            assert forest.potential(forest.row_of[queue], name) == amount, (queue, name)


def _dominant_share(case: Case) -> None:
    forest = _forest(case)
    row = forest.row_of[case["cluster_queues"][0]["name"]]
    forest.add(row, columns(case["usage_of_cq"]))
    forest.add(row, columns(case["extra_request"]))
    for wanted in case["expected"]:
        name = wanted["node"]
        node = name if wanted["kind"] == "cluster_queue" else cohort_row_name(name)
        share = dominant_share(forest, forest.row_of[node])
        found = (share.rounded, share.resource, share.borrows)
        expected = (wanted["dominant_share"], wanted["dominant_resource"], wanted["borrowing"])
        assert found == expected, name


def _as_go(number: float) -> str:
    """Return a number as the reference writes it."""
    if math.isinf(number):
        return "+Inf"
    return str(int(number)) if number == int(number) else repr(number)


def _fair_sharing_unit(case: Case) -> None:
    given = case["input"]
    if "drs" in given:
        drs = given["drs"]
        share = DominantShare(drs["fair_weight"], drs["unweighted_ratio"])
        assert _as_go(share.weighted) == case["expected"]["want"]
        return
    fixture = case["fixture"]
    forest = _forest({"cluster_queues": [fixture["cq"], fixture["lending_cq"]]})
    row = forest.row_of[fixture["cq"]["name"]]
    forest.add(row, columns(given["usage"]))
    share = dominant_share(forest, row)
    assert share.borrows == case["expected"]["borrowing"]
    requested = columns(given["requested_frs"])
    assert share.borrows_any(requested) == case["expected"]["borrowing_on_requested"]


# Preemption --------------------------------------------------------------------------------


def _preemption(case: Case) -> None:
    fair = case["kind"] == "preemption-fair"
    rules = tuple(FairRule(one) for one in case["strategies"])
    given: dict[str, Any] = {"fair_rules": rules} if rules else {}
    chosen = settings(case, fair_sharing=fair, **given)
    admission = loaded(Admission(chosen), objects_of(case))
    loaded(admission, [workload(one) for one in case["admitted"]])
    snapshot = admission.store.snapshot()
    incoming = WorkloadInfo.of(workload(case["incoming"]), case["target_cluster_queue"])
    assignment = _fixed_assignment(case["assignment"], incoming)
    preemptor = Preemptor(snapshot, chosen, anywhere, NOW)
    before = [dict(row) for row in snapshot.forest.used]
    victims = preemptor.victims(incoming, assignment)
    after = snapshot.forest.used
    for one, other in zip(before, after, strict=True):
        assert {n: a for n, a in one.items() if a} == {n: a for n, a in other.items() if a}
    expected = case["expected"]
    result = CycleResult()
    for victim in victims:
        admission._evict(victim.workload, Entry(incoming), victim.why, NOW, result)
    expected = case["expected"]
    found = {v.workload.key: str(v.why) for v in victims}
    assert found.keys() == {one["workload"] for one in expected["preempted"]}
    assert len(victims) == expected.get("preempted_count", len(victims))
    for wanted in expected["preempted"]:
        key = wanted["workload"]
        if wanted["already_evicted"]:
            assert key not in result.changed
            continue
        assert found[key] == wanted["reason"], key
        if "message" in wanted:
            conditions = {one.type: one for one in result.changed[key].status.conditions}
            assert conditions["Evicted"].message == wanted["message"]
            assert conditions["Preempted"].reason == wanted["reason"]
    if "workloads_changed" in expected:
        assert result.changed.keys() == set(expected["workloads_changed"])


def _fixed_assignment(given: Any, incoming: WorkloadInfo) -> Assignment:
    assignment = Assignment()
    for one, asked in zip(given, incoming.pod_sets, strict=True):
        flavors = {
            resource: FlavorChoice(choice["flavor"], _MODES[choice["mode"]])
            for resource, choice in one["flavors"].items()
        }
        assignment.pod_sets.append(
            PodSetAssignment(
                one["name"], one.get("count", asked.count), asked.requests, flavors, ["given"]
            )
        )
    return assignment


def _fair_ordering(case: Case) -> None:
    given = case["input"]
    chosen = settings(case, fair_sharing=True)
    admission = loaded(Admission(chosen), objects_of(given))
    loaded(admission, [workload(one) for one in given["admitted"]])
    snapshot = admission.store.snapshot()
    candidates = [one for queue in given["candidate_cqs"] for one in snapshot.workloads_of(queue)]
    order = TargetOrder(snapshot, given["preemptor_cq"], candidates, chosen, NOW)
    visited = []
    actions = list(given["actions"])
    for row in order:
        visited.append(snapshot.forest.name(row))
        if actions and actions.pop(0) == "drop":
            order.drop(row)
        else:
            order.pop(row)
    assert visited == case["expected"]["order"]


def _candidate_order(case: Case) -> None:
    sharing = case["feature_gates"].get("AdmissionFairSharing")
    chosen = settings(case, usage_sharing=usage_sharing(_DEFAULT_SHARING) if sharing else None)
    found = []
    for one in case["input"]["candidates"]:
        info = WorkloadInfo.of(workload(one["workload"]), one["cluster_queue"])
        info.usage_share = one.get("local_queue_fs_usage")
        found.append(info)
    ordered = in_order(found, "preemptor", NOW, chosen)
    names = [one.workload.metadata.name for one in ordered]
    assert names == case["expected"]["candidates"]


def _preemption_policy(case: Case) -> None:
    given = case["input"]
    pair = workload(given["preemptor"]), workload(given["candidate"])
    found = may_preempt(*pair, given["policy"], settings(case))
    assert found == case["expected"]["want"]


def _preemption_message(case: Case) -> None:
    given = case["input"]
    paths = given["preemptor_path"], given["preemptee_path"]
    found = preemption_message(workload(given["preemptor"]), given["reason"], *paths)
    assert found == case["expected"]["want"]


def _priority_boost(case: Case) -> None:
    chosen, one = settings(case), workload(case["input"]["wl"])
    effective, base = priority_of(one, chosen), one.spec.priority or 0
    expected = case["expected"]
    assert (effective, base, effective - base) == (
        expected["effective"],
        expected["base"],
        expected["boost"],
    )


def _priority(case: Case) -> None:
    chosen, one = settings(case), workload(case["input"]["workload"])
    expected = case["expected"]
    if case["func"] == "TestPriorityBoost":
        # A boost that is no number is an error there, and none here.
        boost = boost_of(one) if chosen.boosted_priorities else 0
        assert boost == expected.get("boost", 0)
    else:
        assert priority_of(one, chosen) == expected.get("priority", expected.get("want", 0))


# Flavors -----------------------------------------------------------------------------------


def _assign_flavors(case: Case) -> None:
    admission = loaded(Admission(settings(case)), objects_of(case))
    snapshot = admission.store.snapshot()
    for queue in case["cluster_queues"]:
        snapshot.add_usage(queue["name"], columns(queue.get("usage", {})))
    target = case["target_cluster_queue"]
    annotations = {}
    if "allowed_flavors" in case:
        annotations[ALLOWED_FLAVORS] = ",".join(case["allowed_flavors"])
    asked = {
        "name": "w",
        "namespace": "",
        "pod_sets": case["pod_sets"],
        "reclaimable_pods": case["reclaimable_pods"],
        "annotations": annotations,
    }
    info = WorkloadInfo.of(workload(asked), target)
    oracle = case["preemption_oracle"]

    def way(_: WorkloadInfo, name: str, __: float) -> Way:
        found = oracle.get(name.partition("/")[0], {}).get(resource_of(name))
        if found is None:
            return Way(Possibility.PREEMPT)
        return Way(_POSSIBILITIES[found["possibility"]], found["borrowing_after"])

    chosen = settings(case, fair_sharing=case["fair_sharing"])
    given = case.get("replaced_workload_slice")
    slice_ = WorkloadInfo.of(workload(given["workload"]), target) if given is not None else None
    assignment = FlavorSearch(info, snapshot, chosen, way, slice_).assign()
    expected = case["expected"]
    assert assignment.mode.text == expected["representative_mode"]
    if "flavors" in expected:
        (one,) = assignment.pod_sets
        assert {r: c.flavor for r, c in one.flavors.items()} == expected["flavors"]
    if "assignment" in expected:
        _compare_assignment(assignment, expected["assignment"])


def _compare_assignment(found: Assignment, wanted: Case) -> None:
    for one, expected in zip(found.pod_sets, wanted["pod_sets"], strict=True):
        flavors = {
            resource: {
                "flavor": choice.flavor,
                "mode": choice.mode.text,
                "tried_flavor_idx": choice.tried,
            }
            for resource, choice in one.flavors.items()
        }
        assert flavors == expected["flavors"]
        assert (one.name, one.count) == (expected["name"], expected["count"])
        if "requests" in expected:
            requests = {r: amount_in(r, Quantity(q)) for r, q in expected["requests"].items()}
            assert one.requests == requests
        if "error" in expected:
            assert one.error
            continue
        assert sorted(one.reasons) == sorted(expected["reasons"])
        _compare_attempts(one, expected)
    assert found.borrow == wanted["borrowing"]
    assert found.no_fit_reason == wanted["no_fit_reason"]
    usage = {n: a for n, a in found.usage.items() if a}
    assigned = columns(wanted["usage"]["quota"]["assigned"])
    assert usage == {n: a for n, a in assigned.items() if a}


def _compare_attempts(one: PodSetAssignment, expected: Case) -> None:
    """Compare the flavors that were tried; upstream also lists some that no search reaches."""
    found = {
        a.flavor: (a.mode.text, a.borrow, sorted(a.reasons), a.no_fit_reason) for a in one.attempts
    }
    for a in expected["attempts"]:
        wanted = (a["mode"], a["borrow"], sorted(a["reasons"]), a["no_fit_reason"])
        assert found.get(a["flavor"], wanted) == wanted, a["flavor"]


def _flavor_preference(case: Case) -> None:
    given = case["input"]
    ways = [
        Way(_WAYS[one["preemption_mode"]], one["borrowing_level"])
        for one in (given["a"], given["b"])
    ]
    fungibility = decode_part(FlavorFungibility, given["config"])
    assert preferred(ways[0], ways[1], fungibility) == case["expected"]["preferred"]


def _assignment_total(case: Case) -> None:
    given = case["input"]
    info = WorkloadInfo.of(workload(given["args"]["wl"]["workload"]), "")
    assignment = Assignment()
    for one in given["fields"]["pod_sets"]:
        flavors = {
            resource: FlavorChoice(choice["name"], _MODES[choice["mode"]])
            for resource, choice in one["flavors"].items()
        }
        assignment.pod_sets.append(PodSetAssignment(one["name"], one["count"], {}, flavors))
    replaced = given["fields"].get("replace_workload_slice")
    if replaced is not None:
        assignment.replaced = WorkloadInfo.of(workload(replaced["workload"]), "")
    found = total_requests(assignment, info.pod_sets)
    assert found == columns(case["expected"]["want"])


def _partial_admission(case: Case) -> None:
    sets = workload({"name": "w", "pod_sets": case["input"]["pod_sets"]}).spec.pod_sets
    limit = case["input"]["count_limit"]
    found = largest_counts(sets, lambda counts: sum(counts) if sum(counts) <= limit else None)
    assert (found is not None) == case["expected"]["found"]
    assert (found or 0) == case["expected"]["count"]


# Order -------------------------------------------------------------------------------------


def _entry_order(case: Case) -> None:
    given = case["input"]
    times = given["workload_ordering"]["pods_ready_requeuing_timestamp"]
    chosen = settings(case, requeue_order=RequeueOrder(times))
    entries = []
    for one in given["input"]:
        entry = Entry(WorkloadInfo.of(workload(one["workload"]), ""))
        entry.assignment.borrow = one["assignment"]["borrowing"]
        entry.is_preemptor = one["is_preemptor"]
        entries.append(entry)
    ordered = classical_order(entries, chosen)
    names = [entry.workload.workload.metadata.name for entry in ordered]
    assert names == case["expected"]["order"]


def _entry_compare(case: Case) -> None:
    given = case["input"]
    ranks = []
    for one in (given["a"], given["b"]):
        info = WorkloadInfo.of(workload(one["workload"]), "")
        entry = Entry(info, is_preemptor=one["is_preemptor"])
        entry.assignment.borrow = one["assignment"]["borrowing"]
        entry.assignment.usage = columns(given["requested_frs"].get(info.key, {}))
        drs = next((d for k, d in given["drs_values"].items() if k.endswith(info.key)), {})
        borrowed = [f"{fr['flavor']}/{fr['resource']}" for fr in drs.get("borrowed_frs", ())]
        if drs.get("borrowing") and not borrowed:
            borrowed = ["other/other"]
        share = DominantShare(
            drs.get("fair_weight", 0.0),
            drs.get("unweighted_ratio", 0.0),
            drs.get("dominant_resource", ""),
            frozenset(borrowed),
        )
        ranks.append(fair_rank(entry, share, settings(case)))
    assert (ranks[0] < ranks[1]) == case["expected"]["less"]


def _resources_to_reserve(case: Case) -> None:
    given = case["input"]
    queues = [case["fixture"]["cq"]]
    admission = loaded(Admission(), objects_of({"cluster_queues": queues}))
    snapshot = admission.store.snapshot()
    name = queues[0]["name"]
    snapshot.add_usage(name, columns(given["cq_usage"]))
    entry = Entry(WorkloadInfo.of(workload({"name": "w"}), name))
    entry.assignment.usage = columns(given["assignment_usage"])
    entry.assignment.borrow = given["borrowing"] or given["assignment_borrowing"]
    entry.assignment.pod_sets = [PodSetAssignment("main", 1, {})]
    entry.assignment.fixed_mode = _MODES[given["assignment_mode"]]
    found = to_reserve(entry, snapshot, snapshot.queues[name])
    assert dict(found) == columns(case["expected"]["reserved"])


# Queues ------------------------------------------------------------------------------------


def _requeue(case: Case) -> None:
    given = case["input"]["e"]
    queue = cluster_queue({"name": "cq"})
    local = local_queue({"name": "q1", "namespace": "ns1", "cluster_queue": "cq"})
    one = workload(
        {
            "name": "w1",
            "namespace": "ns1",
            "queue": "q1",
            "pod_sets": [{"name": "main", "count": 1}],
        }
    )
    admission = loaded(Admission(settings(case)), [queue, local, one])
    head = admission.store.pending["cq"].pop()
    assert head is not None
    entry = Entry(
        head,
        state=State(given["status"]),
        message=given["inadmissible_msg"],
        reason=given["quota_reserved_reason"],
    )
    result = CycleResult()
    admission.requeue(entry, NOW, result)
    pending = admission.store.pending["cq"]
    expected = case["expected"]
    assert pending.active == expected["workloads"].get("cq", [])
    assert pending.parked == expected["inadmissible"].get("cq", [])
    assert len(result.changed) == expected["status_updates"]
    if "status" in expected:
        kueue_cycles._compare_workload(admission.store.workloads["ns1/w1"], expected["status"])


def _queue(case: Case) -> None:
    _QUEUE[case["func"]](case)


def _info(one: Case) -> WorkloadInfo:
    return WorkloadInfo.of(workload(one), "cq")


def _queue_script(case: Case) -> None:
    given = case["input"]
    pending = PendingQueue(Settings(equivalence_hashing=False))
    for one in given["workloads_to_add"]:
        pending.push(_info(one), NOW)
    for one in given["inadmissible_workloads_to_requeue"]:
        pending.requeue(_info(one["workload"]), Requeue.GENERIC, "", NOW)
    for one in given["admissible_workloads_to_requeue"]:
        pending.requeue(_info(one["workload"]), Requeue.FAILED_AFTER_NOMINATION, "", NOW)
    for one in given["workloads_to_update"]:
        pending.push(_info(one), NOW)
    for one in given["workloads_to_delete"]:
        pending.delete(workload(one).key)
    flushed = 0
    if given["queue_inadmissible_workloads"]:
        allowed = ("ns1", "ns2")
        flushed = pending.flush(lambda one: one.workload.metadata.namespace in allowed, NOW)
    expected = case["expected"]
    assert sorted(pending.active) == sorted(expected["active_workloads"])
    assert len(pending) == expected["pending"]
    assert flushed == expected["inadmissible_workloads_requeued"]


def _queue_backoff(case: Case) -> None:
    one = workload(case["input"]["workload_info"]["workload"])
    assert may_run_again(one, NOW) == case["expected"]["want"]


def _new_info() -> WorkloadInfo:
    return _info({"name": "workload-1", "namespace": "default", "pod_sets": []})


def _queue_requeue(case: Case) -> None:
    given = case["input"]
    strict = case["func"].startswith("TestStrictFIFO")
    pending = PendingQueue(Settings(), strict=strict)
    pending.pop()
    info = _new_info()
    last = given.get("last_assignment")
    info.last_tried = tuple(last["last_tried_flavor_idx"]) if last else None
    reason = given.get("reason", case["name"] if strict else "")
    pending.requeue(info, Requeue(reason), "", NOW)
    assert bool(pending.parked) == case["expected"]["inadmissible"]
    if not strict:
        assert (pending.sticky is not None) == case["expected"].get("sticky", False)


def _queue_strict(case: Case) -> None:
    given = case["input"]
    times = given["workload_ordering"]["pods_ready_requeuing_timestamp"]
    pending = PendingQueue(settings(case, requeue_order=RequeueOrder(times)), strict=True)
    for one in (given["w1"], given["w2"]):
        pending.push(_info(one), NOW)
    head = pending.pop()
    assert head is not None
    assert head.workload.metadata.name == case["expected"]["expected"]


def _queue_fair(case: Case) -> None:
    given = case["input"]
    chosen = settings(case, usage_sharing=usage_sharing(given))
    queue = {**given["cq"]}
    locals_ = [local_queue({**one, "cluster_queue": queue["name"]}) for one in given["lqs"]]
    admission = loaded(Admission(chosen), [cluster_queue(queue), *locals_])
    ledger = admission.store.ledger
    for name, amounts in given["init_consumed_resources"].items():
        assert ledger is not None, "amounts that were used, without the setting that counts them"
        ledger.restore(name, {r: amount_in(r, Quantity(q)) for r, q in amounts.items()}, NOW)
    loaded(admission, [workload(one) for one in given["wls"]])
    head = admission.store.pending[queue["name"]].pop()
    assert head is not None
    assert head.workload.metadata.name == case["expected"]["wl"]["name"]


def _queue_park_equivalent(case: Case) -> None:
    given = case["input"]
    pending = PendingQueue(settings(case), strict=given["strategy"] == "StrictFIFO")
    for name, shape in given["heap_workloads"].items():
        info = _info({"name": name, "namespace": "ns", "pod_sets": []})
        info.equivalence = shape
        pending.push(info, NOW)
    moved = pending.park_equivalent(given["hash_to_record"], Reason.WAITING_FOR_QUOTA)
    expected = case["expected"]
    assert (moved, len(pending.active), len(pending.parked)) == (
        expected["moved"],
        expected["active"],
        expected["inadmissible"],
    )


def _queue_push_shape(case: Case) -> None:
    given = case["input"]
    pending = PendingQueue(settings(case), strict=given["strategy"] == "StrictFIFO")
    for shape in given["inadmissible_hashes"]:
        pending.park_equivalent(shape, Reason.WAITING_FOR_QUOTA)
    info = _new_info()
    info.equivalence = given["push_hash"] or None
    pending.push(info, NOW)
    found = len(pending.active), len(pending.parked)
    assert found == (case["expected"]["active"], case["expected"]["inadmissible"])


def _queue_shape_trigger(case: Case) -> None:
    pending = PendingQueue(settings(case))
    pending.pop()
    info = _new_info()
    info.equivalence = "shape"
    pending.requeue(info, Requeue(case["input"]["reason"]), "", NOW)
    assert (pending.reason_of_equivalent("shape") is not None) == case["expected"]["hash"]


_QUEUE: dict[str, Callable[[Case], None]] = {
    "TestClusterQueueImpl": _queue_script,
    "TestBackoffWaitingTimeExpired": _queue_backoff,
    "TestBestEffortFIFORequeueIfNotPresent": _queue_requeue,
    "TestStrictFIFORequeueIfNotPresent": _queue_requeue,
    "TestStrictFIFO": _queue_strict,
    "TestFsAdmission": _queue_fair,
    "TestRecordInadmissibleHash": _queue_park_equivalent,
    "TestPushOrUpdateRespectsInadmissibleHashes": _queue_push_shape,
    "TestRequeueHashTriggerByReason": _queue_shape_trigger,
}


# Usage over time ---------------------------------------------------------------------------


def _afs_penalty(case: Case) -> None:
    sharing = usage_sharing(_DEFAULT_SHARING)
    assert sharing is not None
    ledger = UsageLedger(sharing)
    for op in case["input"]["ops"]:
        if "push" in op:
            amounts = {r: float(Quantity(q).milli) for r, q in op["push"].items()}
            ledger.charge("ns/lq", op["wl"], amounts)
        else:
            ledger.withdraw("ns/lq", op["wl"])
    found = {r: a for r, a in ledger.penalty("ns/lq").items() if a}
    assert found == {r: a for r, a in case["expected"]["milli"].items() if a}
    assert bool(found) == case["expected"]["has"]


def _afs_unit(case: Case) -> None:
    given = case["input"]
    mode = given["admission_mode"]
    scope = {"admission_scope": {"admissionMode": mode}} if mode else {}
    queue = cluster_queue({"name": "cq", **scope})
    info = WorkloadInfo.of(workload(given["wl"]), "cq")
    assert pays_on_entry(info, queue, usage_sharing(given)) == case["expected"]["want"]


# Slices ------------------------------------------------------------------------------------


def _slices(case: Case) -> None:
    _SLICES[case["func"]](case)


class _Choice(Part, kw_only=True):
    """What TestEnsureWorkloadSlices wants."""

    compatible: bool = False
    workload: Case | UnsetType = UNSET
    error: bool = False


class _Survivors(Part, kw_only=True):
    """What TestNormalizeActiveSlices wants."""

    survivor: str = ""
    kept_admitted: str = ""


class _ReplacedSlice(Part, kw_only=True):
    """What TestReplacedWorkloadSlice wants; the target is the slice itself."""

    wl: Info
    targets: list[Case] = []


def _owned(case: Case) -> list[KueueWorkload]:
    args = case["input"]["args"]
    job, kind = args["job_object"], args["job_object_gvk"]["kind"]
    found = [workload(one) for one in args["clnt"]["objects"]]
    return [
        one
        for one in found
        if any(o.kind == kind and o.name == job["name"] for o in one.metadata.owner_references)
    ]


def _slice_enabled(case: Case) -> None:
    metadata = workload(case["input"]["args"]["object"]).metadata
    assert is_elastic(metadata) == bool(case["expected"]["want"])


def _slice_key(case: Case) -> None:
    assert replaced_key(workload(case["input"]["args"]["wl"])) == case["expected"]["want"]


def _slice_unfinished(case: Case) -> None:
    found = [one.metadata.name for one in unfinished(_owned(case))]
    wanted = [workload(one) for one in case["expected"]["want"] or ()]
    assert found == [one.metadata.name for one in wanted]


def _slice_choice(case: Case) -> None:
    args = case["input"]["args"]
    sets = workload({"name": "job", "pod_sets": args["job_pod_sets"]}).spec.pod_sets
    choice = choose_slice(sets, _owned(case), NOW)
    wanted = complete(_Choice, case["expected"]["want"] or {})
    assert choice.compatible == wanted["compatible"]
    assert (choice.workload is None) == ("workload" not in wanted)
    if choice.workload is not None:
        expected = workload(wanted["workload"])
        assert choice.workload.metadata.name == expected.metadata.name
        counts = {one.name: one.count for one in choice.workload.spec.pod_sets}
        assert counts == {one.name: one.count for one in expected.spec.pod_sets}


def _slice_normalize(case: Case) -> None:
    given = [workload(one) for one in case["input"]["workloads"]]
    chosen, ended = normalize(given, NOW)
    wanted = complete(_Survivors, case["expected"]["want"] or {})
    assert (chosen.metadata.name if chosen else "") == wanted["survivor"]
    kept = {wanted["survivor"], wanted["kept_admitted"]}
    assert {one.metadata.name for one in ended} == {
        one.metadata.name for one in given if one.metadata.name not in kept
    }


def _slice_replaced(case: Case) -> None:
    args = case["input"]["args"]
    want = case["expected"]["want"]
    wanted = complete(_ReplacedSlice, want)["wl"]["workload"] if want else None
    if "snap" not in args or "wl" not in args:
        assert wanted is None
        return
    reserving = {
        queue: {
            key: WorkloadInfo.of(workload(one["workload"]), queue)
            for key, one in given["workloads"].items()
        }
        for queue, given in args["snap"]["cluster_queues"].items()
    }
    queues = [cluster_queue({"name": name}) for name in reserving]
    admission = loaded(Admission(settings(case)), queues)
    base = admission.store.snapshot()
    snapshot = Snapshot(base.forest, base.queues, {}, reserving)
    info = WorkloadInfo.of(workload(args["wl"]["workload"]), args["wl"].get("cluster_queue", ""))
    found = replaced_slice(info, snapshot)
    name = found.workload.metadata.name if found is not None else None
    assert name == (workload(wanted).metadata.name if wanted else None)


def _slice_scaled_down(case: Case) -> None:
    args = case["input"]["args"]
    found = scaled_down(args["old_counts"], args["new_counts"])
    assert found == bool(case["expected"]["want"])


def _slice_latest(case: Case) -> None:
    given = [workload(one) for one in case["input"]["workloads"]]
    found = latest_with_quota(given)
    assert (found.metadata.name if found is not None else "") == (case["expected"]["want"] or "")


_SLICES: dict[str, Callable[[Case], None]] = {
    "TestEnabled": _slice_enabled,
    "TestPreemptibleSliceKey": _slice_key,
    "TestFindNotFinishedWorkloads": _slice_unfinished,
    "TestEnsureWorkloadSlices": _slice_choice,
    "TestNormalizeActiveSlices": _slice_normalize,
    "TestReplacedWorkloadSlice": _slice_replaced,
    "TestScaledDown": _slice_scaled_down,
    "TestFindLatestActiveWorkload": _slice_latest,
}

_RUN: dict[str, Callable[[Case], None]] = {
    "available": _available,
    "dominant-share": _dominant_share,
    "fair-sharing-unit": _fair_sharing_unit,
    "preemption": _preemption,
    "preemption-fair": _preemption,
    "fair-ordering": _fair_ordering,
    "preemption-candidate-order": _candidate_order,
    "preemption-policy": _preemption_policy,
    "preemption-message": _preemption_message,
    "priority-boost": _priority_boost,
    "priority": _priority,
    "assign-flavors": _assign_flavors,
    "flavor-preference": _flavor_preference,
    "assignment-total": _assignment_total,
    "partial-admission-search": _partial_admission,
    "entry-order": _entry_order,
    "entry-compare": _entry_compare,
    "resources-to-reserve": _resources_to_reserve,
    "requeue": _requeue,
    "queue": _queue,
    "afs-penalty": _afs_penalty,
    "afs-unit": _afs_unit,
    "workload-slices": _slices,
    "schedule-cycle": kueue_cycles.schedule_cycle,
    "schedule-context": kueue_cycles.schedule_context,
    "schedule-afs": kueue_cycles.schedule_afs,
}
KINDS = frozenset(_RUN)
FUNCTIONS = {
    "afs-unit": frozenset(("TestShouldApplyEntryPenalty",)),
    "queue": frozenset(_QUEUE),
    "workload-slices": frozenset(_SLICES),
}
"""The functions that are known of kinds whose cases differ by them."""
