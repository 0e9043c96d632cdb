"""bayplan queue: what the queues of a cluster have, deserve, lend and borrow, and who waits."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import sleep, strftime
from typing import TYPE_CHECKING, Any, TypeVar

import click

from bayplan.cli.options import (
    cluster_options,
    optional_input_options,
    output_option,
    profiles,
    simulate,
    unscheduled,
)
from bayplan.errors import BayplanError, InputError, NotFound

if TYPE_CHECKING:
    from bayplan.explain.queue_view import QueueView
    from bayplan.simulation import Simulation

__all__ = ["command"]

_EVERY = 2.0
"""Seconds between two looks at a live cluster."""

F = TypeVar("F", bound=Callable[..., object])


@click.group(name="queue")
def command() -> None:
    """Show the queues of manifests, of a saved snapshot or of a cluster.

    With -f, they are shown as they are at the end of a simulation. With --kubeconfig, the answer
    comes from the running scheduler, or, if that does not answer, from the cluster's objects.
    """


def _options(function: F) -> F:
    """Add the options that all subcommands have."""
    watch = click.option(
        "-w",
        "--watch",
        is_flag=True,
        help="Show them again: every 2 s on a cluster, at each change in a simulation.",
    )
    return optional_input_options(cluster_options(output_option(watch(function))))


@command.command(name="list")
@_options
def list_(**given: Any) -> None:
    """List all queues: what each uses, may have now, deserves, borrows and lends."""
    from bayplan.explain.queue_view import QueueView, ViewKind

    _Request(**given).answer(QueueView(ViewKind.LIST))


@command.command()
@_options
def tree(**given: Any) -> None:
    """Draw the hierarchy of the queues."""
    from bayplan.explain.queue_view import QueueView, ViewKind

    _Request(**given).answer(QueueView(ViewKind.TREE))


@command.command()
@click.argument("name", metavar="[SYSTEM/]NAME")
@_options
def show(name: str, **given: Any) -> None:
    """Show one queue, its ancestors and children, and why each job in its line waits."""
    from bayplan.explain.queue_view import QueueView, ViewKind

    _Request(**given).answer(QueueView(ViewKind.SHOW, name))


@dataclass(frozen=True)
class _Request:
    """Where the queues come from and how they are shown, as the options say."""

    paths: tuple[str, ...]
    config: Path | None
    plugins_dir: Path | None
    until: float | None
    seed: int
    kubeconfig: Path | None
    context: str
    output: str
    watch: bool

    def answer(self, view: QueueView) -> None:
        """Print a view, repeatedly if asked to.

        :raises InputError: for input that cannot be used, and where there is no such queue.
        """
        if self.paths and (self.kubeconfig is not None or self.context):
            raise InputError("-f and --kubeconfig exclude each other")
        if self.paths:
            self._simulated(view)
            return
        from bayplan.cluster.kubernetes.credentials import find_kubeconfig

        if self.kubeconfig is None and not self.context and find_kubeconfig() is None:
            raise InputError("give manifests with -f, or a cluster with --kubeconfig")
        self._live(view)
        with contextlib.suppress(KeyboardInterrupt):
            while self.watch:
                sleep(_EVERY)
                self._live_again(view)

    # Manifests ---------------------------------------------------------------------------

    def _simulated(self, view: QueueView) -> None:
        shown = _Changes(self, view)
        simulation, manifests = simulate(
            self.paths,
            self.config,
            self.plugins_dir,
            self.until,
            self.seed,
            settled=shown.look if self.watch else None,
        )
        for note in manifests.notes():
            click.echo(f"note: {note}", err=True)
        if not shown.any:
            self.print(simulation, view)

    def print(self, simulation: Simulation, view: QueueView) -> None:
        """Print a view of a simulation as it is now."""
        from bayplan.cli import render

        if self.output == "json":
            found = view.as_json(simulation.scheduler)
            click.echo(json.dumps(found, indent=None if self.watch else 2))
            return
        view.print(render.stdout(), simulation.scheduler)

    # Cluster -----------------------------------------------------------------------------

    def _live(self, view: QueueView) -> None:
        from bayplan.live.client import Question, ask_scheduler

        lease = profiles(self.config, self.plugins_dir).leader_election
        asked = {"view": view.kind.value, "name": view.name}
        question = Question("/debug/queues", asked, self.output)
        answer, why = asyncio.run(ask_scheduler(self.kubeconfig, self.context, question, lease))
        if answer is None:
            click.echo(f"note: {why}", err=True)
            self._read(view)
            return
        if self.output == "json":
            answer = json.dumps(json.loads(answer), indent=None if self.watch else 2)
        click.echo(answer.rstrip("\n"))

    def _live_again(self, view: QueueView) -> None:
        """Look again; a cluster that does not answer for a while is asked again, too."""
        if self.output == "table":
            click.echo(f"\n{strftime('%H:%M:%S')}")
        try:
            self._live(view)
        except NotFound:
            raise
        except BayplanError as exc:
            click.echo(f"note: {exc}", err=True)

    def _read(self, view: QueueView) -> None:
        """Show the queues as the cluster's objects say, without deciding anything."""
        from bayplan.live.client import read_cluster

        found = asyncio.run(read_cluster(self.kubeconfig, self.context))
        for note in found.left_out:
            click.echo(f"note: left out: {note}", err=True)
        objects = [obj for several in found.objects.values() for obj in several]
        self.print(unscheduled(objects, self.config, self.plugins_dir), view)


class _Changes:
    """Prints a view of a simulation whenever it has changed, with the time."""

    def __init__(self, request: _Request, view: QueueView) -> None:
        self._request = request
        self._view = view
        self._last: object = None
        self.any = False
        """Whether anything was printed."""

    def look(self, simulation: Simulation) -> None:
        """Print what has changed since the last look."""
        if not simulation.scheduler.queue_reports():
            return
        found = self._view.as_json(simulation.scheduler)
        at = found.pop("at")
        for job in found.get("line", ()):
            del job["waits"]
        if found == self._last:
            return
        self._last = found
        if self._request.output == "table":
            click.echo(f"{'' if not self.any else chr(10)}at {at:g} s")
        self.any = True
        self._request.print(simulation, self._view)
