"""NodeResourcesFit and NodeResourcesBalancedAllocation behave as in kube-scheduler 1.36."""

from __future__ import annotations

from typing import Any

import pydantic
import pytest

from bayplan.testing import Cluster, assert_pending, make_node, make_pod, refusals, scores
from bayplan_plugins.node_resources import NodeResourcesBalancedAllocation, NodeResourcesFit


def container(restart: str = "", **requests: str) -> dict[str, Any]:
    extra = {"restartPolicy": restart} if restart else {}
    return {"name": "c", "resources": {"requests": requests}, **extra}


def fits(pod_spec: dict[str, Any], cpu: str, memory: str = "64Gi") -> bool:
    cluster = Cluster([make_node("n", cpu=cpu, memory=memory)])
    return refusals(NodeResourcesFit, make_pod("p", None, None, spec=pod_spec), cluster) == {}


def needs_cpu(pod_spec: dict[str, Any], milli: int) -> bool:
    """Whether the pod needs exactly this much CPU."""
    return fits(pod_spec, f"{milli}m") and not fits(pod_spec, f"{milli - 1}m")


def test_every_short_resource_is_named() -> None:
    cluster = Cluster([make_node("n", cpu=1, memory="1Gi", pods=0)])
    pod = make_pod("p", "2", "2Gi", gpu=1)
    assert refusals(NodeResourcesFit, pod, cluster) == {
        "n": "Too many pods; Insufficient cpu; Insufficient memory; Insufficient nvidia.com/gpu"
    }


def test_the_message_counts_reasons_and_sorts_them() -> None:
    cluster = Cluster([make_node("a", cpu=1), make_node("b", cpu=8, memory="1Mi"), make_node("c")])
    cluster.add(make_pod("busy", "8", "1Gi", node="c"), make_pod("p", "2", "1Gi"))
    assert_pending(
        cluster, "p", "0/3 nodes are available: 1 Insufficient memory, 2 Insufficient cpu."
    )


def test_a_full_node_takes_no_pod_that_requests_nothing() -> None:
    cluster = Cluster([make_node("n", pods=1)])
    cluster.add(make_pod("one", None, None, node="n"))
    found = refusals(NodeResourcesFit, make_pod("p", None, None), cluster)
    assert found == {"n": "Too many pods"}


def test_zero_requests_fit_an_over_committed_node() -> None:
    cluster = Cluster([make_node("n", cpu=1)])
    cluster.add(make_pod("big", "4", None, node="n"))
    assert refusals(NodeResourcesFit, make_pod("p", "0", None), cluster) == {}
    assert "n" in refusals(NodeResourcesFit, make_pod("p", "1m", None), cluster)


def test_the_largest_init_container_counts_where_it_exceeds_the_sum() -> None:
    spec = {
        "initContainers": [container(cpu="3"), container(cpu="5")],
        "containers": [container(cpu="1"), container(cpu="2")],
    }
    assert needs_cpu(spec, 5000)


def test_sidecars_add_to_the_containers_and_to_later_init_containers() -> None:
    spec = {
        "initContainers": [
            container(cpu="4"),
            container("Always", cpu="1"),
            container(cpu="4"),
            container("Always", cpu="1"),
        ],
        "containers": [container(cpu="2")],
    }
    # Init phase: 4 alone, then 4 beside the first sidecar = 5; running: 2 + 1 + 1 = 4.
    assert needs_cpu(spec, 5000)
    spec["containers"] = [container(cpu="4")]
    assert needs_cpu(spec, 6000)


def test_overhead_is_added() -> None:
    spec = {"containers": [container(cpu="1")], "overhead": {"cpu": "250m"}}
    assert needs_cpu(spec, 1250)


def test_pod_level_requests_replace_the_sum() -> None:
    spec = {
        "containers": [container(cpu="1"), container(cpu="1")],
        "resources": {"requests": {"cpu": "5"}},
    }
    assert needs_cpu(spec, 5000)


def test_limits_stand_in_for_missing_requests() -> None:
    spec = {"containers": [{"name": "c", "resources": {"limits": {"cpu": "3"}}}]}
    assert needs_cpu(spec, 3000)


