"""bayplan bench: measure performance on this machine."""

from __future__ import annotations

import json
import math
import os
import platform
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path

import click

from bayplan.benchmark import Benchmark, BenchmarkResult, ClusterTarget, TraceRun
from bayplan.cli.options import output_option
from bayplan.errors import InputError, did_you_mean
from bayplan.inputs.durations import duration_text

__all__ = ["command"]


@click.command(name="bench")
@click.argument("name", required=False)
@click.option(
    "--nodes",
    multiple=True,
    type=click.IntRange(1, 200_000),
    help="The number of nodes. Repeatable.",
)
@click.option("--pods", type=click.IntRange(1, 2_000_000), help="The number of pods.")
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Measure on this cluster (live and live-mega). The command says first what it creates "
    "there, and deletes it at the end.",
)
@click.option(
    "--scheduler",
    default="",
    metavar="NAME",
    help="With --kubeconfig: measure a scheduler that runs there instead of our own.",
)
@click.option(
    "--start",
    default="",
    metavar="COMMAND",
    help="The command that starts the scheduler of --scheduler (live-mega only).",
)
@click.option(
    "--trace",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="DIR",
    help="The recorded workload (openb only).",
)
@click.option("--policy", default="", metavar="NAME", help="The policy to run the trace with.")
@click.option(
    "--seed",
    "seeds",
    multiple=True,
    type=click.IntRange(min=0),
    help="The seed of the trace's order. Repeatable.",
)
@click.option("--learned", is_flag=True, help="Do not tell the policy what the trace holds.")
@click.option(
    "--repack",
    "moves",
    default=0.0,
    type=click.FloatRange(0, 3600),
    metavar="MOVES",
    help="Move up to so many pods an hour, where all of them arrive within a day (openb only).",
)
@output_option
def command(
    name: str | None,
    nodes: tuple[int, ...],
    pods: int | None,
    kubeconfig: Path | None,
    scheduler: str,
    start: str,
    trace: Path | None,
    policy: str,
    seeds: tuple[int, ...],
    learned: bool,
    moves: float,
    output: str,
) -> None:
    """Run a benchmark on this machine; without NAME, list the benchmarks.

    With several --nodes or --seed, the benchmark runs once for each.
    """
    found = {point.name: point for point in entry_points(group="bayplan.benchmarks")}
    if name is None:
        for point in sorted(found):
            click.echo(f"{point:12} {found[point].load().title}")
        return
    if name not in found:
        raise InputError(f'there is no benchmark "{name}"{did_you_mean(name, found)}')
    benchmark: Benchmark = found[name].load()
    if not math.isfinite(moves):
        raise InputError("expected a number from 0 to 3600", "--repack")
    of_sizes = {"--nodes": nodes, "--pods": pods, "--kubeconfig": kubeconfig}
    of_traces = {"--trace": trace, "--policy": policy, "--seed": seeds, "--learned": learned}
    if benchmark.run_trace is not None:
        _refuse(name, of_sizes)
    else:
        _refuse(name, {**of_traces, "--repack": moves})
    on = (kubeconfig, scheduler, start)
    results = (
        _traced(name, benchmark, trace, policy, seeds, learned, moves)
        if benchmark.run_trace is not None
        else _sized(name, benchmark, nodes, pods, _target(name, benchmark, *on))
    )
    count = len((seeds or (0,)) if benchmark.run_trace is not None else nodes or benchmark.nodes)
    for result in _with_estimate(name, count, results):
        if output == "json":
            content = {"name": name, "input": result.input, "figures": result.figures}
            note = {"note": result.note} if result.note else {}
            json.dump({**content, **note, "machine": _machine()}, sys.stdout)
            print()
        else:
            _print(name, result.input, result.figures)
            if result.note:
                click.echo(f"  {result.note}")
    if output == "table":
        click.echo(_machine())


def _refuse(name: str, options: Mapping[str, object]) -> None:
    """Refuse the options that were given and have no meaning for a benchmark."""
    given = next((option for option, value in options.items() if value), None)
    if given is not None:
        raise InputError(f'the benchmark "{name}" has no such option', given)


