"""Effective requests of pods, by the rule of Kubernetes."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.api import Pod, PodSpec, Quantity
from bayplan.api.objects import decode_part
from bayplan.api.resources import (
    DEFAULT_MEMORY,
    DEFAULT_MILLI_CPU,
    PodRequests,
    amount_of,
    pod_requests,
)

Resources = dict[str, str]


def container(
    requests: Resources | None = None, limits: Resources | None = None, sidecar: bool = False
) -> dict[str, Any]:
    made: dict[str, Any] = {
        "name": "c",
        "resources": {"requests": requests or {}, "limits": limits or {}},
    }
    if sidecar:
        made["restartPolicy"] = "Always"
    return made


def cpu(amount: str, sidecar: bool = False) -> dict[str, Any]:
    return container({"cpu": amount}, sidecar=sidecar)


def requests_of(**spec: Any) -> PodRequests:
    return pod_requests(decode_part(PodSpec, spec))


def effective(**spec: Any) -> dict[str, int]:
    return dict(requests_of(**spec).effective)


def test_containers_add_up() -> None:
    both = [container({"cpu": "500m", "memory": "1Gi"}), container({"cpu": "2", "a/gpu": "1"})]
    assert effective(containers=both) == {"cpu": 2500, "memory": 2**30, "a/gpu": 1}


def test_cpu_counts_in_thousandths_and_the_rest_in_units() -> None:
    assert amount_of("cpu", Quantity("1.5")) == 1500
    assert amount_of("memory", Quantity("1.5")) == 2
    assert amount_of("nvidia.com/gpu", Quantity("2")) == 2


@pytest.mark.parametrize(
    ("init", "main", "expected"),
    [
        (["1"], ["2"], 2000),
        (["3"], ["2"], 3000),
        # Init containers run one after the other: the largest counts, not their sum.
        (["3", "4"], ["2"], 4000),
        (["1", "1", "1"], ["2"], 2000),
        (["3"], ["2", "2"], 4000),
    ],
)
def test_the_peak_of_the_init_phase_or_the_sum_counts(
    init: list[str], main: list[str], expected: int
) -> None:
    spec = {"initContainers": [cpu(a) for a in init], "containers": [cpu(a) for a in main]}
    assert effective(**spec) == {"cpu": expected}


@pytest.mark.parametrize(
    ("init", "expected"),
    [
        # A sidecar runs beside the containers.
        ([cpu("1", sidecar=True)], 3000),
        # It is started before the init container, so both run at once: 1 + 4.
        ([cpu("1", sidecar=True), cpu("4")], 5000),
        # It is started after the init container: 4 alone, then 1 + 2.
        ([cpu("4"), cpu("1", sidecar=True)], 4000),
        # Both sidecars run beside the second init container: 1 + 1 + 3.
        ([cpu("1", sidecar=True), cpu("1", sidecar=True), cpu("3")], 5000),
        ([cpu("1", sidecar=True), cpu("2"), cpu("3", sidecar=True)], 6000),
    ],
)
def test_sidecars_count_from_when_they_start(init: list[dict[str, Any]], expected: int) -> None:
    assert effective(initContainers=init, containers=[cpu("2")]) == {"cpu": expected}


def test_the_init_rule_holds_for_each_resource_by_itself() -> None:
    spec = {
        "initContainers": [container({"cpu": "1", "memory": "4Gi"})],
        "containers": [container({"cpu": "2", "memory": "1Gi"})],
    }
    assert effective(**spec) == {"cpu": 2000, "memory": 4 * 2**30}


def test_overhead_comes_on_top_of_the_larger_phase() -> None:
    spec = {
        "initContainers": [cpu("3")],
        "containers": [cpu("2")],
        "overhead": {"cpu": "250m", "memory": "64Mi"},
    }
    assert effective(**spec) == {"cpu": 3250, "memory": 64 * 2**20}


def test_a_missing_request_is_taken_from_the_limit() -> None:
    one = container({"cpu": "1"}, {"cpu": "4", "memory": "1Gi", "nvidia.com/gpu": "2"})
    assert effective(containers=[one]) == {"cpu": 1000, "memory": 2**30, "nvidia.com/gpu": 2}


def test_a_request_of_zero_is_not_taken_from_the_limit() -> None:
    assert effective(containers=[container({"cpu": "0"}, {"cpu": "4"})]) == {}


def test_zero_amounts_are_left_out() -> None:
    both = container({"cpu": "0", "memory": "0Gi", "nvidia.com/gpu": "0"})
    assert effective(containers=[both]) == {}


def test_pod_level_requests_replace_the_sum() -> None:
    spec = {
        "containers": [container({"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "1"})],
        "resources": {"requests": {"cpu": "4"}},
    }
    assert effective(**spec) == {"cpu": 4000, "memory": 2**30, "nvidia.com/gpu": 1}


def test_overhead_is_added_to_pod_level_requests() -> None:
    spec = {
        "containers": [cpu("1")],
        "resources": {"requests": {"cpu": "4"}},
        "overhead": {"cpu": "100m"},
    }
    assert effective(**spec) == {"cpu": 4100}


def test_pod_level_huge_pages_replace_the_sum() -> None:
    spec = {
        "containers": [container({"hugepages-2Mi": "2Mi"})],
        "resources": {"requests": {"hugepages-2Mi": "8Mi"}},
    }
    assert effective(**spec) == {"hugepages-2Mi": 8 * 2**20}


def test_a_pod_level_limit_fills_in_where_no_container_requests_the_resource() -> None:
    spec = {"containers": [container()], "resources": {"limits": {"cpu": "4", "memory": "1Gi"}}}
    assert effective(**spec) == {"cpu": 4000, "memory": 2**30}


def test_container_requests_win_over_a_pod_level_limit() -> None:
    # The API server makes the containers' sum the pod-level request; the limit is no request then.
    spec = {"containers": [cpu("1"), cpu("500m")], "resources": {"limits": {"cpu": "4"}}}
    assert effective(**spec) == {"cpu": 1500}


def test_a_pod_level_request_of_zero_replaces_the_sum() -> None:
    spec = {"containers": [cpu("2")], "resources": {"requests": {"cpu": "0"}}}
    assert effective(**spec) == {}


def test_scoring_assumes_something_of_containers_that_request_nothing() -> None:
    found = requests_of(containers=[container(), container({"cpu": "1"})])
    assert found.effective == {"cpu": 1000}
    assert found.scoring == {"cpu": DEFAULT_MILLI_CPU + 1000, "memory": 2 * DEFAULT_MEMORY}


def test_scoring_takes_an_explicit_zero_at_its_word() -> None:
    found = requests_of(containers=[container({"cpu": "0", "memory": "0"})])
    assert found.scoring == {"cpu": 0, "memory": 0}


def test_scoring_assumes_nothing_where_the_pod_level_says_it() -> None:
    found = requests_of(containers=[container()], resources={"requests": {"cpu": "1"}})
    assert found.scoring == {"cpu": 1000, "memory": DEFAULT_MEMORY}


def test_a_pod_without_requests_has_none() -> None:
    assert effective(containers=[container()]) == {}
    assert pod_requests(Pod().spec).effective == {}


def test_asking_does_not_change_the_answer() -> None:
    spec = decode_part(
        PodSpec,
        {"initContainers": [cpu("1", sidecar=True), cpu("4")], "containers": [cpu("2")]},
    )
    assert pod_requests(spec) == pod_requests(spec)
