"""Volcano's binpack and resource-strategy-fit, by examples reckoned by hand."""

from __future__ import annotations

import json
from typing import Any

import pydantic
import pytest

from bayplan.explain.suggestions import Diagnosis
from bayplan.testing import Cluster, assert_pending, make_node, make_pod, refusals, scores
from bayplan_plugins.queues.volcano.binpack import VolcanoBinpack, VolcanoBinpackArgs
from bayplan_plugins.queues.volcano.resource_strategy_fit import (
    VolcanoResourceStrategyFit,
    VolcanoResourceStrategyFitArgs,
)

GPU = "nvidia.com/gpu"


def half_full() -> Cluster:
    """Return an empty node, and one of which half of the CPUs and a quarter of memory is used."""
    cluster = Cluster([make_node("empty", 8, "32Gi", gpu=8), make_node("used", 8, "32Gi", gpu=8)])
    cluster.add(make_pod("before", 4, "8Gi", node="used"))
    return cluster


def test_full_nodes_are_packed_by_the_weights_of_resources() -> None:
    pod = make_pod("p", 2, "8Gi", gpu=4)
    found = scores(VolcanoBinpack, pod, half_full(), {"resources": {"cpu": 1, GPU: 3}})
    # empty: (2/8 + 3 x 4/8) / 4; used: (6/8 + 3 x 4/8) / 4; memory has no weight.
    assert found == {"empty": 43.75, "used": 56.25}


def test_what_the_pod_does_not_request_does_not_count() -> None:
    found = scores(VolcanoBinpack, make_pod("p", 2, None), half_full(), {})
    assert found == {"empty": 25.0, "used": 75.0}
    assert scores(VolcanoBinpack, make_pod("p", None, None), half_full(), {}) == {
        "empty": 0.0,
        "used": 0.0,
    }


def test_a_weight_of_zero_counts_nowhere() -> None:
    args = {"resources": {"cpu": 1, "memory": 0}}
    found = scores(VolcanoBinpack, make_pod("p", 2, "32Gi"), Cluster([make_node("n", 8)]), args)
    assert found == {"n": 25.0}


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        # (2 x 4/8 + 1 x 6/8) / 3 where GPUs are packed and CPUs spread.
        ({GPU: {"type": "MostAllocated", "weight": 2}, "cpu": {"weight": 1}}, (58.333, 41.667)),
        ({}, (75.0, 37.5)),
        # The longest start of the name counts.
        (
            {
                "nvidia.com/*": {"type": "MostAllocated", "weight": 1},
                "nvidia*": {"type": "LeastAllocated", "weight": 1},
            },
            (50.0, 50.0),
        ),
        ({"example.com/other": {"weight": 1}}, (0.0, 0.0)),
    ],
    ids=["one packs, one spreads", "defaults", "starts of names", "nothing counts"],
)
def test_each_resource_has_a_strategy(resources: Any, expected: tuple[float, float]) -> None:
    args = {"resources": resources} if resources else {}
    pod = make_pod("p", 2, "8Gi", gpu=4)
    found = scores(VolcanoResourceStrategyFit, pod, half_full(), args)
    assert (found["empty"], found["used"]) == pytest.approx(expected, abs=0.001)


@pytest.mark.parametrize(
    ("kind", "weights", "expected"),
    [
        ("MostAllocated", {"cpu": 1}, (25.0, 75.0)),
        ("LeastAllocated", {"cpu": 1, "memory": 3}, (75.0, 43.75)),
        # A type that Volcano does not know counts with the score 0.
        ("Balanced", {"cpu": 1}, (0.0, 0.0)),
        ("MostAllocated", None, (0.0, 0.0)),
        ("MostAllocated", "broken", (0.0, 0.0)),
        ("MostAllocated", {"cpu": -1}, (0.0, 0.0)),
    ],
)
def test_a_pod_may_bring_its_own_strategy(
    kind: str, weights: Any, expected: tuple[float, float]
) -> None:
    stated = {"volcano.sh/resource-strategy-scoring-type": kind}
    if weights is not None:
        text = weights if isinstance(weights, str) else json.dumps(weights)
        stated["volcano.sh/resource-strategy-weight"] = text
    pod = make_pod("p", 2, "8Gi", annotations=stated)
    found = scores(VolcanoResourceStrategyFit, pod, half_full(), {})
    assert (found["empty"], found["used"]) == pytest.approx(expected)


