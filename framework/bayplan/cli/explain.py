"""bayplan explain: why a pod is where it is, or why it is pending and what would help."""

from __future__ import annotations

from pathlib import Path

import click

from bayplan.cli.options import input_options, simulate
from bayplan.errors import InputError, did_you_mean

__all__ = ["command"]


@click.command(name="explain")
@click.argument("pod", metavar="NAMESPACE/NAME")
@input_options
def command(
    pod: str,
    paths: tuple[str, ...],
    config: Path | None,
    plugins_dir: Path | None,
    until: float,
    seed: int,
) -> None:
    """Say why a pod or a gang is where it is, or why it is pending and what would help."""
    from bayplan.api import Pod
    from bayplan.cli import render
    from bayplan.explanation import print_explanation
    from bayplan.gangs import rank_order

    key = pod if "/" in pod else f"default/{pod}"
    simulation, _ = simulate(paths, config, plugins_dir, until, seed, frozenset((key,)))
    found = simulation.cluster.get(Pod, key)
    gangs = simulation.scheduler.gangs.all()
    if found is None and key in gangs:
        # A gang is explained by its first member, those that wait before those that run.
        members = gangs[key]
        pods = list(members.pending.values()) or [pod for pod, _ in members.bound.values()]
        first = min(pods, key=rank_order, default=None)
        found = simulation.cluster.get(Pod, first.key) if first is not None else None
        if found is None:
            raise InputError(f'the gang "{key}" has no members at the end')
    if found is None:
        names = {other.metadata.name: other.key for other in simulation.pods()}
        near = did_you_mean(key.rsplit("/", 1)[-1], names)
        raise InputError(f'there is no pod or gang "{key}" at the end{near}')
    for note in simulation.problems():
        click.echo(f"note: {note}", err=True)
    print_explanation(render.stdout(), simulation.scheduler, found)
