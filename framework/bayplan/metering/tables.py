"""The tables of the journal.

``usage`` and ``capacity`` hold the records; a row is written once, and only its ``until`` is set
later. ``hours`` and ``days`` sum up what begins and ends in an hour and in a day (UTC), by series,
so that a month need not be added up record by record.

Times are milliseconds since 1970. Products of an amount and a time exceed 64 bits; they are kept
as ``high * 2**32 + low``, which adds up part by part.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, Integer, MetaData, Table, Text, UniqueConstraint
from sqlalchemy.sql.elements import ColumnElement

__all__ = [
    "DAY",
    "HOUR",
    "SERIES_FIELDS",
    "capacity",
    "days",
    "hours",
    "join_parts",
    "journal",
    "metadata",
    "overlapping",
    "series",
    "split_parts",
    "usage",
]

HOUR = 3_600_000
DAY = 24 * HOUR
_PART = 32
_MASK = (1 << _PART) - 1

metadata = MetaData()
_Id = BigInteger().with_variant(Integer, "sqlite")

journal = Table(
    "journal",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("version", Integer, nullable=False),
    Column("writer", Text, nullable=False),
    Column("batch", BigInteger, nullable=False),
    Column("heartbeat", BigInteger, nullable=False),
)
"""One row: the version of the schema, who writes, its last batch, and until when all is known."""

SERIES_FIELDS = ("tenant", "queue", "pool", "namespace", "resource", "model", "state")
series = Table(
    "series",
    metadata,
    Column("id", Integer, primary_key=True),
    *(Column(name, Text, nullable=False) for name in SERIES_FIELDS),
    UniqueConstraint(*SERIES_FIELDS),
)
"""What records are added up by. ``state`` is "" for usage, and the state of capacity."""

usage = Table(
    "usage",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("series", Integer, nullable=False),
    Column("job", Text, nullable=False),
    Column("pod", Text, nullable=False),
    Column("pod_uid", Text, nullable=False),
    Column("node", Text, nullable=False),
    Column("amount", BigInteger, nullable=False),
    Column("since", BigInteger, nullable=False),
    Column("until", BigInteger),
    Column("labels", Text, nullable=False),
)
capacity = Table(
    "capacity",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("series", Integer, nullable=False),
    Column("node", Text, nullable=False),
    Column("amount", BigInteger, nullable=False),
    Column("since", BigInteger, nullable=False),
    Column("until", BigInteger),
)
for _table in (usage, capacity):
    # With the amount they tell all that sums of changes need.
    Index(f"{_table.name}_since", _table.c.series, _table.c.since, _table.c.amount)
    Index(f"{_table.name}_until", _table.c.series, _table.c.until, _table.c.amount)
    _open = _table.c.until.is_(None)
    Index(f"{_table.name}_open", _table.c.id, sqlite_where=_open, postgresql_where=_open)


def _rollup(name: str) -> Table:
    parts = ("level_high", "level_low", "moment_high", "moment_low")
    return Table(
        name,
        metadata,
        Column("start", BigInteger, primary_key=True, autoincrement=False),
        Column("series", Integer, primary_key=True, autoincrement=False),
        *(Column(part, BigInteger, nullable=False) for part in parts),
        sqlite_with_rowid=False,
    )


hours = _rollup("hours")
"""``level``: by how much the amount in use rises. ``moment``: what these changes use by the end of
the hour, in amount times milliseconds."""
days = _rollup("days")


def overlapping(table: Table, since: int, until: int) -> tuple[ColumnElement[bool], ...]:
    """Return conditions for the rows that hold between two times, each row by one of them.

    Together with one on the series, an index answers each from the end: what ended long ago is not
    read.
    """
    # The sum keeps the index on since from being used, which would read all that is older.
    begun = table.c.since + 0 < until
    return begun & (table.c.until > since), begun & table.c.until.is_(None)


def split_parts(number: int) -> tuple[int, int]:
    """Return (high, low) of a whole number: it is ``high * 2**32 + low``."""
    return number >> _PART, number & _MASK


def join_parts(high: int, low: int) -> int:
    """Return the number of two parts, or of the sums of parts."""
    return (int(high) << _PART) + int(low)