def test_nodes_without_scarce_resources_are_preferred_by_the_weights() -> None:
    nodes = [
        make_node("plain", 8),
        make_node("a100", 8, **{"nvidia.com/a100": 8}),
        make_node("both", 8, **{"nvidia.com/a100": 8, "nvidia.com/t4": 2}),
    ]
    sra = {
        "enable": True,
        "resources": "nvidia.com/a100, nvidia.com/t4",
        "weight": 30,
        "resourceWeight": {"nvidia.com/a100": 3},
    }
    args: dict[str, Any] = {"resources": {"cpu": {"weight": 1}}, "sra": sra}
    found = scores(VolcanoResourceStrategyFit, make_pod("p", 2), Cluster(nodes), args)
    # The means of 75 (CPUs left) with the weight 10, and of 100, 25 and 0 with the weight 30.
    assert found == pytest.approx({"plain": 93.75, "a100": 37.5, "both": 18.75})
    args["sra"] = {**sra, "enable": False}
    found = scores(VolcanoResourceStrategyFit, make_pod("p", 2), Cluster(nodes), args)
    assert found == dict.fromkeys(found, 75.0)


PROPORTIONAL = {
    "proportional": {
        "enable": True,
        "resources": GPU,
        "resourceProportion": {f"{GPU}.cpu": 4, f"{GPU}.memory": 4},
    }
}


@pytest.mark.parametrize(
    ("cpu", "memory", "gpu", "fits"),
    [
        (4, "4G", 0, True),
        (10, "10G", 0, False),
        (4, "10G", 0, False),
        (10, "10G", 1, True),
    ],
)
def test_free_gpus_keep_what_their_pods_will_need(
    cpu: int, memory: str, gpu: int, fits: bool
) -> None:
    cluster = Cluster([make_node("n", 30, "30G", gpu=6)])
    pod = make_pod("p", cpu, memory, gpu=gpu)
    found = refusals(VolcanoResourceStrategyFit, pod, cluster, PROPORTIONAL)
    assert found == ({} if fits else {"n": f"proportional of resource {GPU} check failed"})


def test_gpus_that_are_taken_keep_nothing() -> None:
    cluster = Cluster([make_node("n", 30, "30G", gpu=6)])
    cluster.add(make_pod("train", 6, "6G", gpu=5, node="n"))
    pod = make_pod("p", 10, "10G")
    assert refusals(VolcanoResourceStrategyFit, pod, cluster, PROPORTIONAL) == {}


def test_who_waits_for_kept_cpus_learns_how_many() -> None:
    cluster = Cluster(plugins={"VolcanoResourceStrategyFit": PROPORTIONAL})
    cluster.add(make_node("n", 30, "30G", gpu=6), make_pod("p", 10, "6G"))
    reason = f"0/1 nodes are available: 1 proportional of resource {GPU} check failed."
    assert_pending(cluster, "p", reason)
    profile = cluster.profile
    diagnosis = Diagnosis(profile.runtime, profile.evaluator, profile.cycle, cluster.snapshot)
    unit = cluster.scheduler.pending_unit("default/p")
    assert unit is not None
    texts = [one.text for one in diagnosis.suggest(unit, 0.0)]
    assert f"would fit on n if 4 CPUs more were left of it for its 6 free {GPU}" in texts


@pytest.mark.parametrize(
    ("model", "args"),
    [
        (VolcanoBinpackArgs, {"resources": {"cpu": -1}}),
        (VolcanoResourceStrategyFitArgs, {"resources": {"*": {}}}),
        (VolcanoResourceStrategyFitArgs, {"resources": {"a*b": {}}}),
        (VolcanoResourceStrategyFitArgs, {"resources": {"cpu": {"type": "Most"}}}),
        (VolcanoResourceStrategyFitArgs, {"sra": {"weight": -1}}),
    ],
)
def test_arguments_without_sense_are_refused(model: Any, args: Any) -> None:
    with pytest.raises(pydantic.ValidationError):
        model(**args)
