"""bayplan pool: what pools of accelerators have, and who has it."""

from __future__ import annotations

from typing import Any

import click

from bayplan.cli.views import ViewRequest, view_options

__all__ = ["command"]


@click.group(name="pool")
def command() -> None:
    """Show the ComputePools of manifests, of a saved snapshot or of a cluster.

    With -f, they are shown as they are at the end of a simulation. With --kubeconfig, the answer
    comes from the running scheduler, or, if that does not answer, from the cluster's objects.
    """


@command.command(name="list")
@view_options
def list_(**given: Any) -> None:
    """List all pools: what is allocated, free, kept for growth, and out of service."""
    from bayplan.explain.pool_view import PoolView

    ViewRequest(**given).answer(PoolView())


@command.command()
@click.argument("name")
@view_options
def show(name: str, **given: Any) -> None:
    """Show one pool, by resource and model, with its tenants."""
    from bayplan.explain.pool_view import PoolView

    ViewRequest(**given).answer(PoolView(name))
