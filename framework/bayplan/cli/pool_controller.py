"""bayplan pool-controller: what pools have and who uses it, where others bind the pods."""

from __future__ import annotations

from typing import Any

import click

from bayplan.cli.serving import Served, serve, serving_options

__all__ = ["command"]


@click.command(name="pool-controller")
@serving_options
def command(**options: Any) -> None:
    """Resize jobs, tell what pools have, and record usage, beside another scheduler.

    The profiles name the schedulers that bind the pods, such as default-scheduler or volcano, and
    how these place them. Nothing is bound or evicted. SIGTERM stops it; SIGHUP reloads the
    profiles. Prices and accounts are reloaded when they change.
    """
    serve(Served(**options), binds=False)
