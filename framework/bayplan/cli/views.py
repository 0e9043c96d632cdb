"""Commands that show one view of a scheduler: of manifests, of a snapshot or of a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import sleep, strftime
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click
import msgspec

from bayplan.cli.options import (
    check_source,
    cluster_options,
    lease_of,
    optional_input_options,
    output_option,
    profiles,
    simulate,
    unscheduled,
)
from bayplan.cli.progress import progress_bars
from bayplan.cli.watching import EVERY
from bayplan.errors import BayplanError, NotFound

if TYPE_CHECKING:
    from rich.console import Console

    from bayplan.live.client import Reply
    from bayplan.live.leases import SchedulerLease
    from bayplan.scheduler.scheduler import Scheduler
    from bayplan.simulation import Simulation

__all__ = ["View", "ViewRequest", "read_unscheduled", "view_options"]

_EVERY = 2.0
"""Seconds between two looks at a live cluster."""

F = TypeVar("F", bound=Callable[..., object])


class View(Protocol):
    """One look at a scheduler. ``page`` and ``asked`` are what a running scheduler is asked.

    Both methods raise InputError when there is nothing of the kind.
    """

    @property
    def page(self) -> str:
        """The path of the page that shows it."""

    @property
    def asked(self) -> Mapping[str, str]:
        """The query of the page."""

    def exists(self, scheduler: Scheduler) -> bool:
        """Tell whether there is anything of the kind yet."""

    def as_json(self, scheduler: Scheduler) -> dict[str, Any]:
        """Return it as one JSON object, with the cluster's time in seconds as ``at``."""

    def print(self, console: Console, scheduler: Scheduler) -> None:
        """Print it for people."""


def view_options(function: F) -> F:
    """Add the options that all subcommands have."""
    watch = click.option(
        "-w",
        "--watch",
        is_flag=True,
        help="Show them again: every 2 s on a cluster, at each change in a simulation.",
    )
    return optional_input_options(cluster_options(output_option(watch(function))))


class ViewRequest(msgspec.Struct, frozen=True):
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

    def answer(self, view: View) -> None:
        """Print a view, repeatedly if asked to.

        :raises InputError: for input that cannot be used, and where there is nothing of the kind.
        """
        check_source(self.paths, self.kubeconfig, self.context)
        if self.paths:
            self._simulated(view)
            return
        self._live(view)
        with contextlib.suppress(KeyboardInterrupt):
            while self.watch:
                sleep(EVERY)
                self._live_again(view)

    # Manifests ---------------------------------------------------------------------------

    def _simulated(self, view: View) -> None:
        shown = _Changes(self, view)
        with progress_bars() as bars:
            simulation, manifests = simulate(
                self.paths,
                self.config,
                self.plugins_dir,
                self.until,
                self.seed,
                bars=None if self.watch else bars,
                settled=shown.look if self.watch else None,
            )
        for note in manifests.notes():
            click.echo(f"note: {note}", err=True)
        if not shown.any:
            self.print(simulation, view)

    def print(self, simulation: Simulation, view: View) -> None:
        """Print a view of a simulation as it is now."""
        from bayplan.cli import render

        if self.output == "json":
            found = view.as_json(simulation.scheduler)
            click.echo(json.dumps(found, indent=None if self.watch else 2))
            return
        view.print(render.stdout(), simulation.scheduler)

    # Cluster -----------------------------------------------------------------------------

    def _live(self, view: View) -> None:
        reply = self.ask(view.page, view.asked, self.output)
        for note in reply.notes:
            click.echo(f"note: {note}", err=True)
        if reply.text is None:
            self._read(view, reply.leases)
        elif self.output == "json":
            indent = None if self.watch else 2
            click.echo(json.dumps(json.loads(reply.text), indent=indent))
        else:
            click.echo(reply.text.rstrip("\n"))

    def ask(self, page: str, asked: Mapping[str, str], output: str) -> Reply:
        """Ask the running scheduler for a page.

        :raises ClusterError: when the API server fails, or the scheduler knows no such thing.
        """
        from bayplan.live.client import Question, ask_scheduler

        called = click.get_current_context().command_path.split()[1:]
        named = [asked["name"]] if asked.get("name") else []
        question = Question(page, dict(asked), output, [*called, *named])
        lease = lease_of(self.config)
        return asyncio.run(ask_scheduler(self.kubeconfig, self.context, question, lease))

    def _live_again(self, view: View) -> None:
        """Look again; a cluster that does not answer for a while is asked again, too."""
        if self.output == "table":
            click.echo(f"\n{strftime('%H:%M:%S')}")
        try:
            self._live(view)
        except NotFound:
            raise
        except BayplanError as exc:
            click.echo(f"note: {exc}", err=True)

    def _read(self, view: View, leases: Sequence[SchedulerLease]) -> None:
        """Show what it is as the cluster's objects say, without deciding anything."""
        simulation, left_out = read_unscheduled(self, leases)
        for note in left_out:
            click.echo(f"note: left out: {note}", err=True)
        self.print(simulation, view)


def read_unscheduled(
    request: ViewRequest, leases: Sequence[SchedulerLease]
) -> tuple[Simulation, Sequence[str]]:
    """Read a cluster as a scheduler sees it that has not decided anything.

    Return also what could not be read.

    :param leases: of the schedulers of the cluster.

    :raises BayplanError: when it cannot be reached, or its pods or nodes cannot be read.
    """
    from bayplan.live.client import read_cluster

    loaded = profiles(request.config, request.plugins_dir, leases)
    found = asyncio.run(read_cluster(request.kubeconfig, request.context, loaded))
    objects = [obj for several in found.objects.values() for obj in several]
    return unscheduled(objects, loaded), found.left_out


class _Changes:
    """Prints a view of a simulation whenever it has changed, with the time."""

    def __init__(self, request: ViewRequest, view: View) -> None:
        self._request = request
        self._view = view
        self._last: object = None
        self.any = False
        """Whether anything was printed."""

    def look(self, simulation: Simulation) -> None:
        """Print what has changed since the last look."""
        if not self._view.exists(simulation.scheduler):
            return
        found = self._view.as_json(simulation.scheduler)
        at = found.pop("at")
        for job in found.get("line", ()):
            # They change with every look.
            del job["waits"]
        if found == self._last:
            return
        self._last = found
        if self._request.output == "table":
            click.echo(f"{'' if not self.any else chr(10)}at {at:g} s")
        self.any = True
        self._request.print(simulation, self._view)
