"""Preemption: victims, disruption budgets, nominated nodes, and what gangs lose."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from bayplan.api import Pod
from bayplan.cluster.embedded.disruption import DisruptionController
from bayplan.cluster.embedded.kubelet import VirtualKubelet
from bayplan.cluster.protocol import Evict
from bayplan.errors import ClusterError
from bayplan.testing import (
    Cluster,
    assert_pending,
    make_gang,
    make_node,
    make_object,
    make_pod,
)
from bayplan_plugins.preemption import known


def evicted(cluster: Cluster) -> list[str]:
    return [one.pod.removeprefix("default/") for one in cluster.scheduler.evictor.evicted]


def pod(cluster: Cluster, name: str) -> Pod:
    found = cluster.api.get(Pod, f"default/{name}")
    assert found is not None
    return found


def low(name: str, node: str, cpu: str = "2", priority: int = 1, **fields: Any) -> Pod:
    return make_pod(name, cpu, None, node=node, priority=priority, **fields)


def urgent(name: str = "urgent", cpu: str = "2", priority: int = 100, **fields: Any) -> Pod:
    return make_pod(name, cpu, None, priority=priority, **fields)


def budget(name: str, app: str, **spec: Any) -> Any:
    return make_object(
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"selector": {"matchLabels": {"app": app}}, **spec},
        }
    )


def test_the_victim_ends_gracefully_while_its_node_is_nominated() -> None:
    cluster = Cluster([make_node("n", cpu=2), low("victim", "n")])
    cluster.add(urgent())
    cluster.schedule()
    assert pod(cluster, "urgent").status.nominated_node_name == "n"
    assert pod(cluster, "victim").metadata.deletion_timestamp is not None
    (condition,) = [c for c in pod(cluster, "victim").status.conditions if c.status == "True"]
    assert (condition.type, condition.reason) == ("DisruptionTarget", "PreemptionByScheduler")
    cluster.add(make_pod("thief", "2", None, priority=50))
    assert cluster.advance(29).get("urgent") is None
    assert cluster.advance(5)["urgent"] == "n"
    assert "thief" not in cluster.placements()
    assert evicted(cluster) == ["victim"]


def test_a_cluster_that_is_read_in_parts_loses_the_same_pods(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(known, "_ROWS_A_STEP", 2)
    cluster = Cluster([make_node(f"n{i}", cpu=2) for i in range(7)])
    cluster.add(*(low(f"v{i}", f"n{i}", priority=9 - i) for i in range(7)))
    cluster.add(urgent())
    cycles = cluster.scheduler.statistics.cycles
    cluster.schedule()
    assert cluster.scheduler.statistics.cycles == cycles + 4
    assert evicted(cluster) == ["v6"]
    assert cluster.advance(40)["urgent"] == "n6"


def test_a_gang_that_is_tried_on_more_nodes_than_are_read_at_once_comes_to_an_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(known, "_ROWS_A_STEP", 1)
    cluster = Cluster([make_node(f"n{i}", cpu=2) for i in range(4)])
    cluster.add(low("v", "n0"), low("w", "n1"), make_gang("g", 5))
    cluster.add(*(make_pod(f"g{i}", 1 + i % 2, priority=9, gang="g") for i in range(5)))
    steps = 0
    while cluster.scheduler.step():
        steps += 1
        assert steps < 50
    assert sorted(evicted(cluster)) == ["v", "w"]


def test_a_member_on_a_node_that_is_not_known_counts_for_what_its_gang_loses() -> None:
    of_gang = "gang.scheduling.koordinator.sh/"
    gang = {f"{of_gang}name": "g", f"{of_gang}min-available": "1"}
    cluster = Cluster([make_node("n", cpu=2), low("a", "n", annotations=gang)])
    columns = known.KnownEvictions(cluster.profile.runtime.plugins["DefaultPreemption"].handle)
    cluster.schedule()
    assert columns.columns(10).gangs.tolist() == [1]
    cluster.add(low("b", "gone", annotations=gang))
    assert columns.columns(10).gangs.tolist() == [0]


def test_the_least_important_pods_are_evicted() -> None:
    nodes = [make_node(f"n{i}", cpu=2) for i in range(4)]
    cluster = Cluster(nodes)
    cluster.add(low("a", "n0", priority=7), low("b", "n1", priority=3))
    cluster.add(low("c1", "n2", "1", priority=3), low("c2", "n2", "1", priority=3))
    cluster.add(low("d", "n3", priority=5))
    cluster.add(urgent())
    cluster.advance(40)
    # n1 and n2 have the lowest highest priority; one victim is less than two.
    assert evicted(cluster) == ["b"]


def test_pods_that_need_not_go_stay() -> None:
    cluster = Cluster([make_node("n", cpu=6)])
    cluster.add(low("large", "n", "4", priority=5), low("small", "n", "2", priority=1))
    cluster.add(urgent(cpu="4"))
    cluster.advance(40)
    assert evicted(cluster) == ["large"], "without the small one there would not be enough room"


def test_nobody_is_evicted_where_it_does_not_help() -> None:
    cluster = Cluster([make_node("n", cpu=4, taints=["team=a:NoSchedule"]), low("victim", "n")])
    cluster.add(urgent(cpu="4"))
    assert_pending(cluster, "urgent", "preemption: 0/1 nodes are available")
    assert evicted(cluster) == []


def test_a_node_that_evictions_do_not_free_says_what_would_still_refuse_the_pod() -> None:
    cluster = Cluster([make_node("full", cpu=2), make_node("tainted", taints=["k:NoSchedule"])])
    cluster.add(low("victim", "full", "1"), low("important", "full", "1", priority=100))
    cluster.add(urgent())
    assert_pending(
        cluster,
        "urgent",
        "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) had untolerated taint(s). "
        "no new claims to deallocate, preemption: 0/2 nodes are available: 1 Insufficient cpu, "
        "1 Preemption is not helpful for scheduling.",
    )
    assert evicted(cluster) == []


def test_of_equal_pods_the_one_that_started_first_stays() -> None:
    started = [("new", "2026-01-01T00:00:02Z"), ("old", "2026-01-01T00:00:01Z"), ("none", None)]
    cluster = Cluster([make_node("n", cpu=3)])
    for name, time in started:
        victim = low(name, "n", "1")
        cluster.add(replace(victim, status=replace(victim.status, start_time=time)))
    cluster.add(urgent())
    cluster.schedule()
    assert sorted(evicted(cluster)) == ["new", "none"]


def test_the_node_whose_victims_started_last_is_taken() -> None:
    cluster = Cluster([make_node("a", cpu=2), make_node("b", cpu=2)])
    for node, time in (("a", "2026-01-01T00:00:01Z"), ("b", "2026-01-01T00:00:02Z")):
        victim = low(f"on-{node}", node)
        cluster.add(replace(victim, status=replace(victim.status, start_time=time)))
    cluster.add(urgent())
    cluster.schedule()
    assert evicted(cluster) == ["on-b"]


def test_equal_priority_is_no_victim() -> None:
    cluster = Cluster([make_node("n", cpu=2), low("same", "n", priority=100)])
    cluster.add(urgent())
    assert_pending(cluster, "urgent", "No preemption victims found for incoming pod")


def test_a_budget_that_allows_one_lets_one_go() -> None:
    cluster = Cluster([make_node("n", cpu=4), budget("web", "web", minAvailable=1)])
    VirtualKubelet(cluster.api)
    DisruptionController(cluster.api)
    cluster.add(*(low(f"web-{i}", "n", labels={"app": "web"}) for i in range(2)))
    cluster.advance(1)
    cluster.add(urgent("first"), urgent("second"))
    placements = cluster.advance(100)
    assert len(evicted(cluster)) == 1
    assert "first" in placements
    assert "second" not in placements
    refused = [e.message for _, e in cluster.api.events if e.reason == "EvictionRefused"]
    assert refused
    assert "disruption budget default/web" in refused[0]


def test_a_refused_eviction_harms_nobody_else() -> None:
    cluster = Cluster([make_node("n", cpu=4), budget("web", "web", maxUnavailable=0)])
    VirtualKubelet(cluster.api)
    DisruptionController(cluster.api)
    cluster.add(low("web", "n", labels={"app": "web"}), low("batch", "n"))
    cluster.advance(1)
    cluster.add(urgent(cpu="4"))
    cluster.advance(100)
    assert evicted(cluster) == []
    assert pod(cluster, "batch").metadata.deletion_timestamp is None
    assert pod(cluster, "urgent").status.nominated_node_name == ""


def test_a_write_that_fails_ends_the_nomination() -> None:
    cluster = Cluster([make_node("n", cpu=2), low("victim", "n")])
    cluster.api.faults.fail_next(Evict, ClusterError("the server is busy"))
    cluster.add(urgent())
    cluster.schedule()
    assert not list(cluster.scheduler.nominator.all())
    assert cluster.advance(120)["urgent"] == "n", "it is tried again later"


def test_a_nomination_ends_when_its_pod_is_deleted() -> None:
    cluster = Cluster([make_node("n", cpu=2), low("victim", "n")])
    cluster.add(urgent())
    cluster.schedule()
    cluster.remove("urgent")
    cluster.add(make_pod("next", "2", None))
    assert cluster.advance(60)["next"] == "n"


def test_a_nomination_ends_when_its_node_vanishes() -> None:
    cluster = Cluster([make_node("n", cpu=2), low("victim", "n")])
    cluster.add(urgent())
    cluster.schedule()
    cluster.api.vanish_node("n")
    cluster.add(make_node("m", cpu=2))
    assert cluster.advance(60)["urgent"] == "m"


def test_a_higher_priority_takes_a_nominated_node_without_another_eviction() -> None:
    cluster = Cluster([make_node("n", cpu=2), low("victim", "n")])
    cluster.add(urgent())
    cluster.schedule()
    cluster.add(urgent("boss", priority=1000))
    assert cluster.advance(60)["boss"] == "n"
    assert evicted(cluster) == ["victim"]
    assert "urgent" not in cluster.placements()


def test_a_nominated_unit_uses_another_node_that_is_free_sooner() -> None:
    cluster = Cluster([make_node("n", cpu=2), low("victim", "n")])
    cluster.add(urgent())
    cluster.schedule()
    cluster.add(make_node("m", cpu=2))
    assert cluster.advance(10)["urgent"] == "m"


def test_a_nominated_unit_that_is_bound_counts_before_the_watch_shows_it() -> None:
    cluster = Cluster([make_node("n", cpu=2), low("victim", "n")])
    cluster.add(urgent())
    cluster.schedule()
    cluster.add(make_node("m", cpu=2))
    cluster.api.break_watch()
    assert cluster.advance(10)["urgent"] == "m"
    assert "default/urgent" in cluster.scheduler.snapshot.placed


def gang(name: str, size: int, least: int, priority: int, cpu: str = "2") -> list[Any]:
    pods = [
        make_pod(f"{name}-{i}", cpu, None, gang=name, priority=priority, node=f"n{i}")
        for i in range(size)
    ]
    return [make_gang(name, least), *pods]


def test_a_gang_loses_members_beyond_its_minimum_the_last_rank_first() -> None:
    cluster = Cluster([make_node(f"n{i}", cpu=2) for i in range(3)])
    cluster.add(*gang("low", 3, 2, 1))
    cluster.add(urgent())
    cluster.advance(40)
    assert evicted(cluster) == ["low-2"]


def test_members_without_a_rank_are_evicted_before_ranked_ones() -> None:
    cluster = Cluster([make_node(f"n{i}", cpu=2) for i in range(3)])
    cluster.add(make_gang("low", 2))
    for node, (name, index) in enumerate((("a", None), ("b", "0"), ("c", "1"))):
        labels = {"apps.kubernetes.io/pod-index": index} if index is not None else {}
        fields = {"gang": "low", "priority": 1, "node": f"n{node}", "labels": labels}
        cluster.add(make_pod(f"low-{name}", "2", None, **fields))
    cluster.add(urgent())
    cluster.advance(40)
    assert evicted(cluster) == ["low-a"]


def test_a_gang_at_its_minimum_is_evicted_as_a_whole() -> None:
    cluster = Cluster([make_node(f"n{i}", cpu=2) for i in range(3)])
    cluster.add(*gang("low", 3, 3, 1))
    cluster.add(urgent())
    cluster.advance(40)
    assert sorted(evicted(cluster)) == ["low-0", "low-1", "low-2"]


def test_a_gang_with_an_important_member_is_not_broken() -> None:
    cluster = Cluster([make_node(f"n{i}", cpu=2) for i in range(2)])
    cluster.add(make_gang("low", 2))
    cluster.add(make_pod("low-0", "2", None, gang="low", priority=1, node="n0"))
    cluster.add(make_pod("low-1", "2", None, gang="low", priority=500, node="n1"))
    cluster.add(urgent())
    assert_pending(cluster, "urgent", "No preemption victims found")
    assert evicted(cluster) == []


def test_the_cost_of_each_candidate_is_recorded() -> None:
    cluster = Cluster([make_node(f"n{i}", cpu=2) for i in range(2)])
    cluster.add(low("a", "n0", priority=7), low("b", "n1", priority=3))
    cluster.add(urgent())
    cluster.schedule()
    trials = cluster.decision("urgent").preemption
    assert [(t.domain, tuple(t.victims), t.chosen) for t in trials] == [
        ("n1", ("default/b",), True),
        ("n0", ("default/a",), False),
    ]


def test_no_flapping_when_controllers_recreate_victims() -> None:
    cluster = Cluster([make_node("n0", cpu=4), make_node("n1", cpu=4)])
    VirtualKubelet(cluster.api)
    for number, priority in enumerate((1, 5, 9, 1, 5, 9, 3, 7)):
        cluster.add(make_pod(f"p{number}", "2", None, priority=priority))
        cluster.advance(50)
    for _ in range(6):
        seen = set(evicted(cluster))
        for name in sorted(seen):
            old = f"{name}-again"
            if cluster.api.get(Pod, f"default/{old}") is None:
                cluster.add(make_pod(old, "2", None, priority=1))
        cluster.advance(100)
    count = len(evicted(cluster))
    before = cluster.placements()
    cluster.advance(1000)
    assert len(evicted(cluster)) == count
    assert cluster.placements() == before
