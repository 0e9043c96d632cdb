"""bayplan simulate: what would become of these manifests."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from bayplan.cli.options import input_options, output_option, simulate
from bayplan.errors import InputError, did_you_mean

__all__ = ["command"]


@click.command(name="simulate")
@input_options
@output_option
@click.option(
    "--report",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Also write the answer as one HTML page.",
)
@click.option("--trace", metavar="NS/POD", help="Print each hook that runs for one pod.")
def command(
    paths: tuple[str, ...],
    config: Path | None,
    plugins_dir: Path | None,
    until: float,
    seed: int,
    output: str,
    report: Path | None,
    trace: str | None,
) -> None:
    """Place the pods of manifest files on an embedded cluster, in virtual time."""
    from bayplan.api import Pod
    from bayplan.cli import render

    with render.progress() as progress:
        simulation, manifests = simulate(
            paths, config, plugins_dir, until, seed, progress=progress, trace=trace
        )
    if trace is not None and simulation.cluster.get(Pod, trace) is None:
        names = {pod.key for pod in simulation.pods()}
        raise InputError(f'--trace: there is no pod "{trace}"{did_you_mean(trace, names)}')
    if report is not None:
        from bayplan.cli.report import write_report

        write_report(simulation, report)
    for profile in simulation.profiles.profiles:
        for note in profile.notes:
            click.echo(f"note: {note}", err=True)
    for note in simulation.problems():
        click.echo(f"note: {note}", err=True)
    for note in manifests.notes():
        click.echo(f"note: {note}", err=True)
    for kind, count in sorted(manifests.ignored.items()):
        plural = "s" if count > 1 else ""
        click.echo(f"note: {count} object{plural} of kind {kind} passed over", err=True)
    if output == "json":
        json.dump(simulation.result(), sys.stdout, indent=2)
        print()
    else:
        render.print_simulation(simulation)
