"""The status of Kueue's queues, as their objects show it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tests.plugins.queues.kueue.kueue_builders import (
    NOW,
    check,
    cluster_queue,
    cohort,
    flavor,
    load,
    local_queue,
    workload,
)

from bayplan.api.conditions import without_times
from bayplan.api.kueue import FlavorUsage, LocalQueue, LocalQueueStatus
from bayplan_plugins.queues.kueue import Admission, Settings
from bayplan_plugins.queues.kueue.settings import UsageSharing
from bayplan_plugins.queues.kueue.status import (
    KueueStatuses,
    cluster_queue_status,
    cohort_status,
    local_queue_status,
)


def replace(queue: LocalQueue, status: LocalQueueStatus) -> LocalQueue:
    return msgspec.structs.replace(queue, status=status)


def borrowing(settings: Settings | None = None) -> Admission:
    """Return an admission in which q uses 3 of its 2 CPUs, and two workloads wait."""
    admission = load(
        Admission(settings),
        [
            flavor("a"),
            cohort("c"),
            cluster_queue("q", {"a": {"cpu": 2}}, "c"),
            cluster_queue("r", {"a": {"cpu": 2}}, "c"),
            local_queue("q", "q"),
            local_queue("other", "q"),
            workload("in", "q", {"cpu": 3}),
        ],
    )
    admission.cycle(NOW)
    later = [("high", "other", 5), ("low", "q", 0)]
    return load(admission, [workload(n, q, {"cpu": 4}, priority=p) for n, q, p in later])


def used(flavors: tuple[FlavorUsage, ...]) -> list[tuple[str, str, str, str]]:
    return [
        (one.name, resource.name, resource.total.text, resource.borrowed.text)
        for one in flavors
        for resource in one.resources
    ]


def shared(status: object) -> object:
    """Return status.fairSharing as it is written."""
    return msgspec.to_builtins(status, enc_hook=lambda quantity: quantity.text)["fairSharing"]


def test_a_cluster_queue_shows_what_it_uses_and_borrows() -> None:
    status = cluster_queue_status(borrowing().store, "q", NOW)
    assert used(status.flavors_reservation) == [("a", "cpu", "3", "1")]
    assert status.flavors_usage == status.flavors_reservation
    counts = status.pending_workloads, status.reserving_workloads, status.admitted_workloads
    assert counts == (2, 1, 1)
    (active,) = status.conditions
    assert (active.status, active.reason) == ("True", "Ready")
    assert active.message == "Can admit new workloads"
    assert status.fair_sharing is None


def test_a_workload_whose_checks_are_not_ready_reserves_but_does_not_use() -> None:
    checks = {"admissionChecksStrategy": {"admissionChecks": [{"name": "budget"}]}}
    queue = cluster_queue("q", {"a": {"cpu": 2}}, **checks)
    admission = load(
        Admission(), [check(), flavor("a"), queue, local_queue("q", "q"), workload("w", "q")]
    )
    admission.cycle(NOW)
    status = cluster_queue_status(admission.store, "q", NOW)
    assert used(status.flavors_reservation) == [("a", "cpu", "1", "0")]
    assert used(status.flavors_usage) == [("a", "cpu", "0", "0")]
    assert (status.reserving_workloads, status.admitted_workloads) == (1, 0)


def test_shares_are_shown_with_fair_sharing() -> None:
    store = borrowing(Settings(fair_sharing=True)).store
    shares = [cluster_queue_status(store, name, NOW).fair_sharing for name in ("q", "r")]
    # One CPU is borrowed of the four that the cohort can lend.
    assert [one.weighted_share for one in shares if one is not None] == [250, 0]
    cohort = cohort_status(store, "c").fair_sharing
    assert cohort is not None
    assert cohort.weighted_share == 0


def test_a_share_of_nothing_is_written_since_kueues_definitions_require_it() -> None:
    admission = borrowing(Settings(fair_sharing=True, usage_sharing=UsageSharing(60, 60)))
    store = admission.store
    statuses = [
        cluster_queue_status(store, "r", NOW),
        cohort_status(store, "c"),
        local_queue_status(store, "default/other", NOW),
    ]
    none: dict[str, object] = {"weightedShare": 0}
    assert [shared(one) for one in statuses] == [none] * 3
    admission.tick(NOW)
    sampled = shared(local_queue_status(store, "default/other", NOW))
    taken = {"consumedResources": {}, "lastUpdate": "2025-06-15T15:06:40Z"}
    assert sampled == {**none, "admissionFairSharingStatus": taken}


def test_a_local_queue_shows_its_own_part() -> None:
    store = borrowing().store
    mine, other = (local_queue_status(store, f"default/{n}", NOW) for n in ("q", "other"))
    assert used(mine.flavors_usage) == [("a", "cpu", "3", "0")]
    assert used(other.flavors_usage) == [("a", "cpu", "0", "0")]
    assert (mine.pending_workloads, other.pending_workloads) == (1, 1)
    assert mine.conditions[0].message == "Can submit new workloads to localQueue"


def test_a_local_queue_says_why_it_takes_no_workloads() -> None:
    queues = [local_queue("lost", "none"), local_queue("held", "q", stopPolicy="Hold")]
    queues.append(local_queue("inactive", "q"))
    admission = load(Admission(), [cluster_queue("q", {"a": {"cpu": 2}}), *queues])
    reasons = {
        name: local_queue_status(admission.store, f"default/{name}", NOW).conditions[0].reason
        for name in ("lost", "held", "inactive")
    }
    assert reasons == {
        "lost": "ClusterQueueDoesNotExist",
        "held": "Stopped",
        "inactive": "ClusterQueueIsInactive",
    }
    (active,) = cluster_queue_status(admission.store, "q", NOW).conditions
    assert (active.status, active.reason) == ("False", "FlavorNotFound")


def test_a_local_queue_shows_its_usage_over_time() -> None:
    admission = borrowing(Settings(usage_sharing=UsageSharing(half_life=60, sampling=60)))
    admission.tick(NOW)
    admission.tick(NOW + 60)
    shown = local_queue_status(admission.store, "default/q", NOW + 60).fair_sharing
    assert shown is not None
    taken = shown.admission_fair_sharing_status
    assert taken is not None
    assert taken.consumed_resources["cpu"].text == "1500m"
    assert taken.last_update == "2025-06-15T15:07:40Z"


@pytest.mark.parametrize("journal", [False, True])
def test_usage_over_time_survives_a_restart(tmp_path: Path, journal: bool) -> None:
    path = tmp_path / "usage.jsonl" if journal else None
    settings = Settings(usage_sharing=UsageSharing(half_life=60, sampling=60, journal=path))
    before = borrowing(settings)
    before.tick(NOW)
    before.tick(NOW + 90)
    assert before.store.ledger is not None
    used = before.store.ledger.consumed("default/q")
    status = local_queue_status(before.store, "default/q", NOW + 90)
    after = load(Admission(settings), [flavor("a"), cluster_queue("q", {"a": {"cpu": 2}})])
    load(after, [local_queue("q", "q") if journal else replace(local_queue("q", "q"), status)])
    assert after.store.ledger is not None
    assert used["cpu"] > 0
    assert after.store.ledger.consumed("default/q") == pytest.approx(used, abs=1)
    assert after.store.ledger.sampled("default/q") == NOW + 90


def test_a_status_of_an_older_sample_changes_nothing() -> None:
    admission = borrowing(Settings(usage_sharing=UsageSharing(half_life=60, sampling=60)))
    admission.tick(NOW)
    status = local_queue_status(admission.store, "default/q", NOW)
    admission.tick(NOW + 60)
    assert admission.store.ledger is not None
    used = admission.store.ledger.consumed("default/q")
    load(admission, [replace(local_queue("q", "q"), status)], NOW + 61)
    assert admission.store.ledger.consumed("default/q") == used


def test_decayed_usage_is_shown_to_the_thousandth() -> None:
    sharing = UsageSharing(half_life=60, sampling=60)
    admission = Admission(Settings(usage_sharing=sharing))
    load(admission, [cluster_queue("q", {}), local_queue("q", "q")])
    assert admission.store.ledger is not None
    admission.store.ledger.restore("default/q", {"nvidia.com/gpu": 0.375}, NOW)
    shown = local_queue_status(admission.store, "default/q", NOW).fair_sharing
    assert shown is not None
    assert shown.admission_fair_sharing_status is not None
    assert shown.admission_fair_sharing_status.consumed_resources["nvidia.com/gpu"].text == "375m"


def test_every_queue_and_cohort_gets_its_status() -> None:
    store = borrowing().store
    keys = {(write.type.__name__, write.key) for write in KueueStatuses().all(store, NOW)}
    assert keys == {
        *(("ClusterQueue", name) for name in store.cluster_queues),
        *(("Cohort", name) for name in store.cohorts),
        *(("LocalQueue", key) for key in store.local_queues),
    }


def test_only_queues_that_changed_get_another_status() -> None:
    admission = borrowing()
    statuses = KueueStatuses()
    before = {(one.type, one.key): one for one in statuses.all(admission.store, NOW)}
    again = statuses.all(admission.store, NOW + 1)
    assert all(before[one.type, one.key] is one for one in again)
    load(admission, [workload("late", "q", {"cpu": 1})])
    later = list(statuses.all(admission.store, NOW + 2))
    changed = {
        (one.type.__name__, one.key) for one in later if before[one.type, one.key] is not one
    }
    assert changed == {("ClusterQueue", "q"), ("LocalQueue", "default/q")}
    fresh = KueueStatuses().all(admission.store, NOW + 2)
    assert [without_times(one.status) for one in later] == [
        without_times(one.status) for one in fresh
    ]
