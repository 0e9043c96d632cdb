"""What Volcano's plugins do at a time that no event brings: sla's deadlines, tdm's hours."""

from __future__ import annotations

from volcano_worlds import cluster_of, evictions, group, phase, pods, queue

from bayplan.testing import make_node


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
