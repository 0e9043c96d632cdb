"""bayplan explain: why a pod is where it is, or why it is pending and what would help."""

from __future__ import annotations

from pathlib import Path

import click

from bayplan.cli.options import input_options, simulate
from bayplan.errors import InputError, did_you_mean

__all__ = ["command"]


@click.command(name="explain")
@click.argument("pod", metavar="NAMESPACE/POD")
@input_options
def command(
    pod: str,
    paths: tuple[str, ...],
    config: Path | None,
    plugins_dir: Path | None,
    until: float,
    seed: int,
) -> None:
    """Say why a pod is where it is, or why it is pending and what would help."""
    from bayplan.api import Pod
    from bayplan.cli import render

    key = pod if "/" in pod else f"default/{pod}"
    simulation, _ = simulate(paths, config, plugins_dir, until, seed, frozenset((key,)))
    found = simulation.cluster.get(Pod, key)
    if found is None:
        names = {other.metadata.name: other.key for other in simulation.pods()}
        near = did_you_mean(key.rsplit("/", 1)[-1], names)
        raise InputError(f'there is no pod "{key}" at the end{near}')
    render.print_explanation(simulation, found)
