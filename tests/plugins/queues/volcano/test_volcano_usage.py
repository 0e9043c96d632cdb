"""VolcanoUsage: busy nodes are refused, idle ones preferred; without numbers nothing is refused."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.api import WatchedLoad, WatchedMetric
from bayplan.api.meta import ObjectMeta
from bayplan.api.times import rfc3339
from bayplan.explain.suggestions import Diagnosis
from bayplan.testing import (
    Cluster,
    assert_pending,
    assert_placed,
    make_node,
    make_object,
    make_pod,
    refusals,
    scores,
)
from bayplan_plugins.queues.volcano.usage import VolcanoUsage

BUSY = "the CPU load of the node exceeds the upper limit."


def watched(cluster: Cluster, name: str, cpu: float, memory: float = 0, age: float = 0) -> None:
    metrics = (WatchedMetric("CPU", "AVG", cpu), WatchedMetric("Memory", "AVG", memory))
    end = cluster.scheduler.snapshot.unix_time - age
    cluster.snapshot.set_object(name, WatchedLoad(ObjectMeta(name=name), end, metrics))


def cluster_of(*nodes: str) -> Cluster:
    cluster = Cluster([make_node(name, 10, "100Gi") for name in nodes])
    cluster.snapshot.sync()
    return cluster


def test_nodes_beyond_a_threshold_are_refused_and_old_numbers_refuse_nobody() -> None:
    cluster = cluster_of("at", "cpu", "memory", "old", "silent")
    watched(cluster, "at", 80, 80)
    watched(cluster, "cpu", 81, 10)
    watched(cluster, "memory", 10, 81)
    watched(cluster, "old", 99, 99, age=301)
    assert refusals(VolcanoUsage, make_pod("p"), cluster, {}) == {
        "cpu": BUSY,
        "memory": "the memory load of the node exceeds the upper limit.",
    }


def test_what_is_left_is_scored_by_the_weights() -> None:
    cluster = cluster_of("a", "b", "silent")
    watched(cluster, "a", 20, 60)
    watched(cluster, "b", 60, 20)
    args = {"cpuWeight": 3, "memoryWeight": 1}
    assert scores(VolcanoUsage, make_pod("p"), cluster, args) == pytest.approx(
        {"a": 70, "b": 50, "silent": 0}
    )


@pytest.mark.parametrize(
    ("cpu", "used", "estimator", "left"),
    [
        # 0.7 of 4 CPUs are 28 percent.
        ("4", 0, {}, 72.0),
        # From 60 percent on a pod counts 1.2 times.
        ("4", 60, {}, 6.4),
        # Without requests: 250 thousandths of a CPU.
        (None, 0, {}, 97.5),
        ("4", 0, {"request_ratio": 1, "risk_threshold": 0, "risk_factor": 2}, 60.0),
    ],
)
def test_pods_that_are_not_measured_yet_are_estimated(
    cpu: str | None, used: float, estimator: Any, left: float
) -> None:
    cluster = cluster_of("n")
    cluster.add(make_pod("late", cpu, None, node="n"))
    cluster.snapshot.sync()
    watched(cluster, "n", used)
    args = {"memoryWeight": 0, "estimator": estimator}
    assert scores(VolcanoUsage, make_pod("p"), cluster, args) == pytest.approx({"n": left})


def metrics_of(cluster: Cluster, name: str, cpu: str) -> Any:
    """Return what metrics-server answers now."""
    return make_object(
        {
            "apiVersion": "metrics.k8s.io/v1beta1",
            "kind": "NodeMetrics",
            "metadata": {"name": name},
            "timestamp": rfc3339(cluster.scheduler.snapshot.unix_time),
            "window": "20s",
            "usage": {"cpu": cpu, "memory": "1Gi"},
        }
    )


def test_a_pod_goes_once_the_node_has_cooled_and_learns_what_it_waits_for() -> None:
    cluster = Cluster(plugins={"VolcanoUsage": {}})
    cluster.add(make_node("n", 10))
    cluster.add(metrics_of(cluster, "n", "9"), make_pod("p"))
    assert_pending(cluster, "p", BUSY)
    profile = cluster.profile
    diagnosis = Diagnosis(profile.runtime, profile.evaluator, profile.cycle, cluster.snapshot)
    unit = cluster.scheduler.pending_unit("default/p")
    assert unit is not None
    texts = [one.text for one in diagnosis.suggest(unit, cluster.api.now)]
    assert texts == ["would fit on n if less of its cpu were used: 90% is, and 80% is the most"]
    cluster.api.update(metrics_of(cluster, "n", "2"))
    cluster.advance(30)
    assert_placed(cluster, p="n")
