"""bayplan explain: why a pod is where it is, or why it is pending and what would help."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bayplan.cli.options import (
    cluster_options,
    optional_input_options,
    profiles,
    simulate,
    simulate_objects,
)
from bayplan.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from bayplan.simulation import Simulation

__all__ = ["command"]


@click.command(name="explain")
@click.argument("pod", metavar="NAMESPACE/NAME")
@optional_input_options
@cluster_options
def command(
    pod: str,
    paths: tuple[str, ...],
    config: Path | None,
    plugins_dir: Path | None,
    until: float,
    seed: int,
    kubeconfig: Path | None,
    context: str,
) -> None:
    """Say why a pod or a gang is where it is, or why it is pending and what would help.

    With -f it is answered from manifests. With --kubeconfig the running scheduler is asked; where
    it cannot be, the cluster is read and simulated.
    """
    key = pod if "/" in pod else f"default/{pod}"
    if paths and (kubeconfig is not None or context):
        raise InputError("-f and --kubeconfig exclude each other")
    if paths:
        record = frozenset((key,))
        simulation, manifests = simulate(paths, config, plugins_dir, until, seed, record)
        for note in manifests.notes.texts():
            click.echo(f"note: {note}", err=True)
        _print(simulation, key)
        return
    from bayplan.cluster.kubernetes.credentials import find_kubeconfig

    if kubeconfig is None and not context and find_kubeconfig() is None:
        raise InputError("give manifests with -f, or a cluster with --kubeconfig")
    _explain_live(key, config, plugins_dir, until, kubeconfig, context)


def _explain_live(
    key: str,
    config: Path | None,
    plugins_dir: Path | None,
    until: float,
    kubeconfig: Path | None,
    context: str,
) -> None:
    from bayplan.live.client import ask_scheduler, read_cluster

    lease = profiles(config, plugins_dir).leader_election
    answer, why = asyncio.run(ask_scheduler(kubeconfig, context, key, lease))
    if answer is not None:
        click.echo(answer.rstrip("\n"))
        return
    click.echo(f"note: {why}", err=True)
    view = asyncio.run(read_cluster(kubeconfig, context))
    for note in view.left_out:
        click.echo(f"note: left out: {note}", err=True)
    objects = [obj for found in view.objects.values() for obj in found]
    whose = "" if config else "; without --config it takes every pod, whatever its schedulerName"
    head = f"Simulated, as bayplan would go on with the cluster as it is now{whose}:"
    _print(simulate_objects(objects, config, plugins_dir, until, frozenset((key,))), key, head)


def _print(simulation: Simulation, key: str, head: str = "") -> None:
    from bayplan.api import Pod
    from bayplan.cli import render
    from bayplan.explanation import pod_to_explain, print_explanation

    def get(of: str) -> Pod | None:
        return simulation.cluster.get(Pod, of)

    found = pod_to_explain(simulation.scheduler, get, key)
    if found is None and key in simulation.scheduler.gangs.all():
        raise InputError(f'the gang "{key}" has no members at the end')
    if found is None:
        names = {other.metadata.name: other.key for other in simulation.pods()}
        near = did_you_mean(key.rsplit("/", 1)[-1], names)
        raise InputError(f'there is no pod or gang "{key}" at the end{near}')
    for note in simulation.problems():
        click.echo(f"note: {note}", err=True)
    if head:
        click.echo(head)
    print_explanation(render.stdout(), simulation.scheduler, found)
