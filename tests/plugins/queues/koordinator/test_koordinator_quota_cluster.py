"""Quotas on a whole cluster: limits, borrowing, and what comes back to its owner."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.plugins.queues.koordinator.quota_builders import GPU, PREFIX, quota

from bayplan.api import ElasticQuota, Pod
from bayplan.dialects.koordinator.elastic_quota import BUILTIN_QUOTAS
from bayplan.errors import InputError
from bayplan.testing import Cluster, assert_pending, make_gang, make_node, make_object, make_pod
from bayplan_plugins.queues.koordinator.policy import KoordinatorPolicy
from bayplan_plugins.queues.koordinator.status import status_of, status_patch
from bayplan_plugins.queues.plugin import Queues


def member(name: str, team: str, gpu: int = 1, **fields: object) -> Pod:
    labels = {f"{PREFIX}name": team, **fields.pop("labels", {})}  # type: ignore[dict-item]
    return make_pod(name, "1", None, labels=labels, gpu=gpu, **fields)  # type: ignore[arg-type]


def teams() -> list[ElasticQuota]:
    return [quota("owner", 4, 8), quota("guest", 4, 8)]


def policy(cluster: Cluster) -> KoordinatorPolicy:
    calls = cluster.profile.runtime["queueing"]
    (plugin,) = [call.plugin for call in calls if isinstance(call.plugin, Queues)]
    return next(one for one in plugin.policies if isinstance(one, KoordinatorPolicy))


def evicted(cluster: Cluster) -> list[str]:
    return sorted(one.pod.removeprefix("default/") for one in cluster.scheduler.evictor.evicted)


def test_a_quota_is_held_within_its_max() -> None:
    cluster = Cluster([make_node("n", gpu=8), quota("team", 2, 3)])
    cluster.add(*(member(f"p{index}", "team") for index in range(5)))
    assert len(cluster.schedule()) == 3
    assert_pending(
        cluster,
        "p4",
        "Insufficient quotas, quotaName: team, runtime: nvidia.com/gpu:3, used: nvidia.com/gpu:3",
    )


def test_idle_quota_is_borrowed_and_reclaimed_by_its_owner() -> None:
    cluster = Cluster([make_node("n", gpu=8), *teams()])
    cluster.add(*(member(f"g{index}", "guest", priority=index) for index in range(8)))
    assert len(cluster.schedule()) == 8
    cluster.add(member("mine", "owner", 2, priority=0))
    placed = cluster.advance(60)
    assert placed["mine"] == "n"
    assert evicted(cluster) == ["g0", "g1"]
    # The borrower wants them back, but has what is its own: nothing is taken in turn.
    cluster.advance(300)
    assert evicted(cluster) == ["g0", "g1"]


def test_a_quota_reclaims_no_more_than_its_own() -> None:
    cluster = Cluster([make_node("n", gpu=8), *teams()])
    cluster.add(*(member(f"g{index}", "guest") for index in range(4)))
    cluster.add(*(member(f"m{index}", "owner") for index in range(4)))
    cluster.schedule()
    cluster.add(member("more", "owner", 1, priority=100))
    cluster.advance(60)
    assert "more" not in cluster.placements() or evicted(cluster) != []
    assert not [name for name in evicted(cluster) if name.startswith("g")]


def test_a_pod_preempts_in_its_own_quota() -> None:
    cluster = Cluster([make_node("n", gpu=4), quota("team", 4, 4)])
    cluster.add(*(member(f"p{index}", "team", priority=index) for index in range(4)))
    cluster.schedule()
    cluster.add(member("urgent", "team", 2, priority=100))
    assert cluster.advance(60)["urgent"] == "n"
    assert evicted(cluster) == ["p0", "p1"]


def test_pods_that_may_not_be_preempted_stay() -> None:
    keep = {f"{PREFIX}preemptible": "false"}
    cluster = Cluster([make_node("n", gpu=8), *teams()])
    cluster.add(*(member(f"k{index}", "guest", labels=keep) for index in range(4)))
    cluster.add(*(member(f"g{index}", "guest", priority=9) for index in range(4)))
    cluster.schedule()
    cluster.add(member("mine", "owner", 4))
    assert cluster.advance(60)["mine"] == "n"
    assert evicted(cluster) == ["g0", "g1", "g2", "g3"]


def test_a_gang_is_reclaimed_as_a_whole() -> None:
    nodes = [make_node(f"n{index}", gpu=4) for index in range(2)]
    cluster = Cluster([*nodes, *teams(), make_gang("job", 4)])
    cluster.add(*(member(f"j{index}", "guest", 2, gang="job") for index in range(4)))
    assert len(cluster.schedule()) == 4
    cluster.add(member("mine", "owner", 4))
    assert "mine" in cluster.advance(120)
    assert evicted(cluster) == ["j0", "j1", "j2", "j3"]


def test_the_job_with_the_highest_priority_of_all_quotas_is_first() -> None:
    cluster = Cluster([make_node("n", gpu=1), *teams()])
    cluster.add(member("later", "owner", priority=1), member("first", "guest", priority=2))
    assert cluster.schedule() == {"first": "n"}


def test_a_quota_with_a_missing_parent_holds_its_pods_back() -> None:
    cluster = Cluster([make_node("n", gpu=8), quota("team", 4, 8, "none")])
    cluster.add(member("p", "team"))
    assert cluster.schedule() == {}
    assert_pending(cluster, "p", 'quota "team" has the parent "none", which does not exist')
    cluster.add(quota("none", 4, 8, labels={"is-parent": "true"}))
    assert cluster.advance(30) == {"p": "n"}


def test_pods_without_a_quota_are_placed_as_ever() -> None:
    cluster = Cluster([make_node("n", gpu=8), *teams()])
    cluster.add(make_pod("p", gpu=8))
    assert cluster.schedule() == {"p": "n"}


def test_runtimes_are_reported() -> None:
    cluster = Cluster([make_node("n", gpu=8), *teams()])
    cluster.add(*(member(f"g{index}", "guest") for index in range(6)))
    cluster.schedule()
    own = policy(cluster)
    tree = own.ledger.tree
    fair = own.fair()[:, tree.column_of[GPU]]
    assert {tree.name(row): fair[row] for row in range(len(tree))} == {"owner": 0, "guest": 6}
    assert own.fair()[tree.row_of["guest"], tree.column_of["cpu"]] == float("inf")


def test_a_profile_makes_a_tree_of_the_nodes_that_it_selects() -> None:
    profile = make_object(
        {
            "apiVersion": "quota.koordinator.sh/v1alpha1",
            "kind": "ElasticQuotaProfile",
            "metadata": {
                "name": "a",
                "labels": {f"{PREFIX}tree-id": "t"},
                "annotations": {f"{PREFIX}resource-keys": f'["{GPU}"]'},
            },
            "spec": {
                "quotaName": "zone-a",
                "quotaLabels": {f"{PREFIX}is-parent": "true"},
                "nodeSelector": {"matchLabels": {"zone": "a"}},
            },
        }
    )
    nodes = [make_node("a", gpu=2, labels={"zone": "a"}), make_node("b", gpu=8)]
    team = quota("team", 1, 8, "zone-a", labels={"tree-id": "t"})
    cluster = Cluster([*nodes, profile, team])
    cluster.add(*(member(f"p{index}", "team") for index in range(4)))
    # Quotas hold amounts, not nodes: the pods may lie anywhere, but there are two of them.
    assert len(cluster.schedule()) == 2
    cluster.add(make_node("c", gpu=1, labels={"zone": "a"}))
    assert len(cluster.advance(30)) == 3


def test_what_waits_for_its_queue_s_own_holds_back_none_that_borrow() -> None:
    cluster = Cluster([make_node("n", gpu=8), quota("team", 2, 8)])
    fixed = {f"{PREFIX}preemptible": "false"}
    for index in range(2):
        cluster.add(member(f"fixed-{index}", "team", gpu=2, labels=fixed))
    cluster.add(member("guest", "team", gpu=2))
    assert sorted(pod.rpartition("/")[2] for pod in cluster.schedule()) == ["fixed-0", "guest"]


def test_arguments_that_nothing_could_honour_are_refused() -> None:
    with pytest.raises(InputError, match="hookPlugins: Koordinator's hook plugins are Go code"):
        Cluster([], plugins={"Queues": {"koordinator": {"hookPlugins": [{"key": "mine"}]}}})
    with pytest.raises(InputError, match=r'featureGates: expected one of .*, got "Other"'):
        Cluster([], plugins={"Queues": {"koordinator": {"featureGates": {"Other": True}}}})
    Cluster([], plugins={"Queues": {"koordinator": {"enableQueueHint": True, "hookPlugins": []}}})


@pytest.mark.parametrize(
    ("gate", "placed_after"),
    [
        ("ElasticQuotaImmediateIgnoreTerminatingPod", 1.0),
        ("ElasticQuotaIgnoreTerminatingPod", 60.0),
        (None, None),
    ],
)
def test_a_pod_that_does_not_end_may_be_left_out(
    gate: str | None, placed_after: float | None
) -> None:
    args = {"koordinator": {"featureGates": {gate: True} if gate else {}}}
    cluster = Cluster([make_node("n", gpu=2), quota("team", 1, 1)], plugins={"Queues": args})
    stuck = member("stuck", "team")
    metadata = replace(stuck.metadata, finalizers=("example.com/held",))
    cluster.add(replace(stuck, metadata=metadata))
    assert cluster.schedule() == {"stuck": "n"}
    cluster.api.delete(Pod, "default/stuck", grace=10)
    cluster.add(member("next", "team"))
    assert ("next" in cluster.advance(1.0)) == (placed_after == 1.0)
    assert ("next" in cluster.advance(120.0)) == (placed_after is not None)


@pytest.mark.parametrize(("monitored", "revoked"), [(True, ["p0", "p1"]), (False, [])])
def test_overuse_is_revoked_where_it_is_monitored(monitored: bool, revoked: list[str]) -> None:
    args = {"koordinator": {"monitorAllQuotas": monitored, "delayEvictTime": "60s"}}
    cluster = Cluster([make_node("n", gpu=8), quota("team", 0, 8)], plugins={"Queues": args})
    cluster.add(*(member(f"p{index}", "team", priority=index) for index in range(4)))
    cluster.schedule()
    policy(cluster).overdue()
    cluster.api.update(quota("team", 0, 2))
    cluster.advance(61)
    found = policy(cluster).overdue()
    due = [pod.name for pod, _ in found.victims] if found is not None else []
    assert sorted({*due, *evicted(cluster)}) == revoked


def test_limits_of_parents_count_what_their_quotas_use_once() -> None:
    parents = {"labels": {"is-parent": "true"}}
    quotas = [quota("dept", 4, 4, **parents), quota("a", 4, 4, "dept"), quota("b", 0, 4, "dept")]
    args = {"Queues": {"koordinator": {"enableCheckParentQuota": True}}}
    cluster = Cluster([make_node("n", gpu=8), *quotas], plugins=args)
    cluster.add(*(member(f"b{index}", "b") for index in range(4)))
    assert len(cluster.schedule()) == 4
    # What its sibling borrowed comes back, though the parent of both is full.
    cluster.add(*(member(f"a{index}", "a") for index in range(4)))
    assert set(cluster.advance(60)) == {f"a{index}" for index in range(4)}


# Followed and counted ------------------------------------------------------------------------

STEPS = st.one_of(
    st.tuples(st.just("pod"), st.integers(0, 5), st.sampled_from(["a", "b", "c", ""])),
    st.tuples(st.just("gone"), st.integers(0, 5), st.just("")),
    st.tuples(st.just("quota"), st.integers(0, 6), st.sampled_from(["a", "b", "c"])),
    st.tuples(st.just("node"), st.integers(0, 3), st.just("")),
    st.tuples(st.just("time"), st.integers(0, 60), st.just("")),
)


def positive(amounts: Mapping[str, int]) -> dict[str, int]:
    return {name: amount for name, amount in amounts.items() if amount}


def take(cluster: Cluster, number: int, step: tuple[str, int, str]) -> None:
    kind, amount, name = step
    if kind == "pod":
        cluster.add(member(f"p{number}", name or "none", amount % 3 + 1, priority=amount))
    elif kind == "gone":
        known = sorted(pod.metadata.name for pod in cluster.api.list(Pod))
        if known:
            cluster.remove(known[amount % len(known)])
    elif kind == "quota":
        wanted = quota(name, amount, 6, "a" if name == "c" else "")
        known = cluster.api.get(ElasticQuota, f"quotas/{name}")
        (cluster.api.update if known else cluster.api.create)(wanted)
    elif kind == "node":
        cluster.add(make_node(f"n{number}", gpu=amount))
    cluster.advance(float(amount) if kind == "time" else 0.0)


@settings(deadline=None, max_examples=40)
@given(st.lists(STEPS, max_size=14))
def test_quotas_in_step_are_as_counted_from_nothing(steps: list[tuple[str, int, str]]) -> None:
    cluster = Cluster([make_node("n", gpu=4), quota("a", 2, 6), quota("b", 1, 6)])
    own = policy(cluster)
    for number, step in enumerate(steps):
        take(cluster, number, step)
        followed, counted = own.followed.quotas, own.followed.recounted()
        for tree, manager in counted.trees.items():
            for name, plain in manager.quotas.items():
                same = followed.trees[tree].quotas[name]
                assert positive(same.asked.every) == positive(plain.asked.every)
                assert positive(same.used.every) == positive(plain.used.every)
                assert followed.trees[tree].runtime(name) == manager.runtime(name)
                # Quotas above others are checked where the profile says so.
                if name not in ("a", *BUILTIN_QUOTAS):
                    assert same.used.every.get(GPU, 0) <= 6
        for shown in cluster.api.list(ElasticQuota):
            manager = counted.trees[""]
            assert status_patch(shown, status_of(manager, shown.metadata.name)) is None


def test_a_leaving_pod_gives_its_quota_back_wherever_it_is() -> None:
    def member(name: str, cpu: str, priority: int) -> Pod:
        return make_pod(name, cpu, None, labels={f"{PREFIX}name": "team"}, gpu=2, priority=priority)

    cluster = Cluster([make_node("a", cpu=4, gpu=2), quota("team", 4, 4)])
    cluster.add(member("leaver", "1", 5))
    assert cluster.schedule() == {"leaver": "a"}
    cluster.add(make_node("b", cpu=4, gpu=2), member("lesser", "1", 1))
    cluster.schedule()
    cluster.add(make_node("c", cpu=64, gpu=2))
    cluster.api.delete(Pod, "default/leaver", grace=30)
    cluster.add(member("urgent", "16", 100))
    cluster.advance(60)
    assert not evicted(cluster)
    assert cluster.placements() == {"lesser": "b", "urgent": "c"}
