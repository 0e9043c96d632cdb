"""bayplan doctor: a look at a cluster, and what to do about what is found."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bayplan.cli.options import cluster_options, output_option

if TYPE_CHECKING:
    from bayplan.live.doctor import Finding

__all__ = ["command"]

_STYLES = {"ok": "green", "warning": "yellow", "failure": "bold red"}


@click.command(name="doctor")
@cluster_options
@click.option(
    "--account",
    default="bayplan-system/bayplan-scheduler",
    show_default=True,
    metavar="NAMESPACE/NAME",
    help="The scheduler's service account.",
)
@click.option("--node", is_flag=True, help="Look at this node, in the place of a cluster.")
@click.option(
    "--machine",
    default="",
    metavar="NAME",
    help="With --node: the known machine that it should be.",
)
@output_option
def command(
    kubeconfig: Path | None, context: str, account: str, node: bool, machine: str, output: str
) -> None:
    """Look at a cluster: versions, clock, nodes, the leader, rights, kinds, other schedulers.

    With --node, at the node where it runs: GPUs, NVLinks and the fabric, the kubelet's policies,
    NCCL's settings.
    It changes nothing. The exit status is 1 if something does not work.
    """
    if machine and not node:
        raise click.BadParameter("needs --node", param_hint="--machine")
    if account.count("/") != 1:
        raise click.BadParameter(
            f'expected NAMESPACE/NAME, got "{account}"', param_hint="--account"
        )
    if node:
        from bayplan.live.node_doctor import examine_node

        found = list(examine_node(machine))
    else:
        found = asyncio.run(_examined(kubeconfig, context, account))
    if output == "json":
        shown = [
            {"level": o.level, "about": o.about, "text": o.text, "remedy": o.remedy} for o in found
        ]
        click.echo(json.dumps(shown, indent=2))
    else:
        _print(found)
    if any(one.level == "failure" for one in found):
        raise SystemExit(1)


async def _examined(kubeconfig: Path | None, context: str, account: str) -> list[Finding]:
    from bayplan.live.doctor import examine

    return [one async for one in examine(kubeconfig, context, account)]


def _print(found: list[Finding]) -> None:
    from rich.table import Table
    from rich.text import Text

    from bayplan.cli.render import stdout

    table = Table(box=None, show_header=False, pad_edge=False)
    for one in found:
        remedy = f"\n→ {one.remedy}" if one.remedy else ""
        level = Text(one.level, style=_STYLES[one.level])
        table.add_row(level, one.about, Text(f"{one.text}{remedy}"))
    stdout().print(table)
