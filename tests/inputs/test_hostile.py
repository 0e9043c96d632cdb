"""Hostile text from a cluster or a file: it costs a note or a message, never the process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.inputs import fuzz

from bayplan.api import Node
from bayplan.cluster.api_errors import ApiError
from bayplan.cluster.apiserver.request_bodies import read_json, read_yaml
from bayplan.cluster.manifests import load_manifests
from bayplan.cluster.patches import json_patch
from bayplan.errors import InputError
from bayplan.inputs.durations import parse_duration
from bayplan.profiles.loading import load_profiles
from bayplan.testing import (
    Cluster,
    assert_pending,
    make_gang,
    make_node,
    make_object,
    make_pod,
)
from bayplan.topology.machine.readers.machinefile import load_machine

DEEP = "[" * 50_000
WIDE = "\n".join(
    ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    + [f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
)
LONG = "a" * 300_000
BLANK = "\n" * 200_000
TEXTS = pytest.mark.parametrize(
    "text", [DEEP, WIDE, LONG, BLANK, '{"a":' * 10_000, "\x00", "- " * 900]
)


# Annotations ------------------------------------------------------------------------------------


def gpu_node(name: str, annotations: dict[str, str]) -> Node:
    node = make_node(name, gpu=8)
    return make_object(  # type: ignore[no-any-return]
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "annotations": annotations},
            "status": {"allocatable": {k: q.text for k, q in node.status.allocatable.items()}},
        }
    )


@TEXTS
@pytest.mark.parametrize(
    "key",
    [
        "bayplan.dev/topology",
        "bayplan.dev/machine",
        "hami.io/node-nvidia-score",
        "hami.io/node-nvidia-register",
    ],
)
def test_a_nodes_annotation_costs_it_a_note(key: str, text: str) -> None:
    cluster = Cluster([gpu_node("a", {key: text})])
    cluster.add(make_pod("p", gpu=1))
    assert cluster.schedule() == {"p": "a"}
    if text != BLANK or key == "bayplan.dev/machine":
        assert cluster.snapshot.problems


@TEXTS
@pytest.mark.parametrize(
    "key",
    [
        "gang.scheduling.koordinator.sh/network-topology-spec",
        "kueue.x-k8s.io/podset-slice-required-topology-constraints",
        "gpu.topology/policy",
        "gang.scheduling.koordinator.sh/groups",
        "bayplan.dev/duration",
    ],
)
def test_a_pods_annotation_costs_no_other_pod_its_node(key: str, text: str) -> None:
    cluster = Cluster([make_node("a", gpu=8)])
    hostile = {key: text, "gang.scheduling.koordinator.sh/name": "g"}
    hostile["gang.scheduling.koordinator.sh/min-available"] = "1"
    cluster.add(make_pod("bad", gpu=1, annotations=hostile), make_pod("good", gpu=1))
    assert cluster.schedule().get("good") == "a"


def test_a_regular_expression_of_a_hypernode_cannot_keep_the_scheduler_busy() -> None:
    hypernode = {
        "apiVersion": "topology.volcano.sh/v1alpha1",
        "kind": "HyperNode",
        "metadata": {"name": "h"},
        "spec": {
            "tier": 1,
            "members": [
                {"type": "Node", "selector": {"regexMatch": {"pattern": "^(a+)+$"}}},
            ],
        },
    }
    cluster = Cluster([make_object(hypernode), make_node("a" * 60 + "b"), make_node("n")])
    cluster.add(make_pod("p"))
    assert cluster.schedule() == {"p": "a" * 60 + "b"}


@pytest.mark.parametrize("text", ["9" * 400 + "d", "9" * 90 + "h", "1h" * 200, "", "-1s", "1e9s"])
def test_an_absurd_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a duration"):
        parse_duration(text)


# Files and bodies -------------------------------------------------------------------------------


@TEXTS
@pytest.mark.parametrize("load", [load_profiles, load_machine, lambda path: load_manifests([path])])
def test_a_file_is_refused_with_its_name(tmp_path: Path, load: Any, text: str) -> None:
    path = tmp_path / "hostile.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=r"hostile\.yaml"):
        load(str(path) if load not in (load_profiles, load_machine) else path)


@pytest.mark.parametrize(
    "text", [DEEP, WIDE, "{a: " * 5_000, "\x00", "a: [", "a: b: c", "- " * 900]
)
def test_a_yaml_body_is_a_bad_request(text: str) -> None:
    with pytest.raises(ApiError) as caught:
        read_yaml(text.encode())
    assert caught.value.code == 400


@pytest.mark.parametrize(
    "text", [DEEP, '{"a":' * 5_000, "\x00", "{", "nope", "[" * 200 + "]" * 200]
)
def test_a_json_body_is_a_bad_request(text: str) -> None:
    with pytest.raises(ApiError) as caught:
        read_json(text.encode())
    assert caught.value.code == 400


# Mutations --------------------------------------------------------------------------------------


def test_a_mutated_text_always_has_an_answer() -> None:
    crashes = [one for one in fuzz.fuzz(600, seed=7) if "took" not in one.problem]
    assert not crashes, f"{crashes[0].target}: {crashes[0].problem}\n{crashes[0].text[:500]}"


def test_copies_of_copies_in_a_json_patch_are_refused() -> None:
    target = {"metadata": {"annotations": {"a": "b"}}}
    copy = {"op": "copy", "from": "/metadata/annotations"}
    patch = [{**copy, "path": f"/metadata/annotations/x{i}"} for i in range(40)]
    with pytest.raises(ApiError, match="error in our request"):
        json_patch(target, patch)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ('{"gatherStrategies":[]}', '"gatherStrategies" is not supported; did you mean'),
        (
            '{"gatherStrategy":[{"layer":"R","podCountMultiple":2,"strateg":"MustGather"}]}',
            '"strateg" is not supported',
        ),
        ('{"gatherStrategy":[{"layer":"R","podCountMultiple":-2}]}', "expected 1 or more, got -2"),
    ],
)
def test_a_typo_in_a_gather_strategy_is_reported(spec: str, message: str) -> None:
    key = "gang.scheduling.koordinator.sh/network-topology-spec"
    cluster = Cluster([make_node("n")])
    cluster.add(make_gang("g", 1, {key: spec}), make_pod("p", gang="g"))
    assert_pending(cluster, "p", message)
