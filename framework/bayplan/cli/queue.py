"""bayplan queue: what the queues of a cluster have, deserve, lend and borrow, and who waits."""

from __future__ import annotations

from typing import Any

import click

from bayplan.cli.views import ViewRequest, view_options

__all__ = ["command"]


@click.group(name="queue")
def command() -> None:
    """Show the queues of manifests, of a saved snapshot or of a cluster.

    With -f, they are shown as they are at the end of a simulation. With --kubeconfig, the answer
    comes from the running scheduler, or, if that does not answer, from the cluster's objects.
    """


@command.command(name="list")
@view_options
def list_(**given: Any) -> None:
    """List all queues: what each uses, may have now, deserves, borrows and lends."""
    from bayplan.explain.queue_view import QueueView, ViewKind

    ViewRequest(**given).answer(QueueView(ViewKind.LIST))


@command.command()
@view_options
def tree(**given: Any) -> None:
    """Draw the hierarchy of the queues."""
    from bayplan.explain.queue_view import QueueView, ViewKind

    ViewRequest(**given).answer(QueueView(ViewKind.TREE))


@command.command()
@click.argument("name", metavar="[SYSTEM/]NAME")
@view_options
def show(name: str, **given: Any) -> None:
    """Show one queue, its ancestors and children, and why each job in its line waits."""
    from bayplan.explain.queue_view import QueueView, ViewKind

    ViewRequest(**given).answer(QueueView(ViewKind.SHOW, name))
