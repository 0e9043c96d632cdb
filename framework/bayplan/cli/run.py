"""bayplan run: schedule a real cluster."""

from __future__ import annotations

from typing import Any

import click

from bayplan.cli.serving import Served, serve, serving_options

__all__ = ["command"]


@click.command(name="run")
@serving_options
@click.option(
    "--visibility-address",
    metavar="HOST:PORT",
    help="Serve Kueue's visibility API at this address, for the API server's aggregator.",
)
def command(**options: Any) -> None:
    """Schedule the pods of a Kubernetes cluster that name one of the profiles.

    SIGTERM stops it after pending bindings are done; SIGHUP reloads the profiles. Prices and
    accounts are reloaded when they change.
    """
    serve(Served(**options), binds=True)
