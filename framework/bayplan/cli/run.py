"""bayplan run: schedule a real cluster."""

from __future__ import annotations

from pathlib import Path
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
@click.option(
    "--tenant-address",
    metavar="HOST:PORT",
    help="Serve the page for tenants at this address: to each the namespaces whose pods he may "
    "list.",
)
@click.option(
    "--tenant-proxy-ca-file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Certificates that sign the certificate of the proxy that signs tenants on.",
)
@click.option(
    "--tenant-proxy-name",
    metavar="NAME",
    help="The common name of the proxy's certificate.",
)
@click.option(
    "--tenant-user-header",
    default="X-Remote-User",
    show_default=True,
    metavar="HEADER",
    help="The proxy's header with the user.",
)
@click.option(
    "--tenant-groups-header",
    default="X-Remote-Group",
    show_default=True,
    metavar="HEADER",
    help="The proxy's header with the user's groups.",
)
def command(**options: Any) -> None:
    """Schedule the pods of a Kubernetes cluster that name one of the profiles.

    SIGTERM stops it after pending bindings are done; SIGHUP reloads the profiles. Prices and
    accounts are reloaded when they change.
    """
    serve(Served(**options), binds=True)
