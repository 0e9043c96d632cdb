"""HAMi's own cases that go beyond its two search functions: from annotations to the GPUs chosen.

The search functions themselves are in test_select.py. ``dev-0`` of a case is GPU 0 here; HAMi
visits the devices of the highest NUMA node first, there the highest index first.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tests.paths import SHARED

from bayplan.dialects.hami.policies import gpu_request_of
from bayplan.topology.machine.bandwidth import inter_socket, nvlink, pcie
from bayplan.topology.machine.builder import MachineBuilder
from bayplan.topology.machine.model import Gpu, Machine
from bayplan.topology.machine.policies import PolicyRequest, by_policy, pair_scores
from bayplan.topology.machine.readers.hami import machine_from_scores, read_scores
from bayplan.topology.machine.readers.hami_register import read_register
from bayplan.topology.machine.readers.machinefile import known_machine
from bayplan.topology.machine.select import (
    Constraints,
    NoSelection,
    Selection,
    SelectionRequest,
    select,
)

CASES = SHARED / "fixtures" / "pair_score_cases.json"
NEEDS_SHARED = pytest.mark.skipif(
    not CASES.is_file(), reason="the shared fixtures are not beside the project"
)
POLICY = "hami.io/gpu-scheduler-policy"
AWARE = "topology-aware"
SAME_NUMA = Constraints(same_numa=True)


def registered(numa: Sequence[int]) -> str:
    """Return a register of devices dev-0, dev-1 ... on these NUMA nodes."""
    common = {"count": 10, "devmem": 8192, "devcore": 100, "type": "NVIDIA-A40", "health": True}
    return json.dumps(
        [{"id": f"dev-{i}", "index": i, "numa": node, **common} for i, node in enumerate(numa)]
    )


def scored(matrix: dict[tuple[int, int], int], size: int) -> str:
    content = []
    for one in range(size):
        own = {}
        for other in range(size):
            if other != one:
                pair = (min(one, other), max(one, other))
                own[f"dev-{other}"] = matrix.get(pair, 0)
        content.append({"uuid": f"dev-{one}", "score": own})
    return json.dumps(content)


def node(numa: Sequence[int], matrix: dict[tuple[int, int], int]) -> Machine:
    """Return the machine of a node with HAMi's annotations for these devices."""
    scores = read_scores(scored(matrix, len(numa)))
    return machine_from_scores("n", read_register(registered(numa)), scores)


def fit(machine: Machine, free: Sequence[int], count: int, **annotations: str) -> Any:
    """Return what a pod with these annotations gets of the free GPUs."""
    request = gpu_request_of(annotations)
    assert request is not None
    assert not request.problem
    constraints = Constraints(same_numa=request.require_numa)
    found = select(
        machine, free, SelectionRequest(count, constraints=constraints, policy=request.policy)
    )
    return list(found.gpus) if isinstance(found, Selection) else found


def cases(**having: object) -> list[dict[str, Any]]:
    """Return HAMi's cases with these entries."""
    found: list[dict[str, Any]] = json.loads(CASES.read_text())["hami_upstream"]
    return [case for case in found if all(case.get(key) == value for key, value in having.items())]


MATRIX = {(0, 1): 100, (0, 2): 200, (1, 2): 150}

# Topology-aware, from the annotations of node and pod -------------------------------------------


@pytest.mark.parametrize(("count", "want"), [(1, [1]), (2, [0, 2]), (3, [0, 1, 2])])
def test_fit_by_scores(count: int, want: list[int]) -> None:
    assert fit(node([0, 0, 0], MATRIX), range(3), count, **{POLICY: AWARE}) == want


@NEEDS_SHARED
def test_the_fit_cases_are_those_of_hami() -> None:
    scores = cases()[0]["scores"]
    matrix = {(a, b): scores[f"gpu{a}"][f"gpu{b}"] for a, b in itertools.combinations(range(3), 2)}
    assert matrix == MATRIX
    wanted = {case["request"]: case for case in cases(same_scores_as=0) if "via" in case}
    machine = node([0, 0, 0], matrix)
    for count, case in wanted.items():
        found = fit(machine, range(3), count, **{POLICY: AWARE})
        assert [f"dev-{gpu}" for gpu in found] == case.get("want", case.get("want_set"))
    assert set(wanted) == {1, 2}


@pytest.mark.parametrize("numa", [[0, 0, 0], [0, 1, 1]])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_zero_scores_still_give_gpus(numa: list[int], count: int) -> None:
    assert len(fit(node(numa, {}), range(3), count, **{POLICY: AWARE})) == count


