"""What quotas decide: who is refused, who gives way, what may be written."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.plugins.queues.koordinator.quota_builders import GPU, PREFIX, gpus, pod, quota

from bayplan.api import ElasticQuota, Node, ObjectMeta, Pod, Quantity
from bayplan.api.node import NodeStatus
from bayplan.dialects.koordinator.elastic_quota import (
    DEFAULT_QUOTA,
    KoordinatorQueueArgs,
    ResourceList,
)
from bayplan_plugins.queues.koordinator import (
    OveruseMonitor,
    QuotaFeatures,
    Quotas,
    status_of,
    status_patch,
)
from bayplan_plugins.queues.koordinator.manager import QuotaManager
from bayplan_plugins.queues.koordinator.overuse import borrowers, pods_to_revoke
from bayplan_plugins.queues.koordinator.quota import CountedPod

NOW = 1_000_000.0


def cluster(
    *objects: ElasticQuota | Pod,
    gpu: int = 8,
    args: KoordinatorQueueArgs | None = None,
    features: QuotaFeatures | None = None,
) -> Quotas:
    quotas = Quotas(args, features)
    quotas.set_node(node("n", gpu))
    for one in objects:
        if isinstance(one, ElasticQuota):
            quotas.set_quota(one)
        else:
            quotas.set_pod(one, NOW)
    return quotas


def node(name: str, gpu: int) -> Node:
    return Node(ObjectMeta(name=name), status=NodeStatus(allocatable={GPU: Quantity(gpu)}))


def message(quotas: Quotas, one: Pod) -> str:
    refusal = quotas.refusal(one)
    return refusal.message if refusal is not None else ""


# Limits ------------------------------------------------------------------------------------


def test_a_pod_beyond_the_runtime_is_refused_with_koordinators_words() -> None:
    pending = pod("two", 3, "team")
    quotas = cluster(quota("team", 2, 4), pod("one", 2, "team", node="n"), pending)
    assert message(quotas, pending) == (
        "Insufficient quotas, quotaName: team, runtime: nvidia.com/gpu:4, "
        "used: nvidia.com/gpu:2, pod's request: nvidia.com/gpu:3, "
        "exceedDimensions: [nvidia.com/gpu]"
    )
    refusal = quotas.refusal(pending)
    assert refusal is not None
    assert (refusal.quota, refusal.missing) == ("team", gpus(1))


def test_without_runtimes_max_is_the_limit() -> None:
    pending = pod("two", 4, "team")
    objects = (quota("team", 2, 6), quota("guest", 6, 8), pod("guest", 8, "guest"), pending)
    assert message(cluster(*objects), pending).startswith("Insufficient quotas")
    assert not message(
        cluster(*objects, args=KoordinatorQueueArgs(enableRuntimeQuota=False)), pending
    )


def test_pods_that_may_not_be_preempted_are_held_within_min() -> None:
    pending = pod("two", 2, "team", preemptible=False)
    running = pod("one", 1, "team", node="n", preemptible=False)
    quotas = cluster(quota("team", 2, 8), running, pending)
    assert message(quotas, pending) == (
        "Insufficient non-preemptible quotas, quotaName: team, min: nvidia.com/gpu:2, "
        "nonPreemptibleUsed: nvidia.com/gpu:1, pod's request: nvidia.com/gpu:2, "
        "exceedDimensions: [nvidia.com/gpu]"
    )


def test_the_quotas_above_count_where_they_are_checked() -> None:
    pending = pod("two", 2, "team")
    other = pod("one", 3, "other", node="n")
    objects = (
        quota("dept", 2, 4, labels={"is-parent": "true"}),
        quota("team", 2, 4, "dept"),
        quota("other", 0, 4, "dept"),
        other,
        pending,
    )
    # Its own runtime would do: it has a min of 2, and the guest borrowed beyond what is left.
    assert not message(cluster(*objects), pending)
    checked = cluster(*objects, args=KoordinatorQueueArgs(enableCheckParentQuota=True))
    assert message(checked, pending) == (
        "Insufficient quotas, quotaNameTopo: [dept team], runtime: nvidia.com/gpu:4, "
        "used: nvidia.com/gpu:3, pod's request: nvidia.com/gpu:2, "
        "exceedDimensions: [nvidia.com/gpu]"
    )


def test_a_quota_without_a_place_in_the_tree_admits_nothing() -> None:
    pending = pod("one", 1, "team")
    quotas = cluster(quota("team", 2, 4, "gone"), pending)
    assert message(quotas, pending) == 'quota "team" has the parent "gone", which does not exist'


def test_resources_that_max_does_not_name_are_not_counted() -> None:
    quotas = cluster(quota("team", 2, 4), pod("one", 1, "team"))
    assert quotas.trees[""].quotas["team"].asked.every == gpus(1)


# Where pods belong -------------------------------------------------------------------------


def test_pods_come_from_the_default_quota_and_go_back_there() -> None:
    one = pod("one", 2, "team", node="n")
    quotas = cluster(one)
    assert quotas.quota_name(one) == DEFAULT_QUOTA
    quotas.set_quota(quota("team", 2, 4))
    assert quotas.settle(NOW) == 1
    assert quotas.trees[""].quotas["team"].used.every == gpus(2)
    quotas.remove_quota("team")
    assert quotas.settle(NOW) == 1
    assert "team/one" in quotas.trees[""].quotas[DEFAULT_QUOTA].pods
    assert quotas.settle(NOW) == 0


def test_without_a_default_quota_a_pod_waits_for_its_own() -> None:
    one = pod("one", 2, "team", node="n")
    quotas = cluster(one, features=QuotaFeatures(default_quota=False))
    assert quotas.quota_name(one) == ""
    assert quotas.refusal(one) is None
    quotas.set_quota(quota("team", 2, 4))
    assert quotas.settle(NOW) == 1
    assert quotas.trees[""].quotas["team"].used.every == gpus(2)


def test_a_reservation_stays_when_a_pod_changes_its_quota() -> None:
    quotas = cluster(quota("a"), quota("b"), pod("one", 2, "a"))
    quotas.reserve(pod("one", 2, "a"))
    quotas.set_pod(pod("one", 2, "b"), NOW)
    assert quotas.trees[""].quotas["b"].used.every == gpus(2)
    assert quotas.trees[""].quotas["a"].used.every == gpus(0)
    quotas.unreserve(pod("one", 2, "b"))
    assert quotas.trees[""].quotas["b"].used.every == gpus(0)


@pytest.mark.parametrize(
    ("features", "after", "counted"),
    [
        (QuotaFeatures(), 100.0, True),
        (QuotaFeatures(ignore_terminating=True), 29.0, True),
        (QuotaFeatures(ignore_terminating=True), 31.0, False),
        (QuotaFeatures(ignore_deleted=True), 0.0, False),
    ],
)
def test_pods_that_are_deleted_count_as_the_gates_say(
    features: QuotaFeatures, after: float, counted: bool
) -> None:
    deleted = ObjectMeta(
        name="one",
        labels={f"{PREFIX}name": "team"},
        deletion_timestamp="1970-01-01T00:00:00Z",
        deletion_grace_period_seconds=30,
    )
    one = Pod(deleted, pod("one", 2).spec)
    quotas = cluster(quota("team"), features=features)
    quotas.set_pod(one, after)
    assert bool(quotas.trees[""].quotas["team"].pods) == counted


def test_a_tree_of_its_own_takes_its_resources_off_the_default_tree() -> None:
    total = {"total-resource": f'{{"{GPU}": 6}}'}
    root = quota("zone", 6, labels={"tree-id": "t", "is-root": "true"}, annotations=total)
    team = quota("team", 6, 6, "zone", labels={"tree-id": "t"})
    one = pod("one", 6, "team")
    quotas = cluster(root, team, one)
    assert (quotas.trees["t"].total, quotas.trees[""].total) == (gpus(6), gpus(2))
    assert not message(quotas, one)
    assert quotas.trees["t"].runtime("team") == gpus(6)
    quotas.remove_quota("zone")
    assert quotas.trees[""].total == gpus(8)
    assert "t" not in quotas.trees


def test_a_tree_may_leave_the_default_tree_as_it_is() -> None:
    labels = {"tree-id": "t", "is-root": "true", "ignore-default-tree": "true"}
    total = {"total-resource": f'{{"{GPU}": 6}}'}
    quotas = cluster(quota("zone", 6, labels=labels, annotations=total))
    assert quotas.trees[""].total == gpus(8)


def test_a_quota_may_move_to_another_tree_with_its_pods() -> None:
    quotas = cluster(quota("team"), pod("one", 2, "team"))
    quotas.set_quota(quota("team", labels={"tree-id": "t"}))
    quotas.settle(NOW)
    assert quotas.trees["t"].quotas["team"].asked.every == gpus(2)
    assert "team" not in quotas.trees[""].quotas


def test_nodes_come_change_and_go() -> None:
    quotas = cluster()
    quotas.set_node(node("n", 4))
    quotas.set_node(node("m", 2))
    assert quotas.trees[""].total == gpus(6)
    quotas.offer("n", {})
    quotas.offer("unknown", {})
    assert quotas.trees[""].total == gpus(2)


# Giving way --------------------------------------------------------------------------------


def counted(one: Pod, amount: ResourceList) -> CountedPod:
    preemptible = one.metadata.labels.get(f"{PREFIX}preemptible") != "false"
    return CountedPod(one, amount, preemptible, assigned=bool(one.spec.node_name))


def owed_to(manager: QuotaManager, name: str) -> Iterator[tuple[str, list[Pod]]]:
    """Yield the quotas that use what a quota may have, with the pods that they give up."""
    for other in borrowers(manager, name):
        quota = manager.quotas[other]
        yield (
            other,
            pods_to_revoke(quota.pods.values(), quota.used.every, manager.runtime(other) or {}),
        )


def test_what_was_lent_comes_back_to_its_owner_without_a_delay() -> None:
    # With Koordinator's defaults the guest keeps all 8 for as long as its pods run.
    guests = [pod(f"g{index}", 2, "guest", priority=index, node="n") for index in range(4)]
    mine = pod("mine", 4, "owner")
    quotas = cluster(quota("owner", 4, 8), quota("guest", 4, 8), *guests, mine)
    assert not message(quotas, mine)
    found = list(owed_to(quotas.trees[""], "owner"))
    assert [(name, [one.metadata.name for one in pods]) for name, pods in found] == [
        ("guest", ["g1", "g0"])
    ]


def test_nothing_is_owed_to_a_quota_that_does_not_ask() -> None:
    guests = [pod(f"g{index}", 2, "guest", node="n") for index in range(4)]
    quotas = cluster(quota("owner", 4, 8), quota("guest", 4, 8), *guests)
    assert list(owed_to(quotas.trees[""], "owner")) == []


def test_the_nearest_borrower_gives_back_first() -> None:
    far = [pod(f"f{index}", 2, "far", node="n") for index in range(2)]
    near = [pod(f"n{index}", 2, "near", node="n") for index in range(2)]
    quotas = cluster(
        quota("dept", 4, 8, labels={"is-parent": "true"}),
        quota("owner", 4, 8, "dept"),
        quota("near", 0, 8, "dept"),
        quota("far", 0, 8),
        *far,
        *near,
        pod("mine", 8, "owner"),
    )
    assert [name for name, _ in owed_to(quotas.trees[""], "owner")] == ["near", "far"]


def test_only_pods_that_help_are_revoked() -> None:
    # The least important pod uses nothing of what is overused.
    cpu = counted(pod("cpu", priority=1, node="n"), {"cpu": 4000})
    one = counted(pod("one", priority=2, node="n"), gpus(2))
    other = counted(pod("other", priority=3, node="n"), gpus(2))
    fixed = counted(pod("fixed", priority=0, node="n", preemptible=False), gpus(2))
    pending = counted(pod("pending", priority=0), gpus(2))
    pods = [cpu, one, other, fixed, pending]
    revoked = pods_to_revoke(pods, {"cpu": 4000, GPU: 6}, {"cpu": 8000, GPU: 4})
    assert [found.metadata.name for found in revoked] == ["one"]


def test_overuse_of_several_resources_is_remembered() -> None:
    # Koordinator compares one pod's resources at a time, and would stop after the first pod.
    first = counted(pod("first", priority=1, node="n"), gpus(2))
    second = counted(pod("second", priority=2, node="n"), {"cpu": 4000})
    used = {"cpu": 4000, GPU: 2}
    revoked = pods_to_revoke([first, second], used, {"cpu": 0, GPU: 0})
    assert [found.metadata.name for found in revoked] == ["second", "first"]


def test_overuse_is_due_after_the_delay() -> None:
    quotas = cluster(quota("team", 0, 8), pod("one", 8, "team", node="n"))
    manager = quotas.trees[""]
    monitor = OveruseMonitor(delay=120.0)
    assert monitor.due(manager, 0.0) == []
    quotas.set_node(node("n", 4))
    assert monitor.due(manager, 10.0) == []
    assert monitor.due(manager, 120.0) == []
    assert monitor.due(manager, 121.0) == ["team"]
    assert monitor.due(manager, 122.0) == []
    quotas.set_node(node("n", 8))
    assert monitor.due(manager, 300.0) == []
    quotas.remove_quota("team")
    assert monitor.due(manager, 400.0) == []


# Statuses ----------------------------------------------------------------------------------


def test_a_status_is_written_where_it_differs() -> None:
    own = quota("team", 2, 4)
    quotas = cluster(own, pod("one", 3, "team", node="n"), pod("two", 2, "team", preemptible=False))
    patch = status_patch(own, status_of(quotas.trees[""], "team"))
    assert patch == {
        "metadata": {
            "annotations": {
                f"{PREFIX}runtime": '{"nvidia.com/gpu":"4"}',
                f"{PREFIX}request": '{"nvidia.com/gpu":"5"}',
                f"{PREFIX}child-request": '{"nvidia.com/gpu":"5"}',
                f"{PREFIX}non-preemptible-request": '{"nvidia.com/gpu":"2"}',
            }
        },
        "status": {"used": {"nvidia.com/gpu": "3"}},
    }


def test_a_status_that_is_up_to_date_is_not_written() -> None:
    own = quota("team", 2, 4, annotations={"runtime": f'{{"{GPU}": 0}}', "request": "broken"})
    assert status_patch(own, status_of(cluster(own).trees[""], "team")) is None
