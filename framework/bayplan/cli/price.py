"""bayplan price: check a price list, and say what it means."""

from __future__ import annotations

from pathlib import Path
from time import time
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from bayplan.billing.prices import Price, PriceList, PriceVersion

__all__ = ["command"]

_PLACES = 12


@click.group(name="price")
def command() -> None:
    """Check price lists."""


@command.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--previous",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The list before the change: what is in force may not differ from it.",
)
def check(file: Path, previous: Path | None) -> None:
    """Check a price list, and print what it says."""
    from bayplan.billing.prices import check_rewritten, load_prices
    from bayplan.cli.render import stdout

    prices = load_prices(file)
    if previous is not None:
        check_rewritten(load_prices(previous), prices, int(time() * 1000))
    console = stdout()
    bands = "" if prices.time_zone == "UTC" else f"; times of day in {prices.time_zone}"
    console.print(f"Prices in {prices.currency}, from midnight UTC{bands}")
    for version in prices.versions:
        _print(console, prices, version)


def _print(console: Console, prices: PriceList, version: PriceVersion) -> None:
    from rich.markup import escape

    from bayplan.billing.money import decimal_text
    from bayplan.billing.month import day_of
    from bayplan.inputs.durations import duration_text

    until = "on" if version.until is None else f"until {day_of(version.until)}"
    console.print(f"\n[bold]From {version.start} {until}[/bold]  version {version.digest}")
    console.print(_price_table(version))
    if version.minimum:
        period = duration_text(version.minimum / 1000)
        console.print(f"  A pod pays for each resource for at least {period}.")
    for resource, tiers in version.discounts.items():
        for tier in tiers:
            console.print(
                f"  {escape(resource)}: beyond {decimal_text(tier.above, _PLACES)} h in a month, "
                f"{decimal_text(tier.factor * 100, _PLACES)} % of the price."
            )
    for owned in version.capacity.values():
        console.print(
            f"  Pool {escape(owned.pool)}: {escape(owned.owner)} pays "
            f"{decimal_text(owned.idle * 100, _PLACES)} % of the price for idle capacity and "
            f"{decimal_text(owned.reserved * 100, _PLACES)} % for reserved capacity."
        )
    console.print("  All other resources are free.")


def _price_table(version: PriceVersion) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("  resource", "model", "pool", "time"):
        table.add_column(name)
    table.add_column("per hour", justify="right")
    table.add_column("unit")
    for price in version.prices.values():
        for row in _rows(price):
            table.add_row(*row)
    return table


def _rows(price: Price) -> list[tuple[str, ...]]:
    from rich.markup import escape

    from bayplan.billing.money import decimal_text
    from bayplan.billing.prices import unit_of

    rows: list[tuple[str, ...]] = []
    for band in price.bands:
        rest = "other times" if len(price.bands) > 1 else "always"
        rows.append(
            (
                f"  {escape(price.resource)}",
                escape(price.model) or "any",
                escape(price.pool) or "any",
                escape(band.name) or rest,
                decimal_text(band.per_hour, _PLACES),
                unit_of(price.resource),
            )
        )
    return rows
