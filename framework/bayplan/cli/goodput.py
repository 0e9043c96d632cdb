"""Print what became of all GPU hours while parts of a cluster failed."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bayplan.inputs.durations import duration_text
from bayplan.naming import counted
from bayplan.simulation.goodput import GoodputReport, Recoveries

__all__ = ["HOURS", "print_goodput", "recoveries_text"]

HOURS = {
    "useful": "work that is kept",
    "lost": "work since the last checkpoint",
    "restarting": "whole again, not working yet",
    "waiting": "held by jobs that are not whole",
    "spare": "kept for jobs that lose a node",
    "idle": "free for others",
    "down": "failed",
}
"""What becomes of hours, each in words."""


def print_goodput(console: Console, found: GoodputReport) -> None:
    """Print a row for what became of all hours, and how jobs recovered."""
    what = [counted(count, f"{name} fault") for name, count in found.faults.items()]
    console.print(
        f"\n[bold]Goodput[/bold]  {found.goodput:.2%}; {escape(', '.join(what) or 'no faults')}"
    )
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column()
    table.add_column(justify="right")
    table.add_column(justify="right")
    table.add_column(style="dim")
    for name, hours in found.parts().items():
        part = f"{found.part(name):.2%}"
        table.add_row(f"  {name}", f"{hours:,.1f} {found.unit} h", part, HOURS[name])
    console.print(table)
    for cause, recoveries in (("faults", found.by_faults), ("evictions", found.by_evictions)):
        if recoveries.count:
            console.print(f"jobs interrupted by {cause}: {recoveries_text(recoveries)}")


def recoveries_text(found: Recoveries) -> str:
    """Return how often jobs were interrupted and how long they stood, in one line."""
    text = counted(found.count, "time")
    if found.median is not None and found.p95 is not None:
        text += f", at work again after {duration_text(found.median)} in the median"
        text += f", {duration_text(found.p95)} at p95"
    return f"{text}; {found.waiting} not yet" if found.waiting else text
