"""bayplan snapshot: save a cluster to a file, for simulate and explain."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from bayplan.cli.options import cluster_options, lease_of, profiles
from bayplan.errors import InputError

__all__ = ["command"]


@click.command(name="snapshot")
@cluster_options
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The profile file: ConfigMaps that define queues are beside the Lease that it names. "
    "Without it, they are beside the Lease of the scheduler that runs.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    metavar="FILE",
    help="The .zip file to write.",
)
def command(kubeconfig: Path | None, context: str, config: Path | None, output: Path) -> None:
    """Save a cluster, as the scheduler sees it, to a file for simulate and explain.

    The file has no Secrets, environment variables and commands, and of ConfigMaps only those that
    define queues.
    """
    import datetime
    from importlib.metadata import version

    from bayplan.cluster.archive import is_archive, write_archive
    from bayplan.live.client import read_cluster, running_schedulers

    if not is_archive(output):
        raise InputError("expected a name that ends in .zip", str(output))
    if not output.parent.is_dir():
        # Checked first, because reading a large cluster takes long.
        raise InputError("there is no such folder", str(output.parent))
    leases = asyncio.run(running_schedulers(kubeconfig, context, lease_of(config)))
    view = asyncio.run(read_cluster(kubeconfig, context, profiles(config, None, leases)))
    about = {
        "bayplan": version("bayplan"),
        "taken": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "leftOut": list(view.left_out),
    }
    counts = write_archive(output, view.objects, about)
    for note in view.left_out:
        click.echo(f"note: left out: {note}", err=True)
    shown = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    click.echo(f"{output}: {shown or 'nothing'}")
