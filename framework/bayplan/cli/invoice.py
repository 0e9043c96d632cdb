"""bayplan invoice: what a tenant pays for a month."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bayplan.billing.money import decimal_text
from bayplan.cli.options import optional_input_options, simulate
from bayplan.errors import InputError
from bayplan.inputs.choices import OneOf

if TYPE_CHECKING:
    from bayplan.billing.accounts import Budget
    from bayplan.billing.invoice import Invoice, LineItem
    from bayplan.billing.month import Month
    from bayplan.billing.usage_source import UsageSource

__all__ = ["command"]

_PLACES = 12


@click.command(name="invoice")
@click.argument("tenant")
@click.argument("month")
@click.option(
    "--prices",
    "price_file",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE",
    help="The price list.",
)
@click.option(
    "--accounts",
    "accounts_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The accounts file: credits, opening balances and budgets.",
)
@click.option("--journal", metavar="URL", help="The journal of usage: a file or a URL.")
@optional_input_options
@click.option(
    "-o",
    "--output",
    type=OneOf(["table", "json", "csv", "html"]),
    default="table",
    show_default=True,
    help="The output format.",
)
def command(
    tenant: str,
    month: str,
    price_file: Path,
    accounts_file: Path | None,
    journal: str | None,
    output: str,
    **simulated: Any,
) -> None:
    """Bill TENANT for a MONTH such as 2026-01, in UTC.

    Usage comes from a journal, or with -f from a simulation of manifests, whose virtual time begins
    on 2000-01-01.
    """
    from bayplan.billing.accounts import load_accounts
    from bayplan.billing.invoice import make_invoice
    from bayplan.billing.month import Month
    from bayplan.billing.prices import load_prices

    try:
        wanted = Month.parse(month)
    except ValueError as exc:
        raise InputError(str(exc), "MONTH") from None
    prices = load_prices(price_file)
    accounts = None if accounts_file is None else load_accounts(accounts_file)
    if accounts is not None:
        accounts.check_currency(prices)
    if (journal is None) == (not simulated["paths"]):
        raise InputError("give either a journal with --journal or manifests with -f")
    source, now = _of_journal(journal) if journal is not None else _of_simulation(**simulated)
    account = accounts.by_tenant.get(tenant) if accounts is not None else None
    invoice = make_invoice(tenant, wanted, prices, source, now, account)
    if not invoice.lines and account is None:
        _note_nobody(tenant, wanted, source)
    _OUTPUTS[output](invoice)
    if output == "table" and account is not None and account.budget is not None:
        _print_budget(account.budget, invoice)


def _of_journal(place: str) -> tuple[UsageSource, int]:
    """Return a journal, and until when it knows what was used."""
    from bayplan.metering.journal import Journal

    journal = Journal(place, create=False)
    return journal, journal.heartbeat


def _of_simulation(
    paths: tuple[str, ...],
    config: Path | None,
    plugins_dir: Path | None,
    until: float | None,
    seed: int,
) -> tuple[UsageSource, int]:
    """Return the usage of a simulation, and its end."""
    from bayplan.metering.journal import Journal

    journal = Journal()
    simulate(paths, config, plugins_dir, until, seed, journal=journal)
    return journal, journal.heartbeat


def _note_nobody(tenant: str, month: Month, source: UsageSource) -> None:
    """Say that a tenant used nothing, and who did."""
    from bayplan.errors import did_you_mean

    others = {record.tenant for record in source.records(month.since, month.until)}
    near = did_you_mean(tenant, others)
    click.echo(f'note: no usage of "{tenant}" in {month}{near}', err=True)


# Output -------------------------------------------------------------------------------------


def _print_json(invoice: Invoice) -> None:
    from bayplan.billing.exports import invoice_json

    click.echo(json.dumps(invoice_json(invoice), indent=2))


def _print_csv(invoice: Invoice) -> None:
    from bayplan.billing.exports import invoice_csv

    click.echo(invoice_csv(invoice), nl=False)


def _print_html(invoice: Invoice) -> None:
    from bayplan.billing.exports import invoice_html

    click.echo(invoice_html(invoice), nl=False)


def _print_table(invoice: Invoice) -> None:
    from rich.markup import escape
    from rich.table import Table

    from bayplan.cli.render import stdout

    console = stdout()
    state = "" if invoice.final else ", not final"
    head = f"Invoice {escape(invoice.tenant)} {invoice.month}"
    console.print(f"[bold]{head}[/bold]  in {invoice.currency}{state}\n")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("what", "resource", "model", "pool", "prices of", "band"):
        table.add_column(name)
    table.add_column("hours", justify="right")
    table.add_column("unit")
    for name in ("price", "discount", "amount"):
        table.add_column(name, justify="right")
    for line in invoice.lines:
        table.add_row(*map(escape, _cells(line)))
    if invoice.lines:
        console.print(table)
        console.print()
    rows = [("Total", invoice.total), ("Opening balance", invoice.opening)]
    rows += [(f"Credit of {one.day}", one.amount) for one in invoice.credits]
    rows.append(("Closing balance", invoice.closing))
    for name, amount in rows:
        console.print(f"{name:<20} {amount:>14}")


def _print_budget(budget: Budget, invoice: Invoice) -> None:
    share = decimal_text(invoice.total * 100 / budget.per_month, 1)
    reached = [one for one in budget.alerts if invoice.total * 100 >= budget.per_month * one]
    alert = f"; the alert at {max(reached)} % is reached" if reached else ""
    click.echo(f"\n{share} % of the budget of {budget.per_month} is spent{alert}")


def _cells(line: LineItem) -> tuple[str, ...]:
    discount = (1 - line.factor) * 100
    price = line.per_hour * line.share
    return (
        line.what,
        line.resource,
        line.model or "-",
        line.pool or "-",
        str(line.version),
        line.band or "-",
        line.hours,
        line.unit,
        decimal_text(price, _PLACES),
        f"{decimal_text(discount, _PLACES)} %" if discount else "-",
        str(line.amount),
    )


_OUTPUTS: dict[str, Callable[[Invoice], None]] = {
    "table": _print_table,
    "json": _print_json,
    "csv": _print_csv,
    "html": _print_html,
}
