"""The bound of what pods can get of GPUs: never below the optimum of an exhaustive search."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples

from bayplan.cli.bench import command
from bayplan_benchmarks.gpu_packing import NodeKind, most_allocated
from bayplan_benchmarks.openb_trace import TracePod

State = tuple[tuple[int, int, str, tuple[int, ...]], ...]


def share(compute: int, cpu: int = 0, models: str = "") -> TracePod:
    return TracePod(cpu, 0, 1, compute, models)


def several(gpus: int, cpu: int = 0) -> TracePod:
    return TracePod(cpu, 0, gpus, 1000, "")


def optimum(nodes: Sequence[NodeKind], pods: Sequence[TracePod]) -> int:
    """Return the most thousandths that any placement gives out: all of them are tried."""
    empty = tuple((one.cpu, one.memory, one.model, (1000,) * one.gpus) for one in nodes)
    best = {empty: 0}
    for pod in pods:
        after = dict(best)
        for state, given_out in best.items():
            for other in _with(state, pod):
                after[other] = max(after.get(other, 0), given_out + pod.total)
        best = after
    return max(best.values())


def _with(state: State, pod: TracePod) -> list[State]:
    """Return what the nodes may look like with one more pod."""
    found = []
    for place, (cpu, memory, model, gpus) in enumerate(state):
        if cpu < pod.cpu or memory < pod.memory or model not in (pod.models or model).split("|"):
            continue
        lefts: set[tuple[int, ...]] = set()
        if pod.compute == 1000 or not pod.gpus:
            free = [one for one in gpus if one == 1000]
            if len(free) >= pod.gpus:
                rest = [one for one in gpus if one < 1000] + free[pod.gpus :]
                lefts.add(tuple(sorted(rest + [0] * pod.gpus)))
        else:
            for gpu, left in enumerate(gpus):
                if left >= pod.compute:
                    rest = [*gpus[:gpu], left - pod.compute, *gpus[gpu + 1 :]]
                    lefts.add(tuple(sorted(rest)))
        for left_over in lefts:
            node = (cpu - pod.cpu, memory - pod.memory, model, left_over)
            found.append((*state[:place], node, *state[place + 1 :]))
    return found


NODES = st.builds(
    NodeKind, st.integers(1, 6), st.integers(1, 6), st.integers(1, 3), st.sampled_from("AB")
)
PODS = st.builds(
    TracePod,
    st.integers(0, 3),
    st.integers(0, 3),
    st.just(1),
    st.sampled_from((190, 230, 470, 530, 810, 1000)),
    st.sampled_from(("", "A", "A|B")),
) | st.builds(TracePod, st.integers(0, 3), st.just(0), st.just(2), st.just(1000), st.just(""))


@examples(60)
@given(st.lists(NODES, min_size=1, max_size=2), st.lists(PODS, min_size=1, max_size=6))
def test_no_placement_gives_out_more_than_the_bound(
    nodes: list[NodeKind], pods: list[TracePod]
) -> None:
    bound = most_allocated(Counter(nodes), Counter(pods))
    assert bound is not None
    best = optimum(nodes, pods)
    assert bound >= best - 1e-3
    if best == sum(pod.total for pod in pods):
        assert most_allocated(Counter(nodes), Counter(pods), Counter(pods)) is not None


@pytest.mark.parametrize(
    ("gpus", "pods", "most"),
    [
        (4, [share(810)] * 5, 4 * 810),
        (4, [share(810)] * 4 + [share(190)] * 2, 4 * 810 + 2 * 190),
        (2, [share(530)] * 3 + [share(470)], 2 * 530 + 470),
        (8, [several(5)] * 2, 5000),
        (8, [several(5)] * 2 + [share(1000)], 6000),
    ],
)
def test_tails_beside_large_shares_and_gpus_of_other_nodes_do_not_count(
    gpus: int, pods: list[TracePod], most: int
) -> None:
    kind = NodeKind(100, 100, gpus, "A")
    assert most_allocated({kind: 1}, Counter(pods)) == pytest.approx(most)
    assert optimum([kind], pods) == most


def test_pods_that_have_to_be_placed_may_keep_out_better_ones() -> None:
    kind = NodeKind(0, 0, 1, "A")
    pods = Counter([share(810), share(1000)])
    assert most_allocated({kind: 1}, pods) == pytest.approx(1000)
    assert most_allocated({kind: 1}, pods, Counter([share(810)])) == pytest.approx(810, abs=1)
    assert most_allocated({kind: 1}, Counter([several(2)]), Counter([several(2)])) is None


def test_a_policy_stays_below_the_bound_of_its_trace(tmp_path: Path) -> None:
    (tmp_path / "nodes_gpu.csv").write_text(
        "sn,cpu_milli,memory_mib,gpu,model\n" + "".join(f"n{i},8000,8192,2,T4\n" for i in range(8))
    )
    sizes = [810, 470, 230, 1000, 530]
    rows = [f"p{i:03d},500,100,1,{sizes[i % 5]},\n" for i in range(45)]
    header = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n"
    (tmp_path / "pods.csv").write_text(header + "".join(rows))
    order = {"42": {"pods": list(range(45)), "node_rank": list(range(8))}}
    (tmp_path / "arrivals.json.gz").write_bytes(gzip.compress(json.dumps(order).encode()))
    figures = {}
    for name in ("openb", "openb-bound"):
        result = CliRunner().invoke(command, [name, "--trace", str(tmp_path), "-o", "json"])
        assert result.exit_code == 0, result.output
        figures[name] = json.loads(result.output)["figures"]
    for name in ("allocationAt100", "allocationAt130"):
        assert 0 < figures["openb"][name] <= figures["openb-bound"][name] <= 100


def test_pods_that_fit_only_beside_others_are_found_to_fit() -> None:
    kind = NodeKind(0, 0, 2, "A")
    pods = Counter([share(530), share(470), share(810), share(190)])
    assert most_allocated({kind: 1}, pods, pods) == pytest.approx(2000, abs=1)
