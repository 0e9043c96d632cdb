"""Print what several policies make of the same work, a column each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.markup import escape
from rich.table import Table

from bayplan.billing.earnings import Earnings
from bayplan.cli.render import stdout
from bayplan.inputs.durations import duration_text
from bayplan.simulation.comparison import Outcome

__all__ = ["print_outcomes"]

_UNUSED = 0.0005


def print_outcomes(found: Sequence[Outcome]) -> None:
    """Print a table with a column for each policy."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("")
    for one in found:
        table.add_column(escape(one.policy), justify="right")
    _add_costs(table, [one.earnings for one in found if one.earnings is not None])
    resources = sorted({name for one in found for name in one.utilisation})
    for name in resources:
        parts = [one.utilisation.get(name, 0.0) for one in found]
        if max(parts) >= _UNUSED:
            table.add_row(f"{escape(name)} used", *(f"{part:.1%}" for part in parts))
    for title, figure in _FIGURES:
        table.add_row(title, *(figure(one) for one in found))
    console = stdout()
    console.print(f"[bold]Policies[/bold]  over {duration_text(found[0].seconds)}")
    console.print(table)


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


def _wait(seconds: float | None) -> str:
    return "-" if seconds is None else duration_text(seconds)


_FIGURES: tuple[tuple[str, Callable[[Outcome], str]], ...] = (
    ("jobs started", lambda one: str(one.waits.started)),
    ("jobs waiting", lambda one: str(one.waits.waiting)),
    ("wait, median", lambda one: _wait(one.waits.p50)),
    ("wait, p95", lambda one: _wait(one.waits.p95)),
    ("wait, longest", lambda one: _wait(one.waits.longest)),
    ("evicted", lambda one: str(one.evicted)),
)
