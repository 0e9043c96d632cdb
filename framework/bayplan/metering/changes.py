"""What begins and ends in a journal, in sums of days and hours, or record by record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Column, Connection, Select, Table, bindparam, case, func, select
from sqlalchemy.sql.elements import ColumnElement

from bayplan.metering.tables import (
    DAY,
    HOUR,
    days,
    hours,
    join_parts,
    overlapping,
    series,
    usage,
)

__all__ = ["RECORD_FIELDS", "ROLLUPS", "Change", "Changes", "Key"]

Key = tuple[str, ...]
RECORD_FIELDS = ("job", "pod", "node")
"""What only single records tell: sums by these read every record of the window."""
ROLLUPS = ((DAY, days), (HOUR, hours))
"""The tables of sums, the coarsest first."""
_MOST_STATEMENTS = 256
"""Putting a statement together takes longer than SQLite takes for its answer."""


class Change(msgspec.Struct, frozen=True):
    """What begins and ends between ``start`` and ``end``: by how much the level is higher at
    ``end``, and what that used until ``end``."""

    key: Key
    start: int
    end: int
    level: int
    moment: int = 0

    def until(self, end: int) -> int:
        """Return what the change uses until a later time."""
        return self.moment + self.level * (end - self.end)


class _Shape(NamedTuple):
    """Which changes are read: of one kind of record, grouped by fields, where others have a value.

    In statements the value of a field ``x`` is the parameter ``of_x``.
    """

    table: Table
    by: tuple[str, ...]
    equal: tuple[str, ...]

    def column(self, name: str) -> Column[Any]:
        """Return the column of a field.

        :raises ValueError: for a field by which records are not summed.
        """
        if name in series.c and name != "id":
            return series.c[name]
        if name in RECORD_FIELDS and name in self.table.c:
            return self.table.c[name]
        raise ValueError(f'records are not summed by "{name}"')

    @property
    def key(self) -> list[ColumnElement[Any]]:
        """The columns to group by."""
        return [self.column(name).label(f"by_{name}") for name in self.by]

    def of_series(self) -> list[ColumnElement[bool]]:
        """Return the conditions on series."""
        # A series is of usage or of capacity; its state tells which.
        own = series.c.state == "" if self.table is usage else series.c.state != ""
        return [own, *self._equal(name for name in self.equal if name not in RECORD_FIELDS)]

    def of_record(self) -> list[ColumnElement[bool]]:
        """Return the conditions on single records."""
        return self._equal(name for name in self.equal if name in RECORD_FIELDS)

    def _equal(self, names: Iterator[str]) -> list[ColumnElement[bool]]:
        return [self.column(name) == bindparam(f"of_{name}") for name in names]

    def select(self, columns: Sequence[Any], table: Table) -> Select[Any]:
        """Return columns of a table of changes and of the series."""
        joined = series.join(table, table.c.series == series.c.id)
        return select(*columns).select_from(joined).where(*self.of_series())


class Changes:
    """Reads the changes of one kind of record, grouped by fields.

    :param table: ``usage`` or ``capacity``.
    :raises ValueError: for a field by which records are not summed.
    """

    def __init__(self, table: Table, by: Sequence[str], equal: Mapping[str, str]) -> None:
        self._shape = _Shape(table, tuple(by), tuple(equal))
        self._values = {f"of_{name}": value for name, value in equal.items()}
        for name in (*by, *equal):
            self._shape.column(name)

    def _key(self, row: Sequence[Any]) -> Key:
        return tuple(row[: len(self._shape.by)])

    def _within(self, since: int, until: int) -> dict[str, Any]:
        return {**self._values, "since": since, "until": until}

    def changes(
        self,
        connection: Connection,
        since: int,
        until: int,
        rollups: Sequence[tuple[int, Table]],
        dated: bool = True,
    ) -> Iterator[Change]:
        """Yield what changes in a window, from the coarsest sums that fit into it.

        :param dated: without it, only the keys and levels of the changes mean anything.
        """
        if since >= until:
            return
        if not rollups:
            yield from self._single(connection, since, until, dated)
            return
        width, table = rollups[0]
        first, last = -(-since // width) * width, until // width * width
        if first >= last:
            yield from self.changes(connection, since, until, rollups[1:], dated)
            return
        yield from self.changes(connection, since, first, rollups[1:], dated)
        yield from self._summed(connection, table, width, first, last, dated)
        yield from self.changes(connection, last, until, rollups[1:], dated)

    def _summed(
        self, connection: Connection, table: Table, width: int, first: int, last: int, dated: bool
    ) -> Iterator[Change]:
        """Yield the sums of whole hours or days."""
        found = _of_rollup(self._shape, table, dated)
        for row in connection.execute(found, self._within(first, last)):
            if row[-1] is None:
                continue
            start = row[len(self._shape.by)] if dated else first
            level, moment = join_parts(*row[-4:-2]), join_parts(*row[-2:])
            yield Change(self._key(row), start, start + width, level, moment)

    def _single(
        self, connection: Connection, since: int, until: int, dated: bool
    ) -> Iterator[Change]:
        """Yield the changes by single records; equal amounts are counted, which is exact."""
        for found, sign in _of_records(self._shape, dated):
            for row in connection.execute(found, self._within(since, until)):
                at = row[len(self._shape.by)] if dated else since
                yield Change(self._key(row), at, at, sign * row[-2] * row[-1])

    def at_once(self, connection: Connection, since: int, until: int) -> Iterator[Change]:
        """Yield what single records change in a window, without the times of each change."""
        for found, sign in _at_once(self._shape):
            for row in connection.execute(found, self._within(since, until)):
                # Products of amounts and times exceed what databases add up.
                amount, count, times = (int(value) for value in row[-3:])
                level, moment = sign * amount * count, sign * amount * (count * until - times)
                yield Change(self._key(row), since, until, level, moment)

    def by_record(
        self, connection: Connection, since: int, until: int
    ) -> Iterator[tuple[Key, int]]:
        """Yield (key, sum) from all records of a window."""
        shape, table = self._shape, self._shape.table
        open_end = table.c.until.is_(None) | (table.c.until > until)
        begin = case((table.c.since < since, since), else_=table.c.since)
        end = case((open_end, until), else_=table.c.until)
        group = [*shape.key, table.c.amount]
        matching = select(series.c.id).where(*shape.of_series())
        for lasting in overlapping(table, since, until):
            found = select(*group, func.sum(end - begin)).where(lasting, *shape.of_record())
            found = found.join(series, series.c.id == table.c.series)
            found = found.where(table.c.series.in_(matching)).group_by(*group)
            for row in connection.execute(found, self._values):
                yield self._key(row), row[-2] * int(row[-1])


# Statements, with the parameters ``since`` and ``until`` ------------------------------------


@lru_cache(_MOST_STATEMENTS)
def _of_rollup(shape: _Shape, table: Table, dated: bool) -> Select[Any]:
    parts = ("level_high", "level_low", "moment_high", "moment_low")
    group = [*shape.key, table.c.start] if dated else shape.key
    sums = [func.sum(table.c[part]) for part in parts]
    return shape.select([*group, *sums], table).where(_in(table.c.start)).group_by(*group)


@lru_cache(_MOST_STATEMENTS)
def _of_records(shape: _Shape, dated: bool) -> Sequence[tuple[Select[Any], int]]:
    """Return what begins and what ends, each with its sign."""
    found = []
    for time, sign in _times(shape.table):
        group = [*shape.key, *([time] if dated else []), shape.table.c.amount]
        columns = [*group, func.count()]
        found.append((_changing(shape, columns, time).group_by(*group), sign))
    return found


@lru_cache(_MOST_STATEMENTS)
def _at_once(shape: _Shape) -> Sequence[tuple[Select[Any], int]]:
    """Return what begins and what ends, without the times of each, and with its sign."""
    found = []
    for time, sign in _times(shape.table):
        group = [*shape.key, shape.table.c.amount]
        columns = [*group, func.count(), func.sum(time)]
        found.append((_changing(shape, columns, time).group_by(*group), sign))
    return found


def _times(table: Table) -> Sequence[tuple[Column[Any], int]]:
    return (table.c.since, 1), (table.c.until, -1)


def _changing(shape: _Shape, columns: Sequence[Any], time: Column[Any]) -> Select[Any]:
    return shape.select(columns, shape.table).where(_in(time))


def _in(time: Column[Any]) -> ColumnElement[bool]:
    return (time >= bindparam("since")) & (time < bindparam("until"))
