"""How many members go to each node of a domain, by the rules of each ecosystem."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bayplan.api.gang import Fill
from bayplan.topology.network.packing import Capacity, balance, distribute
from bayplan.topology.network.tree import NODE_LAYER, Layer, NetworkTree, build_tree

FILLS: tuple[Fill, ...] = ("BestFit", "LargestFirst", "LeastFree", "Balanced")


def racks(layout: Sequence[Sequence[int]]) -> tuple[NetworkTree, list[int]]:
    labels = [{"rack": f"r{index}"} for index, rack in enumerate(layout) for _ in rack]
    slots = [slot for rack in layout for slot in rack]
    return build_tree([Layer("Rack", ("rack",))], labels), slots


def spread(
    layout: Sequence[Sequence[int]],
    wanted: int,
    fill: Fill,
    multiples: dict[str, int] | None = None,
) -> list[int]:
    tree, slots = racks(layout)
    capacity = Capacity(tree, np.array(slots), multiples)
    return [int(n) for n in distribute(capacity, tree.root, wanted, fill)]


@pytest.mark.parametrize(
    ("layout", "wanted", "fill", "multiples", "expected"),
    [
        ([[3, 3, 2, 1]], 7, "BestFit", None, [3, 3, 0, 1]),
        ([[3, 3, 2, 1]], 7, "LeastFree", None, [3, 1, 2, 1]),
        ([[4, 4, 1]], 5, "BestFit", None, [4, 0, 1]),
        ([[6, 5, 4, 3, 2]], 12, "BestFit", {NODE_LAYER: 2}, [6, 0, 4, 0, 2]),
        ([[6, 5, 4, 3, 2]], 10, "LeastFree", {NODE_LAYER: 2}, [0, 2, 4, 2, 2]),
        ([[2], [2], [1, 1, 1, 1]], 4, "BestFit", None, [0, 0, 1, 1, 1, 1]),
        ([[5, 7], [6, 4]], 15, "LargestFirst", None, [5, 7, 3, 0]),
        ([[5, 7], [6, 4]], 16, "LargestFirst", {"Rack": 8}, [1, 7, 6, 2]),
        ([[5, 7], [6, 4]], 16, "LargestFirst", {"Rack": 8, NODE_LAYER: 2}, [2, 6, 6, 2]),
        ([[15], [15]], 25, "Balanced", None, [13, 12]),
        ([[15, 13, 10]], 23, "Balanced", None, [12, 11, 0]),
    ],
)
def test_the_worked_cases(
    layout: list[list[int]],
    wanted: int,
    fill: Fill,
    multiples: dict[str, int] | None,
    expected: list[int],
) -> None:
    assert spread(layout, wanted, fill, multiples) == expected


def test_slots_are_rounded_down_to_multiples_on_the_way_up() -> None:
    tree, slots = racks([[5, 7], [6, 4]])
    both = Capacity(tree, np.array(slots), {"Rack": 8, NODE_LAYER: 2})
    assert both.in_order.tolist() == [4, 6, 6, 4]
    assert both.of_layer("Rack").tolist() == [8, 8]
    assert both.of(tree.root) == 16


def test_nothing_is_balanced_where_one_node_is_enough() -> None:
    assert balance(np.array([20, 10]), 20) is None
    assert balance(np.array([5, 5]), 11) is None


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.integers(0, 100_000), st.sampled_from(FILLS))
def test_a_plan_places_everybody_and_never_too_many(seed: int, fill: Fill) -> None:
    draw = random.Random(seed)
    layout = [[draw.randint(0, 6) for _ in range(draw.randint(1, 4))] for _ in range(3)]
    inner = draw.choice([1, 2, 3])
    multiples = {NODE_LAYER: inner, "Rack": inner * draw.choice([1, 2])}
    tree, slots = racks(layout)
    capacity = Capacity(tree, np.array(slots), multiples)
    step = multiples["Rack"]
    wanted = draw.randint(0, capacity.of(tree.root) // step) * step
    taken = distribute(capacity, tree.root, wanted, fill)
    assert int(taken.sum()) == wanted
    assert all(0 <= here <= slot for here, slot in zip(taken.tolist(), slots, strict=True))
    assert all(here % inner == 0 for here in taken.tolist())
    if fill != "Balanced":
        for domain in tree.layers["Rack"]:
            assert int(taken[domain.start : domain.end].sum()) % step == 0
