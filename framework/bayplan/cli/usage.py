"""bayplan usage: what was used, from a journal or in a simulation."""

from __future__ import annotations

import csv
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from bayplan.api.times import rfc3339
from bayplan.cli.options import optional_input_options, simulate
from bayplan.errors import InputError
from bayplan.inputs.choices import OneOf
from bayplan.inputs.durations import parse_duration

if TYPE_CHECKING:
    from bayplan.metering.journal import Journal

__all__ = ["command"]

_BY = ("tenant", "queue", "pool", "namespace", "job", "resource", "model")
_MS = 1000
_HOUR = 3_600_000
_THOUSANDTHS = 1000
_GIB = 2**30
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


class _Window(msgspec.Struct, frozen=True):
    """From when to when, in ms since 1970."""

    since: int
    until: int


@click.command(name="usage")
@click.option(
    "--by",
    type=OneOf(_BY),
    default="tenant",
    show_default=True,
    help="What to add up by, besides resource and model.",
)
@click.option(
    "--since",
    default="30d",
    show_default=True,
    metavar="TIME",
    help="The start: a duration before the end, or a date or time such as 2026-01-31 (UTC).",
)
@click.option(
    "--to",
    "to",
    metavar="TIME",
    help="The end: a duration before now, or a date or time. By default: until all is known.",
)
@click.option("--journal", metavar="URL", help="The journal: a file, or postgresql://...")
@optional_input_options
@click.option(
    "-o",
    "--output",
    type=OneOf(["table", "json", "csv"]),
    default="table",
    show_default=True,
    help="The output format.",
)
def command(
    by: str,
    since: str,
    to: str | None,
    journal: str | None,
    paths: tuple[str, ...],
    config: Path | None,
    plugins_dir: Path | None,
    until: float | None,
    seed: int,
    output: str,
) -> None:
    """Show what was used, in hours: of cores, GiB, and devices.

    Usage comes from a journal, or with -f from a simulation of manifests, whose virtual time begins
    on 2000-01-01.
    """
    from bayplan.metering.journal import Journal

    if (journal is None) == (not paths):
        raise InputError("give either a journal with --journal or manifests with -f")
    if journal is not None:
        source = Journal(journal, create=False)
    else:
        source = Journal()
        simulate(paths, config, plugins_dir, until, seed, journal=source)
    window = _window(since, to, source.heartbeat, simulated=journal is None)
    _OUTPUTS[output](by, _rows(source, window, by), window)


def _window(since: str, to: str | None, known: int, simulated: bool) -> _Window:
    now = known if simulated else int(time.time() * _MS)
    end = known if to is None else _moment("--to", to, now)
    start = _moment("--since", since, end)
    if start >= end and known:
        raise InputError("expected a time before the end", f"--since {since}")
    return _Window(max(0, start), end)


def _moment(option: str, text: str, end: int) -> int:
    """Return a time as ms since 1970; a duration counts back from the end."""
    try:
        return end - round(parse_duration(text) * _MS)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InputError(
            f'expected a duration such as 30d or a date such as 2026-01-31, got "{text}"', option
        ) from None
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * _MS)


class _Row(msgspec.Struct, frozen=True):
    """What one key used of one resource and model, and how much of all that was in service.

    ``state`` is ``used``; what nobody used is ``idle``, ``reserved``, ``maintenance`` or
    ``failed``, and has no name.
    """

    name: str
    state: str
    resource: str
    model: str
    total: int
    share: float | None

    @property
    def hours(self) -> float:
        """Hours of a core, a GiB or a device."""
        units = self.total / _THOUSANDTHS / _HOUR
        return units / _GIB if _in_bytes(self.resource) else units

    @property
    def unit(self) -> str:
        """What is counted."""
        if self.resource == "cpu":
            return "core hours"
        return "GiB hours" if _in_bytes(self.resource) else "device hours"


def _in_bytes(resource: str) -> bool:
    return resource in ("memory", "ephemeral-storage") or resource.startswith("hugepages-")


def _rows(journal: Journal, window: _Window, by: str) -> list[_Row]:
    """Return what was used by key, resource and model, and what nobody used."""
    from bayplan.metering.summary import Summary

    summary = Summary(journal, window.since, window.until)
    fields = list(dict.fromkeys((by, "resource", "model")))
    used: Mapping[tuple[str, ...], int] = summary.usage(fields)
    states = summary.capacity(["resource", "model", "state"])
    offered: dict[tuple[str, str], int] = {}
    for (resource, model, state), total in states.items():
        if state == "in-service":
            offered[resource, model] = total
    rows: list[_Row] = []
    consumed: dict[tuple[str, str], int] = {}
    for key, total in sorted(used.items()):
        named = dict(zip(fields, key, strict=True))
        kind = (named["resource"], named["model"])
        consumed[kind] = consumed.get(kind, 0) + total
        share = total / offered[kind] if offered.get(kind) else None
        rows.append(_Row(named[by], "used", *kind, total, share))
    for kind, whole in sorted(offered.items()):
        idle = whole - consumed.get(kind, 0)
        if idle:
            rows.append(_Row("", "idle", *kind, idle, idle / whole))
    for (resource, model, state), total in sorted(states.items()):
        if state != "in-service":
            rows.append(_Row("", state, resource, model, total, None))
    return rows


def _names(by: str, row: _Row) -> dict[str, str]:
    """Return the columns that name a row."""
    own = {} if by in ("resource", "model") else {by: row.name}
    return {**own, "resource": row.resource, "model": row.model, "state": row.state}


def _plain(by: str, row: _Row) -> dict[str, Any]:
    return {
        **_names(by, row),
        "hours": round(row.hours, 6),
        "unit": row.unit,
        "share": None if row.share is None else round(row.share, 6),
        "amountMilliseconds": str(row.total),
    }


def _print_json(by: str, rows: Sequence[_Row], window: _Window) -> None:
    content = {
        "since": _text(window.since),
        "until": _text(window.until),
        "usage": [_plain(by, row) for row in rows],
    }
    json.dump(content, sys.stdout, indent=2)
    print()


def _print_csv(by: str, rows: Sequence[_Row], window: _Window) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow([*_columns(by), "hours", "unit", "share"])
    for row in rows:
        share = "" if row.share is None else f"{row.share:.6f}"
        names = (_cell(text) for text in _names(by, row).values())
        writer.writerow([*names, f"{row.hours:.6f}", row.unit, share])


def _columns(by: str) -> list[str]:
    return [*([] if by in ("resource", "model") else [by]), "resource", "model", "state"]


def _cell(text: str) -> str:
    # A spreadsheet would take such a cell for a formula.
    return f"'{text}" if text.startswith(_FORMULA) else text


def _print_table(by: str, rows: Sequence[_Row], window: _Window) -> None:
    from rich.markup import escape
    from rich.table import Table

    from bayplan.cli.render import stdout

    console = stdout()
    console.print(f"{_text(window.since)} to {_text(window.until)}")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in _columns(by):
        table.add_column(name)
    table.add_column("hours", justify="right")
    table.add_column("")
    table.add_column("share", justify="right")
    for row in rows:
        share = "-" if row.share is None else f"{row.share:.1%}"
        names = (escape(text) for text in _names(by, row).values())
        table.add_row(*names, f"{row.hours:,.2f}", row.unit, share)
    console.print(table)


def _text(at: int) -> str:
    return rfc3339(at / _MS)


_OUTPUTS: dict[str, Callable[[str, Sequence[_Row], _Window], None]] = {
    "table": _print_table,
    "json": _print_json,
    "csv": _print_csv,
}
