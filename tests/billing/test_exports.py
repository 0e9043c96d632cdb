"""Invoices in files: nothing in them runs."""

from __future__ import annotations

import csv
import io
import json
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tests.billing.bills import GPU, Records, at, prices, used, version

from bayplan.billing.exports import invoice_csv, invoice_html, invoice_json
from bayplan.billing.invoice import Invoice, make_invoice
from bayplan.billing.month import Month

HOSTILE = ('=cmd|"/c calc"!A0', "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "<script>x</script>")


def made(folder: Path, text: str) -> Invoice:
    price_list = prices(folder, version(prices=[{"resource": GPU, "perHour": 2}]))
    usage = used("2026-01-05", "2026-01-06", tenant=text, model=text, pool=text)
    source = Records([usage])
    return make_invoice(text, Month(2026, 1), price_list, source, at("2026-03-01"))


@pytest.mark.parametrize("text", HOSTILE)
def test_a_cell_never_begins_as_a_formula_does(tmp_path: Path, text: str) -> None:
    found = invoice_csv(made(tmp_path, text))
    head, row = csv.reader(io.StringIO(found, newline=""))
    cells = dict(zip(head, row, strict=True))
    assert not any(cell.startswith(("=", "+", "-", "@", "\t", "\r")) for cell in row)
    assert cells["model"].removeprefix("'") == text
    assert (cells["hours"], cells["amount"], cells["currency"]) == ("24", "48.00", "EUR")


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_shows_names_as_text_and_runs_nothing(tmp_path: Path) -> None:
    page = _Tags()
    page.feed(invoice_html(made(tmp_path, "<script>alert('x')</script>")))
    assert "script" not in page.tags
    assert "<script>alert('x')</script>" in page.text
    assert "48.00" in page.text


def test_json_has_decimals_in_text(tmp_path: Path) -> None:
    found = json.loads(json.dumps(invoice_json(made(tmp_path, "lab"))))
    assert (found["total"], found["closingBalance"]) == ("48.00", "-48.00")
    [line] = found["lines"]
    assert (line["hours"], line["pricePerHour"], line["discountFactor"]) == ("24", "2", "1")
