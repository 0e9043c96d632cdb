"""bayplan crds: the definitions of other systems' kinds, from their projects to a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from bayplan.cli.options import cluster_options
from bayplan.errors import InputError, did_you_mean
from bayplan.schemas.upstream import MIRROR, SYSTEMS, Definition, System, downloaded, read_from

__all__ = ["command"]


def _source_options(function: click.decorators.FC) -> click.decorators.FC:
    version = click.option(
        "--version",
        "version",
        default="",
        metavar="VERSION",
        help="The project's release, such as v1.15.1; only with one SYSTEM. By default: the one in "
        '"bayplan crds list".',
    )
    mirror = click.option(
        "--mirror",
        default=MIRROR,
        show_default=True,
        metavar="URL",
        help="Serves the projects' files as OWNER/REPOSITORY/VERSION/PATH.",
    )
    folder = click.option(
        "--from",
        "folder",
        type=click.Path(path_type=Path, exists=True, file_okay=False),
        metavar="DIR",
        help="A checkout of the project, or a folder with its files: nothing is downloaded.",
    )
    return version(mirror(folder(function)))


@click.group(name="crds")
def command() -> None:
    """Install the kinds of other systems, as their projects define them.

    Clusters that once had Volcano, KAI, Kueue, Koordinator or scheduler-plugins keep their jobs and
    queues; with these definitions new clusters read them, too.
    """


@command.command(name="list")
@cluster_options
def list_systems(kubeconfig: Path | None, context: str) -> None:
    """Show each system's kinds; with --kubeconfig or --context, what the cluster serves of them."""
    from rich.table import Table

    from bayplan.cli.render import stdout

    asked = kubeconfig is not None or bool(context)
    served: Mapping[str, Sequence[str]] = {}
    if asked:
        from bayplan.live.definitions import served_versions

        names = [name for system in SYSTEMS.values() for name, _ in system.paths()]
        served = asyncio.run(served_versions(kubeconfig, context, names))
    table = Table("SYSTEM", "VERSION", "DEFINITION", box=None, pad_edge=False)
    if asked:
        table.add_column("IN THE CLUSTER")
    for system in SYSTEMS.values():
        for number, (name, _) in enumerate(system.paths()):
            first = [system.name, system.version] if number == 0 else ["", ""]
            here = [", ".join(served.get(name, ())) or "absent"] if asked else []
            table.add_row(*first, name, *here)
    stdout().print(table)


@command.command()
@click.argument("systems", nargs=-1, required=True, metavar="SYSTEM...")
@_source_options
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    metavar="DIR",
    help="The folder to write to.",
)
def fetch(
    systems: Sequence[str], version: str, mirror: str, folder: Path | None, output: Path
) -> None:
    """Write the definitions of systems to files, for kubectl create or another machine."""
    found = _found(systems, version, mirror, folder)
    output.mkdir(parents=True, exist_ok=True)
    for one in found:
        path = output / Path(one.source).name
        path.write_text(one.text, encoding="utf-8")
        click.echo(str(path))


@command.command()
@click.argument("systems", nargs=-1, required=True, metavar="SYSTEM...")
@_source_options
@cluster_options
@click.option("--dry-run", is_flag=True, help="Let the server check them, and keep nothing.")
def install(
    systems: Sequence[str],
    version: str,
    mirror: str,
    folder: Path | None,
    kubeconfig: Path | None,
    context: str,
    dry_run: bool,
) -> None:
    """Create the definitions that the cluster lacks. Those that it has stay as they are."""
    from bayplan.live.definitions import create_absent

    found = _found(systems, version, mirror, folder)
    created = asyncio.run(create_absent(kubeconfig, context, found, dry_run))
    would = "would be created" if dry_run else "created"
    for one in found:
        versions = ", ".join(one.versions)
        done = f"{would} ({versions})" if created[one.name] else "is there; left as it is"
        click.echo(f"{one.name} {done}")


def _found(
    names: Sequence[str], version: str, mirror: str, folder: Path | None
) -> list[Definition]:
    """Return the definitions of systems; all of them are read before one is used."""
    systems = [_system(name) for name in dict.fromkeys(names)]
    if version and len(systems) > 1:
        raise InputError("projects count their versions apart: name one system", "--version")
    if version and folder is not None:
        raise InputError("the files are those of --from", "--version")
    found: list[Definition] = []
    for system in systems:
        if folder is not None:
            found += read_from(system, folder)
        else:
            found += downloaded(system, version or system.version, mirror)
    return found


def _system(name: str) -> System:
    if name not in SYSTEMS:
        near = did_you_mean(name, SYSTEMS) or f"; expected one of {', '.join(SYSTEMS)}"
        raise InputError(f'there is no system "{name}"{near}', "SYSTEM")
    return SYSTEMS[name]