def test_as_many_as_fit_are_taken_without_any_score() -> None:
    machine = machine_from_scores("n", read_register(registered([0, 0])), {})
    assert fit(machine, [0, 1], 2, **{POLICY: AWARE}) == [0, 1]
    assert fit(machine, [1], 1, **{POLICY: AWARE}) == [1]


def test_fewer_than_asked_for_do_not_fit() -> None:
    refused = fit(node([0, 0, 0], MATRIX), [0, 2], 3, **{POLICY: AWARE})
    assert refused == NoSelection("2 of 3 GPUs are free, 3 are asked for")


def test_used_gpus_do_not_count_when_the_least_connected_is_sought() -> None:
    # GPU1 has the lowest total of all three; without GPU2 both totals are 100 and the highest
    # index is visited first. Without GPU0 likewise.
    machine = node([0, 0, 0], MATRIX)
    assert fit(machine, [0, 1], 1, **{POLICY: AWARE}) == [1]
    assert fit(machine, [1, 2], 1, **{POLICY: AWARE}) == [2]


@pytest.mark.parametrize(
    "policy", ["topology-aware", "binpack,topology-aware", "topology-aware,mutex", "spread, mutex"]
)
def test_a_list_of_policies_may_name_topology_awareness_anywhere(policy: str) -> None:
    request = gpu_request_of({POLICY: policy})
    assert request is not None
    assert request.policy == (AWARE if AWARE in policy else "spread")
    if AWARE in policy:
        assert fit(node([0, 0, 0], MATRIX), range(3), 2, **{POLICY: policy}) == [0, 2]


@NEEDS_SHARED
def test_pods_of_two_empty_a_dgx_1v_as_under_hami() -> None:
    data = json.loads(CASES.read_text())
    machine = known_machine("dgx-1v")
    assert (pair_scores(machine) == np.array(data["nodes"]["dgx1_volta"]["pair_score"])).all()
    (case,) = [one for one in data["computed_here"] if "scores" in one]
    free = list(range(8))
    for want, score in zip(case["sequence"], case["scores"], strict=True):
        found = fit(machine, free, case["size"], **{POLICY: AWARE})
        assert found == want
        assert pair_scores(machine)[found[0], found[1]] == score
        free = [gpu for gpu in free if gpu not in found]


# numa-bind --------------------------------------------------------------------------------------


def on_nodes(numa: Sequence[int]) -> Machine:
    """Return GPUs of these NUMA nodes, one PCIe root each and nothing between them."""
    builder = MachineBuilder("m", nvlink(3), inter_socket("skylake"))
    for place in sorted(set(numa)):
        builder.socket(f"socket {place}")
        builder.numa(f"numa {place}", f"socket {place}")
    for gpu, place in enumerate(numa):
        builder.root(f"root {gpu}", f"numa {place}")
        builder.gpu(Gpu(gpu, numa=place), f"root {gpu}", pcie(3))
    return builder.build()


def visited(machine: Machine, free: Sequence[int], count: int) -> tuple[int, ...] | None:
    """Return the GPUs that numa-bind gives, in the order in which they were taken."""

    def one_node(gpus: Sequence[int]) -> bool:
        return len({machine.numa_of[gpu] for gpu in gpus}) == 1

    return by_policy(machine, AWARE, PolicyRequest(free, count, frozenset(), one_node))


def test_numa_bind_takes_one_node_from_the_highest_index() -> None:
    # dev-2 is on node 0, dev-1 and dev-0 on node 1: HAMi answers [dev-1, dev-0].
    assert visited(on_nodes([1, 1, 0]), range(3), 2) == (1, 0)


@pytest.mark.parametrize(
    ("numa", "count", "want"),
    [
        ([1, 1, 0], 2, [0, 1]),
        ([0, 0, 1], 2, [0, 1]),
        ([0, 1, 0, 1], 2, [1, 3]),
        ([0, 0, 0, 1], 3, [0, 1, 2]),
        ([2, 0, 1, 0], 2, [1, 3]),
    ],
)
def test_numa_bind_never_mixes_nodes(numa: list[int], count: int, want: list[int]) -> None:
    bound = {"nvidia.com/numa-bind": "true", POLICY: AWARE}
    assert fit(on_nodes(numa), range(len(numa)), count, **bound) == want