@pytest.mark.parametrize(
    ("args", "refused"),
    [
        ({}, True),
        ({"ignoredResources": ["example.com/foo"]}, False),
        ({"ignoredResourceGroups": ["example.com"]}, False),
        ({"ignoredResourceGroups": ["example.org"]}, True),
        ({"ignoredResources": ["cpu"]}, True),
    ],
)
def test_ignored_extended_resources(args: dict[str, Any], refused: bool) -> None:
    cluster = Cluster([make_node("n")])
    pod = make_pod("p", "1", None, **{"example.com/foo": 1})
    assert bool(refusals(NodeResourcesFit, pod, cluster, args)) is refused


def test_ignoring_never_covers_native_resources() -> None:
    cluster = Cluster([make_node("n", cpu=1)])
    args = {"ignoredResources": ["cpu"]}
    assert "n" in refusals(NodeResourcesFit, make_pod("p", "2", None), cluster, args)


def strategy(kind: str, **more: Any) -> dict[str, Any]:
    return {"scoringStrategy": {"type": kind, **more}}


@pytest.mark.parametrize(
    ("args", "score"),
    [
        # cpu (8-2-2)/8 = 50, memory (32-8-8)/32 = 50.
        (strategy("LeastAllocated"), 50),
        (strategy("MostAllocated"), 50),
        # cpu alone, weight 3, and memory weight 1: both 50.
        (
            strategy(
                "LeastAllocated",
                resources=[{"name": "cpu", "weight": 3}, {"name": "memory", "weight": 1}],
            ),
            50,
        ),
        # 50 % used on the line from 0 to 100: 50.
        (
            strategy(
                "RequestedToCapacityRatio",
                requestedToCapacityRatio={
                    "shape": [{"utilization": 0, "score": 0}, {"utilization": 100, "score": 10}]
                },
            ),
            50,
        ),
        # Falling curve from 10 at 40 % to 0 at 80 %: at 50 % a quarter is lost, 75.
        (
            strategy(
                "RequestedToCapacityRatio",
                requestedToCapacityRatio={
                    "shape": [{"utilization": 40, "score": 10}, {"utilization": 80, "score": 0}]
                },
            ),
            75,
        ),
    ],
)
def test_strategies(args: dict[str, Any], score: float) -> None:
    cluster = Cluster([make_node("n", cpu=8, memory="32Gi")])
    cluster.add(make_pod("old", "2", "8Gi", node="n"))
    assert scores(NodeResourcesFit, make_pod("p", "2", "8Gi"), cluster, args) == {"n": score}


def test_integer_steps_round_down() -> None:
    cluster = Cluster([make_node("n", cpu=3, memory="3Gi")])
    # cpu: 2/3 = 66, memory: 1/3 = 33; (66 + 33) / 2 = 49 rounded down.
    assert scores(NodeResourcesFit, make_pod("p", "1", "2Gi"), cluster) == {"n": 49}


def test_a_container_without_requests_counts_100m_and_200mi_in_scores_only() -> None:
    cluster = Cluster([make_node("n", cpu=1, memory="400Mi")])
    # cpu: 900/1000 = 90; memory: 200/400 = 50; mean 70.
    assert scores(NodeResourcesFit, make_pod("p", None, None), cluster) == {"n": 70}
    cluster.add(*(make_pod(f"free-{i}", None, None, node="n") for i in range(20)))
    assert refusals(NodeResourcesFit, make_pod("p", "1", "400Mi"), cluster) == {}
    assert scores(NodeResourcesFit, make_pod("p", None, None), cluster) == {"n": 0}


def test_an_explicit_zero_stays_zero_in_scores() -> None:
    cluster = Cluster([make_node("n", cpu=1, memory="400Mi")])
    assert scores(NodeResourcesFit, make_pod("p", "0", "0"), cluster) == {"n": 100}


