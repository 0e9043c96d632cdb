"""Volcano's scheduler configuration as a profile: its scores keep their weights and arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.paths import ROOT

from bayplan.migration.volcano import volcano_profile
from bayplan.profiles.loading import load_profiles

GPU = "nvidia.com/gpu"
USUAL = {
    "NodeResourcesFit": 1,
    "NodeAffinity": 2,
    "InterPodAffinity": 2,
    "NodeResourcesBalancedAllocation": 1,
    "TaintToleration": 3,
    "ImageLocality": 1,
    "PodTopologySpread": 2,
}


def converted(*plugins: dict[str, Any]) -> tuple[Any, tuple[str, ...]]:
    content = {"actions": "enqueue, allocate", "tiers": [{"plugins": list(plugins)}]}
    return volcano_profile(content, "volcano")


def loaded(made: Any, folder: Path) -> dict[str, int]:
    """Return the weights of scores of a profile, as the loader reads it."""
    path = folder / "profiles.yaml"
    kind = "KubeSchedulerConfiguration"
    path.write_text(yaml.safe_dump({"kind": kind, "profiles": [made]}))
    (profile,) = load_profiles(path).profiles
    return dict(profile.points["score"])


def args_of(made: Any, plugin: str) -> Any:
    (found,) = (one["args"] for one in made["pluginConfig"] if one["name"] == plugin)
    return found


def test_the_built_in_configuration_scores_as_nodeorder_does(tmp_path: Path) -> None:
    made, notes = volcano_profile({"actions": "allocate"}, "volcano")
    weights = loaded(made, tmp_path)
    assert {name: weights[name] for name in USUAL} == USUAL
    assert notes == ()
    assert args_of(made, "InterPodAffinity") == {"hardPodAffinityWeight": 0}


def test_without_nodeorder_none_of_its_scores_counts(tmp_path: Path) -> None:
    for plugins in ([{"name": "gang"}], [{"name": "nodeorder", "enableNodeOrder": False}]):
        made, _ = converted(*plugins)
        assert not loaded(made, tmp_path).keys() & USUAL.keys()


def test_weights_of_nodeorder_are_kept_and_zero_switches_a_score_off(tmp_path: Path) -> None:
    arguments = {
        "leastrequested.weight": 0,
        "mostrequested.weight": 4,
        "balancedresource.weight": 0,
        "nodeaffinity.weight": 7,
    }
    made, _ = converted({"name": "nodeorder", "arguments": arguments})
    weights = loaded(made, tmp_path)
    assert weights["NodeResourcesFit"] == 4
    assert args_of(made, "NodeResourcesFit")["scoringStrategy"]["type"] == "MostAllocated"
    assert weights["NodeAffinity"] == 7
    assert "NodeResourcesBalancedAllocation" not in weights


@pytest.mark.parametrize(
    ("least", "most", "kind", "weight"),
    [(3, 1, "LeastAllocated", 2), (1, 3, "MostAllocated", 2), (2, 2, "LeastAllocated", None)],
)
def test_opposite_scores_leave_their_difference(
    least: int, most: int, kind: str, weight: int | None, tmp_path: Path
) -> None:
    arguments = {"leastrequested.weight": least, "mostrequested.weight": most}
    made, notes = converted({"name": "nodeorder", "arguments": arguments})
    assert loaded(made, tmp_path).get("NodeResourcesFit") == weight
    assert args_of(made, "NodeResourcesFit")["scoringStrategy"]["type"] == kind
    assert len(notes) == 1
    assert "opposites" in notes[0]


def test_binpack_keeps_its_weights(tmp_path: Path) -> None:
    arguments = {
        "binpack.weight": 10,
        "binpack.cpu": 5,
        "binpack.memory": -1,
        "binpack.resources": f"{GPU}, example.com/foo",
        f"binpack.resources.{GPU}": 2,
    }
    made, notes = converted({"name": "binpack", "arguments": arguments})
    assert loaded(made, tmp_path)["VolcanoBinpack"] == 10
    assert args_of(made, "VolcanoBinpack") == {
        "resources": {GPU: 2, "example.com/foo": 1, "cpu": 5, "memory": 1}
    }
    assert notes == ()


@pytest.mark.parametrize(
    "plugin",
    [
        {"name": "binpack", "arguments": {"binpack.weight": 0}},
        {"name": "binpack", "enableNodeOrder": False},
        {"name": "task-topology", "arguments": {"task-topology.weight": 0}},
    ],
    ids=str,
)
def test_what_does_not_score_there_does_not_here(plugin: dict[str, Any], tmp_path: Path) -> None:
    made, _ = converted(plugin)
    assert not {"VolcanoBinpack", "VolcanoTaskTopology"} & loaded(made, tmp_path).keys()


def test_a_task_topology_keeps_its_weight_in_our_scale(tmp_path: Path) -> None:
    made, _ = converted({"name": "task-topology", "arguments": {"task-topology.weight": 10}})
    assert loaded(made, tmp_path)["VolcanoTaskTopology"] == 100


def test_a_resource_strategy_is_carried_over(tmp_path: Path) -> None:
    arguments = {
        "resourceStrategyFitWeight": 10,
        "resources": {
            GPU: {"type": "MostAllocated", "weight": 2},
            "cpu": {"type": "Least", "weight": 0},
            "*": {"type": "MostAllocated"},
        },
        "sra": {"enable": True, "resources": f"{GPU}, ", "weight": 5, "resourceWeight": {GPU: -1}},
        "proportional": {
            "enable": True,
            "resources": GPU,
            "resourceProportion": {f"{GPU}.cpu": 4.5, f"{GPU}.memory": -8},
        },
    }
    made, notes = converted({"name": "resource-strategy-fit", "arguments": arguments})
    name = "VolcanoResourceStrategyFit"
    assert loaded(made, tmp_path)[name] == 15
    assert args_of(made, name) == {
        "resourceStrategyFitWeight": 10,
        "resources": {
            GPU: {"type": "MostAllocated", "weight": 2},
            "cpu": {"type": "LeastAllocated", "weight": 1},
        },
        "sra": {"enable": True, "resources": GPU, "weight": 5, "resourceWeight": {GPU: 1}},
        "proportional": {
            "enable": True,
            "resources": GPU,
            "resourceProportion": {f"{GPU}.cpu": 4.5, f"{GPU}.memory": 1},
        },
    }
    assert notes == (
        "resource-strategy-fit: cpu counts as LeastAllocated",
        'resource-strategy-fit: the pattern "*" has no effect',
    )


def test_proportions_alone_filter_and_do_not_score(tmp_path: Path) -> None:
    arguments = {
        "resourceStrategyFitWeight": 0,
        "proportional": {"enable": True, "resources": GPU, "resourceProportion": {}},
    }
    made, _ = converted({"name": "resource-strategy-fit", "arguments": arguments})
    assert "VolcanoResourceStrategyFit" not in loaded(made, tmp_path)
    assert made["plugins"]["score"]["disabled"][-1] == {"name": "VolcanoResourceStrategyFit"}


def test_node_groups_and_revocable_nodes_stay_on(tmp_path: Path) -> None:
    made, _ = converted(
        {"name": "nodegroup", "enableHierarchy": True, "arguments": {"strict": False}},
        {"name": "tdm"},
    )
    assert {"VolcanoNodeGroups", "VolcanoRevocableNodes"} <= loaded(made, tmp_path).keys()
    assert args_of(made, "VolcanoNodeGroups") == {"strict": False, "enableHierarchy": True}


@pytest.mark.parametrize(
    ("arguments", "note"),
    [
        ({"binpack.weight": "10"}, "binpack: binpack.weight is no whole number, so 1 counts"),
        ({"binpack.weight": -2}, "binpack: binpack.weight becomes 0"),
        ({"binpack.cpu": True}, "binpack: binpack.cpu is no whole number, so 1 counts"),
    ],
    ids=str,
)
def test_numbers_that_are_none_are_named(
    arguments: dict[str, Any], note: str, tmp_path: Path
) -> None:
    made, notes = converted({"name": "binpack", "arguments": arguments})
    assert notes == (note,)
    loaded(made, tmp_path)


def test_plugins_without_a_counterpart_are_named() -> None:
    _, notes = converted({"name": "extender"}, {"name": "rescheduling"})
    assert notes == (
        "the plugin extender has no counterpart",
        "the plugin rescheduling has no counterpart",
    )


@pytest.mark.parametrize(
    "content",
    [
        {"tiers": "all"},
        {"tiers": [1, {"plugins": "x"}, {"plugins": [None, {"name": 4}]}]},
        {"tiers": [{"plugins": [{"name": "binpack", "arguments": ["x"]}]}]},
        {
            "tiers": [
                {
                    "plugins": [
                        {
                            "name": "resource-strategy-fit",
                            "arguments": {"resources": [1], "sra": "on", "proportional": {1: 2}},
                        }
                    ]
                }
            ]
        },
    ],
    ids=str,
)
def test_what_makes_no_sense_breaks_nothing(content: dict[str, Any]) -> None:
    made, _ = volcano_profile(content, "volcano")
    assert made["schedulerName"] == "volcano"


def test_the_profile_of_the_documents_is_what_its_configuration_becomes() -> None:
    given = yaml.safe_load((ROOT / "configs" / "profiles" / "volcano-scores.yaml").read_text())
    (profile,) = given["profiles"]
    configuration = profile["pluginConfig"][0]["args"]["volcano"]
    made, notes = volcano_profile(configuration, "volcano")
    assert (made, notes) == (profile, ())


def test_usage_keeps_its_arguments_and_prometheus(tmp_path: Path) -> None:
    arguments = {
        "usage.weight": 7,
        "cpu.weight": 2,
        "thresholds": {"cpu": 70, "mem": 101},
        "estimator": {"request_ratio": 0.5, "be_cpu": "300m"},
    }
    content = {
        "tiers": [{"plugins": [{"name": "usage", "arguments": arguments}]}],
        "metrics": {"type": "prometheus", "address": "http://prometheus:9090", "interval": "20s"},
    }
    made, notes = volcano_profile(content, "volcano")
    assert notes == ()
    assert loaded(made, tmp_path)["VolcanoUsage"] == 7
    assert args_of(made, "VolcanoUsage") == {
        "cpuWeight": 2,
        "memoryWeight": 1,
        "thresholds": {"cpu": 70},
        "estimator": {"request_ratio": 0.5, "be_cpu": "300m"},
        "metricsIntervalSeconds": 20.0,
        "metricProvider": {
            "type": "Prometheus",
            "address": "http://prometheus:9090",
            "insecureSkipVerify": False,
        },
    }


def test_usage_without_predicates_refuses_nobody(tmp_path: Path) -> None:
    made, notes = volcano_profile(
        {
            "tiers": [{"plugins": [{"name": "usage", "enablePredicate": False}]}],
            "metrics": {"type": "elasticsearch", "interval": "soon"},
        },
        "volcano",
    )
    assert loaded(made, tmp_path)["VolcanoUsage"] == 5
    assert made["plugins"]["filter"]["disabled"] == [{"name": "VolcanoUsage"}]
    assert notes == ("metrics of type elasticsearch have no counterpart: metrics-server is asked",)
