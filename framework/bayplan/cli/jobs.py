"""bayplan jobs: the jobs of a namespace in lines, as squeue lists them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bayplan.cli.options import NAMESPACE_NAME, cluster_options, output_option, own_namespace
from bayplan.inputs.choices import OneOf

if TYPE_CHECKING:
    from bayplan.explain.job_list import JobLine

__all__ = ["command"]

_MOST_NODES = 4
_STATES = ("Running", "Pending", "Ending", "Ended")


@click.command(name="jobs")
@cluster_options
@click.option(
    "-n",
    "--namespace",
    type=NAMESPACE_NAME,
    metavar="NAME",
    help="The namespace. By default: that of the kubeconfig's context.",
)
@click.option("-A", "--all-namespaces", is_flag=True, help="The jobs of all namespaces.")
@click.option("--all", "ended", is_flag=True, help="Those that have ended, too.")
@click.option(
    "-t",
    "--state",
    "states",
    type=OneOf(_STATES),
    multiple=True,
    help="Only those in this state. Repeatable.",
)
@output_option
def command(
    kubeconfig: Path | None,
    context: str,
    namespace: str | None,
    all_namespaces: bool,
    ended: bool,
    states: Sequence[str],
    output: str,
) -> None:
    """List the jobs of a namespace: state, pods, GPUs, time, and nodes or why not.

    It reads pods and Jobs with your own rights.
    """
    from bayplan.explain.job_list import job_lines
    from bayplan.live.jobs import read_jobs

    own = "" if all_namespaces else own_namespace(namespace, kubeconfig, context)
    pods, jobs = asyncio.run(read_jobs(kubeconfig, context, own))
    wanted = states or (_STATES if ended else _STATES[:-1])
    lines = [one for one in job_lines(pods, jobs, time.time()) if one.state in wanted]
    if output == "json":
        click.echo(json.dumps([one.as_json() for one in lines], indent=2))
    else:
        _print(lines, all_namespaces)


def _print(lines: Sequence[JobLine], named: bool) -> None:
    """Print a table; keys have their namespaces where there may be several."""
    from rich.table import Table
    from rich.text import Text

    from bayplan.cli.render import stdout
    from bayplan.inputs.durations import duration_text
    from bayplan.naming import listed

    if not lines:
        stdout().print("no jobs")
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for head in ("job", "state", "pods", "GPUs", "time", "nodes, or why not"):
        table.add_column(head, overflow="fold")
    for one in lines:
        where = listed(one.nodes, _MOST_NODES) if one.nodes else ""
        why = f"({one.reason})" if one.reason else ""
        table.add_row(
            Text(one.job if named else one.job.partition("/")[2]),
            one.state,
            f"{one.running}/{one.pods}",
            str(one.gpus or ""),
            duration_text(one.seconds),
            Text(" ".join(filter(None, (where, why)))),
        )
    stdout().print(table)
