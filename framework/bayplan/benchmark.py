"""What a benchmark is, for those who write one (entry point group ``bayplan.benchmarks``)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Benchmark", "BenchmarkResult"]


@dataclass(frozen=True)
class BenchmarkResult:
    """The input's size and the figures; where pods are placed, one is ``podsPerSecond``."""

    input: dict[str, int]
    figures: dict[str, float]


@dataclass(frozen=True)
class Benchmark:
    """A workload of so many nodes and pods by default, and the function that measures it."""

    title: str
    nodes: tuple[int, ...]
    pods: int
    run: Callable[[int, int], BenchmarkResult]
