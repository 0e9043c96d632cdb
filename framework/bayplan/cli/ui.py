"""bayplan ui: serve the page that shows a cluster."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bayplan.cli.options import (
    check_source,
    cluster_options,
    optional_input_options,
    profiles,
    simulate,
)

if TYPE_CHECKING:
    from bayplan.page.feed import Feed

__all__ = ["command"]


@click.command(name="ui")
@optional_input_options
@cluster_options
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    metavar="N",
    help="The port on 127.0.0.1. By default, a free port.",
)
def command(
    paths: tuple[str, ...],
    config: Path | None,
    plugins_dir: Path | None,
    until: float | None,
    seed: int,
    kubeconfig: Path | None,
    context: str,
    port: int,
) -> None:
    """Serve a page that shows a cluster, until interrupted.

    With -f, it shows a simulation of manifests, or of a snapshot. With --kubeconfig, it follows a
    cluster and writes nothing: what it says of waiting jobs is what its own profile would decide.
    A scheduler that runs serves the same page itself.
    """
    check_source(paths, kubeconfig, context)
    if paths:
        _simulated(paths, config, plugins_dir, until, seed, port)
        return
    from bayplan.live.address import Address
    from bayplan.live.app import Options, run
    from bayplan.logs import set_up_logging

    set_up_logging("console")
    options = Options(
        lambda: profiles(config, plugins_dir),
        kubeconfig,
        context,
        dry_run=True,
        leader_elect=False,
        address=Address(port=port),
        title="bayplan ui",
    )
    raise SystemExit(asyncio.run(run(options)))


def _simulated(
    paths: tuple[str, ...],
    config: Path | None,
    plugins_dir: Path | None,
    until: float | None,
    seed: int,
    port: int,
) -> None:
    from bayplan.cli.progress import progress_bars
    from bayplan.cli.report import Recording
    from bayplan.page.feed import Feed

    recording = Recording(", ".join(paths))
    with progress_bars() as bars:
        _, manifests = simulate(paths, config, plugins_dir, until, seed, bars=bars, begun=recording)
    for note in manifests.notes():
        click.echo(f"note: {note}", err=True)
    feed = Feed(recording.title)
    feed.cluster_view = recording.cluster_view
    asyncio.run(_serve(feed, port))


async def _serve(feed: Feed, port: int) -> None:
    from bayplan.page.serving import page_server

    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    async with page_server(feed, port) as url:
        click.echo(f"serving {url}")
        await ended.wait()
