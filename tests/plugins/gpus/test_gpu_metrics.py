"""The Prometheus metrics of the GPUs that were chosen."""

from __future__ import annotations

import pytest
from prometheus_client import REGISTRY

from bayplan.api import Pod
from bayplan.testing import Cluster, assert_pending, assert_placed, make_node, make_pod


def counted(cluster: Cluster, *pods: Pod) -> dict[str, float]:
    """Return by how much each series grew while these pods were scheduled."""
    series = [
        (name, label, value)
        for name, label, values in (
            ("gpu_scheduler_topology_schedules_total", "satisfied", ("true", "false")),
            ("gpu_scheduler_allocations_total", "same_numa", ("true", "false")),
            ("gpu_scheduler_topology_fallbacks_total", "reason", ("unmet", "unknown")),
        )
        for value in values
    ]

    def now() -> list[float]:
        return [
            REGISTRY.get_sample_value(name, {label: value}) or 0.0 for name, label, value in series
        ]

    for plugin in cluster.profile.runtime.plugins.values():
        plugin.declare_metrics()
    before = now()
    cluster.add(*pods)
    cluster.schedule()
    grown = zip(series, before, now(), strict=True)
    return {f"{label}={value}": new - old for (_, label, value), old, new in grown if new != old}


def machine(name: str, gpus: int) -> Cluster:
    labels = {"bayplan.dev/machine": name}
    return Cluster([make_node("n", cpu=64, memory="512Gi", labels=labels, gpu=gpus)])


def gpu_pod(name: str, count: int, policy: str = "") -> Pod:
    return make_pod(name, annotations={"gpu.topology/policy": policy} if policy else {}, gpu=count)


@pytest.mark.parametrize(
    ("count", "policy", "expected"),
    [
        (2, "nvlink", {"satisfied=true": 1, "same_numa=true": 1}),
        # Bridged in pairs, a pair on each socket: three are neither linked nor on one NUMA node.
        (3, "nvlink", {"satisfied=false": 1, "same_numa=false": 1, "reason=unmet": 1}),
        (3, "single-numa", {"satisfied=false": 1, "same_numa=false": 1, "reason=unmet": 1}),
        # Nothing was preferred, so nothing was given up.
        (3, "", {"satisfied=true": 1, "same_numa=false": 1}),
    ],
)
def test_a_preference_that_was_given_up_counts(
    count: int, policy: str, expected: dict[str, float]
) -> None:
    cluster = machine("a100-pcie-bridged", 4)
    assert counted(cluster, gpu_pod("p", count, policy)) == expected
    assert_placed(cluster, p="n")


def test_pods_that_are_pending_or_have_no_gpus_are_not_counted() -> None:
    cluster = machine("a100-pcie-bridged", 4)
    assert counted(cluster, gpu_pod("large", 5), make_pod("plain")) == {}
    assert_pending(cluster, "large")


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("", {"satisfied=true": 1}),
        ("nvlink", {"satisfied=false": 1, "reason=unknown": 1}),
    ],
)
def test_a_preference_counts_as_given_up_where_the_topology_is_not_known(
    policy: str, expected: dict[str, float]
) -> None:
    cluster = Cluster([make_node("n", gpu=8)])
    expected = {**expected, "same_numa=false": 1}
    assert counted(cluster, gpu_pod("p", 2, policy)) == expected


def test_every_pod_counts_once() -> None:
    cluster = machine("dgx-1v", 8)
    pods = [gpu_pod(f"p{index}", 2, "single-numa") for index in range(4)]
    assert counted(cluster, *pods) == {"satisfied=true": 4, "same_numa=true": 4}