def test_numa_bind_that_no_node_can_meet_does_not_fit() -> None:
    bound = {"nvidia.com/numa-bind": "true", POLICY: AWARE}
    refused = fit(on_nodes([0, 1, 0, 1]), range(4), 3, **bound)
    assert refused == NoSelection("no 3 of 4 free GPUs are on one NUMA node")
    free = {"nvidia.com/numa-bind": "false", POLICY: AWARE}
    assert len(fit(on_nodes([0, 1, 0, 1]), range(4), 3, **free)) == 3


@NEEDS_SHARED
def test_the_numa_bind_case_is_that_of_hami() -> None:
    (case,) = cases(via="Fit numa-bind=true")
    numa = [case["numa"][f"dev-{gpu}"] for gpu in range(3)]
    found = visited(on_nodes(numa), range(3), case["request"])
    assert found is not None
    assert [f"dev-{gpu}" for gpu in found] == case["want"]


# mutex ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("used", [0, 1])
def test_mutex_gives_idle_gpus_alone(used: int) -> None:
    machine = node([0, 0], {(0, 1): 100})
    idle = [gpu for gpu in (0, 1) if gpu != used]
    assert fit(machine, idle, 1, **{POLICY: "mutex"}) == idle
    refused = fit(machine, idle, 2, **{POLICY: "mutex"})
    assert refused == NoSelection("1 of 2 GPUs is free, 2 are asked for")


@NEEDS_SHARED
def test_the_mutex_cases_are_those_of_hami() -> None:
    for case in cases(via="Fit policy mutex"):
        names = list(case["used"])
        idle = [gpu for gpu, name in enumerate(names) if not case["used"][name]]
        found = fit(node([0, 0], {}), idle, case["request"], **{POLICY: "mutex"})
        if case["want"] == "no fit":
            assert isinstance(found, NoSelection)
        else:
            assert [names[gpu] for gpu in found] == case["want"]


# Pair scores ------------------------------------------------------------------------------------


def test_an_asymmetric_pair_counts_no_nvlink_and_is_flagged() -> None:
    # SameCPU and four NVLinks one way (420), SameCPU the other (20).
    scores = {"dev-0": {"dev-1": 420}, "dev-1": {"dev-0": 20}}
    machine = machine_from_scores("n", read_register(registered([0, 0])), scores)
    assert not machine.nvlinks.any()
    assert pair_scores(machine)[0, 1] == 0
    (flag,) = [note for note in machine.notes if "ignored" in note]
    assert "420" in flag
    assert "20" in flag
    both_ways = node([0, 0], {(0, 1): 420})
    assert both_ways.label(0, 1) == "NV4"
    assert not any("ignored" in note for note in both_ways.notes)


@NEEDS_SHARED
def test_pair_scores_are_100_for_each_nvlink_and_the_pcie_level() -> None:
    (case,) = cases(via="pair score matrix")
    links = {(int(pair[0]), int(pair[2])): count for pair, count in case["nvlinks"].items()}
    builder = MachineBuilder("m", nvlink(2), inter_socket("skylake"))
    for gpu in range(4):
        # Each on a socket of its own: SYS, which is 10.
        builder.socket(f"socket {gpu}")
        builder.numa(f"numa {gpu}", f"socket {gpu}")
        builder.root(f"root {gpu}", f"numa {gpu}")
        builder.gpu(Gpu(gpu, numa=gpu), f"root {gpu}", pcie(3))
    for (a, b), count in links.items():
        builder.nvlink(a, b, count)
    scores = pair_scores(builder.build())
    found = {f"{a}-{b}": int(scores[a, b]) - 10 for a, b in links}
    assert found == case["want"]
    assert (scores == scores.T).all()
    # The same scores, published and read again, are the same NVLinks.
    again = node([0] * 4, {pair: 100 * count for pair, count in links.items()})
    assert {pair: int(again.nvlinks[pair]) for pair in links} == links


# Combinations -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "sets"), [(1, 4), (2, 6), (3, 4), (4, 1)])
def test_every_set_of_four_is_looked_at(count: int, sets: int) -> None:
    seen: set[tuple[int, ...]] = set()

    def refuse(gpus: Sequence[int]) -> bool:
        seen.add(tuple(sorted(gpus)))
        return False

    machine = on_nodes([0, 0, 1, 1])
    assert by_policy(machine, AWARE, PolicyRequest(range(4), count, frozenset(), refuse)) is None
    assert len(seen) == sets
    assert seen == set(itertools.combinations(range(4), count))
