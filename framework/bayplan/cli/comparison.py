"""Print what several policies make of the same work: a column each, and what changes for jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bayplan.billing.earnings import Earnings
from bayplan.cli.goodput import HOURS
from bayplan.cli.render import stdout
from bayplan.inputs.durations import duration_text
from bayplan.naming import counted, listed, short_key
from bayplan.queues.amounts import amount_text
from bayplan.simulation.comparison import Comparison, Difference, JobChange, Outcome
from bayplan.simulation.goodput import GoodputReport

__all__ = ["print_comparison"]

_UNUSED = 0.0005
_HOUR = 3600.0
_MANY_JOBS = 8
_MANY_NODES = 4


def print_comparison(found: Comparison) -> None:
    """Print a table with a column for each policy, and what all but the first change."""
    outcomes = found.outcomes
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("")
    for one in outcomes:
        table.add_column(escape(one.policy), justify="right")
    _add_costs(table, [one.earnings for one in outcomes if one.earnings is not None])
    _add_nodes(table, [one.nodes for one in outcomes if one.nodes is not None])
    _add_goodput(table, [one.goodput for one in outcomes if one.goodput is not None])
    resources = sorted({name for one in outcomes for name in one.utilisation})
    for name in resources:
        parts = [one.utilisation.get(name, 0.0) for one in outcomes]
        if max(parts) >= _UNUSED:
            table.add_row(f"{escape(name)} used", *(f"{part:.1%}" for part in parts))
    for title, figure in _FIGURES:
        table.add_row(title, *(figure(one) for one in outcomes))
    counted_ones = [name for name in resources if "/" in name] or ["cpu"]
    for name in counted_ones:
        _add_amounts(table, name, "free while jobs waited", [one.idle for one in outcomes])
        _add_amounts(table, name, "lost by evictions", [one.lost for one in outcomes])
    console = stdout()
    console.print(f"[bold]Comparison[/bold]  over {duration_text(outcomes[0].seconds)}")
    console.print(table)
    for difference in found.differences:
        _print_difference(console, difference)


def _add_costs(table: Table, found: Sequence[Earnings]) -> None:
    if not found:
        return
    tenants = sorted({tenant for one in found for tenant in one.by_tenant})
    for tenant in tenants:
        amounts = (one.by_tenant.get(tenant) for one in found)
        cells = ("-" if amount is None else f"{amount:,}" for amount in amounts)
        table.add_row(f"billed to {escape(tenant)}", *cells)
    currency = found[0].currency
    table.add_row(f"billed in {currency}", *(f"{one.total:,}" for one in found))
    table.add_row(f"idle in {currency}", *(f"{one.idle:,}" for one in found))


def _add_nodes(table: Table, found: Sequence[Mapping[str, Any]]) -> None:
    """Add what an autoscaler bought under each policy, and what that cost."""
    if not found:
        return
    groups = [one["groups"] for one in found]
    table.add_row("nodes bought", *(str(sum(g["bought"] for g in of)) for of in groups))
    table.add_row("node hours", *(f"{sum(g['nodeHours'] for g in of):.2f}" for of in groups))
    table.add_row("cost of nodes", *(one["cost"] for one in found))


def _add_goodput(table: Table, found: Sequence[GoodputReport]) -> None:
    """Add what became of all hours while parts of the cluster failed, and how long jobs stood."""
    if not found:
        return
    table.add_row("goodput", *(f"{one.goodput:.2%}" for one in found))
    for name in HOURS:
        if name != "useful" and any(one.part(name) for one in found):
            table.add_row(f"  {name}", *(f"{one.part(name):.2%}" for one in found))
    stood = [one.by_faults for one in found]
    table.add_row("interrupted by faults", *(str(one.count) for one in stood))
    table.add_row("recovery p50", *(_time(one.median) for one in stood))
    table.add_row("recovery p95", *(_time(one.p95) for one in stood))
    table.add_row("not recovered", *(str(one.waiting) for one in stood))


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else duration_text(seconds)


def _add_amounts(
    table: Table, resource: str, title: str, found: Sequence[Mapping[str, float]]
) -> None:
    amounts = [one.get(resource, 0.0) for one in found]
    if any(amounts):
        cells = (_hours(resource, amount) for amount in amounts)
        table.add_row(f"{escape(resource)} {title}", *cells)


def _hours(resource: str, seconds: float) -> str:
    return f"{amount_text(resource, float(f'{seconds / _HOUR:.4g}'))} h"


# What changes for jobs -----------------------------------------------------------------------


def _print_difference(console: Console, found: Difference) -> None:
    console.print(f"\n[bold]{escape(found.policy)}[/bold]  against {escape(found.against)}")
    moved = [one for one in found.changes if one.moved]
    longer = [one for one in found.changes if round(one.waits_longer_by) > 0]
    shorter = [one for one in reversed(found.changes) if round(one.waits_longer_by) < 0]
    rows = (
        ("Wait longer", longer, _waits),
        ("Wait less", shorter, _waits),
        ("Run elsewhere", moved, _nodes),
    )
    jobs = counted(found.jobs, "job")
    if not any(changed for _, changed, _ in rows):
        console.print("  No job waits longer or less, or runs elsewhere.")
    for title, changed, text in rows:
        if changed:
            console.print(f"  {title}: {len(changed)} of {jobs}")
            for one in changed[:_MANY_JOBS]:
                console.print(f"    {escape(short_key(one.job))}  {escape(text(one))}")
            if len(changed) > _MANY_JOBS:
                more = len(changed) - _MANY_JOBS
                console.print(f"    [dim]and {more} more; -o json has all[/dim]")


def _waits(one: JobChange) -> str:
    times = [
        f"{duration_text(history.waited)}{' and waits on' if history.waiting else ''}"
        for history in (one.before, one.after)
    ]
    evicted = f", evicted {one.after.evicted} times" if one.after.evicted else ""
    return f"{times[0]} → {times[1]}{evicted.replace(' 1 times', ' once')}"


def _nodes(one: JobChange) -> str:
    texts = [
        listed((_node(*pair) for pair in sorted(history.nodes.items())), _MANY_NODES) or "no node"
        for history in (one.before, one.after)
    ]
    return f"{texts[0]} → {texts[1]}"


def _node(name: str, pods: int) -> str:
    return name if pods == 1 else f"{name} ({pods} pods)"


# Figures -------------------------------------------------------------------------------------


def _wait(seconds: float | None) -> str:
    return "-" if seconds is None else duration_text(seconds)


_FIGURES: tuple[tuple[str, Callable[[Outcome], str]], ...] = (
    ("jobs started", lambda one: str(one.waits.started)),
    ("jobs waiting", lambda one: str(one.waits.waiting)),
    ("wait, median", lambda one: _wait(one.waits.p50)),
    ("wait, p95", lambda one: _wait(one.waits.p95)),
    ("wait, longest", lambda one: _wait(one.waits.longest)),
    ("evicted", lambda one: str(one.evicted)),
    ("pods pending", lambda one: str(one.pending)),
)
