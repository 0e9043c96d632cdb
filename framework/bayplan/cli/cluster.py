"""bayplan cluster: an embedded cluster that kubectl can talk to."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

if TYPE_CHECKING:
    from bayplan.cluster.apiserver.cluster_up import Served

__all__ = ["command"]


F = TypeVar("F", bound=Callable[..., object])


def _kubeconfig_option(text: str) -> Callable[[F], F]:
    return click.option(
        "--kubeconfig",
        type=click.Path(path_type=Path, dir_okay=False),
        default="bayplan.kubeconfig",
        show_default=True,
        metavar="FILE",
        help=text,
    )


@click.group(name="cluster")
def command() -> None:
    """Run an embedded cluster that kubectl and bayplan run work on."""


@command.command()
@click.option(
    "-f",
    "--filename",
    "paths",
    multiple=True,
    metavar="PATH",
    help="A manifest file, a folder of them, or - for standard input. Repeatable.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    metavar="N",
    help="The port on 127.0.0.1; by default a free one.",
)
@_kubeconfig_option("The file to write for kubectl; it is removed at the end.")
@click.option(
    "-d",
    "--detach",
    "--wait",
    "detach",
    is_flag=True,
    help="Return once it serves, and go on in the background until bayplan cluster down.",
)
def up(paths: tuple[str, ...], port: int, kubeconfig: Path, detach: bool) -> None:
    """Serve an embedded cluster on 127.0.0.1 until it is interrupted.

    Its pods wait for a scheduler: bayplan run, or any other.
    """
    if detach:
        from bayplan.cli.background import start

        files = [part for path in paths for part in ("-f", path)]
        own = ["--port", str(port), "--kubeconfig", str(kubeconfig)]
        start([*files, *own], kubeconfig, reads_input="-" in paths)
        return
    from bayplan.cluster.apiserver.cluster_up import serve
    from bayplan.cluster.manifests import load_manifests

    def ready(served: Served) -> None:
        for kind, count in sorted(served.ignored.items()):
            plural = "s" if count > 1 else ""
            click.echo(f"note: {count} object{plural} of kind {kind} passed over", err=True)
        counts = ", ".join(f"{count} {plural}" for plural, count in served.objects.items())
        click.echo(f"# serving at {served.url}: {counts or 'no objects yet'}")
        click.echo(f"export KUBECONFIG={shlex.quote(str(kubeconfig.absolute()))}")

    manifests = load_manifests(paths, in_full=True)
    for note in manifests.notes():
        click.echo(f"note: {note}", err=True)
    serve(manifests, port, kubeconfig, ready)


@command.command()
@_kubeconfig_option("The one that the cluster was started with.")
def down(kubeconfig: Path) -> None:
    """End a cluster that bayplan cluster up serves, here or in the background."""
    from bayplan.cli.background import stop

    stop(kubeconfig)
