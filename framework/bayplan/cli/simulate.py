"""bayplan simulate: schedule the pods of manifests on an embedded cluster."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bayplan.cli.options import compared_input_options, output_option, simulate
from bayplan.cli.progress import progress_bars
from bayplan.cli.watching import again_and_again, check_watchable, watch_option
from bayplan.errors import InputError, did_you_mean
from bayplan.naming import counted

if TYPE_CHECKING:
    from bayplan.cli.costs import Costs
    from bayplan.cli.policy_runs import Work
    from bayplan.simulation import Simulation

__all__ = ["command"]

_PENDING = 3
"""The exit status if a pod stays pending; 2 means input that cannot be used."""


@click.command(name="simulate")
@compared_input_options
@click.option(
    "--compare",
    "compared",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="FILE",
    help="Compare this profile file with the one of --config, or else with the other --compare, "
    "or else with the default profile. Repeatable.",
)
@output_option
@click.option(
    "--report",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Also write the result as an HTML page; - prints it instead of the table.",
)
@click.option(
    "--fail-on-pending",
    is_flag=True,
    help="Exit with status 3 if a pod stays pending.",
)
@click.option(
    "--arrivals",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Jobs that arrive over time: CSV or JSON lines with name, queue, arrival, duration, pods.",
)
@click.option(
    "--prices",
    "price_file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="A price list: show what each tenant would pay. The virtual time begins on 2000-01-01.",
)
@click.option("--trace", metavar="NS/POD", help="Print each hook that runs for one pod.")
@watch_option("Simulate again whenever the files change.")
def command(watch: bool, **given: Any) -> None:
    """Place the pods of manifest files on an embedded cluster, in virtual time.

    With several profile files, print what each of them would earn, leave idle, and let wait, and
    which jobs would wait longer or run elsewhere.
    """
    if not watch:
        _simulate(**given)
        return
    check_watchable(given["paths"])
    if given["fail_on_pending"]:
        raise InputError("ends with a status: leave out --watch", "--fail-on-pending")
    single = (given[name] for name in ("plugins_dir", "arrivals", "price_file"))
    more = [*given["configs"], *given["compared"], *single]
    files = [*map(Path, given["paths"]), *(path for path in more if path is not None)]
    again_and_again(lambda: _simulate(**given), files)


def _simulate(
    paths: tuple[str, ...],
    configs: tuple[Path, ...],
    compared: tuple[Path, ...],
    plugins_dir: Path | None,
    until: float | None,
    seed: int,
    output: str,
    report: Path | None,
    fail_on_pending: bool,
    arrivals: Path | None,
    price_file: Path | None,
    trace: str | None,
) -> None:
    from bayplan.cli import render

    policies = _policies(configs, compared)
    if len(policies) > 1:
        from bayplan.cli.policy_runs import Work

        _refuse_details(report, trace)
        work = Work(paths, plugins_dir, until, seed, arrivals)
        _compare(policies, work, price_file, output, fail_on_pending)
        return
    page_only = report is not None and str(report) == "-"
    if page_only and output == "json":
        raise InputError("--report - and -o json both write to standard output; give a file")
    costs = _costs(price_file)
    with progress_bars() as bars:
        simulation, manifests = simulate(
            paths,
            policies[0],
            plugins_dir,
            until,
            seed,
            bars=bars,
            trace=trace,
            arrivals=arrivals,
            journal=None if costs is None else costs.journal,
        )
    if trace is not None:
        _check_traced(simulation, trace)
    unwritten = None
    if report is not None and not page_only:
        unwritten = _written(simulation, report)
    for active in simulation.scheduler.profiles.values():
        for note in active.profile.notes:
            click.echo(f"note: {note}", err=True)
    for note in simulation.problems():
        click.echo(f"note: {note}", err=True)
    for note in manifests.notes():
        click.echo(f"note: {note}", err=True)
    for kind, count in sorted(manifests.ignored.items()):
        click.echo(f"note: {counted(count, 'object')} of kind {kind} ignored", err=True)
    if page_only:
        from bayplan.cli.report import report_page

        sys.stdout.write(report_page(simulation))
    elif output == "json":
        result = simulation.result()
        if costs is not None:
            result["costs"] = costs.earnings(simulation).as_json()
        json.dump(result, sys.stdout, indent=2)
        print()
    else:
        render.print_simulation(simulation)
        if costs is not None:
            costs.print(simulation)
    if unwritten is not None:
        raise unwritten
    if fail_on_pending and (simulation.pending() or simulation.refused()):
        sys.exit(_PENDING)


def _policies(configs: Sequence[Path], compared: Sequence[Path]) -> list[Path | None]:
    """Return the profile files to run; None stands for the default profile."""
    base: list[Path | None] = list(configs)
    if not base and len(compared) < 2:
        base = [None]
    return base + list(compared)


def _refuse_details(report: Path | None, trace: str | None) -> None:
    """Raise InputError for options that are about one run."""
    for option, value in (("--report", report), ("--trace", trace)):
        if value is not None:
            raise InputError("is about one run: give one --config", option)


def _compare(
    configs: Sequence[Path | None],
    work: Work,
    price_file: Path | None,
    output: str,
    fail_on_pending: bool,
) -> None:
    """Print what becomes of the same work with each profile file."""
    from bayplan.billing.prices import load_prices
    from bayplan.cli.comparison import print_comparison
    from bayplan.cli.policy_runs import run_policy
    from bayplan.simulation.comparison import compare

    if "-" in work.paths:
        raise InputError("is read once: give a file to compare several profiles", "-f -")
    prices = None if price_file is None else load_prices(price_file)
    runs = []
    for config in configs:
        with progress_bars() as bars:
            runs.append(run_policy(config, work, bars))
    found = compare(runs, prices)
    if output == "json":
        json.dump(found.as_json(), sys.stdout, indent=2)
        print()
    else:
        print_comparison(found)
    unplaced = any(run.simulation.pending() or run.simulation.refused() for run in runs)
    if fail_on_pending and unplaced:
        sys.exit(_PENDING)


def _costs(price_file: Path | None) -> Costs | None:
    if price_file is None:
        return None
    from bayplan.cli.costs import Costs

    return Costs(price_file)


def _written(simulation: Simulation, report: Path) -> InputError | None:
    """Write the report; return the error, if any, to raise after the result is printed."""
    from bayplan.cli.report import write_report

    try:
        write_report(simulation, report)
    except InputError as exc:
        return exc
    return None


def _check_traced(simulation: Simulation, key: str) -> None:
    """Raise InputError if --trace names a pod that does not exist or was refused."""
    from bayplan.api import Pod

    if simulation.cluster.get(Pod, key) is not None:
        return
    why = simulation.refused().get(f"Pod {key}")
    if why is not None:
        raise InputError(f"an API server refuses it: {why}", f"--trace {key}")
    names = {pod.key for pod in simulation.pods()}
    raise InputError(f'--trace: there is no pod "{key}"{did_you_mean(key, names)}')
