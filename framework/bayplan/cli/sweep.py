"""bayplan sweep: every profile on every trace in every order, on all cores or a Dask cluster."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from bayplan.cli.options import Duration, faults_options, loaded_faults, output_option
from bayplan.cli.progress import progress_bars
from bayplan.errors import BayplanError, InputError

if TYPE_CHECKING:
    from bayplan.cli.policy_runs import Work
    from bayplan.simulation.comparison import Outcome

__all__ = ["SweepRun", "command", "run_one"]


class SweepRun(msgspec.Struct, frozen=True):
    """One run of a sweep: a profile on a trace in the order of a seed."""

    config: Path | None
    work: Work
    prices: Path | None


@click.command(name="sweep")
@click.option(
    "-f",
    "--filename",
    "paths",
    multiple=True,
    required=True,
    metavar="PATH",
    help="A manifest file or a folder of manifests. Repeatable.",
)
@click.option(
    "--config",
    "configs",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="FILE",
    help="A profile file. Repeatable. Without it, the default profile.",
)
@click.option(
    "--arrivals",
    type=click.Path(path_type=Path, dir_okay=False),
    multiple=True,
    metavar="FILE",
    help="A trace: jobs that arrive over time. Repeatable.",
)
@click.option(
    "--seed",
    "seeds",
    type=click.IntRange(min=0),
    multiple=True,
    help="The seed that shuffles which job of a trace arrives when, 0 leaves them as they are; and "
    "by which faults happen. Repeatable.",
)
@click.option(
    "--plugins-dir",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="A folder of single-file plugins for the profiles.",
)
@click.option(
    "--until",
    type=Duration(),
    help="The virtual time of every run. By default each run ends with its last job.",
)
@click.option(
    "--prices",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="A price list: show what tenants would pay.",
)
@faults_options
@click.option(
    "--processes",
    type=click.IntRange(min=1),
    help="How many runs at once. By default as many as there are cores.",
)
@click.option(
    "--dask",
    metavar="ADDRESS",
    help="Run on the Dask cluster with this scheduler, such as tcp://host:8786. Its workers need "
    "bayplan and the same files.",
)
@output_option
def command(
    paths: tuple[str, ...],
    configs: tuple[Path, ...],
    arrivals: tuple[Path, ...],
    seeds: tuple[int, ...],
    plugins_dir: Path | None,
    until: float | None,
    prices: Path | None,
    faults: Path | None,
    mtbf: float | None,
    processes: int | None,
    dask: str | None,
    output: str,
) -> None:
    """Run every profile on every trace in the order of every seed, and print what becomes of it.

    The result does not depend on how many runs there are at once, nor where.
    """
    from bayplan.cli import render
    from bayplan.cli.policy_runs import Work
    from bayplan.cli.sweep_table import SweepResult, print_sweep
    from bayplan.cli.workers import at_once, on_dask

    if "-" in paths:
        raise InputError("is read once: give a file", "-f -")
    played = loaded_faults(faults, mtbf)
    if any(seeds) and not arrivals and played is None:
        message = "shuffles the jobs of --arrivals, and changes when faults happen: there are none"
        raise InputError(message, "--seed")
    runs = [
        SweepRun(config, Work(paths, plugins_dir, until, 0, trace, seed, faults=played), prices)
        for config in configs or (None,)
        for trace in arrivals or (None,)
        for seed in dict.fromkeys(seeds or (0,))
    ]
    with progress_bars() as bars:
        progress = bars("runs") if bars is not None else None
        if dask is not None:
            answers = on_dask(dask, run_one, runs, progress)
        else:
            answers = at_once(processes or _cores(), run_one, runs, progress)
    results = zip(runs, answers, strict=True)
    found = [SweepResult(run.work, _checked(answer)) for run, answer in results]
    notes = [f"{run.outcome.policy}: {note}" for run in found for note in run.outcome.notes]
    for note in dict.fromkeys(notes):
        click.echo(f"note: {note}", err=True)
    if output == "json":
        click.echo(json.dumps({"runs": [one.as_json() for one in found]}, indent=2))
    else:
        print_sweep(render.stdout(), found)


def _cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_one(run: SweepRun) -> Outcome | str:
    """Run one; return what became of it, or in words why it could not run."""
    from bayplan.billing.prices import load_prices
    from bayplan.cli.policy_runs import run_policy
    from bayplan.simulation.comparison import compare

    try:
        prices = None if run.prices is None else load_prices(run.prices)
        return compare([run_policy(run.config, run.work)], prices).outcomes[0]
    except BayplanError as exc:
        # The words arrive from any process, the exception might not.
        return str(exc)


def _checked(answer: Outcome | str) -> Outcome:
    if isinstance(answer, str):
        raise InputError(answer)
    return answer
