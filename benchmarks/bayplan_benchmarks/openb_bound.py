"""How much of the GPUs any scheduler can give out on the openb trace: what is left to gain."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

from bayplan.benchmark import Benchmark, BenchmarkResult, TraceRun
from bayplan.errors import InputError
from bayplan_benchmarks.gpu_packing import NodeKind, most_allocated
from bayplan_benchmarks.openb_trace import Trace, TracePod, is_at_100, is_at_130, read_trace

__all__ = ["openb_bound"]

_LOOKS = 10
_PREFIXES = (80, 90, 95, 96)


class _Bounds:
    """The bounds for one order of arrivals."""

    def __init__(self, trace: Trace, order: Sequence[int]) -> None:
        self._nodes = Counter(NodeKind.of(node) for node in trace.nodes)
        self._pods = [trace.pods[place] for place in order]
        self._percent = trace.asked_for(order)
        self._capacity = trace.capacity

    def after(self, arrivals: int, placed: int = 0) -> float | None:
        """Return the most percent of all GPUs that can be given out.

        :param arrivals: how many pods have arrived.
        :param placed: how many of them, from the first on, have to have a node.
        """
        seen: Counter[TracePod] = Counter(self._pods[:arrivals])
        most = most_allocated(self._nodes, seen, Counter(self._pods[:placed]))
        return None if most is None else 100 * most / self._capacity

    def until(self, percent: float) -> int:
        """Return how many pods have arrived when a percentage has been asked for."""
        return sum(one <= percent for one in self._percent)

    def mean_at_100(self) -> float:
        """Return a bound of the mean over the arrivals around 100 %.

        What can be given out never falls with more arrivals, so between two looks the later one
        holds.
        """
        own = [number for number, one in enumerate(self._percent, 1) if is_at_100(one)]
        if not own:
            return 0.0
        looks = sorted({own[(len(own) - 1) * one // _LOOKS] for one in range(1, _LOOKS + 1)})
        bounds = [self.after(look) or 0.0 for look in looks]
        each = [next(b for look, b in zip(looks, bounds, strict=True) if look >= n) for n in own]
        return sum(each) / len(each)

    def at_130(self, placed: int = 0) -> float | None:
        """Return the bound for all arrivals; None if so many first ones do not all fit.

        0 for a trace that ends before 130 %.
        """
        if not any(is_at_130(one) for one in self._percent):
            return 0.0
        return self.after(len(self._pods), placed)

    def most_placed(self) -> float:
        """Return the percentage asked for up to which all pods may fit; beyond, some do not."""
        low, high = 0, len(self._pods)
        while low < high:
            middle = (low + high + 1) // 2
            if self.after(middle, middle) is None:
                high = middle - 1
            else:
                low = middle
        return self._percent[low - 1] if low else 0.0


def _bound(run: TraceRun) -> BenchmarkResult:
    """Return the bounds of percent given out, with the names of the figures of ``openb``.

    ``ifAllPlacedUntil``: at 130 %, where no pod is refused until so many percent are asked for.
    ``mostPlaced``: the percent asked for after which somebody has to be refused.
    """
    if run.policy or run.learned or run.moves:
        given_too = "--policy, --learned, --repack"
        raise InputError("a bound holds for every policy", given_too)
    trace = read_trace(run.folder)
    order = trace.order(run.seed)["pods"]
    started = time.perf_counter()
    bounds = _Bounds(trace, order)
    until = {str(one): bounds.at_130(bounds.until(one)) for one in _PREFIXES}
    figures: dict[str, float | dict[str, float]] = {
        "allocationAt100": round(bounds.mean_at_100(), 3),
        "allocationAt130": round(bounds.at_130() or 0.0, 3),
        "ifAllPlacedUntil": {name: round(one, 3) for name, one in until.items() if one is not None},
        "mostPlaced": round(bounds.most_placed(), 3),
        "seconds": round(time.perf_counter() - started, 2),
    }
    given = {"seed": run.seed, "nodes": len(trace.nodes), "pods": len(order)}
    return BenchmarkResult(given, figures)


def _no_sizes(nodes: int, pods: int) -> BenchmarkResult:
    raise InputError('the benchmark "openb-bound" has the size of its trace', "--nodes")


openb_bound = Benchmark(
    "the most that any policy gives out of the GPUs of a production trace (--trace, --seed)",
    (),
    42,
    _no_sizes,
    run_trace=_bound,
)