def _with_estimate(
    name: str, count: int, results: Iterator[BenchmarkResult]
) -> Iterator[BenchmarkResult]:
    """Yield results; tell a terminal how far it is while the next one is measured.

    It is one line that stands still: a moving bar would take part in what is measured.
    """
    begin, done = time.monotonic(), 0
    while True:
        shown = done < count and sys.stderr.isatty()
        if shown:
            spent = time.monotonic() - begin
            left = f", about {duration_text(spent / done * (count - done))} left" if done else ""
            click.echo(f"{name}: run {done + 1} of {count}{left}", nl=False, err=True)
        result = next(results, None)
        if shown:
            click.echo("\r\x1b[K", nl=False, err=True)
        if result is None:
            return
        done += 1
        yield result


def _sized(
    name: str,
    benchmark: Benchmark,
    nodes: tuple[int, ...],
    pods: int | None,
    target: ClusterTarget | None,
) -> Iterator[BenchmarkResult]:
    run = _runner(name, benchmark, target)
    for size in nodes or benchmark.nodes:
        yield run(size, pods or benchmark.pods)


def _traced(
    name: str,
    benchmark: Benchmark,
    folder: Path | None,
    policy: str,
    seeds: tuple[int, ...],
    learned: bool,
    moves: float,
) -> Iterator[BenchmarkResult]:
    assert benchmark.run_trace is not None, "the benchmark runs a trace"
    if folder is None:
        raise InputError(f'the benchmark "{name}" needs the folder of its trace', "--trace")
    for seed in seeds or (benchmark.pods,):
        yield benchmark.run_trace(TraceRun(folder, policy, seed, learned, moves))


def _target(
    name: str, benchmark: Benchmark, kubeconfig: Path | None, scheduler: str, start: str
) -> ClusterTarget | None:
    """Return the cluster that the options name; None to measure without one."""
    if kubeconfig is None and scheduler:
        raise InputError("--scheduler needs --kubeconfig")
    if start and not (scheduler and benchmark.starts):
        why = "needs --scheduler" if benchmark.starts else f'"{name}" starts no scheduler'
        raise InputError(why, "--start")
    if scheduler and benchmark.starts and not start:
        raise InputError(f'"{name}" starts the scheduler itself; say how with --start', "--start")
    if kubeconfig is None:
        return None
    try:
        return ClusterTarget(kubeconfig, scheduler, tuple(shlex.split(start)))
    except ValueError as exc:
        raise InputError(str(exc), "--start") from None


def _runner(
    name: str, benchmark: Benchmark, target: ClusterTarget | None
) -> Callable[[int, int], BenchmarkResult]:
    if target is None:
        if benchmark.run is None:
            raise InputError(f'the benchmark "{name}" needs a cluster', "--kubeconfig")
        return benchmark.run
    if benchmark.run_on is None:
        raise InputError(f'the benchmark "{name}" does not run on a cluster', "--kubeconfig")
    return partial(benchmark.run_on, target)


def _print(
    name: str, given: dict[str, int], figures: Mapping[str, float | Mapping[str, float]]
) -> None:
    sizes = ", ".join(f"{value:,} {key}" for key, value in given.items())
    click.echo(f"{name}: {sizes}")
    width = max(28, *map(len, figures))
    for metric, value in figures.items():
        if isinstance(value, Mapping):
            parts = (f"{part} {number:g}" for part, number in value.items())
            click.echo(f"  {metric:{width}} {', '.join(parts)}")
            continue
        shown = f"{value:>14,.6g}" if value < 1000 else f"{value:>14,.0f}"
        click.echo(f"  {metric:{width}} {shown}")


def _machine() -> str:
    cpu = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            models = [
                line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")
            ]
        cpu = models[0] if models else cpu
    except OSError:
        pass
    return f"{cpu}, {os.cpu_count()} cores, Python {platform.python_version()}"
