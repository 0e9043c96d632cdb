"""Print what a simulation says of its queues: a row each, with its share over time."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bayplan.inputs.durations import duration_text
from bayplan.simulation.queue_statistics import QueueStatistics, Statistics

__all__ = ["print_statistics", "sparkline"]

_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 24
_MANY = 40


def print_statistics(console: Console, statistics: Statistics) -> None:
    """Print a table of the queues, and the fairness among them."""
    when = f"over {duration_text(statistics.until)}" if statistics.until else "at this instant"
    console.print(f"\n[bold]Queues[/bold]  {when}")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("  queue")
    table.add_column("share over time")
    for name in ("mean", "of deserved", "started", "waiting", "p50", "p95", "max", "evicted"):
        table.add_column(name, justify="right")
    queues = statistics.queues
    most = max((share for one in queues for _, share in one.share), default=0.0)
    for one in queues[:_MANY]:
        table.add_row(*_row(one, statistics.until, most))
    console.print(table)
    if len(queues) > _MANY:
        console.print(f"  [dim]and {len(queues) - _MANY} more; -o json has all[/dim]")
    used = ", ".join(f"{name} {part:.0%}" for name, part in statistics.utilisation.items())
    fair = "" if statistics.jain is None else f"  fairness {statistics.jain:.2f} (Jain)"
    console.print(f"  cluster used: {escape(used)}{fair}")


def _row(one: QueueStatistics, until: float, most: float) -> list[str]:
    waits = one.waits
    figures = [waits.p50, waits.p95, waits.longest]
    return [
        f"  {escape(one.name)}",
        sparkline(one.share, until, most),
        f"{one.mean_share:.0%}",
        "-" if one.utilisation is None else f"{one.utilisation:.0%}",
        str(waits.started),
        str(waits.waiting),
        *("-" if wait is None else duration_text(wait) for wait in figures),
        str(one.evictions),
    ]


def sparkline(series: Sequence[tuple[float, float]], until: float, most: float) -> str:
    """Draw values over time from 0 to ``until``, in bars up to ``most``; each holds to the next.

    A bar is the mean of its part of the time; blank is nothing.
    """
    if not series or until <= 0 or most <= 0:
        return ""
    ends = [*(at for at, _ in series[1:]), until]
    step = until / _WIDTH
    bars = ""
    for index in range(_WIDTH):
        start, end = index * step, (index + 1) * step
        mean = sum(
            value * max(0.0, min(end, stop) - max(start, at))
            for (at, value), stop in zip(series, ends, strict=True)
        )
        part = mean / step / most
        bars += _BARS[min(len(_BARS) - 1, int(part * len(_BARS) + 1e-9))] if part > 0.001 else " "
    return bars
