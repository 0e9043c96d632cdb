"""Admission by quotas: who gets in, who waits, who has to go, and what the objects say then."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.plugins.queues.kueue.kueue_builders import (
    NOW,
    admitted,
    check,
    cluster_queue,
    cohort,
    flavor,
    load,
    local_queue,
    release,
    settle,
    workload,
)

from bayplan.api.kueue import (
    AdmissionCheck,
    AdmissionCheckState,
    ClusterQueue,
    KueueCondition,
    KueueWorkload,
    PreemptionGateState,
    ReclaimablePods,
)
from bayplan.api.meta import ObjectMeta
from bayplan.api.network import Topology
from bayplan.api.policy import Namespace
from bayplan_plugins.queues.kueue import Admission, Settings
from bayplan_plugins.queues.kueue.args import KueueArgs
from bayplan_plugins.queues.kueue.conditions import condition, evicted, is_true
from bayplan_plugins.queues.kueue.settings import FairRule, PodsReady, UsageSharing
from bayplan_plugins.queues.kueue.slices import normalize, unfinished
from bayplan_plugins.queues.kueue.workloads import REPLACES


def one_queue(*queues: ClusterQueue, settings: Settings | None = None) -> Admission:
    """Return an admission over ClusterQueues, each with a LocalQueue of the same name."""
    admission = load(Admission(settings), [flavor("a"), flavor("b"), *queues])
    names = [queue.metadata.name for queue in queues]
    return load(admission, [local_queue(name, name) for name in names])


def now_of(admission: Admission, name: str) -> KueueWorkload:
    return admission.store.workloads[f"default/{name}"]


def said(admission: Admission, name: str, type_: str = "QuotaReserved") -> tuple[str, str, str]:
    """Return status, reason and message of a condition."""
    found = condition(now_of(admission, name), type_)
    assert found is not None
    return found.status, found.reason, found.message


def test_what_fits_is_admitted_and_says_so() -> None:
    admission = one_queue(cluster_queue("q", {"a": {"cpu": 4}}))
    load(admission, [workload("w", "q", {"cpu": 2}, count=2)])
    result = admission.cycle(NOW + 5)
    assert result.admitted == ["default/w"]
    status = result.changed["default/w"].status
    assert status.admission is not None
    assert status.admission.cluster_queue == "q"
    (pods,) = status.admission.pod_set_assignments
    assert (pods.count, pods.flavors, pods.resource_usage["cpu"].text) == (2, {"cpu": "a"}, "4")
    assert [e.reason for e in result.events] == ["QuotaReserved", "Admitted"]
    assert result.events[0].message.startswith(
        "Quota reserved in ClusterQueue q, wait time since queued was 5s"
    )


def test_what_does_not_fit_waits_and_says_what_is_missing() -> None:
    admission = one_queue(cluster_queue("q", {"a": {"cpu": 4}}))
    load(admission, [workload("w", "q", {"cpu": 5})])
    assert admission.cycle(NOW).waiting == ["default/w"]
    status, reason, message = said(admission, "w")
    assert (status, reason) == ("False", "ExceedsMaxQuota")
    assert message == (
        "couldn't assign flavors to pod set main: insufficient quota for cpu in flavor a, "
        "previously considered podsets requests (0) + current podset request (5) > maximum "
        "capacity (4)"
    )


def test_a_queue_in_debt_has_nothing_free_rather_than_less() -> None:
    quotas: dict[str, Any] = {"a": {"cpu": 4, "gpu": 4}}
    admission = one_queue(cluster_queue("q", quotas))
    load(admission, [workload("old", "q", {"cpu": 1, "gpu": 4})])
    admission.cycle(NOW)
    load(admission, [cluster_queue("q", {"a": {"cpu": 4, "gpu": 2}})])
    load(admission, [workload("more", "q", {"cpu": 1, "gpu": 1}, priority=1)])
    load(admission, [workload("none", "q", {"cpu": 1, "gpu": 0})])
    admission.cycle(NOW)
    assert said(admission, "more")[2].endswith("for gpu in flavor a, 1 more needed")
    assert admission.cycle(NOW).admitted == ["default/none"]


def test_a_pod_set_that_needs_nothing_of_the_queue_holds_no_other_one_back() -> None:
    admission = one_queue(cluster_queue("q", {"a": {"cpu": 4}}))
    asked: list[tuple[str, dict[str, int]]] = [("idle", {"gpu": 0}), ("busy", {"cpu": 1})]
    pod_sets = [{"name": n, "template": _container(requests)} for n, requests in asked]
    load(admission, [workload("w", "q", podSets=pod_sets)])
    assert admission.cycle(NOW).admitted == ["default/w"]
    idle, busy = _assigned(admission, "w")
    assert (idle.flavors, busy.flavors) == ({}, {"cpu": "a"})


@pytest.mark.parametrize("strategy", ["StrictFIFO", "BestEffortFIFO"])
def test_a_large_head_blocks_only_a_strict_queue(strategy: str) -> None:
    admission = one_queue(cluster_queue("q", {"a": {"cpu": 4}}, queueingStrategy=strategy))
    load(admission, [workload("old", "q", {"cpu": 2})])
    admission.cycle(NOW)
    load(admission, [workload("large", "q", {"cpu": 3}, created=1)])
    load(admission, [workload("small", "q", {"cpu": 1}, created=2)])
    for _ in range(3):
        admission.cycle(NOW)
    assert ("small" in admitted(admission)) is (strategy == "BestEffortFIFO")


def test_parked_workloads_are_tried_again_when_quota_becomes_free() -> None:
    admission = one_queue(cluster_queue("q", {"a": {"cpu": 4}}))
    load(admission, [workload("first", "q", {"cpu": 4}), workload("next", "q", {"cpu": 4})])
    admission.cycle(NOW)
    admission.cycle(NOW)
    assert admission.store.pending["q"].parked == ["default/next"]
    assert not admission.cycle(NOW).outcome.entries
    admission.delete(now_of(admission, "first"), NOW)
    assert admission.cycle(NOW).admitted == ["default/next"]


def test_a_finished_workload_gives_its_quota_back() -> None:
    admission = one_queue(cluster_queue("q", {"a": {"cpu": 4}}))
    load(admission, [workload("first", "q", {"cpu": 4})])
    admission.cycle(NOW)
    done = _with_condition(now_of(admission, "first"), "Finished")
    load(admission, [done, workload("next", "q", {"cpu": 4})])
    assert admission.cycle(NOW).admitted == ["default/next"]


def _with_condition(one: KueueWorkload, type_: str) -> KueueWorkload:
    conditions = (*one.status.conditions, KueueCondition(type_, "True", "Test", ""))
    status = msgspec.structs.replace(one.status, conditions=conditions)
    return msgspec.structs.replace(one, status=status)


def test_a_queue_that_joins_a_cohort_lets_others_borrow() -> None:
    admission = one_queue(cluster_queue("q", {"a": {"cpu": 2}}, "c"))
    load(admission, [workload("w", "q", {"cpu": 3})])
    assert not admission.cycle(NOW).admitted
    load(admission, [cluster_queue("r", {"a": {"cpu": 2}}, "c")])
    assert admission.cycle(NOW).admitted == ["default/w"]


def test_fewer_pods_are_admitted_where_that_is_allowed() -> None:
    admission = one_queue(cluster_queue("q", {"a": {"cpu": 5}}))
    load(admission, [workload("w", "q", {"cpu": 1}, count=10, min_count=3)])
    assert admission.cycle(NOW).admitted
    (pods,) = _assigned(admission, "w")
    assert pods.count == 5


def test_fewer_pods_than_the_least_are_not_admitted() -> None:
    admission = one_queue(cluster_queue("q", {"a": {"cpu": 2}}))
    load(admission, [workload("w", "q", {"cpu": 1}, count=10, min_count=3)])
    assert not admission.cycle(NOW).admitted


def _assigned(admission: Admission, name: str) -> tuple[Any, ...]:
    found = now_of(admission, name).status.admission
    assert found is not None
    return found.pod_set_assignments


def test_pods_that_are_reclaimable_give_their_quota_back() -> None:
    admission = one_queue(cluster_queue("q", {"a": {"cpu": 4}}))
    load(admission, [workload("w", "q", {"cpu": 1}, count=4)])
    admission.cycle(NOW)
    one = now_of(admission, "w")
    status = msgspec.structs.replace(one.status, reclaimable_pods=(ReclaimablePods("main", 3),))
    load(admission, [msgspec.structs.replace(one, status=status)])
    load(admission, [workload("next", "q", {"cpu": 3})])
    assert admission.cycle(NOW).admitted == ["default/next"]


# Flavors -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("preference", "got"),
    [("BorrowingOverPreemption", "b"), ("PreemptionOverBorrowing", "a")],
)
def test_the_preference_chooses_between_borrowing_and_preemption(preference: str, got: str) -> None:
    fungibility = {
        "whenCanBorrow": "TryNextFlavor",
        "whenCanPreempt": "TryNextFlavor",
        "preference": preference,
    }
    queue = cluster_queue(
        "q",
        {"a": {"cpu": 4}, "b": {"cpu": 0}},
        "c",
        flavorFungibility=fungibility,
        preemption={"withinClusterQueue": "LowerPriority"},
    )
    admission = one_queue(queue, cluster_queue("lender", {"a": {"cpu": 0}, "b": {"cpu": 4}}, "c"))
    load(admission, [workload("low", "q", {"cpu": 4}, priority=-1)])
    admission.cycle(NOW)
    load(admission, [workload("high", "q", {"cpu": 4}, created=1)])
    result = admission.cycle(NOW)
    assert bool(result.evicted) is (got == "a")
    release(admission, result)
    admission.cycle(NOW)
    assert admitted(admission)["high"] == got


def test_a_flavor_whose_taint_is_not_tolerated_is_passed_over() -> None:
    taints = [{"key": "spot", "value": "true", "effect": "NoSchedule"}]
    admission = load(
        Admission(),
        [
            flavor("a", nodeTaints=taints),
            flavor("b"),
            cluster_queue("q", {"a": {"cpu": 4}, "b": {"cpu": 4}}),
            local_queue("q", "q"),
            workload("w", "q"),
            workload("t", "q", pods={"tolerations": [{"key": "spot", "operator": "Exists"}]}),
        ],
    )
    admission.cycle(NOW)
    admission.cycle(NOW)
    assert admitted(admission) == {"w": "b", "t": "a"}


# Preemption --------------------------------------------------------------------------------


def test_a_lender_takes_its_quota_back() -> None:
    lender = cluster_queue(
        "lender", {"a": {"cpu": 4}}, "c", preemption={"reclaimWithinCohort": "Any"}
    )
    admission = one_queue(lender, cluster_queue("borrower", {"a": {"cpu": 0}}, "c"))
    load(admission, [workload("borrowed", "borrower", {"cpu": 4}, priority=9)])
    admission.cycle(NOW)
    load(admission, [workload("owner", "lender", {"cpu": 4})])
    result = admission.cycle(NOW)
    assert result.evicted == ["default/borrowed"]
    assert not result.admitted
    assert said(admission, "borrowed", "Preempted")[:2] == ("True", "InCohortReclamation")
    assert said(admission, "owner")[1] == "WaitingForPreemptedWorkloads"
    # Its pods still run: the quota is not free yet.
    assert not admission.cycle(NOW).admitted
    admission.release("default/borrowed", NOW)
    assert admission.cycle(NOW).admitted == ["default/owner"]
    assert said(admission, "borrowed")[0] == "False"


def test_reclaim_is_refused_without_a_policy_for_it() -> None:
    queues = [cluster_queue("lender", {"a": {"cpu": 4}}, "c")]
    queues.append(cluster_queue("borrower", {"a": {"cpu": 0}}, "c"))
    admission = one_queue(*queues)
    load(admission, [workload("borrowed", "borrower", {"cpu": 4})])
    admission.cycle(NOW)
    load(admission, [workload("owner", "lender", {"cpu": 4}, priority=9)])
    assert not admission.cycle(NOW).evicted
    assert said(admission, "owner")[1] == "WaitingForQuota"


@pytest.mark.parametrize("first", [True, False])
def test_a_victim_does_not_come_back_before_its_preemptor(first: bool) -> None:
    # At the root, d counts 6 with the preemptor, c 7 with the victim; but of d's queues the one of
    # the large workload has the lower share, and d counts 8 with that.
    preemption = {"reclaimWithinCohort": "Any"}
    given: dict[str, Any] = {"flavors": {"a": {"cpu": 0}}, "preemption": preemption}
    admission = one_queue(
        cluster_queue("victims", {"a": {"cpu": 0}}, "c"),
        cluster_queue("preemptors", cohort="d", **given),
        cluster_queue("large", cohort="d", **given),
        settings=Settings(fair_sharing=True, preemptors_first=first),
    )
    load(admission, [cohort("root", flavors={"a": {"cpu": 12}}), cohort("c", "root")])
    load(admission, [cohort("d", "root"), workload("before", "preemptors", {"cpu": 3})])
    load(admission, [workload("victim", "victims", {"cpu": 7})])
    admission.cycle(NOW)
    assert set(admitted(admission)) == {"before", "victim"}
    load(admission, [workload("preemptor", "preemptors", {"cpu": 3}, created=1)])
    load(admission, [workload("large", "large", {"cpu": 5}, created=2)])
    if first:
        settle(admission, 3)
        assert set(admitted(admission)) == {"before", "preemptor", "large"}
    else:
        with pytest.raises(AssertionError, match="not settled"):
            settle(admission, 50)


@pytest.mark.parametrize("lower", ["left", "right"])
def test_of_queues_with_equal_shares_the_least_important_workload_goes(lower: str) -> None:
    admission = one_queue(
        cluster_queue("left", {"a": {"cpu": 0}}, "all"),
        cluster_queue("right", {"a": {"cpu": 0}}, "all"),
        cluster_queue(
            "lender", {"a": {"cpu": 4}}, "all", preemption={"reclaimWithinCohort": "Any"}
        ),
        settings=Settings(fair_sharing=True),
    )
    borrowers = [workload(n, n, {"cpu": 2}, priority=int(n != lower)) for n in ("left", "right")]
    load(admission, borrowers)
    assert set(admission.cycle(NOW).admitted) == {"default/left", "default/right"}
    load(admission, [workload("w", "lender", {"cpu": 2})])
    assert admission.cycle(NOW).evicted == [f"default/{lower}"]


def test_a_closed_gate_keeps_a_workload_from_preempting() -> None:
    queue = cluster_queue(
        "q", {"a": {"cpu": 2}}, preemption={"withinClusterQueue": "LowerPriority"}
    )
    admission = one_queue(queue, settings=Settings(preemption_gates=True))
    load(admission, [workload("low", "q", {"cpu": 2}, priority=-1)])
    admission.cycle(NOW)
    gates = [{"name": "one"}, {"name": "two"}]
    load(admission, [workload("w", "q", {"cpu": 2}, preemptionGates=gates)])
    for opened in ((), ("one",), ("one", "two")):
        one = now_of(admission, "w")
        states = tuple(PreemptionGateState(name, "Open") for name in opened)
        status = msgspec.structs.replace(one.status, preemption_gates=states)
        load(admission, [msgspec.structs.replace(one, status=status)])
        gone = admission.cycle(NOW).evicted
        assert gone == (["default/low"] if len(opened) == 2 else [])


@pytest.mark.parametrize(("regardless", "gone"), [(True, ["default/b"]), (False, [])])
def test_what_lies_within_the_nominal_quota_is_taken_back_whatever_the_shares_are(
    regardless: bool, gone: list[str]
) -> None:
    reclaim = {"reclaimWithinCohort": "Any"}
    flavors: dict[str, Any] = {"a": {"cpu": 2}, "b": {"cpu": 0}}
    admission = one_queue(
        cluster_queue("mine", flavors, "all", preemption=reclaim),
        cluster_queue("other", {"a": {"cpu": 0}, "b": {"cpu": 0}}, "all"),
        cluster_queue("lender", {"a": {"cpu": 4}, "b": {"cpu": 4}}, "all"),
        settings=Settings(fair_sharing=True, nominal_regardless=regardless),
    )
    on = {"nodeSelector": {"flavor": "b"}}
    load(admission, [flavor(name, nodeLabels={"flavor": name}) for name in ("a", "b")])
    load(admission, [workload("m", "mine", {"cpu": 4}, pods=on)])
    to_a = {"nodeSelector": {"flavor": "a"}}
    load(admission, [workload("a", "lender", {"cpu": 4}, pods=to_a)])
    load(admission, [workload("b", "other", {"cpu": 2}, pods=to_a)])
    settle(admission, 3)
    load(admission, [workload("w", "mine", {"cpu": 2}, pods=to_a)])
    assert admission.cycle(NOW).evicted == gone


@pytest.mark.parametrize(
    ("second_look", "gone"), [(True, ["default/own", "default/small"]), (False, [])]
)
def test_others_are_looked_at_again_only_where_that_is_chosen(
    second_look: bool, gone: list[str]
) -> None:
    own = {"withinClusterQueue": "LowerPriority", "reclaimWithinCohort": "Any"}
    rules = (FairRule.FINAL_SHARE,)
    admission = one_queue(
        cluster_queue("lender", {"a": {"cpu": 9}}, "all"),
        cluster_queue("other", {"a": {"cpu": 0}}, "all"),
        cluster_queue("mine", {"a": {"cpu": 0}}, "all", preemption=own, fairSharing={"weight": 2}),
        settings=Settings(fair_sharing=True, fair_rules=rules, second_look=second_look),
    )
    sizes = {"large": ("other", 4), "small": ("other", 1), "own": ("mine", 4)}
    load(admission, [workload(n, queue, {"cpu": size}) for n, (queue, size) in sizes.items()])
    settle(admission, 3)
    load(admission, [workload("w", "mine", {"cpu": 5}, priority=1)])
    assert sorted(admission.cycle(NOW).evicted) == gone


def test_nodes_decide_too_where_the_quota_fits() -> None:
    free = {"nodes": 4}

    def place(one: Any, assignment: Any, removed: Any, *_: Any) -> str | None:
        gone = sum(2 for _ in removed)
        return None if free["nodes"] + gone >= 4 else "topology allows to fit only 2 out of 4 pods"

    queue = cluster_queue(
        "q", {"a": {"cpu": 8}}, preemption={"withinClusterQueue": "LowerPriority"}
    )
    admission = load(Admission(placement=place), [flavor("a"), queue, local_queue("q", "q")])
    load(admission, [workload("low", "q", {"cpu": 2}, priority=-1)])
    assert admission.cycle(NOW).admitted
    free["nodes"] = 2
    load(admission, [workload("high", "q", {"cpu": 1}, count=4, created=1)])
    result = admission.cycle(NOW)
    assert result.evicted == ["default/low"], "quota is there, but only its nodes would do"
    free["nodes"] = 4
    release(admission, result)
    assert admission.cycle(NOW).admitted == ["default/high"]


def test_the_search_for_a_flavor_goes_on_although_others_leave_meanwhile() -> None:
    def on_b_only(info: Any, assignment: Any, *_: Any) -> str | None:
        flavors = assignment.pod_set("main").flavors
        return None if flavors["cpu"].flavor == "b" or info.uid != "w" else "no node"

    admission = Admission(placement=on_b_only)
    load(admission, [flavor("a"), flavor("b"), local_queue("q", "q")])
    load(admission, [cluster_queue("q", {"a": {"cpu": 4}, "b": {"cpu": 4}})])
    load(admission, [workload("leaves", "q")])
    admission.cycle(NOW)
    load(admission, [workload("w", "q")])
    admission.cycle(NOW)
    load(admission, [_with_condition(now_of(admission, "leaves"), "Finished")])
    assert admission.cycle(NOW).admitted == ["default/w"]


def test_nobody_goes_where_the_nodes_would_not_do_anyway() -> None:
    queue = cluster_queue(
        "q", {"a": {"cpu": 8}}, preemption={"withinClusterQueue": "LowerPriority"}
    )
    admission = load(
        Admission(placement=lambda one, *rest: "no room" if one.uid == "high" else None),
        [flavor("a"), queue, local_queue("q", "q"), workload("low", "q", priority=-1)],
    )
    assert admission.cycle(NOW).admitted
    load(admission, [workload("high", "q", created=1)])
    result = admission.cycle(NOW)
    assert not result.evicted
    assert not result.admitted
    assert "no room" in said(admission, "high")[2]


@pytest.mark.parametrize(
    ("policy", "seconds", "goes"),
    [
        ("LowerOrNewerEqualPriority", 1, True),
        ("LowerOrNewerEqualPriority", 0, False),
        ("LowerOrNewerEqualPriority", -1, False),
        ("LowerPriority", 1, False),
    ],
)
def test_a_workload_preempts_one_of_its_priority_that_is_newer_at_all(
    policy: str, seconds: int, goes: bool
) -> None:
    preemption = {"withinClusterQueue": policy}
    admission = one_queue(cluster_queue("q", {"a": {"cpu": 4}}, preemption=preemption))
    load(admission, [workload("runs", "q", {"cpu": 4}, created=seconds)])
    admission.cycle(NOW + 10)
    load(admission, [workload("waits", "q", {"cpu": 4})])
    assert admission.cycle(NOW + 10).evicted == (["default/runs"] if goes else [])


def test_both_sides_of_a_preemption_are_told_of_the_other_one() -> None:
    preemption = {"withinClusterQueue": "LowerPriority"}
    admission = one_queue(cluster_queue("q", {"a": {"cpu": 4}}, preemption=preemption))
    load(admission, [workload("low", "q", {"cpu": 4}, priority=-1)])
    admission.cycle(NOW)
    load(admission, [workload("high", "q", {"cpu": 4}, priority=3)])
    told = {(one.workload, one.reason): one.message for one in admission.cycle(NOW).events}
    priorities = (
        "; preemptor effective priority: 3 (base: 3, boost: 0)"
        "; preemptee effective priority: -1 (base: -1, boost: 0)"
    )
    assert told["default/high", "PreemptedWorkload"] == (
        f"Preempted workload default/low (UID: low) in ClusterQueue q{priorities}"
    )
    assert told["default/low", "Preempted"].endswith(priorities)
    assert "UID: high" in told["default/low", "EvictedDueToPreempted"]


# Slices ------------------------------------------------------------------------------------


def test_of_slices_without_quota_that_came_in_one_second_the_last_one_stays() -> None:
    slices = [workload(name, "q", {"cpu": 1}, count=count) for name, count in (("a", 2), ("b", 3))]
    chosen, ended = normalize(unfinished(reversed(slices)), NOW)
    assert chosen is not None
    assert chosen.metadata.name == "b"
    assert [one.metadata.name for one in ended] == ["a"]
    assert finished_reason(ended[0]) == "OutOfSync"


def test_slices_that_another_one_replaces_end_as_replaced() -> None:
    old = workload("old", "q", {"cpu": 1})
    new = workload("new", "q", {"cpu": 1}, count=2, annotations={REPLACES: "default/old"})
    chosen, (ended,) = normalize(unfinished([old, new]), NOW)
    assert chosen is not None
    assert chosen.metadata.name == "new"
    assert finished_reason(ended) == "WorkloadSliceReplaced"


def finished_reason(one: KueueWorkload) -> str:
    found = condition(one, "Finished")
    assert found is not None
    return found.reason


def test_a_larger_slice_replaces_the_old_one_and_pays_the_difference() -> None:
    admission = one_queue(cluster_queue("q", {"a": {"cpu": 5}, "b": {"cpu": 9}}))
    load(admission, [workload("old", "q", {"cpu": 1}, count=3)])
    admission.cycle(NOW)
    replaces = {"kueue.x-k8s.io/workload-slice-replacement-for": "default/old"}
    load(admission, [workload("new", "q", {"cpu": 1}, count=5, annotations=replaces)])
    result = admission.cycle(NOW)
    assert result.admitted == ["default/new"]
    assert not result.evicted
    assert admitted(admission)["new"] == "a", "3 + 5 pods never run at once"
    assert is_true(now_of(admission, "old"), "Finished")
    forest = admission.store.forest()
    assert forest.used[forest.row_of["q"]]["a/cpu"] == 5000


@pytest.mark.parametrize("names", [("main", "more"), ("other",)])
def test_a_workload_of_other_pod_sets_replaces_no_slice(names: tuple[str, ...]) -> None:
    admission = one_queue(cluster_queue("q", {"a": {"cpu": 4}}))
    load(admission, [workload("old", "q")])
    admission.cycle(NOW)
    replaces = {REPLACES: "default/old"}
    pod_sets = [{"name": name, "template": _container({"cpu": 1})} for name in names]
    load(admission, [workload("new", "q", annotations=replaces, podSets=pod_sets)])
    assert admission.cycle(NOW).admitted == ["default/new"]
    assert set(admission.store.reserving["q"]) == {"default/old", "default/new"}


def _container(requests: dict[str, int]) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "c", "resources": {"requests": requests}}]}}


def test_a_slice_keeps_the_flavor_of_the_one_it_replaces() -> None:
    admission = one_queue(cluster_queue("q", {"a": {"cpu": 4}, "b": {"cpu": 9}}))
    load(admission, [workload("old", "q", {"cpu": 1}, count=3)])
    admission.cycle(NOW)
    replaces = {"kueue.x-k8s.io/workload-slice-replacement-for": "default/old"}
    load(admission, [workload("new", "q", {"cpu": 1}, count=6, annotations=replaces)])
    assert not admission.cycle(NOW).admitted, "the pods that run are in flavor a"


# Stops, namespaces, mistakes ---------------------------------------------------------------


def test_a_held_queue_admits_nobody_and_a_drained_one_evicts() -> None:
    admission = one_queue(cluster_queue("q", {"a": {"cpu": 4}}))
    load(admission, [workload("in", "q")])
    admission.cycle(NOW)
    load(admission, [workload("out", "q", created=1)])
    load(admission, [cluster_queue("q", {"a": {"cpu": 4}}, stopPolicy="Hold")])
    assert not admission.cycle(NOW).admitted
    assert [*admission.tick(NOW).changed] == ["default/out"]
    assert said(admission, "out") == ("False", "Suspended", "ClusterQueue q is inactive")
    assert not admission.tick(NOW).changed
    load(admission, [cluster_queue("q", {"a": {"cpu": 4}}, stopPolicy="HoldAndDrain")])
    result = admission.tick(NOW)
    assert result.evicted == ["default/in"]
    assert [one.reason for one in result.events] == ["EvictedDueToClusterQueueStopped"]
    assert said(admission, "in", "Evicted")[1] == "ClusterQueueStopped"
    admission.release("default/in", NOW)
    assert said(admission, "in", "Requeued")[:2] == ("False", "ClusterQueueStopped")
    load(admission, [cluster_queue("q", {"a": {"cpu": 1}})])
    admission.tick(NOW)
    assert said(admission, "in", "Requeued")[:2] == ("True", "ClusterQueueRestarted")
    assert admission.cycle(NOW).admitted == ["default/in"]


@pytest.mark.parametrize("kind", ["ClusterQueue", "LocalQueue"])
def test_a_stopped_queue_takes_back_what_is_not_admitted_yet(kind: str) -> None:
    admission = one_queue(cluster_queue("q", {"a": {"cpu": 4}}, **CHECKED))
    load(admission, [check(), workload("w", "q")])
    assert admission.cycle(NOW).admitted
    stopped = {"stopPolicy": "Hold"}
    if kind == "ClusterQueue":
        load(admission, [cluster_queue("q", {"a": {"cpu": 4}}, **CHECKED, **stopped)])
    else:
        load(admission, [local_queue("q", "q", **stopped)])
    assert not admission.tick(NOW).evicted
    assert said(admission, "w") == ("False", "Suspended", f"{kind} q is stopped")
    assert not admission.cycle(NOW).admitted


def test_a_stopped_local_queue_takes_its_workloads_out_of_the_line() -> None:
    admission = one_queue(cluster_queue("q", {"a": {"cpu": 4}}))
    load(admission, [workload("w", "q"), local_queue("q", "q", stopPolicy="Hold")])
    assert not admission.cycle(NOW).outcome.entries
    admission.tick(NOW)
    assert said(admission, "w") == ("False", "Suspended", "LocalQueue q is inactive")
    load(admission, [local_queue("q", "q")])
    assert admission.cycle(NOW).admitted


def test_a_workload_without_its_queues_says_so() -> None:
    admission = load(Admission(), [flavor("a"), workload("w", "q")])
    admission.tick(NOW)
    assert said(admission, "w") == ("False", "Misconfigured", "LocalQueue q doesn't exist")
    load(admission, [local_queue("q", "c")])
    admission.tick(NOW)
    assert said(admission, "w") == ("False", "Misconfigured", "ClusterQueue c doesn't exist")
    load(admission, [cluster_queue("c", {"a": {"cpu": 4}})])
    assert admission.cycle(NOW).admitted == ["default/w"]


def test_a_deactivated_workload_neither_waits_nor_keeps_its_quota() -> None:
    admission = one_queue(cluster_queue("q", {"a": {"cpu": 4}}))
    load(admission, [workload("never", "q", active=False), workload("w", "q")])
    assert admission.cycle(NOW).admitted == ["default/w"]
    assert not admission.cycle(NOW).outcome.entries
    one = now_of(admission, "w")
    spec = msgspec.structs.replace(one.spec, active=False)
    load(admission, [msgspec.structs.replace(one, spec=spec)])
    admission.tick(NOW)
    assert said(admission, "w", "Evicted")[1] == "Deactivated"
    admission.release("default/w", NOW)
    assert not admission.cycle(NOW).admitted
    admission.tick(NOW)
    for name in ("never", "w"):
        assert said(admission, name) == ("False", "Deactivated", "The workload is deactivated")
    load(admission, [msgspec.structs.replace(now_of(admission, "w"), spec=one.spec)])
    admission.tick(NOW)
    assert said(admission, "w", "Requeued")[:2] == ("True", "Reactivated")
    assert admission.cycle(NOW).admitted == ["default/w"]


def test_only_selected_namespaces_may_use_a_queue() -> None:
    selector = {"matchLabels": {"team": "x"}}
    admission = one_queue(cluster_queue("q", {"a": {"cpu": 4}}, namespaceSelector=selector))
    load(admission, [workload("w", "q")])
    assert not admission.cycle(NOW).admitted
    assert said(admission, "w")[1:] == (
        "Misconfigured",
        "workload namespace doesn't match ClusterQueue selector",
    )
    load(admission, [Namespace(ObjectMeta("default", labels={"team": "x"}))])
    assert admission.cycle(NOW).admitted


def test_a_queue_with_a_missing_flavor_or_a_circle_of_cohorts_is_inactive() -> None:
    admission = load(
        Admission(), [cluster_queue("q", {"a": {"cpu": 4}}, "c"), local_queue("q", "q")]
    )
    load(admission, [workload("w", "q")])
    assert admission.store.inactive_reason("q") == (
        "FlavorNotFound",
        "Can't admit new workloads: references missing ResourceFlavor(s): a.",
    )
    assert not admission.cycle(NOW).outcome.entries
    load(admission, [flavor("a"), cohort("c", "d"), cohort("d", "c")])
    found = admission.store.inactive_reason("q")
    assert found is not None
    assert found[0] == "CohortCycle"
    assert not admission.cycle(NOW).admitted
    load(admission, [cohort("d")])
    assert admission.cycle(NOW).admitted == ["default/w"]


def test_a_queue_is_inactive_until_the_topologies_of_its_flavors_are_there() -> None:
    queue = cluster_queue("q", {"a": {"cpu": 4}, "b": {"cpu": 4}})
    racks = Topology(ObjectMeta("racks"))
    admission = load(
        Admission(),
        [queue, local_queue("q", "q"), flavor("a", topologyName="racks"), workload("w", "q")],
    )
    load(admission, [flavor("b")])
    assert admission.store.inactive_reason("q") == (
        "TopologyNotFound",
        'Can\'t admit new workloads: there is no Topology "racks" for TAS flavor "a".',
    )
    assert not admission.cycle(NOW).outcome.entries
    load(admission, [racks])
    assert admission.store.inactive_reason("q") is None
    assert admission.cycle(NOW).admitted == ["default/w"]
    admission.delete(racks, NOW)
    assert admission.store.faults("q")


def test_topologies_of_other_clusters_need_not_be_here() -> None:
    asked = {"admissionChecksStrategy": {"admissionChecks": [{"name": "remote"}]}}
    admission = one_queue(cluster_queue("q", {"a": {"cpu": 4}}, **asked))
    load(admission, [check("remote", REMOTE), flavor("a", topologyName="racks")])
    assert admission.store.inactive_reason("q") is None


REMOTE, NODES = "kueue.x-k8s.io/multikueue", "kueue.x-k8s.io/provisioning-request"
CANNOT = "Can't admit new workloads: "


@pytest.mark.parametrize(
    ("rules", "checks", "reason", "message"),
    [
        (
            [{"name": "b"}, {"name": "a"}],
            [],
            "AdmissionCheckNotFound",
            "references missing AdmissionCheck(s): a,b.",
        ),
        (
            [{"name": "a"}, {"name": "b"}],
            [check("a", active=False), check("b", active=None)],
            "AdmissionCheckInactive",
            "references inactive AdmissionCheck(s): a,b.",
        ),
        (
            [{"name": "a"}, {"name": "b"}],
            [check("b", active=False)],
            "AdmissionCheckNotFound",
            "references missing AdmissionCheck(s): a, references inactive AdmissionCheck(s): b.",
        ),
        (
            [{"name": "a"}, {"name": "b"}],
            [check("a", REMOTE), check("b", REMOTE)],
            "MultipleMultiKueueAdmissionChecks",
            "Cannot use multiple MultiKueue AdmissionChecks on the same ClusterQueue, found: a,b.",
        ),
        (
            [{"name": "a", "onFlavors": ["x"]}],
            [check("a", REMOTE)],
            "MultiKueueAdmissionCheckAppliedPerFlavor",
            "Cannot specify MultiKueue AdmissionCheck per flavor, found: a.",
        ),
        (
            [{"name": "a"}, {"name": "b"}],
            [check("a", REMOTE), check("b", NODES)],
            "MultiKueueWithProvisioningRequest",
            "Cannot use both MultiKueue and ProvisioningRequest AdmissionChecks together, "
            "found: a, b.",
        ),
    ],
)
def test_a_queue_whose_checks_cannot_be_used_is_inactive(
    rules: list[Any], checks: list[AdmissionCheck], reason: str, message: str
) -> None:
    asked = {"admissionChecksStrategy": {"admissionChecks": rules}}
    admission = one_queue(cluster_queue("q", {"a": {"cpu": 4}, "x": {"cpu": 4}}, **asked))
    load(admission, [*checks, flavor("x"), workload("w", "q")])
    assert admission.store.inactive_reason("q") == (reason, CANNOT + message)
    assert not admission.cycle(NOW).outcome.entries
    admission.tick(NOW)
    assert said(admission, "w") == ("False", "Suspended", "ClusterQueue q is inactive")


def test_a_remote_check_may_name_all_flavors() -> None:
    every = [{"name": "a", "onFlavors": ["a", "b"]}]
    flavors = {"a": {"cpu": 4}, "b": {"cpu": 4}}
    asked = {"admissionChecksStrategy": {"admissionChecks": every}}
    admission = one_queue(cluster_queue("q", flavors, **asked))
    load(admission, [check("a", REMOTE)])
    assert admission.store.inactive_reason("q") is None


def test_a_queue_is_active_while_its_check_is_and_what_runs_goes_on() -> None:
    admission = one_queue(cluster_queue("q", {"a": {"cpu": 4}}, **CHECKED))
    load(admission, [check(active=None), workload("w", "q")])
    assert not admission.cycle(NOW).admitted
    load(admission, [check()])
    assert admission.cycle(NOW).admitted == ["default/w"]
    load(admission, [check(active=False), workload("v", "q", created=1)])
    assert not admission.cycle(NOW).outcome.entries
    admission.tick(NOW)
    assert is_true(now_of(admission, "w"), "QuotaReserved")
    assert not is_true(now_of(admission, "w"), "Evicted")
    admission.delete(check(), NOW)
    assert not admission.cycle(NOW).outcome.entries
    load(admission, [check()])
    admission.tick(NOW)
    assert said(admission, "v")[1:] == (
        "PendingEvaluation",
        "Workload is pending evaluation in the scheduling queue",
    )
    assert admission.cycle(NOW).admitted == ["default/v"]


# Between cycles ----------------------------------------------------------------------------

CHECKED = {"admissionChecksStrategy": {"admissionChecks": [{"name": "budget"}]}}


def _checked(admission: Admission, state: Any) -> None:
    """Have the check of the workload w come to a state."""
    one = now_of(admission, "w")
    checks = (AdmissionCheckState("budget", state),)
    status = msgspec.structs.replace(one.status, admission_checks=checks)
    load(admission, [msgspec.structs.replace(one, status=status)])


def test_a_workload_is_admitted_once_its_checks_are_ready() -> None:
    admission = one_queue(cluster_queue("q", {"a": {"cpu": 4}}, **CHECKED))
    load(admission, [check(), workload("w", "q")])
    admission.cycle(NOW)
    assert is_true(now_of(admission, "w"), "QuotaReserved")
    assert not is_true(now_of(admission, "w"), "Admitted")
    _checked(admission, "Pending")
    assert not admission.tick(NOW).changed
    _checked(admission, "Ready")
    (told,) = admission.tick(NOW + 5).events
    assert is_true(now_of(admission, "w"), "Admitted")
    text = "Admitted by ClusterQueue q, wait time since reservation was 5s"
    assert (told.reason, told.message) == ("Admitted", text)


def test_a_check_that_retries_gives_the_quota_back_and_a_rejected_one_deactivates() -> None:
    admission = one_queue(cluster_queue("q", {"a": {"cpu": 4}}, **CHECKED))
    load(admission, [check(), workload("w", "q")])
    admission.cycle(NOW)
    _checked(admission, "Retry")
    admission.tick(NOW)
    assert said(admission, "w", "Evicted")[1] == "AdmissionCheck"
    back = admission.release("default/w", NOW)
    assert back is not None
    (reset,) = back.status.admission_checks
    assert (reset.state, reset.retry_count) == ("Pending", 1)
    assert reset.message == "Reset to Pending after eviction. Previously: Retry"
    assert said(admission, "w", "Requeued")[:2] == ("True", "BackoffFinished")
    assert admission.cycle(NOW).admitted == ["default/w"]
    _checked(admission, "Rejected")
    reasons = [one.reason for one in admission.tick(NOW).events]
    assert reasons == ["AdmissionCheckRejected", "EvictedDueToDeactivatedDueToAdmissionCheck"]
    assert said(admission, "w", "Evicted")[1:] == (
        "DeactivatedDueToAdmissionCheck",
        'The workload is deactivated due to AdmissionCheck in Rejected state: "budget"',
    )
    assert now_of(admission, "w").spec.active is False


def test_pods_that_do_not_get_ready_lose_their_quota_longer_each_time() -> None:
    ready = PodsReady(timeout=10, backoff_base=60, backoff_limit=2)
    admission = one_queue(
        cluster_queue("q", {"a": {"cpu": 4}}), settings=Settings(pods_ready=ready)
    )
    load(admission, [workload("w", "q")])
    now = NOW
    for backoff in (60, 120):
        assert admission.cycle(now).admitted
        assert not admission.tick(now + 9).changed
        assert admission.tick(now + 10).evicted
        assert said(admission, "w", "Evicted")[1] == "PodsReadyTimeout"
        admission.release("default/w", now + 10)
        assert not admission.tick(now + 9 + backoff).changed
        assert not admission.cycle(now).admitted
        assert admission.tick(now + 10 + backoff).changed
        now += 10 + backoff
    assert admission.cycle(now).admitted
    admission.tick(now + 10)
    assert said(admission, "w", "Evicted")[1] == "DeactivatedDueToRequeuingLimitExceeded"
    assert now_of(admission, "w").status.requeue_state is None


def test_pods_that_fail_are_replaced_in_time_or_the_quota_is_lost() -> None:
    given = KueueArgs.model_validate({"waitForPodsReady": {"timeout": "10s"}})
    admission = one_queue(cluster_queue("q", {"a": {"cpu": 4}}), settings=given.settings())
    load(admission, [workload("w", "q")])
    admission.cycle(NOW)
    admission.note_pods(lambda one: True, NOW + 5)
    assert not admission.tick(NOW + 50).changed
    admission.note_pods(lambda one: False, NOW + 50)
    assert said(admission, "w", "PodsReady")[1] == "WaitForRecovery"
    assert not admission.tick(NOW + 59).evicted
    assert admission.tick(NOW + 60).evicted
    stats = now_of(admission, "w").status.scheduling_stats
    assert stats is not None
    assert [(one.reason, one.underlying_cause) for one in stats.evictions] == [
        ("PodsReadyTimeout", "WaitForRecovery")
    ]


def test_a_workload_that_runs_too_long_is_deactivated() -> None:
    admission = one_queue(cluster_queue("q", {"a": {"cpu": 4}}))
    load(admission, [workload("w", "q", maximumExecutionTimeSeconds=100)])
    admission.cycle(NOW)
    assert not admission.tick(NOW + 99).changed
    result = admission.tick(NOW + 100)
    assert now_of(admission, "w").spec.active is False
    assert result.events[0].message == "The maximum execution time (100s) exceeded"
    assert said(admission, "w", "Evicted")[1:] == (
        "DeactivatedDueToMaximumExecutionTimeExceeded",
        "The workload is deactivated due to exceeding the maximum execution time",
    )
    admission.release("default/w", NOW + 101)
    one = now_of(admission, "w")
    spec = msgspec.structs.replace(one.spec, active=True)
    load(admission, [msgspec.structs.replace(one, spec=spec)])
    admission.tick(NOW + 200)
    assert admission.cycle(NOW + 200).admitted
    assert not admission.tick(NOW + 299).changed


def test_the_time_that_a_workload_ran_before_its_eviction_counts() -> None:
    admission = one_queue(cluster_queue("q", {"a": {"cpu": 4}}))
    load(admission, [workload("w", "q", maximumExecutionTimeSeconds=100)])
    admission.cycle(NOW)
    one = now_of(admission, "w")
    admission.set(evicted(one, "Preempted", "", NOW + 60, "InClusterQueue"), NOW + 60)
    back = admission.release("default/w", NOW + 60)
    assert back is not None
    assert back.status.accumulated_past_execution_time_seconds == 60
    assert admission.cycle(NOW + 70).admitted
    assert not admission.tick(NOW + 109).changed
    assert admission.tick(NOW + 110).evicted


def test_local_queues_that_used_much_come_later() -> None:
    sharing = UsageSharing(half_life=3600, sampling=60)
    scope = {"admissionMode": "UsageBasedAdmissionFairSharing"}
    admission = one_queue(
        cluster_queue("q", {"a": {"cpu": 8}}, admissionScope=scope),
        settings=Settings(usage_sharing=sharing),
    )
    load(admission, [local_queue("much", "q"), local_queue("little", "q")])
    load(admission, [workload("used", "much", {"cpu": 4})])
    admission.cycle(NOW)
    admission.tick(NOW)
    admission.tick(NOW + 60)
    load(admission, [workload("first", "much", {"cpu": 4}, created=60)])
    load(admission, [workload("second", "little", {"cpu": 4}, created=61)])
    assert admission.cycle(NOW + 62).admitted == ["default/second"]


def test_the_next_sample_is_due_for_queues_that_exist_only() -> None:
    sharing = UsageSharing(half_life=3600, sampling=60)
    scope = {"admissionMode": "UsageBasedAdmissionFairSharing"}
    counting = cluster_queue("q", {"a": {"cpu": 8}}, admissionScope=scope)
    admission = one_queue(counting, settings=Settings(usage_sharing=sharing))
    ledger = admission.store.ledger
    assert ledger is not None
    ledger.restore("default/gone", {"cpu": 4000}, NOW - 10_000)
    load(admission, [local_queue("here", "q")])
    admission.tick(NOW)
    assert admission.next_change() == NOW + 60
    admission.tick(NOW + 60)
    assert admission.next_change() == NOW + 120


def test_releasing_what_has_no_quota_changes_nothing() -> None:
    admission = one_queue(cluster_queue("q", {"a": {"cpu": 4}}))
    load(admission, [workload("w", "q")])
    assert admission.release("default/w", NOW) is None
    assert admission.release("default/unknown", NOW) is None


def test_pods_that_ask_for_more_than_their_limits_wait_and_are_told_which() -> None:
    admission = one_queue(cluster_queue("q", {"a": {"cpu": 4}}))
    resources = {"requests": {"cpu": "2"}, "limits": {"cpu": "1500m"}}
    pods = {"containers": [{"name": "c"}, {"name": "d", "resources": resources}]}
    load(admission, [workload("w", "q", pods=pods), workload("other", "q", created=1)])
    admission.cycle(NOW)
    assert said(admission, "w") == (
        "False",
        "Misconfigured",
        "resources validation failed: spec.podSets[0].template.spec.containers[1]: "
        'Invalid value: ["cpu"]: requests must not exceed its limits',
    )
    admission.cycle(NOW)
    assert is_true(now_of(admission, "other"), "Admitted")


def test_a_condition_tells_which_generation_of_the_workload_it_is_about() -> None:
    admission = one_queue(cluster_queue("q", {"a": {"cpu": 4}}))
    one = workload("w", "q")
    metadata = msgspec.structs.replace(one.metadata, generation=7)
    load(admission, [msgspec.structs.replace(one, metadata=metadata)])
    admission.cycle(NOW)
    conditions = now_of(admission, "w").status.conditions
    assert {one.type: one.observed_generation for one in conditions} == {
        "QuotaReserved": 7,
        "Admitted": 7,
    }
