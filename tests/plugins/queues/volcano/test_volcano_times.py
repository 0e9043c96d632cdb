"""What Volcano's plugins do at a time that no event brings: sla's deadlines, tdm's hours."""

from __future__ import annotations

from typing import Any

from tests.plugins.queues.volcano.volcano_worlds import (
    cluster_of,
    evictions,
    group,
    phase,
    pods,
    queue,
)

from bayplan.api import ApiObject, Pod
from bayplan.testing import Cluster, make_node, scores
from bayplan_plugins.queues.volcano.revocable_nodes import VolcanoRevocableNodes


def test_a_job_is_admitted_when_it_has_waited_for_long_enough() -> None:
    sla = {"name": "sla", "arguments": {"sla-waiting-time": "10m"}}
    tiers = [{"plugins": [sla]}, {"plugins": [{"name": "proportion"}]}]
    configuration = {"actions": "enqueue, allocate", "tiers": tiers}
    objects = [make_node("n", cpu=4), queue("q", capability={"cpu": 2})]
    cluster = cluster_of(objects, configuration)
    cluster.add(group("waits", "q", 1, {"cpu": 3}, "Pending"), *pods("waits", 1, cpu=1))
    cluster.advance(599)
    assert phase(cluster, "waits") == "Pending"
    assert cluster.advance(2) == {"waits-0": "n"}


def test_lent_nodes_are_cleared_when_their_hours_end() -> None:
    zone = {"tdm.revocable-zone.night": "00:00-00:10", "tdm.evict.period": "1m"}
    plugins = [{"name": "proportion"}, {"name": "tdm", "arguments": zone}]
    configuration = {"actions": "allocate", "tiers": [{"plugins": plugins}]}
    node = make_node("n", cpu=4, labels={"volcano.sh/revocable-zone": "night"})
    cluster = cluster_of([node, queue("q")], configuration)
    midnight = -cluster.api.unix_time % 86_400
    cluster.advance(midnight)
    (pod,) = pods("lent", 1, cpu=1)
    pod.metadata.annotations["volcano.sh/preemptable"] = "true"
    cluster.add(group("lent", "q"), pod)
    assert cluster.advance(590) == {"lent-0": "n"}
    assert not evictions(cluster)
    cluster.advance(20)
    assert evictions(cluster) == ["lent-0"]


def lending(hours: str, *zones: str, actions: str = "allocate", **plugins_of: Any) -> Cluster:
    """Return a cluster with a node in each zone, at midnight, of which "night" has hours."""
    arguments = {"tdm.revocable-zone.night": hours}
    plugins = [{"name": "proportion"}, {"name": "tdm", "arguments": arguments}]
    nodes = [
        make_node(
            zone or f"plain{number or ''}",
            cpu=4,
            labels={"volcano.sh/revocable-zone": zone} if zone else {},
        )
        for number, zone in enumerate(zones)
    ]
    configuration = {"actions": actions, "tiers": [{"plugins": plugins}]}
    cluster = cluster_of([*nodes, queue("q")], configuration, **plugins_of)
    cluster.advance(-cluster.api.unix_time % 86_400)
    return cluster


def job(name: str, **annotations: str) -> list[ApiObject]:
    (pod,) = pods(name, 1, cpu=3)
    notes = {f"volcano.sh/{key.replace('_', '-')}": value for key, value in annotations.items()}
    pod.metadata.annotations.update(notes)
    return [group(name, "q"), pod]


def test_lent_nodes_take_revocable_pods_only() -> None:
    cluster = lending("00:00-08:00", "night")
    cluster.add(*job("stays"), *job("may-go", preemptable="true", revocable_zone="day"))
    assert cluster.schedule() == {}
    assert "were lent to revocable pods only" in cluster.message("stays-0")
    assert "were lent to revocable pods only" in cluster.message("may-go-0")
    cluster.add(*job("lent", revocable_zone="*"))
    assert cluster.schedule() == {"lent-0": "night"}


def test_lent_nodes_take_pods_once_the_hours_of_their_zone_start() -> None:
    cluster = lending("08:00-06:00", "night", "unknown")
    cluster.advance(6.5 * 3600)
    cluster.add(*job("lent", preemptable="true"))
    assert cluster.schedule() == {}
    assert "2 node(s) were lent at other hours only" in cluster.message("lent-0")
    assert cluster.advance(1.4 * 3600) == {}
    assert cluster.advance(0.2 * 3600) == {"lent-0": "night"}
    cluster.advance(21 * 3600)
    assert not evictions(cluster)
    cluster.advance(3600)
    assert evictions(cluster) == ["lent-0"]


def test_a_pod_that_no_lent_node_takes_keeps_no_like_pod_from_them() -> None:
    cluster = lending("00:00-08:00", "", "night")
    cluster.add(*job("first"), *job("second"), *job("third", preemptable="true"))
    assert cluster.schedule() == {"first-0": "plain", "third-0": "night"}


def test_pods_that_may_use_lent_nodes_go_there_first() -> None:
    cluster = lending("00:00-08:00", "", "night", VolcanoRevocableNodes={})
    (_, lent), (_, stays) = job("lent", preemptable="true"), job("stays")
    assert isinstance(lent, Pod)
    assert isinstance(stays, Pod)
    assert scores(VolcanoRevocableNodes, lent, cluster) == {"plain": 0, "night": 100}
    assert scores(VolcanoRevocableNodes, stays, cluster) == {"plain": 0, "night": 0}
    cluster.add(*job("busy", revocable_zone="*"))
    assert cluster.schedule() == {"busy-0": "night"}


def test_a_pod_that_stays_takes_the_place_of_one_that_may_go() -> None:
    cluster = lending("00:00-08:00", "", "night", actions="allocate, preempt")
    cluster.add(*job("first", preemptable="true"), *job("second", preemptable="true"))
    assert len(cluster.schedule()) == 2
    cluster.add(*job("stays"))
    cluster.advance(60)
    gone = evictions(cluster)
    assert len(gone) == 1
    assert cluster.placements()["stays-0"] == "plain"
    assert "plain" not in {cluster.placements().get(f"{name}-0") for name in ("first", "second")}


def test_a_pod_that_may_go_takes_nobodys_place() -> None:
    cluster = lending("00:00-08:00", "", actions="allocate, preempt")
    cluster.add(*job("first", preemptable="true"))
    assert cluster.schedule() == {"first-0": "plain"}
    cluster.add(*job("second", preemptable="true"))
    cluster.advance(60)
    assert not evictions(cluster)


def test_a_pod_that_stays_takes_no_more_than_the_budget_of_the_others_job() -> None:
    cluster = lending("00:00-08:00", "", actions="allocate, preempt")
    made = group("many", "q")
    made.metadata.annotations["volcano.sh/jdb-min-available"] = "2"
    members = pods("many", 2, cpu=2)
    for pod in members:
        pod.metadata.annotations["volcano.sh/preemptable"] = "true"
    cluster.add(made, *members)
    assert len(cluster.schedule()) == 2
    cluster.add(*job("stays"))
    cluster.advance(60)
    assert not evictions(cluster)