def test_extended_resources_count_only_for_pods_that_ask() -> None:
    resources = [{"name": "nvidia.com/gpu", "weight": 1}, {"name": "cpu", "weight": 1}]
    args = strategy("MostAllocated", resources=resources)
    cluster = Cluster([make_node("n", cpu=4, gpu=4)])
    # With a GPU: (25 + 25) / 2; without: cpu alone, 25.
    assert scores(NodeResourcesFit, make_pod("p", "1", None, gpu=1), cluster, args) == {"n": 25}
    cluster.add(make_pod("old", None, None, gpu=3, node="n"))
    # The old pod's default of 100m counts: (1000 + 100) / 4000 = 27.
    assert scores(NodeResourcesFit, make_pod("p", "1", None), cluster, args) == {"n": 27}


def test_what_a_pod_requests_as_a_whole_counts_once_it_has_a_node() -> None:
    # kube-scheduler leaves it out for the pod that it places.
    spec = {"resources": {"requests": {"cpu": "2"}}, "containers": [container(cpu="1")]}
    cluster = Cluster([make_node("n", cpu=4)])
    args = strategy("MostAllocated", resources=[{"name": "cpu", "weight": 1}])
    assert scores(NodeResourcesFit, make_pod("p", spec=spec), cluster, args) == {"n": 25}
    cluster.add(make_pod("old", spec=spec, node="n"))
    assert scores(NodeResourcesFit, make_pod("p", spec=spec), cluster, args) == {"n": 75}


@pytest.mark.parametrize(
    "args",
    [
        strategy("RequestedToCapacityRatio"),
        strategy("Whatever"),
        strategy("LeastAllocated", resources=[{"name": "cpu", "weight": 0}]),
        strategy("LeastAllocated", resources=[{"name": "cpu", "weight": 101}]),
        strategy(
            "RequestedToCapacityRatio",
            requestedToCapacityRatio={
                "shape": [{"utilization": 50, "score": 1}, {"utilization": 50, "score": 2}]
            },
        ),
        {"ignoredResourceGroups": ["example.com/foo"]},
    ],
)
def test_bad_arguments_are_refused(args: dict[str, Any]) -> None:
    with pytest.raises(pydantic.ValidationError):
        NodeResourcesFit.Args.model_validate(args)


# Balanced ----------------------------------------------------------------------------------


def test_a_pod_that_leaves_the_balance_as_it_is_scores_75() -> None:
    cluster = Cluster([make_node("even", cpu=4, memory="4Gi"), make_node("odd", cpu=4)])
    pod = make_pod("p", "2", "2Gi")
    # odd: used 0.5 and 2/32, deviation 0.21875, balance 78 instead of 100: 50 + (50 - 22) / 2.
    assert scores(NodeResourcesBalancedAllocation, pod, cluster) == {"even": 75, "odd": 64}


def test_a_pod_that_evens_out_what_is_used_scores_more() -> None:
    cluster = Cluster([make_node("n", cpu=4, memory="4Gi")])
    cluster.add(make_pod("old", "2", None, node="n"))
    # Before: 0.5 and 0, balance 75; with the pod 0.5 and 0.5: 50 + (50 + 25) // 2.
    pod = make_pod("p", None, "2Gi")
    assert scores(NodeResourcesBalancedAllocation, pod, cluster) == {"n": 87}


def test_three_resources_use_the_standard_deviation() -> None:
    resources = [{"name": name} for name in ("cpu", "memory", "nvidia.com/gpu")]
    cluster = Cluster([make_node("n", cpu=4, memory="4Gi", gpu=4)])
    pod = make_pod("p", "1", "2Gi", gpu=3)
    # Shares 0.25, 0.5, 0.75: deviation sqrt(0.125 / 3) = 0.2041, balance 79.
    found = scores(NodeResourcesBalancedAllocation, pod, cluster, {"resources": resources})
    assert found == {"n": 64}


def test_actual_requests_count_not_the_scoring_defaults() -> None:
    cluster = Cluster([make_node("n", cpu=4, memory="4Gi")])
    cluster.add(make_pod("free", None, None, node="n"))
    pod = make_pod("p", "2", "2Gi")
    assert scores(NodeResourcesBalancedAllocation, pod, cluster) == {"n": 75}


def test_pods_without_requests_are_not_scored() -> None:
    cluster = Cluster([make_node("n")])
    assert scores(NodeResourcesBalancedAllocation, make_pod("p", None, None), cluster) == {"n": 0}
