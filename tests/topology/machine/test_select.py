"""Sets of GPUs: ours equals brute force, and is never slower than other schedulers' choices."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.machine_builders import linked_machine
from tests.paths import SHARED

from bayplan.topology.machine.bandwidth import inter_socket, nvlink, pcie
from bayplan.topology.machine.builder import MachineBuilder
from bayplan.topology.machine.gpu_search import SetRequest, search_of
from bayplan.topology.machine.model import Gpu, Machine, Nic
from bayplan.topology.machine.policies import POLICIES, PolicyRequest, best_effort, topology_aware
from bayplan.topology.machine.readers.machinefile import known_machine, known_machines
from bayplan.topology.machine.readers.smi import parse_smi, read_smi
from bayplan.topology.machine.rings import ring_model, ring_order
from bayplan.topology.machine.select import (
    Constraints,
    NoSelection,
    Selection,
    SelectionRequest,
    select,
    select_first,
)

SHARED = SHARED / "fixtures"
NEEDS_SHARED = pytest.mark.skipif(
    not SHARED.is_dir(), reason="the shared fixtures are not beside the project"
)


def chosen(machine: Machine, count: int, free: Any = None, **more: Any) -> Selection:
    found = select(
        machine, range(len(machine)) if free is None else free, SelectionRequest(count, **more)
    )
    assert isinstance(found, Selection), found
    return found


def ring_key(machine: Machine, free: Iterable[int], gpus: Sequence[int]) -> tuple[float, ...]:
    """Return the key by which the policy ``ring`` compares a set; larger is better."""
    return search_of(machine).key(tuple(sorted(free)), gpus, SetRequest(len(gpus)))


def check_against_brute_force(machine: Machine) -> None:
    everyone = tuple(range(len(machine)))
    for count in everyone:
        found = chosen(machine, count + 1)
        sets = itertools.combinations(everyone, count + 1)
        best = max(ring_key(machine, everyone, own) for own in sets)
        assert ring_key(machine, everyone, found.gpus) == best, (machine.name, count + 1)


def check_never_slower(machine: Machine) -> None:
    for count in range(1, len(machine) + 1):
        ours = chosen(machine, count)
        for policy in POLICIES:
            theirs = chosen(machine, count, policy=policy)
            assert len(theirs.gpus) == count
            assert theirs.bottleneck <= ours.bottleneck, (machine.name, count, policy)
            assert theirs.slowest_edge <= ours.slowest_edge, (machine.name, count, policy)


@pytest.mark.parametrize("name", known_machines())
def test_every_count_on_every_known_machine_equals_brute_force(name: str) -> None:
    machine = known_machine(name)
    check_against_brute_force(machine)
    check_never_slower(machine)


@NEEDS_SHARED
@pytest.mark.parametrize("path", sorted(SHARED.glob("nvidia-smi-topo/*.txt")), ids=lambda p: p.stem)
def test_every_count_on_every_table_equals_brute_force(path: Path) -> None:
    machine = read_smi(path)
    if len(machine) <= 8:
        check_against_brute_force(machine)
    check_never_slower(machine)


@NEEDS_SHARED
def test_best_effort_gives_what_go_gpuallocator_expects() -> None:
    data = json.loads((SHARED / "pair_score_cases.json").read_text())
    scores = {name: np.array(node["pair_score"]) for name, node in data["nodes"].items()}
    for case in data["best_effort_upstream"]:
        found = best_effort(scores[case["node"]], case["available"], case["required"], case["size"])
        assert sorted(found) == case["want"], case
    for case in data["best_effort_upstream_sequences"]:
        left = list(range(len(scores[case["node"]])))
        for want in case["want"]:
            found = best_effort(scores[case["node"]], left, [], case["size"])
            assert sorted(found) == want, case
            left = [gpu for gpu in left if gpu not in found]


def hami(scores: dict[tuple[int, int], int], size: int) -> np.ndarray[Any, Any]:
    matrix = np.zeros((size, size), dtype=np.int64)
    for (a, b), score in scores.items():
        matrix[a, b] = matrix[b, a] = score
    return matrix


POSITIVE = {(0, 1): 100, (0, 2): 200, (1, 2): 150}
NEGATIVE = {(0, 1): -5, (0, 2): -3, (1, 2): -1}


@pytest.mark.parametrize(
    ("scores", "count", "want"),
    [(POSITIVE, 1, {1}), (POSITIVE, 2, {0, 2}), (NEGATIVE, 1, {0}), (NEGATIVE, 2, {1, 2})],
)
def test_topology_aware_takes_what_hami_takes(
    scores: dict[tuple[int, int], int], count: int, want: set[int]
) -> None:
    assert set(hamis_choice(hami(scores, 3), 3, count)) == want


def hamis_choice(scores: np.ndarray[Any, Any], free: int, count: int) -> list[int]:
    return topology_aware(scores, PolicyRequest(range(free), count, frozenset(), lambda gpus: True))


def test_topology_aware_gives_gpus_without_any_score() -> None:
    assert len(hamis_choice(hami({}, 3), 3, 2)) == 2
    assert hamis_choice(hami({}, 2), 2, 2) == [0, 1]
    assert hamis_choice(hami({}, 2), 1, 2) == []


@pytest.mark.parametrize(
    ("count", "want"), [(1, [7]), (2, [6, 7]), (3, [5, 6, 7]), (4, [4, 5, 6, 7])]
)
def test_hami_on_an_idle_dgx_1v_visits_the_highest_gpus_first(count: int, want: list[int]) -> None:
    assert list(chosen(known_machine("dgx-1v"), count, policy="topology-aware").gpus) == want


def test_a_cube_mesh_carries_several_rings_at_once() -> None:
    rings = ring_model(known_machine("dgx-1v"))
    assert rings.bandwidth((0, 1, 2, 3)) == 100
    assert rings.bandwidth((0, 1, 4, 5)) == 50
    assert rings.bandwidth(range(8)) == 150
    assert rings.slowest((0, 1, 2, 3)) == 25
    assert ring_order(known_machine("dgx-1v").bandwidth, range(8)) == (0, 3, 2, 1, 5, 6, 7, 4)


def test_the_strict_request_is_given_up_openly() -> None:
    machine = known_machine("l40s-pcie")
    strict = SelectionRequest(4, constraints=Constraints(nvlink=True))
    found = select_first(machine, range(8), (strict, SelectionRequest(4)))
    assert isinstance(found, Selection)
    assert found.relaxed == "NVLink alone"


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (SelectionRequest(9), "the machine has 8 GPUs, 9 are asked for"),
        (SelectionRequest(2, frozenset({0, 1, 2})), "3 GPUs are required, only 2 are asked for"),
        (
            SelectionRequest(2, constraints=Constraints(nvlink=True)),
            "no 2 of 8 free GPUs are connected by NVLink alone",
        ),
        (
            SelectionRequest(5, constraints=Constraints(same_numa=True)),
            "no 5 of 8 free GPUs are on one NUMA node",
        ),
        (
            SelectionRequest(4, constraints=Constraints(min_bandwidth=100)),
            "no 4 of 8 free GPUs reach 100 GB/s; the best reach 31.5",
        ),
    ],
)
def test_a_refusal_says_why(request_: SelectionRequest, reason: str) -> None:
    found = select(known_machine("l40s-pcie"), range(8), request_)
    assert found == NoSelection(reason)


def why(table: str, count: int, free: tuple[int, ...] | None = None) -> tuple[str, ...]:
    return chosen(parse_smi(table), count, free).why


NICS = "\tGPU0\tGPU1\tGPU2\tNIC0\nGPU0\tX\tSYS\tSYS\tSYS\nGPU1\tSYS\tX\tSYS\tPHB\n"


def test_the_nearest_nic_is_that_of_the_nearest_gpu() -> None:
    assert "no NIC nearer than PHB" in why(NICS, 2, (0, 1))
    assert "no NIC nearer than SYS" in why(NICS, 1, (0,))


def test_a_nic_whose_level_is_not_known_is_not_called_far() -> None:
    unknown = "\tGPU0\tGPU1\tNIC0\nGPU0\tX\tSYS\tSYS\n"
    assert "the nearest NIC is not known" in why(unknown, 1, (1,))
    assert "no NIC nearer than SYS; of 1 GPU the nearest is not known" in why(unknown, 2)


def test_a_gpu_alone_is_not_connected() -> None:
    bridged = known_machine("a100-pcie-bridged")
    assert "leaves no two free GPUs connected by NVLink" in chosen(bridged, 3).why
    assert "leaves 2 of 2 free GPUs connected by NVLink" in chosen(bridged, 2).why


def test_machines_of_one_shape_choose_alike_and_a_lost_gpu_is_part_of_it() -> None:
    def made(nics: tuple[Nic, ...], lost: str = "") -> Machine:
        builder = MachineBuilder("m", nvlink(3), inter_socket("amd"))
        builder.socket("socket 0")
        builder.numa("numa 0", "socket 0", 0)
        builder.root("root 0", "numa 0")
        for gpu in range(2):
            builder.gpu(Gpu(gpu, numa=0, lost=lost if gpu else ""), "root 0", pcie(4))
        for nic in nics:
            builder.nic(nic, "root 0", pcie(4))
        return builder.build()

    plain = made((Nic(0, "mlx5_0"), Nic(1, "mlx5_1")))
    assert plain.shape == made((Nic(0, "ib0"), Nic(1, "ib1"))).shape
    assert plain.shape != made((Nic(0, "mlx5_0"), Nic(1, "mlx5_1", parent="mlx5_0"))).shape
    assert plain.shape != made((Nic(0, "mlx5_0"), Nic(1, "mlx5_1")), "it fell off the bus").shape


# Random machines ---------------------------------------------------------------------------


@st.composite
def machines(draw: st.DrawFn) -> tuple[dict[tuple[int, int], int], list[int]]:
    size = draw(st.integers(2, 6))
    pairs = list(itertools.combinations(range(size), 2))
    links = {pair: draw(st.integers(0, 2)) for pair in pairs}
    return links, [draw(st.integers(0, 1)) for _ in range(size)]


@settings(max_examples=60, deadline=None)
@given(machines(), st.data())
def test_selection_on_random_machines(
    made: tuple[dict[tuple[int, int], int], list[int]], data: st.DataObject
) -> None:
    links, numa = made
    machine = linked_machine(links, numa)
    size = len(machine)
    assert (machine.bandwidth == machine.bandwidth.T).all()
    assert (machine.levels == machine.levels.T).all()
    free = data.draw(st.sets(st.integers(0, size - 1), min_size=1))
    count = data.draw(st.integers(1, len(free)))
    found = chosen(machine, count, free)
    assert len(set(found.gpus)) == count
    assert set(found.gpus) <= free
    sets = itertools.combinations(sorted(free), count)
    best = max(ring_key(machine, free, own) for own in sets)
    assert ring_key(machine, free, found.gpus) == best
    # Another numbering gives a set of the same worth.
    order = data.draw(st.permutations(range(size)))
    renamed = linked_machine(
        {(min(order[a], order[b]), max(order[a], order[b])): n for (a, b), n in links.items()},
        [numa[order.index(gpu)] for gpu in range(size)],
    )
    other = chosen(renamed, count, {order[gpu] for gpu in free})
    assert ring_key(renamed, [order[gpu] for gpu in free], other.gpus) == best
    # One link more never makes a set slower.
    if size > 1:
        pair = data.draw(st.sampled_from(list(links)))
        more = linked_machine({**links, pair: links[pair] + 1}, numa)
        assert ring_model(more).bandwidth(found.gpus) >= found.bottleneck
