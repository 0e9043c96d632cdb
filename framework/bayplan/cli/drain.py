"""bayplan drain: announce the maintenance of nodes, and say what becomes of the jobs there."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bayplan.cli.options import (
    Duration,
    check_source,
    cluster_options,
    optional_input_options,
    output_option,
    placed,
    profiles,
    settled,
)
from bayplan.errors import InputError
from bayplan.inputs.durations import duration_text
from bayplan.naming import counted, listed, short_key

if TYPE_CHECKING:
    from bayplan.api import ApiObject
    from bayplan.profiles.loading import ProfileSet
    from bayplan.simulation import Simulation
    from bayplan.simulation.drain import DrainReport

__all__ = ["command"]

_MANY_NODES = 8
_LONGEST = 366 * 86_400.0
_WORDS = {
    "ends": ("ends in time", "end in time"),
    "moves": ("moves", "move"),
    "waits": ("waits", "wait"),
    "stays": ("stays", "stay"),
}
"""What one job does, and what several do."""
_OUTCOMES = {"ends": "ends in time", "moves": "moves to", "waits": "waits", "stays": "stays on"}


class _Time(Duration):
    """A duration from now, or a date and time in RFC 3339; in seconds from now."""

    name = "time"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the seconds from now."""
        text = str(value)
        if "T" not in text:
            try:
                seconds = super().convert(value, param, ctx)
            except click.BadParameter:
                example = '"2h", or a date and time such as "2026-01-31T18:00:00Z"'
                self.fail(f'expected a duration such as {example}, got "{text}"')
        else:
            try:
                at = datetime.fromisoformat(text.replace("Z", "+00:00"))
            except ValueError:
                self.fail(f'expected a time such as "2026-01-31T18:00:00Z", got "{text}"')
            if at.tzinfo is None:
                self.fail(f'expected a time with its zone, such as "{text}Z"')
            seconds = at.timestamp() - time.time()
        if not 0 < seconds <= _LONGEST:
            self.fail(f'expected a time to come, within a year, got "{text}"')
        return seconds


@click.command(name="drain")
@click.argument("names", nargs=-1, required=True, metavar="NODE|DOMAIN...")
@click.option(
    "--by",
    "seconds",
    type=_Time(),
    required=True,
    metavar="TIME",
    help="When the maintenance begins: a duration from now such as 2h, or a date and time.",
)
@click.option("--dry-run", is_flag=True, help="On a cluster: only say what would become of jobs.")
@optional_input_options
@cluster_options
@output_option
def command(
    names: tuple[str, ...],
    seconds: float,
    dry_run: bool,
    paths: tuple[str, ...],
    config: Path | None,
    plugins_dir: Path | None,
    until: float | None,
    seed: int,
    kubeconfig: Path | None,
    context: str,
    output: str,
) -> None:
    """Announce the maintenance of nodes, or of network domains, and say what becomes of their jobs.

    New work stays off where it would not end in time. Jobs that run there move as a whole, one
    after another, where there is room: once they have saved their work, if they say how long that
    takes. With -f, only say so, for manifests.
    """
    from bayplan.simulation.drain import drained, nodes_named

    if until is not None:
        raise InputError("the time is that of --by", "--until")
    check_source(paths, kubeconfig, context)
    loaded = profiles(config, plugins_dir)
    if not any("Recovery" in profile.plugins for profile in loaded.profiles):
        message = "no profile enables the plugin Recovery, which moves jobs: see docs/recovery.md"
        raise InputError(message, f"--config {config}" if config is not None else "--config")
    if paths:
        simulation = placed(paths, loaded, seed)
    else:
        simulation = _of_cluster(loaded, kubeconfig, context)
    nodes = nodes_named(simulation.scheduler.snapshot, names)
    report = drained(simulation, nodes, seconds)
    if not paths and not dry_run:
        _announce(nodes, report.begins, kubeconfig, context)
    if output == "json":
        click.echo(json.dumps(report.as_json(), indent=2))
        return
    from bayplan.cli import render

    _print(render.stdout(), report, "" if paths else f"at {report.begins}, ")
    if not paths and not dry_run:
        click.echo(
            f"Announced. kubectl annotate node {nodes[0]} ... {_annotation()}- takes it back"
        )


def _annotation() -> str:
    from bayplan.dialects.maintenance import MAINTENANCE_AT

    return MAINTENANCE_AT


def _of_cluster(loaded: ProfileSet, kubeconfig: Path | None, context: str) -> Simulation:
    from bayplan.live.client import read_cluster

    view = asyncio.run(read_cluster(kubeconfig, context, loaded))
    for note in view.left_out:
        click.echo(f"note: left out: {note}", err=True)
    objects: Iterable[ApiObject] = [obj for found in view.objects.values() for obj in found]
    return settled(objects, loaded)


def _announce(nodes: Sequence[str], begins: str, kubeconfig: Path | None, context: str) -> None:
    from bayplan.live.client import annotate_nodes

    asyncio.run(annotate_nodes(kubeconfig, context, nodes, {_annotation(): begins}))


def _print(console: Console, report: DrainReport, at: str) -> None:
    """Print the nodes, and a row for each job there.

    :param at: when it begins; the virtual time of manifests is of no interest.
    """
    from bayplan.simulation.drain import outcomes

    names = listed(report.nodes, _MANY_NODES)
    console.print(
        f"[bold]Maintenance[/bold]  of {counted(len(report.nodes), 'node')} ({escape(names)}) "
        f"{at}in {duration_text(report.seconds)}"
    )
    if not report.jobs:
        console.print("No jobs run there.")
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in ("job", "pods there", "what becomes of it"):
        table.add_column(column, justify="right" if column == "pods there" else "left")
    for one in report.jobs:
        text = _OUTCOMES[one.outcome]
        if one.outcome in ("moves", "stays"):
            text += f" {listed(one.nodes, _MANY_NODES)}"
        text += f": {one.why}" if one.why else ""
        table.add_row(escape(short_key(one.job)), str(one.pods), escape(text))
    console.print(table)
    parts = [f"{count} {_WORDS[kind][count > 1]}" for kind, count in outcomes(report).items()]
    console.print(f"{counted(len(report.jobs), 'job')}: {', '.join(parts)}")
