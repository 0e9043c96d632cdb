"""A job's ring over its nodes: how often it crosses, what it carries, how long it takes."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bayplan.nccl import JobPlan, Member, plan_job
from bayplan.topology.machine import Machine
from bayplan.topology.machinefile import known_machine
from bayplan.topology.rings import ring_across, ring_order

GB = 1e9


def on(name: str, *gpus: tuple[int, ...]) -> JobPlan:
    """Return the plan for these GPUs of machines of one kind, a node each."""
    members = [Member(f"n{i}", known_machine(name), own) for i, own in enumerate(gpus)]
    return plan_job(members)


def in_domain(*domains: str) -> list[Machine]:
    tray = known_machine("gb200-nvl72")
    return [
        replace(tray, gpus=tuple(replace(gpu, nvlink_domain=domain) for gpu in tray.gpus))
        for domain in domains
    ]


ALL = tuple(range(8))

# The ring ---------------------------------------------------------------------------------------


def test_the_ring_of_one_node_is_its_best_ring_and_never_crosses() -> None:
    plan = on("dgx-1v", ALL)
    assert [gpu for _, gpu in plan.ring] == [0, 3, 2, 1, 5, 6, 7, 4]
    assert plan.crossings == 0
    assert plan.ranks == 8


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.sets(st.integers(0, 7), min_size=1), min_size=1, max_size=5))
def test_the_ring_passes_every_gpu_once_and_leaves_each_node_once(sets: list[set[int]]) -> None:
    plan = on("dgx-1v", *(tuple(sorted(own)) for own in sets))
    want = {(f"n{index}", gpu) for index, own in enumerate(sets) for gpu in own}
    assert len(plan.ring) == plan.ranks == len(want)
    assert set(plan.ring) == want
    assert plan.crossings == (len(sets) if len(sets) > 1 else 0)


def test_no_ring_over_nodes_crosses_more_rarely() -> None:
    plan = on("dgx-1v", (0, 3), (1, 2), (4, 5, 7))

    def crossings(ring: tuple[tuple[str, int], ...]) -> int:
        return sum(a[0] != b[0] for a, b in zip(ring, (*ring[1:], ring[0]), strict=True))

    first, *others = plan.ring
    least = min(crossings((first, *order)) for order in itertools.permutations(others))
    assert plan.crossings == crossings(plan.ring) == least == 3


def test_nodes_are_passed_in_the_order_of_their_ranks_each_by_its_own_best_ring() -> None:
    plan = on("dgx-1v", (0, 1, 2, 3), (4, 5, 6, 7))
    nodes = [node for node, _ in plan.ring]
    assert nodes == ["n0"] * 4 + ["n1"] * 4
    bandwidth = known_machine("dgx-1v").bandwidth
    assert tuple(gpu for _, gpu in plan.ring[:4]) == ring_order(bandwidth, (0, 1, 2, 3))
    assert tuple(gpu for _, gpu in plan.ring[4:]) == ring_order(bandwidth, (4, 5, 6, 7))
    assert ring_across([(7, 5), (1,)]) == [(0, 7), (0, 5), (1, 1)]


@pytest.mark.parametrize("gpus", [(), ((),), ((0, 1), ())])
def test_a_job_without_gpus_has_no_plan(gpus: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(ValueError, match="one GPU or more each"):
        on("dgx-1v", *gpus)


# Bandwidths, as NCCL reckons --------------------------------------------------------------------


def test_a_node_on_nvswitch_carries_what_its_ports_do() -> None:
    plan = on("dgx-h100", ALL)
    assert plan.within == pytest.approx(18 * 20.6)
    assert math.isinf(plan.between)
    assert plan.bandwidth == plan.within


def test_a_cube_mesh_carries_six_rings() -> None:
    assert on("dgx-1v", ALL).bandwidth == pytest.approx(6 * 20)


def test_between_nodes_the_nics_of_the_gpus_count_and_storage_ports_do_not() -> None:
    assert on("dgx-h100", ALL, ALL).between == pytest.approx(8 * 400 / 8)
    assert on("dgx-h100", (0, 1), (0, 1)).between == pytest.approx(2 * 400 / 8)


def test_a_nic_that_two_gpus_share_counts_once() -> None:
    assert on("dgx-1v", (0, 1), (0, 1)).between == pytest.approx(100 / 8)
    assert on("dgx-1v", (0, 2), (0, 2)).between == pytest.approx(200 / 8)


def test_the_slowest_node_counts() -> None:
    fast, slow = known_machine("dgx-h100"), known_machine("dgx-1v")
    plan = plan_job([Member("fast", fast, ALL), Member("slow", slow, ALL)])
    assert plan.within == pytest.approx(120)
    assert plan.between == pytest.approx(4 * 100 / 8)
    assert plan.bandwidth == plan.between
    uneven = on("dgx-h100", ALL, (0,))
    assert uneven.between == pytest.approx(50)


def test_in_one_nvlink_domain_the_ring_stays_on_nvlink() -> None:
    one, two = in_domain("uuid.1", "uuid.1")
    plan = plan_job([Member("a", one, (0, 1, 2, 3)), Member("b", two, (0, 1, 2, 3))])
    assert plan.bandwidth == pytest.approx(18 * 40.1)


@pytest.mark.parametrize("domains", [("", ""), ("uuid.1", "uuid.2"), ("uuid.1", "")])
def test_nodes_of_different_nvlink_domains_need_nics(domains: tuple[str, str]) -> None:
    # The NICs of such a tray are SYS from all GPUs, so none counts.
    one, two = in_domain(*domains)
    plan = plan_job([Member("a", one, (0, 1, 2, 3)), Member("b", two, (0, 1, 2, 3))])
    assert plan.between == plan.bandwidth == 0
    assert math.isinf(plan.all_reduce_seconds(GB))


# Time -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", range(2, 9))
def test_on_one_node_the_time_is_that_of_a_ring(count: int) -> None:
    plan = on("dgx-h100", tuple(range(count)))
    want = 2 * (count - 1) / count * 4 * GB / (370.8 * GB)
    assert plan.all_reduce_seconds(4 * GB) == pytest.approx(want)


def test_between_nodes_the_nics_carry_a_share_more() -> None:
    plan = on("dgx-h100", ALL, ALL, ALL)
    within = 2 * 7 / 8 * GB / (370.8 * GB)
    between = 2 * 2 / 3 * GB / (400 * GB)
    assert plan.all_reduce_seconds(GB) == pytest.approx(within + between)


def test_one_gpu_a_node_leaves_the_time_between_nodes() -> None:
    plan = on("dgx-h100", (0,), (0,))
    assert math.isinf(plan.within)
    assert plan.bandwidth == pytest.approx(50)
    assert plan.all_reduce_seconds(GB) == pytest.approx(GB / (50 * GB))


def test_one_gpu_alone_takes_no_time() -> None:
    assert on("dgx-h100", (5,)).all_reduce_seconds(GB) == 0


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(1, 8), st.integers(1, 4), st.floats(1, 1e12))
def test_time_grows_with_the_size_and_with_the_nodes(gpus: int, nodes: int, size: float) -> None:
    own = tuple(range(gpus))
    plan = on("dgx-h100", *[own] * nodes)
    assert plan.all_reduce_seconds(2 * size) == pytest.approx(2 * plan.all_reduce_seconds(size))
    more = on("dgx-h100", *[own] * (nodes + 1))
    assert more.all_reduce_seconds(size) > plan.all_reduce_seconds(size)
