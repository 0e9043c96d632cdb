"""bayplan simulate: schedule the pods of manifests on an embedded cluster."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace

from bayplan.cli.options import (
    compared_input_options,
    faults_options,
    loaded_faults,
    output_option,
    simulate,
)
from bayplan.cli.progress import progress_bars
from bayplan.cli.watching import again_and_again, check_watchable, watch_option
from bayplan.cluster.archive import is_archive
from bayplan.errors import InputError, did_you_mean
from bayplan.naming import counted
from bayplan.profiles.loading import holds_profiles

if TYPE_CHECKING:
    from bayplan.cli.costs import Costs
    from bayplan.cli.policy_runs import Work
    from bayplan.cli.report import Recording
    from bayplan.simulation import Simulation
    from bayplan.simulation.comparison import Run

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
    metavar="PATH",
    help="A profile file: compare it with the one of --config, or else with the other --compare, "
    "or else with the default profile. A file or folder of manifests: compare with and without "
    "them, under the first profile. Repeatable.",
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
    help="Exit with status 3 if a pod stays pending, or a job is held back by its queue.",
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
@click.option(
    "--node-groups",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Play an autoscaler that adds and removes nodes of these groups, and show what they cost.",
)
@faults_options
@click.option("--trace", metavar="NS/POD", help="Print each hook that runs for one pod.")
@watch_option("Simulate again whenever the files change.")
def command(watch: bool, **given: Any) -> None:
    """Place the pods of manifest files on an embedded cluster, in virtual time.

    With several profile files, or with more manifests to compare, print what each of them would
    earn, leave idle, and let wait, and which jobs would wait longer or run elsewhere.
    """
    if not watch:
        _simulate(**given)
        return
    check_watchable(given["paths"])
    if given["fail_on_pending"]:
        raise InputError("ends with a status: leave out --watch", "--fail-on-pending")
    names = ("plugins_dir", "arrivals", "price_file", "node_groups", "faults")
    single = (given[name] for name in names)
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
    node_groups: Path | None,
    faults: Path | None,
    mtbf: float | None,
    trace: str | None,
) -> None:
    from bayplan.cli import render

    played = loaded_faults(faults, mtbf)
    policies, added = _policies(configs, compared)
    if len(policies) + len(added) > 1:
        from bayplan.cli.policy_runs import Work

        if trace is not None:
            raise InputError("is about one run: give one --config", "--trace")
        if report is not None and str(report) == "-":
            raise InputError("prints a table, too: give a file", "--report -")
        work = Work(
            paths, plugins_dir, until, seed, arrivals, node_groups=node_groups, faults=played
        )
        runs = [(config, work) for config in policies]
        runs += [(policies[0], replace(work, added=path)) for path in added]
        _compare(runs, price_file, output, report, fail_on_pending)
        return
    page_only = report is not None and str(report) == "-"
    if page_only and output == "json":
        raise InputError("--report - and -o json both write to standard output; give a file")
    costs = _costs(price_file)
    recording = _recording(report, paths)
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
            begun=recording,
            node_groups=node_groups,
            faults=played,
        )
    if trace is not None:
        _check_traced(simulation, trace)
    unwritten = None
    page = "" if recording is None else _page(recording, simulation, costs)
    if report is not None and not page_only:
        unwritten = _written(page, report)
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
        sys.stdout.write(page)
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
    if fail_on_pending and not simulation.complete:
        sys.exit(_PENDING)


def _policies(
    configs: Sequence[Path], compared: Sequence[Path]
) -> tuple[list[Path | None], list[str]]:
    """Return the profile files to run, None for the default profile, and the manifests to add."""
    profiles = [path for path in compared if not _is_manifests(path)]
    added = [str(path) for path in compared if path not in profiles]
    base: list[Path | None] = list(configs)
    if not base and len(profiles) < 2:
        base = [None]
    return base + profiles, added


def _is_manifests(path: Path) -> bool:
    if path.is_dir() or is_archive(path):
        return True
    # Nothing can be said of a missing file: it is reported as it is loaded.
    return path.exists() and not holds_profiles(path)


def _compare(
    policies: Sequence[tuple[Path | None, Work]],
    price_file: Path | None,
    output: str,
    report: Path | None,
    fail_on_pending: bool,
) -> None:
    """Print what becomes of work with each profile file; the page shows the first."""
    from bayplan.billing.prices import load_prices
    from bayplan.cli.comparison import print_comparison
    from bayplan.cli.policy_runs import run_policy
    from bayplan.simulation.comparison import compare

    paths = policies[0][1].paths
    if "-" in paths:
        raise InputError("is read once: give a file to compare", "-f -")
    prices = None if price_file is None else load_prices(price_file)
    recording = _recording(report, paths)
    runs: list[Run] = []
    for config, work in policies:
        with progress_bars() as bars:
            begun = recording if not runs else None
            runs.append(run_policy(config, work, bars, begun))
    found = compare(runs, prices)
    for outcome in found.outcomes:
        for note in outcome.notes:
            click.echo(f"note: {outcome.policy}: {note}", err=True)
    unwritten = None
    if report is not None and recording is not None:
        page = recording.page(runs[0].simulation, {"comparison": found.as_json()})
        unwritten = _written(page, report)
    if output == "json":
        json.dump(found.as_json(), sys.stdout, indent=2)
        print()
    else:
        print_comparison(found)
    if unwritten is not None:
        raise unwritten
    if fail_on_pending and not all(run.simulation.complete for run in runs):
        sys.exit(_PENDING)


def _costs(price_file: Path | None) -> Costs | None:
    if price_file is None:
        return None
    from bayplan.cli.costs import Costs

    return Costs(price_file)


def _recording(report: Path | None, paths: Sequence[str]) -> Recording | None:
    if report is None:
        return None
    from bayplan.cli.report import Recording

    return Recording(", ".join(paths))


def _page(recording: Recording, simulation: Simulation, costs: Costs | None) -> str:
    more = {} if costs is None else {"costs": costs.earnings(simulation).as_json()}
    return recording.page(simulation, more)


def _written(page: str, report: Path) -> InputError | None:
    """Write the report; return the error, if any, to raise after the result is printed."""
    from bayplan.cli.report import write_report

    try:
        write_report(report, page)
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
