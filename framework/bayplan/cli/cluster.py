"""bayplan cluster: an embedded cluster that kubectl can talk to."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from bayplan.errors import InputError
from bayplan.naming import counted

if TYPE_CHECKING:
    from bayplan.cluster.apiserver.cluster_up import Served
    from bayplan.cluster.apiserver.store import ServedCluster

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
    """Run an embedded cluster for kubectl and bayplan run."""


@command.command()
@click.option(
    "-f",
    "--filename",
    "paths",
    multiple=True,
    metavar="PATH",
    help="A manifest file, a folder of manifests, or - for standard input. Repeatable.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    metavar="N",
    help="The port on 127.0.0.1. By default, a free port.",
)
@_kubeconfig_option("The kubeconfig to write; it is removed when the cluster stops.")
@click.option(
    "-d",
    "--detach",
    "--wait",
    "detach",
    is_flag=True,
    help="Return once it serves, and run in the background until bayplan cluster down.",
)
@click.option("--page", is_flag=True, help="Also serve a page that shows it, on a free port.")
def up(paths: tuple[str, ...], port: int, kubeconfig: Path, detach: bool, page: bool) -> None:
    """Serve an embedded cluster on 127.0.0.1 until interrupted.

    Pods wait for a scheduler: bayplan run, or any other.
    """
    if detach:
        from bayplan.cli.background import start

        files = [part for path in paths for part in ("-f", path)]
        own = ["--port", str(port), "--kubeconfig", str(kubeconfig), *(["--page"] * page)]
        start([*files, *own], kubeconfig, reads_input="-" in paths)
        return
    from bayplan.cluster.apiserver.cluster_up import serve
    from bayplan.cluster.manifests import load_manifests
    from bayplan.cluster.node_changes import AT_PATH

    def ready(served: Served) -> None:
        for kind, count in sorted(served.ignored.items()):
            click.echo(f"note: {counted(count, 'object')} of kind {kind} ignored", err=True)
        counts = ", ".join(f"{count} {plural}" for plural, count in served.objects.items())
        click.echo(f"# serving at {served.url}: {counts or 'no objects yet'}")
        if served.page:
            click.echo(f"# the page: {served.page}")
        click.echo(f"export KUBECONFIG={shlex.quote(str(kubeconfig.absolute()))}")

    manifests = load_manifests(paths, in_full=True)
    if manifests.changes:
        text = "is for bayplan simulate: change the node of a served cluster with kubectl"
        raise InputError(text, f"Node {manifests.changes[0].name}: {AT_PATH}")
    for note in manifests.notes():
        click.echo(f"note: {note}", err=True)
    serve(manifests, port, kubeconfig, ready, _page if page else None)


@contextlib.asynccontextmanager
async def _page(cluster: ServedCluster) -> AsyncIterator[str]:
    """Serve the page of a cluster, as a scheduler sees it that decides nothing."""
    from bayplan.page.feed import Feed
    from bayplan.page.serving import page_server
    from bayplan.page.shadow_cluster import ShadowCluster
    from bayplan.profiles.loading import default_profiles
    from bayplan.scheduler.scheduler import Scheduler

    watched = ShadowCluster(cluster)
    scheduler = Scheduler(watched, default_profiles())

    def see() -> None:
        cluster.deliver()
        scheduler.stand_by()

    feed = Feed("bayplan cluster", before=see, wall=True)
    feed.follow(scheduler)
    watched.watch(feed.handle)
    async with page_server(feed, 0) as url:
        yield url


@command.command()
@_kubeconfig_option("The kubeconfig that the cluster was started with.")
def down(kubeconfig: Path) -> None:
    """Stop a cluster that bayplan cluster up serves."""
    from bayplan.cli.background import stop

    stop(kubeconfig)
