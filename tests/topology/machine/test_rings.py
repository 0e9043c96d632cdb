"""Rings: the best order equals brute force, and what rings carry follows from the links alone."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.machine_builders import linked_machine

from bayplan.topology.machine.model import Machine
from bayplan.topology.machine.readers.machinefile import known_machine
from bayplan.topology.machine.rings import (
    BUS_FACTORS,
    Matrix,
    all_reduce_seconds,
    bus_factor,
    ring_edges,
    ring_model,
    ring_order,
    slowest_edge,
)

Links = dict[tuple[int, int], int]
SPEEDS = (5.0, 10.0, 25.0, 50.0, 100.0)


def symmetric(size: int, values: Sequence[float]) -> Matrix:
    """Return the matrix with these values above its diagonal, row by row."""
    matrix = np.full((size, size), np.inf)
    rows, columns = np.triu_indices(size, 1)
    matrix[rows, columns] = matrix[columns, rows] = values
    return matrix


def random_matrix(seed: int, size: int) -> Matrix:
    draw = random.Random(seed)
    return symmetric(size, [draw.choice(SPEEDS) for _ in range(size * (size - 1) // 2)])


def length(matrix: Matrix, order: Sequence[int]) -> float:
    return sum(1 / float(matrix[a, b]) for a, b in ring_edges(order))


def all_orders(gpus: Sequence[int]) -> list[tuple[int, ...]]:
    """Return every ring over some GPUs, from the first of them and in one direction."""
    first, *others = gpus
    return [
        (first, *order)
        for order in itertools.permutations(others)
        if len(order) < 2 or order[0] < order[-1]
    ]


@st.composite
def matrices(draw: st.DrawFn, largest: int = 7) -> Matrix:
    size = draw(st.integers(2, largest))
    count = size * (size - 1) // 2
    return symmetric(size, draw(st.lists(st.sampled_from(SPEEDS), min_size=count, max_size=count)))


# The order of one ring --------------------------------------------------------------------------


def test_edges_of_the_smallest_rings() -> None:
    assert ring_edges([4]) == []
    assert ring_edges([4, 2]) == [(4, 2), (2, 4)]
    assert ring_edges([1, 3, 2]) == [(1, 3), (3, 2), (2, 1)]
    assert math.isinf(slowest_edge(random_matrix(0, 3), [1]))


def check_is_best(matrix: Matrix) -> None:
    size = len(matrix)
    order = ring_order(matrix, range(size))
    assert sorted(order) == list(range(size))
    assert order[0] == 0
    rings = all_orders(range(size))
    fastest = max(slowest_edge(matrix, ring) for ring in rings)
    assert slowest_edge(matrix, order) == fastest
    shortest = min(length(matrix, ring) for ring in rings if slowest_edge(matrix, ring) == fastest)
    assert length(matrix, order) == pytest.approx(shortest)


@settings(max_examples=120, deadline=None, derandomize=True)
@given(matrices())
def test_the_order_of_few_gpus_equals_brute_force(matrix: Matrix) -> None:
    check_is_best(matrix)


@pytest.mark.parametrize("seed", range(6))
def test_the_order_of_eight_gpus_equals_brute_force(seed: int) -> None:
    check_is_best(random_matrix(seed, 8))


@settings(max_examples=80, deadline=None, derandomize=True)
@given(matrices(8), st.randoms(use_true_random=False))
def test_another_numbering_gives_a_ring_of_the_same_worth(
    matrix: Matrix, draw: random.Random
) -> None:
    size = len(matrix)
    names = list(range(size))
    draw.shuffle(names)
    renamed = matrix[np.ix_(names, names)]
    order, other = ring_order(matrix, range(size)), ring_order(renamed, range(size))
    assert slowest_edge(renamed, other) == slowest_edge(matrix, order)
    assert length(renamed, other) == pytest.approx(length(matrix, order))


def test_only_the_gpus_asked_for_are_in_the_ring_whatever_their_order() -> None:
    matrix = random_matrix(1, 8)
    assert sorted(ring_order(matrix, (6, 1, 4, 3))) == [1, 3, 4, 6]
    assert ring_order(matrix, (6, 1, 4, 3)) == ring_order(matrix, (1, 3, 4, 6))
    assert ring_order(matrix, (5,)) == (5,)
    assert ring_order(matrix, ()) == ()


@pytest.mark.parametrize("size", [4, 8, 9, 16, 24])
def test_where_all_are_alike_the_order_is_that_of_the_indices(size: int) -> None:
    matrix = symmetric(size, [450.0] * (size * (size - 1) // 2))
    assert ring_order(matrix, range(size)) == tuple(range(size))


@pytest.mark.parametrize("seed", range(20))
def test_the_order_of_many_gpus_gains_nothing_from_turning_any_stretch(seed: int) -> None:
    matrix = random_matrix(seed, 9 + seed % 6)
    size = len(matrix)
    order = ring_order(matrix, range(size))
    assert sorted(order) == list(range(size))
    assert order[0] == 0
    own = length(matrix, order)
    for start, end in itertools.combinations(range(1, size), 2):
        turned = (*order[:start], *order[start : end + 1][::-1], *order[end + 1 :])
        assert length(matrix, turned) >= own - 1e-9


@pytest.mark.parametrize("seed", range(10))
def test_the_ring_of_many_gpus_crosses_between_two_halves_only_twice(seed: int) -> None:
    # The socket of each GPU is drawn, so that the order of the indices would cross often.
    draw = random.Random(seed)
    sockets = [0] * 6 + [1] * 6
    draw.shuffle(sockets)
    pairs = itertools.combinations(range(12), 2)
    matrix = symmetric(12, [100.0 if sockets[a] == sockets[b] else 10.0 for a, b in pairs])
    order = ring_order(matrix, range(12))
    assert sum(sockets[a] != sockets[b] for a, b in ring_edges(order)) == 2


def test_the_order_of_many_gpus_keeps_a_ring_that_shorter_ones_would_slow_down() -> None:
    # The ring of the indices has two NVLinks on each edge; some pairs have more, which no ring of
    # NVLinks alone can use.
    links = {(gpu, gpu + 1): 2 for gpu in range(8)} | {(0, 8): 2, (6, 8): 4, (4, 7): 6}
    machine = build(links, 9)
    order = ring_order(machine.bandwidth, range(9))
    assert slowest_edge(machine.bandwidth, order) == 50 == ring_model(machine).slowest(range(9))


@pytest.mark.parametrize("size", [9, 12, 16, 17, 24])
def test_the_order_has_the_slowest_edge_that_is_claimed(size: int) -> None:
    for seed in range(8):
        draw = random.Random(seed)
        pairs = draw.sample(list(itertools.combinations(range(size), 2)), 2 * size + 4)
        machine = build({pair: draw.randint(1, 3) for pair in pairs}, size)
        order = ring_order(machine.bandwidth, range(size))
        claimed = ring_model(machine).slowest(range(size))
        assert slowest_edge(machine.bandwidth, order) == claimed


# What rings carry -------------------------------------------------------------------------------


def build(links: Links, size: int) -> Machine:
    """Return GPUs of one NUMA node with these NVLinks."""
    return linked_machine(links, [0] * size)


@st.composite
def linked(draw: st.DrawFn, largest: int = 6, most: int = 2) -> tuple[Links, int]:
    size = draw(st.integers(2, largest))
    pairs = itertools.combinations(range(size), 2)
    return {pair: draw(st.integers(0, most)) for pair in pairs}, size


def subsets(size: int) -> list[tuple[int, ...]]:
    return [
        own for count in range(1, size + 1) for own in itertools.combinations(range(size), count)
    ]


def most_disjoint(links: Links, gpus: Sequence[int]) -> int:
    """Return how many rings fit side by side, a link in one of them only; by trying all."""
    left = {pair: links[pair] for pair in itertools.combinations(sorted(gpus), 2)}
    rings = [
        [(min(edge), max(edge)) for edge in ring_edges(order)] for order in all_orders(sorted(gpus))
    ]

    def pack(start: int) -> int:
        best = 0
        for index in range(start, len(rings)):
            ring = rings[index]
            if all(left[edge] for edge in ring):
                for edge in ring:
                    left[edge] -= 1
                best = max(best, 1 + pack(index))
                for edge in ring:
                    left[edge] += 1
        return best

    return pack(0)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(linked())
def test_the_slowest_edge_equals_brute_force_for_every_set(made: tuple[Links, int]) -> None:
    machine = build(*made)
    rings = ring_model(machine)
    for gpus in subsets(len(machine)):
        want = max(slowest_edge(machine.bandwidth, ring) for ring in all_orders(gpus))
        assert rings.slowest(gpus) == want
        over_nvlink = any(
            all(machine.nvlinks[a, b] for a, b in ring_edges(ring)) for ring in all_orders(gpus)
        )
        assert rings.over_nvlink(gpus) == over_nvlink


@settings(max_examples=40, deadline=None, derandomize=True)
@given(linked(largest=5))
def test_rings_side_by_side_equal_brute_force(made: tuple[Links, int]) -> None:
    links, size = made
    machine = build(links, size)
    rings = ring_model(machine)
    for gpus in subsets(size):
        if len(gpus) > 2:
            # Every ring runs in both directions: an NVLink carries 25 GB/s in each.
            count = 2 * most_disjoint(links, gpus)
            assert rings.parallel(gpus) == count
            assert rings.bandwidth(gpus) == max(rings.slowest(gpus), count * 25)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(linked(), st.data())
def test_a_link_more_never_slows_any_set_down(made: tuple[Links, int], data: st.DataObject) -> None:
    links, size = made
    pair = data.draw(st.sampled_from(list(links)))
    before = ring_model(build(links, size))
    after = ring_model(build({**links, pair: links[pair] + 1}, size))
    for gpus in subsets(size):
        assert after.slowest(gpus) >= before.slowest(gpus)
        assert after.bandwidth(gpus) >= before.bandwidth(gpus)
        assert after.both(gpus).effective >= before.both(gpus).effective


@pytest.mark.parametrize("seed", range(8))
def test_a_link_more_never_slows_a_ring_of_up_to_sixteen_down(seed: int) -> None:
    draw = random.Random(seed)
    size = 9 + seed
    everyone = range(size)
    links: Links = {}
    last = ring_model(build(links, size)).slowest(everyone)
    for pair in draw.sample(list(itertools.combinations(everyone, 2)), 40 - size):
        links[pair] = links.get(pair, 0) + draw.randint(1, 3)
        now = ring_model(build(links, size)).slowest(everyone)
        assert now >= last
        last = now


@pytest.mark.parametrize("size", [17, 20, 24])
def test_a_link_more_never_slows_these_rings_of_more_than_sixteen_down(size: int) -> None:
    draw = random.Random(size)
    links: Links = {}
    last = 0.0
    for pair in draw.sample(list(itertools.combinations(range(size), 2)), 4 * size):
        links[pair] = draw.randint(2, 4)
        now = ring_model(build(links, size)).slowest(range(size))
        assert now >= last
        last = now
    assert last > 31.5, "faster than PCIe 4 in the end"


def test_many_gpus_without_a_ring_of_nvlinks_are_answered_without_trying_all() -> None:
    # Between sets of 11 and 13 there is none; proving that takes more steps than there is time for.
    found = ring_model(build({(a, b): 2 for a in range(11) for b in range(11, 24)}, 24))
    assert found.slowest(range(24)) == 31.5
    assert found.both(range(24)).effective == 24
    assert not found.over_nvlink(range(24))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(linked(), st.data())
def test_another_numbering_carries_the_same(made: tuple[Links, int], data: st.DataObject) -> None:
    links, size = made
    name = data.draw(st.permutations(range(size)))
    renamed = build(
        {(min(name[a], name[b]), max(name[a], name[b])): n for (a, b), n in links.items()}, size
    )
    here, there = ring_model(build(links, size)), ring_model(renamed)
    for gpus in subsets(size):
        other = tuple(name[gpu] for gpu in gpus)
        assert there.slowest(other) == here.slowest(gpus)
        assert there.bandwidth(other) == here.bandwidth(gpus)
        assert there.both(other) == here.both(gpus)


@pytest.mark.parametrize("size", [10, 13, 16, 19])
def test_a_ring_of_nvlinks_is_found_under_any_numbering(size: int) -> None:
    for seed in range(4):
        names = list(range(size))
        random.Random(seed).shuffle(names)
        edges = [(names[a], names[(a + 1) % size]) for a in range(size)]
        whole = build({(min(edge), max(edge)): 2 for edge in edges}, size)
        assert ring_model(whole).slowest(range(size)) == 50
        assert ring_model(whole).over_nvlink(range(size))
        # Without one of its edges PCIe 4 has to close it.
        broken = build({(min(edge), max(edge)): 2 for edge in edges[1:]}, size)
        assert ring_model(broken).slowest(range(size)) == 31.5
        assert not ring_model(broken).over_nvlink(range(size))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(linked())
def test_the_bound_of_a_set_is_never_below_what_it_carries(made: tuple[Links, int]) -> None:
    machine = build(*made)
    rings = ring_model(machine)
    for count in range(1, len(machine) + 1):
        sets = list(itertools.combinations(range(len(machine)), count))
        members = np.zeros((len(sets), len(machine)))
        for row, own in enumerate(sets):
            members[row, list(own)] = 1
        bounds = rings.bounds(members)
        assert all(bound >= rings.bandwidth(own) for bound, own in zip(bounds, sets, strict=True))


def test_one_gpu_is_as_fast_as_can_be_and_needs_no_nvlink() -> None:
    rings = ring_model(known_machine("l40s-pcie"))
    assert math.isinf(rings.bandwidth((3,)))
    assert math.isinf(rings.both((3,)).effective)
    assert rings.over_nvlink((3,))
    assert not rings.over_nvlink((3, 4))


def test_a_pair_has_all_of_its_links_and_a_switch_one_ring_that_fills_the_ports() -> None:
    cube = ring_model(known_machine("dgx-1v"))
    assert cube.bandwidth((0, 3)) == 2 * 25
    assert cube.bandwidth((0, 1)) == 25
    switch = ring_model(known_machine("dgx-h100"))
    assert {switch.bandwidth(range(count)) for count in range(2, 9)} == {18 * 25}
    assert switch.parallel(range(8)) == 0
    assert switch.both(range(8)).effective == pytest.approx(370.8)


def test_what_nccl_gets_of_a_cube_mesh() -> None:
    # NCCL reckons 20 GB/s a link of NVLink 2, and 120 for the six links of a V100.
    found = ring_model(known_machine("dgx-1v")).both(range(8))
    assert found.wire == 150
    assert found.effective == pytest.approx(120)


# The formulas of nccl-tests ---------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [2, 3, 8, 1024])
def test_bus_factors(ranks: int) -> None:
    assert bus_factor("all-reduce", ranks) == pytest.approx(2 * (ranks - 1) / ranks)
    for name in ("all-gather", "reduce-scatter", "all-to-all"):
        assert bus_factor(name, ranks) == pytest.approx((ranks - 1) / ranks)
    for name in ("broadcast", "reduce"):
        assert bus_factor(name, ranks) == 1
    assert {bus_factor(name, ranks) > 0 for name in BUS_FACTORS} == {True}


def test_an_unknown_collective_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"there is no collective 'gossip' .*all-reduce, all-gath"):
        bus_factor("gossip", 8)


def test_the_time_of_a_large_all_reduce() -> None:
    # Eight H200 measured at 473 GB/s of bus bandwidth: 16 GiB take 63.6 ms.
    assert all_reduce_seconds(2**34, 8, 473) == pytest.approx(0.06356, rel=1e-3)
    assert all_reduce_seconds(1e9, 2, 50) == pytest.approx(0.02)
    assert all_reduce_seconds(1e9, 1, 50) == 0
