"""The interface of benchmarks (entry point group ``bayplan.benchmarks``)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Benchmark", "BenchmarkResult"]


@dataclass(frozen=True)
class BenchmarkResult:
    """The size of the input, and the figures; ``podsPerSecond`` is one if pods are placed."""

    input: dict[str, int]
    figures: dict[str, float]


@dataclass(frozen=True)
class Benchmark:
    """A benchmark: its title, its default sizes, and the function that measures it.

    ``run`` takes the number of nodes and of pods. Without ``--nodes`` it runs once for each number
    in ``nodes``.
    """

    title: str
    nodes: tuple[int, ...]
    pods: int
    run: Callable[[int, int], BenchmarkResult]
