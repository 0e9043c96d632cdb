"""Trimaran's scores: nodes by what they really use, reckoned by hand and by a plain oracle."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples

from bayplan.api import WatchedLoad, WatchedMetric
from bayplan.api.meta import ObjectMeta
from bayplan.api.times import rfc3339
from bayplan.testing import Cluster, assert_placed, make_node, make_object, make_pod, scores
from bayplan_plugins.trimaran import (
    LoadVariationRiskBalancing,
    LowRiskOverCommitment,
    TargetLoadPacking,
)
from bayplan_plugins.trimaran.args import TargetLoadPackingArgs
from bayplan_plugins.trimaran.beta import Fit, incomplete_beta

GB = 10**9


def watched(cluster: Cluster, name: str, age: float = 0.0, **percents: float) -> None:
    """Let load-watcher say what percent of a node is used: ``cpu``, ``cpu_std`` and so on."""
    types = {"cpu": "CPU", "memory": "Memory"}
    metrics = tuple(
        WatchedMetric(types[key.partition("_")[0]], "STD" if key.endswith("_std") else "AVG", value)
        for key, value in percents.items()
    )
    end = cluster.scheduler.snapshot.unix_time - age
    cluster.snapshot.set_object(name, WatchedLoad(ObjectMeta(name=name), end, metrics))


def one_node(**percents: float) -> Cluster:
    cluster = Cluster([make_node("n", 1, "1Gi")])
    cluster.snapshot.sync()
    watched(cluster, "n", **percents)
    return cluster


def limited(name: str, cpu: str, limit: str, node: str = "", memory: str = "0") -> Any:
    resources = {"requests": {"cpu": cpu, "memory": memory}, "limits": {"cpu": limit}}
    return make_pod(name, node=node, spec={"containers": [{"name": "c", "resources": resources}]})


# TargetLoadPacking -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("used", "pod", "expected"),
    [
        # The pod states nothing and is taken to use nothing: 0 of 40 percent, and 10 beyond them.
        (0, (None, None), 40),
        (50, (None, None), 33),
        (40, (None, None), 100),
        # 20 + 1.5 x 10 of 40 percent.
        (20, ("100m", None), 93),
        # Its limit counts before its request: 20 + 20 percent.
        (20, ("100m", "200m"), 100),
        (30, (None, "800m"), 0),
        (100, (None, None), 0),
    ],
)
def test_nodes_are_packed_up_to_the_target(
    used: float, pod: tuple[str | None, str | None], expected: float
) -> None:
    request, limit = pod
    resources: dict[str, Any] = {"requests": {}, "limits": {}}
    if request:
        resources["requests"]["cpu"] = request
    if limit:
        resources["limits"]["cpu"] = limit
    made = make_pod("p", spec={"containers": [{"name": "c", "resources": resources}]})
    args = {"defaultRequests": {"cpu": "0"}}
    assert scores(TargetLoadPacking, made, one_node(cpu=used), args) == {"n": expected}


def test_a_container_that_states_nothing_takes_a_cpu_and_overhead_comes_besides() -> None:
    cluster = Cluster([make_node("n", 10)])
    cluster.snapshot.sync()
    watched(cluster, "n", cpu=10)
    spec = {"containers": [{"name": "c"}], "overhead": {"cpu": "1"}}
    # 10 + 10 + 10 of 40 percent: 60 x 30 / 40 + 40.
    assert scores(TargetLoadPacking, make_pod("p", spec=spec), cluster, {}) == {"n": 85}


def test_pods_that_came_too_late_to_be_measured_count() -> None:
    cluster = Cluster([make_node("n", 10)])
    cluster.add(limited("late", "1", "2", node="n"))
    cluster.snapshot.sync()
    watched(cluster, "n", cpu=0)
    pod = limited("p", "1", "1")
    # 20 percent of the late pod, 10 of this one.
    assert scores(TargetLoadPacking, pod, cluster, {}) == {"n": 85}
    cluster.advance(120)
    watched(cluster, "n", cpu=0)
    assert scores(TargetLoadPacking, pod, cluster, {}) == {"n": 55}


def test_usage_of_koordinators_agent_counts_against_all_that_the_node_has() -> None:
    cluster = Cluster([make_node("n", 10)])
    cluster.add(node_metric(cluster, "n", {"cpu": "2", "memory": "1Gi"}))
    assert scores(TargetLoadPacking, limited("p", "1", "1"), cluster, {}) == {"n": 85}


def node_metric(cluster: Cluster, name: str, usage: Any, aggregated: Any = None) -> Any:
    parts = {key: {"resources": value} for key, value in (aggregated or {}).items()}
    return make_object(
        {
            "apiVersion": "slo.koordinator.sh/v1alpha1",
            "kind": "NodeMetric",
            "metadata": {"name": name},
            "status": {
                "updateTime": rfc3339(cluster.scheduler.snapshot.unix_time),
                "nodeMetric": {
                    "nodeUsage": {"resources": usage},
                    "aggregatedNodeUsages": [{"duration": "5m", "usage": parts}] if parts else [],
                },
            },
        }
    )


@pytest.mark.parametrize(
    "plugin", [TargetLoadPacking, LoadVariationRiskBalancing, LowRiskOverCommitment]
)
def test_without_a_recent_report_nodes_take_pods_and_score_least(plugin: Any) -> None:
    cluster = Cluster([make_node(name, 1) for name in ("silent", "old", "fresh")])
    cluster.snapshot.sync()
    watched(cluster, "old", age=301, cpu=30, memory=30)
    watched(cluster, "fresh", cpu=30, memory=30)
    found = scores(plugin, make_pod("p", "100m", "1Gi"), cluster, {})
    assert (found["silent"], found["old"]) == (0, 0)
    assert found["fresh"] > 0
    cluster = Cluster([make_node("silent")], plugins={plugin.__name__: {}})
    cluster.add(make_pod("p"))
    assert_placed(cluster, p="silent")


# LoadVariationRiskBalancing ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("used", "deviation", "args", "expected"),
    [
        # With 10 percent of the pod: (1 - (0.5 + 0.36) / 2).
        (40, 36, {}, 57),
        # The root of 0.36 is 0.6.
        (0, 36, {"safeVarianceSensitivity": 2}, 65),
        (200, 36, {"safeVarianceSensitivity": 2}, 20),
        (40, 0, {"safeVarianceSensitivity": 2}, 75),
        (40, 120, {"safeVarianceSensitivity": 2}, 25),
        (40, 10, {"safeVarianceMargin": 2}, 65),
        # To the power of infinity.
        (40, 36, {"safeVarianceSensitivity": 0}, 75),
        (40, 36, {"safeVarianceSensitivity": -1, "safeVarianceMargin": -1}, 57),
    ],
)
def test_low_and_steady_use_is_preferred(
    used: float, deviation: float, args: dict[str, float], expected: float
) -> None:
    cluster = one_node(cpu=used, cpu_std=deviation)
    found = scores(LoadVariationRiskBalancing, make_pod("p", "100m", None), cluster, args)
    assert found == {"n": expected}


def test_the_riskier_resource_counts() -> None:
    cluster = one_node(cpu=10, memory=60, memory_std=20)
    found = scores(LoadVariationRiskBalancing, make_pod("p", "100m", None), cluster, {})
    assert found == {"n": 60}


def test_a_deviation_is_taken_from_percentiles_where_only_they_are_reported() -> None:
    cluster = Cluster([make_node("n", 10, "10Gi")])
    spread = {"avg": {"cpu": "5"}, "p50": {"cpu": "5"}, "p90": {"cpu": "6281552u"}}
    cluster.add(node_metric(cluster, "n", {"cpu": "9", "memory": "0"}, spread))
    found = scores(LoadVariationRiskBalancing, make_pod("p", None, None), cluster, {})
    # The mean is 0.5; 1.2816 CPUs are 1.2816 standard deviations: one is 0.1.
    assert found == {"n": 70}


# LowRiskOverCommitment ---------------------------------------------------------------------


def test_limits_beyond_the_node_are_a_risk() -> None:
    cluster = Cluster([make_node("n", 10)])
    cluster.add(limited("before", "4", "8", node="n"))
    cluster.snapshot.sync()
    watched(cluster, "n", cpu=0, memory=0)
    # Limits of 12 with requests of 6: 2 of 6 are beyond the node; half of it counts.
    pod = limited("p", "2", "4")
    assert scores(LowRiskOverCommitment, pod, cluster, {}) == {"n": 83}
    args = {"riskLimitWeights": {"cpu": 1.0}}
    assert scores(LowRiskOverCommitment, pod, cluster, args) == {"n": 67}


@pytest.mark.parametrize(
    ("used", "deviation", "expected"),
    [
        # Steady use within the requests of 40 percent, and beyond them.
        (30, 0, 100),
        (50, 0, 50),
        # Use is even from 0 to 100 percent: 0.6 of it beyond 40 percent, half of that counts.
        (50, 100 / math.sqrt(12), 70),
    ],
)
def test_use_beyond_requests_is_a_risk(used: float, deviation: float, expected: float) -> None:
    cluster = Cluster([make_node("n", 10)])
    cluster.add(limited("before", "4", "10", node="n"))
    cluster.snapshot.sync()
    watched(cluster, "n", cpu=used, cpu_std=deviation, memory=0)
    args = {"smoothingWindowSize": 1}
    pod = make_pod("p", None, "1Ki")
    assert scores(LowRiskOverCommitment, pod, cluster, args) == {"n": expected}


def test_pods_that_state_nothing_are_not_scored() -> None:
    cluster = one_node(cpu=20)
    assert scores(LowRiskOverCommitment, make_pod("p", None, None), cluster, {}) == {"n": 0}


@examples(200)
@given(a=st.integers(1, 30), b=st.integers(1, 30), x=st.floats(0, 1, allow_nan=False))
def test_the_beta_distribution_of_whole_numbers_is_a_sum_of_binomials(
    a: int, b: int, x: float
) -> None:
    n = a + b - 1
    expected = sum(math.comb(n, j) * x**j * (1 - x) ** (n - j) for j in range(a, n + 1))
    found = incomplete_beta(np.array([x]), np.array([float(a)]), np.array([float(b)]))
    assert found[0] == pytest.approx(expected, abs=1e-9)


def test_a_distribution_without_deviation_is_certain() -> None:
    fit = Fit(np.array([0.0, 0.3, 0.3, 1.0]), np.array([0.2, 0.0, 0.0, 0.5]))
    assert fit.below(np.array([0.0, 0.3, 0.2, 0.9])).tolist() == [1.0, 1.0, 0.0, 0.0]


# Oracle ------------------------------------------------------------------------------------


@examples(100)
@given(seed=st.integers(0, 2**32))
def test_variation_is_scored_as_node_by_node(seed: int) -> None:
    dice = random.Random(seed)
    cluster = Cluster()
    sizes, loads = {}, {}
    for number in range(dice.randint(1, 6)):
        name = f"n{number}"
        sizes[name] = (dice.randint(1, 64) * 1000, dice.randint(1, 64) * GB)
        cluster.add(make_node(name, sizes[name][0] // 1000, str(sizes[name][1])))
        keys = ("cpu", "cpu_std", "memory", "memory_std")
        loads[name] = {key: dice.uniform(0, 110) for key in keys}
    cluster.snapshot.sync()
    for name, load in loads.items():
        watched(cluster, name, **load)
    request = (dice.randint(0, 900), dice.randint(0, GB))
    margin, sensitivity = dice.uniform(0, 3), dice.uniform(0.1, 3)
    args = {"safeVarianceMargin": margin, "safeVarianceSensitivity": sensitivity}
    pod = make_pod("p", f"{request[0]}m", str(request[1]))
    found = scores(LoadVariationRiskBalancing, pod, cluster, args)
    for name, score in found.items():
        points = []
        for place, key in enumerate(("cpu", "memory")):
            mean = min(1, loads[name][key] / 100)
            mean = min(1, mean + request[place] / sizes[name][place])
            spread = min(1, min(1, loads[name][f"{key}_std"] / 100) ** (1 / sensitivity) * margin)
            points.append((1 - (mean + spread) / 2) * 100)
        assert abs(score - min(points)) <= 0.51


@pytest.mark.parametrize(
    "args",
    [
        {"watcherAddress": "load-watcher:2020"},
        {"metricProvider": {"type": "SignalFx"}},
        {"metricProvider": {"type": "Prometheus", "address": "prometheus:9090"}},
        {"defaultRequestsMultiplier": "much"},
        {"defaultRequests": {"cpu": "much"}},
        {"targetUtilization": 100},
    ],
    ids=str,
)
def test_arguments_without_sense_are_refused(args: Any) -> None:
    with pytest.raises(pydantic.ValidationError):
        TargetLoadPackingArgs(**args)
