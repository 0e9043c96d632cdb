"""The interface of benchmarks (entry point group ``bayplan.benchmarks``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

__all__ = ["Benchmark", "BenchmarkResult", "ClusterTarget", "TraceRun"]


class BenchmarkResult(msgspec.Struct, frozen=True):
    """The size of the input, and the figures; ``podsPerSecond`` is one if pods are placed.

    A figure may be several numbers by name. ``note`` says what has to be known to read them.
    """

    input: dict[str, int]
    figures: Mapping[str, float | Mapping[str, float]]
    note: str = ""


class ClusterTarget(msgspec.Struct, frozen=True):
    """A cluster to measure on.

    :param scheduler: the name of a scheduler to measure; "" for our own.
    :param start: the command that starts it, for a benchmark that has it started.
    """

    kubeconfig: Path
    scheduler: str = ""
    start: tuple[str, ...] = ()


class TraceRun(msgspec.Struct, frozen=True):
    """A recorded workload to run: its folder, a policy by name, and the seed of its order.

    ``learned`` says that the policy is not shown what will come. ``moves`` is how many pods an hour
    are moved on.
    """

    folder: Path
    policy: str
    seed: int
    learned: bool = False
    moves: float = 0.0


class Benchmark(msgspec.Struct, frozen=True):
    """A benchmark: its title, its default sizes, and the function that measures it.

    ``run`` takes the number of nodes and of pods, None when it needs a cluster. Without ``--nodes``
    it runs once for each number in ``nodes``. ``run_on`` does the same on a cluster, None when that
    is not possible; ``starts`` says that it starts the scheduler itself. ``run_trace`` runs a
    recorded workload instead, None for a benchmark that makes its own.
    """

    title: str
    nodes: tuple[int, ...]
    pods: int
    run: Callable[[int, int], BenchmarkResult] | None
    run_on: Callable[[ClusterTarget, int, int], BenchmarkResult] | None = None
    run_trace: Callable[[TraceRun], BenchmarkResult] | None = None
    starts: bool = False
