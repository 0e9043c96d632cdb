"""A job's ring over its nodes: how often it crosses, what it carries, how long it takes."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.machine_builders import gb200_tray

from bayplan.inputs.documents import parse_documents
from bayplan.nccl import JobPlan, Member, RingPart, plan_job
from bayplan.topology.machine.readers.machinefile import known_machine, machine_from
from bayplan.topology.machine.rings import ring_order

GB = 1e9


def on(name: str, *gpus: tuple[int, ...]) -> JobPlan:
    """Return the plan for these GPUs of machines of one kind, a node each."""
    members = [Member(f"n{i}", known_machine(name), own) for i, own in enumerate(gpus)]
    return plan_job(members)


def ring(plan: JobPlan) -> list[tuple[str, int]]:
    """Follow the ring from node to node, by the neighbours of each part."""
    found: list[tuple[str, int]] = []
    first = node = plan.members[0].node
    while True:
        part = plan.part(node)
        assert plan.part(part.after).before == node
        found += [(node, gpu) for gpu in part.gpus]
        node = part.after
        if node == first:
            return found


def crossings(passed: list[tuple[str, int]]) -> int:
    """Return how often a ring goes from one node to another."""
    return sum(a[0] != b[0] for a, b in zip(passed, [*passed[1:], passed[0]], strict=True))


ALL = tuple(range(8))

# The ring ---------------------------------------------------------------------------------------


def test_the_ring_of_one_node_is_its_best_ring_and_never_crosses() -> None:
    plan = on("dgx-1v", ALL)
    assert plan.part("n0") == RingPart("n0", (0, 3, 2, 1, 5, 6, 7, 4), "n0")
    assert crossings(ring(plan)) == 0


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.sets(st.integers(0, 7), min_size=1), min_size=1, max_size=5))
def test_the_ring_passes_every_gpu_once_and_leaves_each_node_once(sets: list[set[int]]) -> None:
    passed = ring(on("dgx-1v", *(tuple(sorted(own)) for own in sets)))
    want = {(f"n{index}", gpu) for index, own in enumerate(sets) for gpu in own}
    assert len(passed) == len(want)
    assert set(passed) == want
    assert crossings(passed) == (len(sets) if len(sets) > 1 else 0)


def test_no_ring_over_nodes_crosses_more_rarely() -> None:
    first, *others = passed = ring(on("dgx-1v", (0, 3), (1, 2), (4, 5, 7)))
    least = min(crossings([first, *order]) for order in itertools.permutations(others))
    assert crossings(passed) == least == 3


def test_nodes_are_passed_in_the_order_of_their_ranks_each_by_its_own_best_ring() -> None:
    passed = ring(on("dgx-1v", (0, 1, 2, 3), (4, 5, 6, 7)))
    nodes = [node for node, _ in passed]
    assert nodes == ["n0"] * 4 + ["n1"] * 4
    bandwidth = known_machine("dgx-1v").bandwidth
    assert tuple(gpu for _, gpu in passed[:4]) == ring_order(bandwidth, (0, 1, 2, 3))
    assert tuple(gpu for _, gpu in passed[4:]) == ring_order(bandwidth, (4, 5, 6, 7))


def test_pods_on_one_node_are_one_part_of_the_ring() -> None:
    dgx = known_machine("dgx-h100")
    pods = [Member("a", dgx, (0, 1, 2, 3)), Member("a", dgx, (4, 5, 6, 7))]
    plan = plan_job(pods)
    assert plan == plan_job([Member("a", dgx, ALL)])
    assert plan.bandwidth == pytest.approx(370.8)
    assert plan.all_reduce_seconds(GB) == pytest.approx(2 * 7 / 8 * GB / (370.8 * GB))
    turns = [Member(node, dgx, (gpu,)) for gpu in range(4) for node in ("a", "b")]
    assert crossings(ring(plan_job(turns))) == 2


def test_a_node_without_a_gpu_of_the_job_has_no_part() -> None:
    with pytest.raises(ValueError, match="n7"):
        on("dgx-1v", ALL).part("n7")


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
    one = two = gb200_tray("uuid.1")
    plan = plan_job([Member("a", one, (0, 1, 2, 3)), Member("b", two, (0, 1, 2, 3))])
    assert plan.bandwidth == pytest.approx(18 * 40.1)
    # One ring over all eight, not two levels.
    assert plan.all_reduce_seconds(GB) == pytest.approx(2 * 7 / 8 * GB / (18 * 40.1 * GB))


def test_single_gpus_of_one_nvlink_domain_are_as_fast_as_their_ports() -> None:
    one = two = gb200_tray("uuid.1")
    plan = plan_job([Member("a", one, (2,)), Member("b", two, (0,))])
    assert plan.bandwidth == pytest.approx(18 * 40.1)
    assert plan.all_reduce_seconds(GB) == pytest.approx(GB / (18 * 40.1 * GB))


@pytest.mark.parametrize("domains", [("", ""), ("uuid.1", "uuid.2"), ("uuid.1", "")])
def test_nodes_of_different_nvlink_domains_need_nics(domains: tuple[str, str]) -> None:
    # The NICs of such a tray are SYS from all GPUs: data passes the host, through one of them.
    one, two = map(gb200_tray, domains)
    plan = plan_job([Member("a", one, (0, 1, 2, 3)), Member("b", two, (0, 1, 2, 3))])
    assert plan.between == plan.bandwidth == pytest.approx(400 / 8)


ALONE = """
name: alone
gpu: H100
numa: [{id: 0, roots: [{switches: [{gpus: [0], nics: [%s]}]}]}]
"""


@pytest.mark.parametrize("nics", ["", "mlx5_0"], ids=["no NIC", "a NIC of unknown rate"])
def test_what_is_not_known_between_nodes_is_not_made_up(nics: str) -> None:
    alone = machine_from(parse_documents(ALONE % nics, "machine.yaml")[0])
    plan = plan_job([Member("a", alone, (0,)), Member("b", alone, (0,))])
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
