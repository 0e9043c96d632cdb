"""What quotas decide: who is refused, who gives way, what may be written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from quota_builders import GPU, PREFIX, gpus, pod, quota

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
    QuotaRefused,
    Quotas,
    QuotaTopology,
    owed_to,
    status_of,
    status_patch,
)
from bayplan_plugins.queues.koordinator.hints import helped_by_deletion, helped_by_quota
from bayplan_plugins.queues.koordinator.overuse import pods_to_revoke
from bayplan_plugins.queues.koordinator.preemption import may_preempt, victims_on_node
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
    quotas.remove_node("n")
    quotas.remove_node("unknown")
    assert quotas.trees[""].total == gpus(2)


# Giving way --------------------------------------------------------------------------------


def counted(one: Pod, amount: ResourceList) -> CountedPod:
    preemptible = one.metadata.labels.get(f"{PREFIX}preemptible") != "false"
    return CountedPod(one, amount, preemptible, assigned=bool(one.spec.node_name))


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


@pytest.mark.parametrize(
    ("victim", "allowed"),
    [
        (pod("v", quota="team", priority=5), True),
        (pod("v", quota="team", priority=10), False),
        (pod("v", quota="other", priority=5), False),
        (pod("v", quota="team", priority=5, preemptible=False), False),
    ],
)
def test_pods_preempt_in_their_own_quota_only(victim: Pod, allowed: bool) -> None:
    quotas = cluster(quota("team"), quota("other"))
    preemptor = pod("p", quota="team", priority=10)
    assert may_preempt(preemptor, victim, quotas.quota_name) == allowed


def test_pods_of_the_default_quota_are_spared() -> None:
    quotas = cluster()
    preemptor, victim = pod("p", priority=10), pod("v", priority=5)
    assert not may_preempt(preemptor, victim, quotas.quota_name)
    assert may_preempt(preemptor, victim, quotas.quota_name, spare_default=False)


@pytest.mark.parametrize(
    ("fits", "victims"),
    [
        (lambda gone: True, ["low"]),
        (lambda gone: len(gone) == 2, ["high", "low"]),
        (lambda gone: False, None),
    ],
)
def test_a_preemption_spares_the_important(
    fits: Callable[[list[Pod]], bool], victims: list[str] | None
) -> None:
    running = [pod("low", 2, "team", 1, "n"), pod("high", 2, "team", 2, "n")]
    preemptor = pod("p", 2, "team", 10)
    quotas = cluster(quota("team", 4, 4), *running, preemptor)
    gate = quotas.gate_of(preemptor)
    assert gate is not None
    found = victims_on_node(preemptor, running, gate, fits)  # type: ignore[arg-type]
    names = None if found is None else [one.metadata.name for one in found]
    assert names == victims


# Hints -------------------------------------------------------------------------------------


def test_a_quota_helps_the_pods_that_it_limits() -> None:
    pending = pod("one", 2, "team")
    objects = (quota("dept", labels={"is-parent": "true"}), quota("team", parent="dept"), pending)
    quotas = cluster(*objects)
    checked = cluster(*objects, args=KoordinatorQueueArgs(enableCheckParentQuota=True))
    more = quota("team", 50, parent="dept")
    assert helped_by_quota(quotas, pending, quota("team", parent="dept"), more)
    assert not helped_by_quota(quotas, pending, more, more)
    above = quota("dept"), quota("dept", 50)
    assert not helped_by_quota(quotas, pending, *above)
    assert helped_by_quota(checked, pending, *above)
    assert not helped_by_quota(
        quotas, pending, quota("team"), quota("team", labels={"tree-id": "t"})
    )


def test_a_pods_end_helps_those_that_share_its_quota() -> None:
    running, waiting = pod("one", 2, "team", node="n"), pod("two", 2, "team")
    quotas = cluster(quota("team"), quota("other"), running, waiting)
    assert helped_by_deletion(quotas, pod("three", 2, "team"), running)
    assert not helped_by_deletion(quotas, pod("three", 2, "team"), waiting)
    assert not helped_by_deletion(quotas, pod("three", 2, "other"), running)


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


# Writing -----------------------------------------------------------------------------------


def topology(*quotas: ElasticQuota) -> QuotaTopology:
    found = QuotaTopology()
    for one in quotas:
        found.add(one)
    return found


DEPT = quota("dept", 8, 16, labels={"is-parent": "true"})
TEAM = quota("team", 4, 16, "dept")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda t: t.add(quota("team")), "AddQuota quota already exist:team"),
        (lambda t: t.add(quota("new", 2, 16, "none")), "not find parentInfo in quotaInfoMap"),
        (lambda t: t.add(quota("new", 2, 16, "team")), "the parentQuotaInfo's IsParent is false"),
        (lambda t: t.add(quota("new", 5, 16, "dept")), "all brothers' MinQuota > parent MinQuota"),
        (
            lambda t: t.update(DEPT, quota("dept", 2, 16, labels={"is-parent": "true"})),
            "all children's MinQuota > current MinQuota",
        ),
        (lambda t: t.update(DEPT, quota("dept", 8, 16)), "quota has children"),
        (
            lambda t: t.update(TEAM, quota("team", 4, 16, "dept", {"is-parent": "true"}), ["one"]),
            "quota has bound pods",
        ),
        (
            lambda t: t.update(TEAM, quota("team", 4, 16, "dept", {"tree-id": "t"})),
            "team tree id changed",
        ),
        (
            lambda t: t.update(DEPT, quota("dept", 8, 16, "team", {"is-parent": "true"})),
            "the parentQuotaInfo's IsParent is false",
        ),
        (lambda t: t.update(quota("none"), quota("none", 1)), "quota not exist"),
        (lambda t: t.delete("dept"), "has 1 child quotas"),
        (lambda t: t.delete("team", ["a", "b", "c"]), "has 3 child pods: a, b, ..."),
        (lambda t: t.delete("none"), "not found quota:none"),
        (lambda t: t.delete(DEFAULT_QUOTA), "can not delete quotaGroup"),
        (lambda t: t.add_pod("p", "dept"), "pod can not be linked to a parentQuotaGroup"),
        (lambda t: t.add(quota("new", 9, 8)), "min 9 > max 8"),
        (
            lambda t: t.add(quota("new", annotations={"namespaces": '["bound"]'})),
            "namespace bound is already bound to quota lists",
        ),
    ],
)
def test_a_change_is_refused(change: Callable[[QuotaTopology], None], text: str) -> None:
    lists = quota("lists", annotations={"namespaces": '["bound"]'})
    with pytest.raises(QuotaRefused) as refused:
        change(topology(DEPT, TEAM, lists))
    assert text in str(refused.value)


def test_a_quota_cannot_move_below_itself() -> None:
    labels = {"is-parent": "true"}
    below = quota("below", 4, 16, "dept", labels)
    with pytest.raises(QuotaRefused, match="which is below dept"):
        topology(DEPT, below).update(DEPT, quota("dept", 8, 16, "below", labels))


def test_changes_that_keep_the_rules_are_admitted() -> None:
    found = topology(DEPT, TEAM)
    found.update(TEAM, quota("team", 8, 16, "dept"))
    found.update(TEAM, quota("team", 8, 16))
    assert found.children["dept"] == set()
    found.add_pod("p", "team")
    found.delete("dept")
    found.delete("team")
    assert found.quotas == {}


def test_a_force_update_is_not_held_to_mins() -> None:
    found = topology(DEPT, TEAM)
    found.add(quota("new", 12, 16, "dept", {"allow-force-update": "true"}))


def test_defaults_are_filled_in() -> None:
    found = topology(quota("zone", 8, 16, labels={"is-parent": "true", "tree-id": "t"}))
    done = found.completed(quota("team", 4, 8, "zone", annotations={"shared-weight": "{}"}))
    assert done.metadata.labels[f"{PREFIX}tree-id"] == "t"
    assert done.metadata.annotations[f"{PREFIX}shared-weight"] == '{"nvidia.com/gpu":"8"}'
    weight = {"shared-weight": f'{{"{GPU}": 3, "cpu": 2}}'}
    done = found.completed(quota("team", 4, 8, annotations=weight))
    assert done.metadata.labels[f"{PREFIX}parent"] == "koordinator-root-quota"
    assert done.metadata.annotations[f"{PREFIX}shared-weight"] == '{"nvidia.com/gpu":"3"}'
    with pytest.raises(QuotaRefused, match="parent not exist"):
        found.completed(quota("team", 4, 8, "none"))


def test_what_is_used_may_be_kept_from_falling_out_of_max() -> None:
    strict = quota("team", 1, 2, annotations={"max-strict-check-resource-keys": f'["{GPU}"]'})
    used = replace_used(strict, 3)
    with pytest.raises(QuotaRefused, match="max 2 < used 3"):
        topology(used)
    topology(replace_used(strict, 2))


def replace_used(own: ElasticQuota, amount: int) -> ElasticQuota:
    return ElasticQuota(own.metadata, own.spec, type(own.status)(used={GPU: Quantity(amount)}))


def test_a_min_needs_a_guarantee_up_to_the_root_of_the_tree() -> None:
    features = replace(QuotaFeatures(), guarantee=True)
    found = QuotaTopology(features)
    text = {"guaranteed": f'{{"{GPU}": 6}}'}
    labels = {"tree-id": "t", "is-parent": "true", "is-root": "true"}
    found.add(quota("zone", 8, 16, labels=labels, annotations=text))
    found.add(quota("team", 4, 16, "zone", {"tree-id": "t"}, annotations=text))
    with pytest.raises(QuotaRefused, match="tree root quota zone can't guarantee for min"):
        found.add(quota("new", 4, 16, "zone", {"tree-id": "t"}))
