"""Invoices as JSON, CSV and a printable page."""

from __future__ import annotations

import csv
import io
from html import escape
from typing import Any

from bayplan.api.times import rfc3339
from bayplan.billing.invoice import Invoice, LineItem
from bayplan.billing.money import decimal_text

__all__ = ["invoice_csv", "invoice_html", "invoice_json"]

_COLUMNS = (
    "what",
    "resource",
    "model",
    "pool",
    "pricesFrom",
    "band",
    "hours",
    "unit",
    "pricePerHour",
    "share",
    "discountFactor",
    "amount",
)
_HEADINGS = (
    "What",
    "Resource",
    "Model",
    "Pool",
    "Prices from",
    "Band",
    "Hours",
    "Unit",
    "Price",
    "Share",
    "Discount",
    "Amount",
)
_FIRST_OF_FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n")
_SHARES = 12
"""The decimal places of factors and prices in a file."""

_STYLE = """
body { font: 11pt/1.4 system-ui, sans-serif; margin: 2cm; color: #111; }
h1 { font-size: 16pt; margin: 0; }
p { margin: 0.2em 0; }
table { border-collapse: collapse; width: 100%; margin-top: 1em; }
th, td { text-align: left; padding: 0.25em 0.5em; border-bottom: 1px solid #ccc; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
tr.sum td { font-weight: bold; border-top: 2px solid #111; }
@media print { body { margin: 0; } tr { break-inside: avoid; } }
"""


def invoice_json(invoice: Invoice) -> dict[str, Any]:
    """Return an invoice for JSON; amounts and hours are decimals in text."""
    return {
        "tenant": invoice.tenant,
        "month": str(invoice.month),
        "currency": invoice.currency,
        "asOf": _time(invoice.as_of),
        "final": invoice.final,
        "lines": [dict(zip(_COLUMNS, _cells(line), strict=True)) for line in invoice.lines],
        "total": str(invoice.total),
        "credits": [
            {"date": str(credit.day), "amount": str(credit.amount), "note": credit.note}
            for credit in invoice.credits
        ],
        "openingBalance": str(invoice.opening),
        "closingBalance": str(invoice.closing),
    }


def invoice_csv(invoice: Invoice) -> str:
    """Return the lines of an invoice as CSV (RFC 4180), with tenant, month and currency.

    A text that a spreadsheet would read as a formula gets an apostrophe before it.
    """
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(("tenant", "month", "currency", *_COLUMNS))
    for line in invoice.lines:
        row = (invoice.tenant, str(invoice.month), invoice.currency, *_cells(line))
        writer.writerow([_plain(cell) for cell in row])
    return out.getvalue()


def invoice_html(invoice: Invoice) -> str:
    """Return an invoice as a page of one file, to be printed; it runs no script."""
    state = "" if invoice.final else f" (as of {_time(invoice.as_of)})"
    title = escape(f"Invoice {invoice.tenant} {invoice.month}")
    rows = [_row(_cells(line)) for line in invoice.lines]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{title}</h1>\n"
        f"<p>All times are UTC, amounts in {escape(invoice.currency)}{escape(state)}.</p>\n"
        f"<table>\n<thead>{_row(_HEADINGS, 'th')}</thead>\n<tbody>\n"
        + "".join(f"{row}\n" for row in rows)
        + _sum("Total", str(invoice.total))
        + "</tbody>\n</table>\n<table>\n<tbody>\n"
        + _balances(invoice)
        + "</tbody>\n</table>\n</body>\n</html>\n"
    )


def _cells(line: LineItem) -> tuple[str, ...]:
    """Return the cells of ``_COLUMNS``."""
    return (
        line.what,
        line.resource,
        line.model,
        line.pool,
        str(line.version),
        line.band,
        line.hours,
        line.unit,
        decimal_text(line.per_hour, _SHARES),
        decimal_text(line.share, _SHARES),
        decimal_text(line.factor, _SHARES),
        str(line.amount),
    )


def _plain(cell: str) -> str:
    """Return a cell that no spreadsheet takes for a formula."""
    return f"'{cell}" if cell.startswith(_FIRST_OF_FORMULAS) else cell


def _time(moment: int) -> str:
    return rfc3339(moment / 1000)


def _row(cells: tuple[str, ...], tag: str = "td") -> str:
    numbers = ("hours", "pricePerHour", "share", "discountFactor", "amount")
    found = ""
    for column, cell in zip(_COLUMNS, cells, strict=True):
        style = ' class="number"' if column in numbers else ""
        found += f"<{tag}{style}>{escape(cell)}</{tag}>"
    return f"<tr>{found}</tr>"


def _sum(label: str, amount: str) -> str:
    span = len(_COLUMNS) - 1
    return (
        f'<tr class="sum"><td colspan="{span}">{escape(label)}</td>'
        f'<td class="number">{escape(amount)}</td></tr>\n'
    )


def _balances(invoice: Invoice) -> str:
    rows = [("Opening balance", str(invoice.opening))]
    for credit in invoice.credits:
        note = f": {credit.note}" if credit.note else ""
        rows.append((f"Credit of {credit.day}{note}", str(credit.amount)))
    rows.append(("This invoice", str(-invoice.total)))
    rows.append(("Closing balance", str(invoice.closing)))
    return "".join(
        f'<tr><td>{escape(label)}</td><td class="number">{escape(amount)}</td></tr>\n'
        for label, amount in rows
    )
