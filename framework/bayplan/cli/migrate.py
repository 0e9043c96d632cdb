"""bayplan migrate: what may go once bayplan schedules, and one namespace after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bayplan.api import Pod
from bayplan.cli.options import cluster_options
from bayplan.naming import counted, listed

if TYPE_CHECKING:
    from bayplan.migration.plan import Plan

__all__ = ["command"]

_SHOWN = 5


@click.group(name="migrate")
def command() -> None:
    """Move from Volcano, KAI, Kueue, Koordinator or HAMi to bayplan, and back.

    No pod is restarted, and no object is changed but the labels of namespaces.
    """


@command.command()
@cluster_options
@click.option(
    "--profiles",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the profiles that replace the systems' configurations to this file.",
)
@click.option("--day-after", is_flag=True, help="Also simulate what these profiles would decide.")
def plan(kubeconfig: Path | None, context: str, profiles: Path | None, day_after: bool) -> None:
    """Say of each component of other systems whether it may go, and which kinds would fall."""
    from bayplan.live.migration import read_plan

    found = asyncio.run(read_plan(kubeconfig, context))
    _print(found)
    if profiles is not None and found.conversions:
        _write(found, profiles)
        click.echo(f"\n{profiles}: bayplan profile check {profiles}")
    if day_after:
        _simulate(found, kubeconfig, context)


@command.command()
@click.argument("namespace")
@click.option(
    "--scheduler",
    default="bayplan",
    show_default=True,
    metavar="NAME",
    help="The schedulerName of one of bayplan's profiles.",
)
@cluster_options
def apply(namespace: str, scheduler: str, kubeconfig: Path | None, context: str) -> None:
    """Give the new pods of a namespace to bayplan. Those that are there stay as they are."""
    from bayplan.live.migration import move

    moved = asyncio.run(move(kubeconfig, context, namespace, scheduler))
    replaced = f', those that name "{moved.before}" too' if moved.before else ""
    click.echo(f'new pods of namespace {namespace} get schedulerName "{scheduler}"{replaced}')
    for name, count in sorted(moved.pods.items()):
        click.echo(f'{counted(count, "pod")} of schedulerName "{name}" stay as they are')
    click.echo(f"back: bayplan migrate undo {namespace}")


@command.command()
@click.argument("namespace")
@cluster_options
def undo(namespace: str, kubeconfig: Path | None, context: str) -> None:
    """Let the new pods of a namespace have their own scheduler again."""
    from bayplan.live.migration import take_back

    moved = asyncio.run(take_back(kubeconfig, context, namespace))
    if moved:
        click.echo(f"new pods of namespace {namespace} keep their schedulerName")
    else:
        click.echo(f"namespace {namespace} was not moved")


def _print(found: Plan) -> None:
    from rich.table import Table

    from bayplan.cli.render import stdout

    console = stdout()
    if not found.running:
        click.echo("none of Volcano, KAI, Kueue, Koordinator and HAMi runs here")
    else:
        table = Table("SYSTEM", "COMPONENT", "WHERE", "", "WHY", box=None, pad_edge=False)
        for one in found.running:
            part = one.component
            lost = f"; lost: {part.lost}" if part.lost else ""
            table.add_row(part.system, part.name, one.where, part.verdict, f"{part.why}{lost}")
        console.print(table)
    if found.falling:
        click.echo(
            "\nThese definitions, and all objects of their kinds, would go with their charts:"
        )
        for name in found.falling:
            click.echo(f"  {name.keep}   # release {name.release}")
    if found.conversions:
        click.echo("\nProfiles in the place of configurations (--profiles FILE writes them):")
        for made in found.conversions:
            click.echo(f"  {made.source}: schedulerName {made.profile['schedulerName']}")
            for note in made.notes:
                click.echo(f"    {note}")
    for problem in found.problems:
        click.echo(f"note: {problem}", err=True)


def _write(found: Plan, path: Path) -> None:
    import yaml

    text: str = yaml.dump(found.configuration(), Dumper=yaml.CSafeDumper, sort_keys=False)
    path.write_text(text, encoding="utf-8")


def _simulate(found: Plan, kubeconfig: Path | None, context: str) -> None:
    """Say what bayplan would decide at once, if it had all of these profiles' pods now."""
    import tempfile

    from bayplan.cli.options import profiles, settled
    from bayplan.live.client import read_cluster

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "profiles.yaml"
        _write(found, path)
        loaded = profiles(path if found.conversions else None, None)
    view = asyncio.run(read_cluster(kubeconfig, context, loaded))
    objects = [one for group in view.objects.values() for one in group]
    simulation = settled(objects, loaded)
    before = {pod.key: pod.spec.node_name for pod in objects if isinstance(pod, Pod)}
    after = simulation.placements()
    running = {key for key, node in before.items() if node}
    kept = sum(after.get(key) == before[key] for key in running)
    gone = sorted(running - after.keys())
    new = sorted(after.keys() - running)
    click.echo("\nIf bayplan had these schedulers' pods now:")
    click.echo(f"  {counted(kept, 'running pod')} would keep their nodes")
    _list("would be evicted", gone)
    _list("would be placed", [f"{key} on {after[key]}" for key in new])
    _list("would wait", sorted(simulation.pending()))


def _list(what: str, names: Sequence[str]) -> None:
    if names:
        click.echo(f"  {counted(len(names), 'pod')} {what}: {listed(names, _SHOWN)}")
