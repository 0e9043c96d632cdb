"""The interface of benchmarks (entry point group ``bayplan.benchmarks``)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Benchmark", "BenchmarkResult", "ClusterTarget"]


@dataclass(frozen=True)
class BenchmarkResult:
    """The size of the input, and the figures; ``podsPerSecond`` is one if pods are placed."""

    input: dict[str, int]
    figures: dict[str, float]


@dataclass(frozen=True)
class ClusterTarget:
    """A cluster to measure on.

    :param scheduler: the name of a scheduler that runs there; "" to run our own in this process.
    """

    kubeconfig: Path
    scheduler: str = ""


@dataclass(frozen=True)
class Benchmark:
    """A benchmark: its title, its default sizes, and the function that measures it.

    ``run`` takes the number of nodes and of pods. Without ``--nodes`` it runs once for each number
    in ``nodes``. ``run_on`` does the same on a cluster, None when that is not possible.
    """

    title: str
    nodes: tuple[int, ...]
    pods: int
    run: Callable[[int, int], BenchmarkResult]
    run_on: Callable[[ClusterTarget, int, int], BenchmarkResult] | None = None
