"""bayplan top: a cluster at one look, again and again."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from bayplan.cli.options import (
    check_source,
    cluster_options,
    optional_input_options,
    output_option,
    simulate,
)
from bayplan.cli.views import ViewRequest, read_unscheduled
from bayplan.cli.watching import EVERY, changes
from bayplan.errors import BayplanError

if TYPE_CHECKING:
    from rich.live import Live

    from bayplan.explain.overview import Overview
    from bayplan.simulation import Simulation

__all__ = ["command"]

_FRAME = 0.1
"""Seconds for which a frame of a simulation is shown at least."""
_OTHER_LINES = 14
"""Lines of a frame that are not rows of its tables."""


@click.command(name="top")
@optional_input_options
@cluster_options
@output_option
@click.option("--once", is_flag=True, help="Print one look, as in a pipe.")
def command(once: bool, **given: Any) -> None:
    """Show a cluster at one look: nodes, GPUs, queues, and who waits and why.

    With --kubeconfig, the running scheduler is asked every 2 s, or, if that does not answer, the
    cluster's objects are read; nothing is written. With -f, a simulation is shown as it runs, and
    again when its files change. Ctrl-C ends it.
    """
    from bayplan.explain.top_view import TopView

    request = ViewRequest(**given, watch=False)
    if once or request.output == "json" or not sys.stdout.isatty():
        request.answer(TopView())
        return
    check_source(request.paths, request.kubeconfig, request.context)
    _Screen(request).run()


class _Screen(msgspec.Struct):
    """The terminal while ``bayplan top`` runs."""

    request: ViewRequest

    def run(self) -> None:
        """Show frames until Ctrl-C."""
        from rich.live import Live

        from bayplan.cli import render

        try:
            with Live(console=render.stdout(), screen=True, auto_refresh=False) as live:
                if self.request.paths:
                    self._simulated(live)
                else:
                    self._cluster(live)
        except KeyboardInterrupt:
            return

    def _show(self, live: Live, found: Overview, named: str, problem: str = "") -> None:
        from rich.console import Group
        from rich.text import Text

        from bayplan.explain.overview_text import drawn

        tables = sum(map(bool, (found.nodes, found.queues, found.pending))) or 1
        rows = max(3, (live.console.height - _OTHER_LINES) // tables)
        picture = drawn(found, rows, named)
        live.update(Group(picture, Text(problem, style="red")) if problem else picture)
        live.refresh()

    # Manifests ---------------------------------------------------------------------------

    def _simulated(self, live: Live) -> None:
        request = self.request
        files = [*map(Path, request.paths)]
        files += [path for path in (request.config, request.plugins_dir) if path is not None]
        watch = changes(files)
        while True:
            frames = _Frames(lambda simulation: self._look(live, simulation))
            try:
                simulation, _ = simulate(
                    request.paths,
                    request.config,
                    request.plugins_dir,
                    request.until,
                    request.seed,
                    settled=frames.look,
                )
                self._look(live, simulation, "end, at")
            except BayplanError as exc:
                live.update(f"bayplan: {exc}", refresh=True)
            next(watch)

    def _look(self, live: Live, simulation: Simulation, at: str = "at") -> None:
        from bayplan.explain.overview import overview

        found = overview(simulation.scheduler)
        self._show(live, found, f"bayplan top, {at} {found.at:g} s")

    # Cluster -----------------------------------------------------------------------------

    def _cluster(self, live: Live) -> None:
        found: Overview | None = None
        while True:
            problem = ""
            try:
                found, problem = self._read()
            except BayplanError as exc:
                if found is None:
                    raise
                problem = str(exc)
            self._show(live, found, f"bayplan top, {time.strftime('%H:%M:%S')}", problem)
            time.sleep(EVERY)

    def _read(self) -> tuple[Overview, str]:
        """Return what the scheduler says, or else what the objects say, and why not it."""
        import msgspec

        from bayplan.explain.overview import Overview, overview
        from bayplan.explain.top_view import TopView

        request = self.request
        reply = request.ask(TopView.page, {}, "json")
        notes = "\n".join(reply.notes)
        if reply.text is not None:
            return msgspec.convert(json.loads(reply.text), Overview), notes
        simulation, _ = read_unscheduled(request, reply.leases)
        return overview(simulation.scheduler), notes


class _Frames:
    """Shows a simulation while it runs, not more often than a person sees."""

    def __init__(self, show: Callable[[Simulation], None]) -> None:
        self._show = show
        self._last = 0.0

    def look(self, simulation: Simulation) -> None:
        """Show an instant, unless another one was shown just before."""
        now = time.monotonic()
        if now - self._last < _FRAME:
            return
        self._last = now
        self._show(simulation)
