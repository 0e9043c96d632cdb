"""LoadAwareScheduling: busy nodes are avoided though requests fit, and used once they cool."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from bayplan.api import ApiObject, NodeMetric, Pod
from bayplan.api.times import rfc3339
from bayplan.explain.suggestions import Diagnosis
from bayplan.testing import (
    Cluster,
    assert_pending,
    assert_placed,
    check_plugin,
    make_node,
    make_object,
    make_pod,
    refusals,
    scores,
)
from bayplan_plugins.load_aware import LoadAwareScheduling

BUSY = "node(s) cpu usage exceed threshold"
EXPIRED = "node(s) nodeMetric expired"


def usage(cpu: str, memory: str = "1Gi") -> dict[str, Any]:
    return {"resources": {"cpu": cpu, "memory": memory}}


def report(
    cluster: Cluster,
    name: str,
    cpu: str,
    *,
    memory: str = "1Gi",
    age: float = 0.0,
    pods: Mapping[str, str] | None = None,
    aggregated: Mapping[str, str] | None = None,
    prod: str = "koord-prod",
    system: str = "0",
) -> ApiObject:
    """Return what the agent of a node reports now, or some seconds ago.

    :param pods: the CPU that pods use.
    :param aggregated: the CPU of the node by statistic, over 5 minutes.
    """
    statistics = {key: usage(amount) for key, amount in (aggregated or {}).items()}
    return make_object(
        {
            "apiVersion": "slo.koordinator.sh/v1alpha1",
            "kind": "NodeMetric",
            "metadata": {"name": name},
            "spec": {"metricCollectPolicy": {"reportIntervalSeconds": 60}},
            "status": {
                "updateTime": rfc3339(cluster.scheduler.snapshot.unix_time - age),
                "nodeMetric": {
                    "nodeUsage": usage(cpu, memory),
                    "systemUsage": usage(system, "0"),
                    "aggregatedNodeUsages": (
                        [{"duration": "5m0s", "usage": statistics}] if statistics else []
                    ),
                },
                "podsMetric": [
                    {
                        "namespace": "default",
                        "name": pod,
                        "podUsage": usage(amount),
                        "priority": prod,
                    }
                    for pod, amount in (pods or {}).items()
                ],
            },
        }
    )


def cluster_of(*nodes: str, **args: Any) -> Cluster:
    """Return a cluster of nodes with 10 CPUs each."""
    cluster = Cluster(plugins={LoadAwareScheduling: args})
    cluster.add(*(make_node(name, 10, "100Gi") for name in nodes))
    cluster.schedule()
    return cluster


def tell(cluster: Cluster, *reports: ApiObject) -> None:
    """Let agents report, for the first time or again."""
    for one in reports:
        known = cluster.api.get(NodeMetric, one.metadata.name)
        (cluster.api.create if known is None else cluster.api.update)(one)
    cluster.api.deliver()


def test_a_busy_node_is_avoided_though_requests_fit_and_used_again_when_it_cools() -> None:
    cluster = cluster_of("n")
    tell(cluster, report(cluster, "n", "7"))
    cluster.add(make_pod("p", 1))
    assert_pending(cluster, "p", BUSY)
    cluster.advance(30)
    tell(cluster, report(cluster, "n", "6500m"))
    cluster.advance(30)
    assert_pending(cluster, "p", BUSY)
    tell(cluster, report(cluster, "n", "2"))
    cluster.advance(30)
    assert_placed(cluster, p="n")


def test_the_least_busy_node_is_preferred() -> None:
    cluster = cluster_of("a", "b")
    tell(cluster, report(cluster, "a", "5"), report(cluster, "b", "1"))
    assert (
        scores(LoadAwareScheduling, make_pod("p", 1), cluster)["b"]
        > (scores(LoadAwareScheduling, make_pod("p", 1), cluster)["a"])
    )
    cluster.add(make_pod("p", 1))
    assert_placed(cluster, p="b")


def test_pods_that_are_not_measured_yet_count_as_much_as_they_will_use() -> None:
    # Each will use 0.85 of 4 CPUs: the third would make it more than 65 percent.
    cluster = cluster_of("n")
    tell(cluster, report(cluster, "n", "0"))
    cluster.add(*(make_pod(name, 2, "1Gi") for name in ("a", "b", "c", "d")))
    assert_pending(cluster, "d", BUSY)
    assert sorted(cluster.placements()) == ["a", "b", "c"]
    cluster.advance(100)
    tell(cluster, report(cluster, "n", "1", pods={"a": "300m", "b": "300m", "c": "300m"}))
    cluster.advance(30)
    assert_placed(cluster, d="n")


def test_a_node_without_report_takes_pods_and_scores_nothing() -> None:
    cluster = cluster_of("a", "b")
    tell(cluster, report(cluster, "b", "1"))
    assert refusals(LoadAwareScheduling, make_pod("p", 1), cluster) == {}
    assert scores(LoadAwareScheduling, make_pod("p", 1), cluster)["a"] == 0


def test_old_reports_refuse_a_node_unless_all_are_old() -> None:
    cluster = cluster_of("a", "b")
    tell(cluster, report(cluster, "a", "1", age=180), report(cluster, "b", "1", age=179))
    assert refusals(LoadAwareScheduling, make_pod("p", 1), cluster) == {"a": EXPIRED}
    cluster.advance(10)
    assert refusals(LoadAwareScheduling, make_pod("p", 1), cluster) == {}


@pytest.mark.parametrize(
    "args",
    [
        {"filterExpiredNodeMetrics": False},
        {"enableScheduleWhenNodeMetricsExpired": True},
        {"nodeMetricExpirationSeconds": 1000},
    ],
)
def test_old_reports_may_count_as_none(args: dict[str, Any]) -> None:
    cluster = cluster_of("a", "b", **args)
    tell(cluster, report(cluster, "a", "1", age=200), report(cluster, "b", "1"))
    assert refusals(LoadAwareScheduling, make_pod("p", 1), cluster, args) == {}


def test_pods_of_daemon_sets_go_everywhere() -> None:
    cluster = cluster_of("n")
    tell(cluster, report(cluster, "n", "10"))
    assert refusals(LoadAwareScheduling, make_pod("p", 1, owner="DaemonSet/d"), cluster) == {}


def test_production_may_have_thresholds_of_its_own() -> None:
    args = {"prodUsageThresholds": {"cpu": 50}}
    cluster = cluster_of("n", **args)
    cluster.add(make_pod("own", 1, node="n"), make_pod("batch", 1, node="n", priority=5500))
    cluster.advance(200)
    tell(cluster, report(cluster, "n", "9", pods={"own": "2", "batch": "7"}))
    prod, batch = make_pod("p", 1, priority=9500), make_pod("p", 1, priority=5500)
    assert refusals(LoadAwareScheduling, prod, cluster, args) == {}
    assert refusals(LoadAwareScheduling, batch, cluster, args) == {"n": BUSY}
    tell(cluster, report(cluster, "n", "9", pods={"own": "5", "batch": "4"}))
    assert refusals(LoadAwareScheduling, prod, cluster, args) == {"n": BUSY}
    # What the system uses counts only where the profile says so.
    tell(cluster, report(cluster, "n", "9", pods={"own": "2", "batch": "4"}, system="3"))
    assert refusals(LoadAwareScheduling, prod, cluster, args) == {}
    with_system = {**args, "prodUsageIncludeSys": True}
    assert refusals(LoadAwareScheduling, prod, cluster, with_system) == {"n": BUSY}


def test_a_statistic_may_count_instead_of_the_last_value() -> None:
    of_all = {"usageThresholds": {"cpu": 60}, "usageAggregationType": "p95"}
    for duration, refused in (("", True), ("5m", True), ("10m", False)):
        args = {"aggregated": {**of_all, "usageAggregatedDuration": duration}}
        cluster = cluster_of("n", **args)
        tell(cluster, report(cluster, "n", "1", aggregated={"p95": "8", "avg": "2"}))
        expected = {"n": "node(s) cpu aggregated usage exceed threshold"} if refused else {}
        assert refusals(LoadAwareScheduling, make_pod("p", 1), cluster, args) == expected


def test_a_node_may_have_thresholds_of_its_own() -> None:
    cluster = Cluster(plugins=(LoadAwareScheduling,))
    own = {
        "scheduling.koordinator.sh/usage-thresholds": json.dumps({"usageThresholds": {"cpu": 90}})
    }
    cluster.add(make_node("a", 10, "100Gi", annotations=own), make_node("b", 10, "100Gi"))
    cluster.schedule()
    tell(cluster, report(cluster, "a", "8"), report(cluster, "b", "8"))
    assert refusals(LoadAwareScheduling, make_pod("p", "500m"), cluster) == {"b": BUSY}


def test_an_amplified_node_counts_with_what_it_has() -> None:
    cluster = Cluster(plugins=(LoadAwareScheduling,))
    raw = {"node.koordinator.sh/raw-allocatable": '{"cpu": "5"}'}
    cluster.add(make_node("n", 10, "100Gi", annotations=raw))
    cluster.schedule()
    tell(cluster, report(cluster, "n", "3"))
    assert refusals(LoadAwareScheduling, make_pod("p", 1), cluster) == {"n": BUSY}


def test_metrics_servers_answer_counts_where_koordinators_is_missing() -> None:
    cluster = cluster_of("n")
    cluster.api.create(
        make_object(
            {
                "apiVersion": "metrics.k8s.io/v1beta1",
                "kind": "NodeMetrics",
                "metadata": {"name": "n"},
                "timestamp": rfc3339(cluster.scheduler.snapshot.unix_time),
                "window": "10.04s",
                "usage": {"cpu": "7000000000n", "memory": "1048576Ki"},
            }
        )
    )
    cluster.api.deliver()
    assert refusals(LoadAwareScheduling, make_pod("p", 1), cluster) == {"n": BUSY}
    tell(cluster, report(cluster, "n", "1"))
    assert refusals(LoadAwareScheduling, make_pod("p", 1), cluster) == {}


def test_a_pod_may_say_how_it_is_estimated_where_the_profile_allows_it() -> None:
    note = {"scheduling.koordinator.sh/load-estimated-scaling-factors": '{"cpu": 10}'}
    pod = make_pod("p", 8, annotations=note)
    for allowed, expected in ((True, {}), (False, {"n": BUSY})):
        args = {"allowCustomizeEstimation": allowed}
        cluster = cluster_of("n", **args)
        tell(cluster, report(cluster, "n", "1"))
        assert refusals(LoadAwareScheduling, pod, cluster, args) == expected


def test_a_report_that_cannot_be_read_is_a_problem_of_its_node_alone() -> None:
    cluster = cluster_of("a", "b")
    tell(cluster, report(cluster, "a", "many"), report(cluster, "b", "9"))
    assert refusals(LoadAwareScheduling, make_pod("p", 1), cluster) == {"b": BUSY}
    problems = [text for text in cluster.snapshot.unread().values() if "NodeMetric a" in text]
    assert problems
    assert "$.status.nodeMetric.nodeUsage.resources.cpu" in problems[0]


def test_what_would_help_is_how_much_less_has_to_be_used() -> None:
    cluster = cluster_of("n", "m")
    tell(cluster, report(cluster, "n", "7"), report(cluster, "m", "1", age=500))
    cluster.add(make_pod("p", 1))
    assert_pending(cluster, "p", f"1 {BUSY}", f"1 {EXPIRED}")
    work = cluster.profile
    diagnosis = Diagnosis(work.runtime, work.evaluator, work.cycle, cluster.snapshot)
    unit = cluster.scheduler.pending_unit("default/p")
    assert unit is not None
    texts = [one.text for one in diagnosis.suggest(unit, cluster.api.now)]
    assert texts == [
        "would fit on n if less of its cpu were used: 70% is, the pod would use 8% more, and 65% "
        "is the most"
    ]


def test_gangs_do_not_overload_a_node_together() -> None:
    cluster = cluster_of("a", "b")
    tell(cluster, report(cluster, "a", "0"), report(cluster, "b", "0"))
    cluster.add(*(make_pod(f"p{i}", 3, gang="g") for i in range(4)))
    group = {
        "apiVersion": "scheduling.sigs.k8s.io/v1alpha1",
        "kind": "PodGroup",
        "metadata": {"name": "g", "namespace": "default"},
        "spec": {"minMember": 4},
    }
    cluster.add(make_object(group))
    placed = cluster.schedule()
    assert sorted(placed.values()) == ["a", "a", "b", "b"]


def test_it_keeps_the_contract() -> None:
    check_plugin(LoadAwareScheduling)


def test_pods_of_batch_are_estimated_by_what_they_state_of_batch() -> None:
    cluster = cluster_of("n")
    tell(cluster, report(cluster, "n", "0"))
    batch = {"kubernetes.io/batch-cpu": "9000", "kubernetes.io/batch-memory": "1Gi"}
    spec = {"containers": [{"name": "c", "resources": {"requests": batch}}]}
    labels = {"koordinator.sh/priority-class": "koord-batch"}
    pod: Pod = make_pod("p", labels=labels, spec=spec)
    assert refusals(LoadAwareScheduling, pod, cluster) == {"n": BUSY}
