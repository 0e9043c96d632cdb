"""What of their requests workloads are charged for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from pydantic import ValidationError
from tests.plugins.queues.kueue.kueue_builders import (
    NOW,
    cluster_queue,
    flavor,
    load,
    local_queue,
    workload,
)

from bayplan_plugins.queues.kueue import Admission
from bayplan_plugins.queues.kueue.args import KueueArgs, ResourcesArgs

GPU, CREDITS = "nvidia.com/gpu", "example.com/credits"


def charged(requests: Mapping[str, float], *rules: Any, **more: Any) -> Mapping[str, float]:
    args = ResourcesArgs.model_validate({"transformations": rules, **more})
    return args.settings().of(requests)


def rule(resource: str, outputs: Mapping[str, str], **more: str) -> dict[str, Any]:
    return {"input": resource, "outputs": outputs, **more}


def test_a_resource_is_charged_beside_what_it_stands_for_or_in_its_place() -> None:
    asked = {"cpu": 1000, GPU: 2}
    assert charged(asked, rule(GPU, {CREDITS: "5"})) == {"cpu": 1000, GPU: 2, CREDITS: 10}
    replaced = rule(GPU, {CREDITS: "5"}, strategy="Replace")
    assert charged(asked, replaced) == {"cpu": 1000, CREDITS: 10}
    assert charged(asked, rule("cpu", {CREDITS: "1500m"}))[CREDITS] == 2
    assert charged(asked, rule(GPU, {"cpu": "250m"}))["cpu"] == 1500
    assert charged(asked, rule("example.com/other", {CREDITS: "1"})) == asked


def test_one_request_may_multiply_another() -> None:
    memory = rule("example.com/memory", {CREDITS: "1"}, strategy="Replace", multiplyBy=GPU)
    assert charged({GPU: 3, "example.com/memory": 4}, memory) == {GPU: 3, CREDITS: 12}
    assert charged({"example.com/memory": 4}, memory) == {CREDITS: 4}


def test_outputs_reduce_each_other_but_nothing_that_was_requested() -> None:
    rules = rule(GPU, {CREDITS: "5", "cpu": "-4"}), rule("cpu", {CREDITS: "-100"})
    assert charged({"cpu": 1000, GPU: 2}, *rules) == {"cpu": 1000, GPU: 2, CREDITS: 0}


def test_resources_with_some_prefixes_are_not_charged() -> None:
    asked = {"cpu": 1000, "example.com/a": 1, "example.org/b": 1}
    found = charged(asked, excludeResourcePrefixes=["example.com/", "example.org/b"])
    assert found == {"cpu": 1000}


@pytest.mark.parametrize(
    "rules",
    [
        [rule(GPU, {}), rule(GPU, {})],
        [rule(GPU, {CREDITS: "many"})],
        [rule(GPU, {}, strategy="Drop")],
    ],
    ids=["twice", "no quantity", "no strategy"],
)
def test_what_cannot_be_charged_is_refused(rules: list[Any]) -> None:
    with pytest.raises(ValidationError):
        charged({}, *rules)


def test_a_workload_is_admitted_and_shown_with_what_it_is_charged_for() -> None:
    resources = {
        "excludeResourcePrefixes": ["example.com/free"],
        "transformations": [rule(GPU, {CREDITS: "5"}, strategy="Replace")],
    }
    settings = KueueArgs.model_validate({"resources": resources}).settings()
    queue = cluster_queue("q", {"a": {CREDITS: 20}})
    asked = {GPU: 1, "example.com/free": 1}
    admission = load(Admission(settings), [flavor("a"), queue, local_queue("q", "q")])
    load(admission, [workload("w", "q", asked, count=3), workload("x", "q", asked, count=2)])
    assert admission.cycle(NOW).admitted == ["default/w"]
    admission.cycle(NOW)
    held = admission.store.workloads["default/w"].status.admission
    assert held is not None
    (assigned,) = held.pod_set_assignments
    assert {name: one.text for name, one in assigned.resource_usage.items()} == {CREDITS: "15"}
    stated = admission.store.workloads["default/x"].status.conditions[0].message
    assert stated.endswith(f"insufficient unused quota for {CREDITS} in flavor a, 5 more needed")
