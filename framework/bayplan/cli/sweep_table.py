"""What became of a sweep's runs, and the table that sums them up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bayplan.cli.policy_runs import Work
from bayplan.inputs.durations import duration_text
from bayplan.naming import counted
from bayplan.simulation.comparison import Outcome

__all__ = ["SweepResult", "print_sweep"]

_GOODPUT = (
    *("goodput", "lost", "waiting", "spare"),
    *("interrupted", "recovery p50", "p95", "not recovered"),
)
_NUMBERS = ("started", "waiting", "wait p50", "p95", "by seed", "evicted", "pods pending")


class SweepResult(msgspec.Struct, frozen=True):
    """What became of one run."""

    work: Work
    outcome: Outcome

    @property
    def trace(self) -> str:
        """The name of the trace, "" without one."""
        return "" if self.work.arrivals is None else str(self.work.arrivals)

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        trace = self.trace or None
        return {"trace": trace, "seed": self.work.order, **self.outcome.as_json()}


def print_sweep(console: Console, found: Sequence[SweepResult]) -> None:
    """Print a row for each profile and trace: the means over the seeds, and how far p95 varies."""
    groups: dict[tuple[str, str], list[Outcome]] = {}
    for one in found:
        groups.setdefault((one.trace, one.outcome.policy), []).append(one.outcome)
    traces = any(trace for trace, _ in groups)
    resources = _resources(one.outcome for one in found)
    money = found[0].outcome.earnings
    paid = (f"billed {money.currency}", f"idle {money.currency}") if money is not None else ()
    parts = _GOODPUT if found[0].outcome.goodput is not None else ()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in (*(("trace",) if traces else ()), "profile"):
        table.add_column(name)
    for name in (*parts, *(f"{name} used" for name in resources), *_NUMBERS, *paid):
        table.add_column(escape(name), justify="right")
    for (trace, policy), outcomes in groups.items():
        names = [escape(trace)] if traces else []
        used = [f"{_mean(one.utilisation.get(name) for one in outcomes):.1%}" for name in resources]
        goodput = _goodput(outcomes)
        figures = _figures(outcomes)
        table.add_row(*names, escape(policy), *goodput, *used, *figures, *_money(outcomes))
    seeds = len({one.work.order for one in found})
    console.print(f"[bold]{counted(len(found), 'run')}[/bold]  means over {counted(seeds, 'seed')}")
    console.print(table)


def _resources(outcomes: Iterable[Outcome]) -> list[str]:
    """Return the devices that runs used, or CPU where there are none."""
    used = {name for one in outcomes for name, part in one.utilisation.items() if part}
    return sorted(name for name in used if "/" in name) or ["cpu"]


def _figures(outcomes: Sequence[Outcome]) -> list[str]:
    waits = [one.waits for one in outcomes]
    slow = [one.p95 or 0.0 for one in waits]
    return [
        f"{_mean(one.started for one in waits):.4g}",
        f"{_mean(one.waiting for one in waits):.4g}",
        duration_text(_mean(one.p50 for one in waits)),
        duration_text(_mean(slow)),
        f"{duration_text(min(slow))} to {duration_text(max(slow))}",
        f"{_mean(one.evicted for one in outcomes):.4g}",
        f"{_mean(one.pending for one in outcomes):.4g}",
    ]


def _goodput(outcomes: Sequence[Outcome]) -> list[str]:
    """Return how much was useful, what else became of the hours, and how long jobs stood."""
    found = [one.goodput for one in outcomes if one.goodput is not None]
    if not found:
        return []
    cells = [f"{_mean(one.goodput for one in found):.2%}"]
    for name in ("lost", "waiting", "spare"):
        cells.append(f"{_mean(one.part(name) for one in found):.2%}")
    stood = [one.by_faults for one in found]
    return [
        *cells,
        f"{_mean(one.count for one in stood):.4g}",
        _duration(one.median for one in stood),
        _duration(one.p95 for one in stood),
        f"{_mean(one.waiting for one in stood):.4g}",
    ]


def _duration(found: Iterable[float | None]) -> str:
    """Return the mean of the runs in which there was such a time, "-" if there was none."""
    known = [one for one in found if one is not None]
    return duration_text(fmean(known)) if known else "-"


def _money(outcomes: Sequence[Outcome]) -> list[str]:
    found = [one.earnings for one in outcomes if one.earnings is not None]
    if not found:
        return []
    billed, idle = _mean(float(one.total) for one in found), _mean(float(one.idle) for one in found)
    return [f"{billed:,.2f}", f"{idle:,.2f}"]


def _mean(values: Iterable[float | None]) -> float:
    return fmean([value or 0.0 for value in values])
