"""What begins and ends in a journal, in sums of days and hours, or record by record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import Column, Connection, Select, Table, case, func, select
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


class Changes:
    """Reads the changes of one kind of record, grouped by fields.

    :param table: ``usage`` or ``capacity``.
    """

    def __init__(self, table: Table, by: Sequence[str], equal: Mapping[str, str]) -> None:
        self._table = table
        self._by = [self._column(name).label(f"by_{name}") for name in by]
        # A series is of usage or of capacity; its state tells which.
        self._of_series = [series.c.state == "" if table is usage else series.c.state != ""]
        self._of_record: list[ColumnElement[bool]] = []
        for name, value in equal.items():
            own = self._of_record if name in RECORD_FIELDS else self._of_series
            own.append(self._column(name) == value)

    def _column(self, name: str) -> Column[Any]:
        if name in series.c and name != "id":
            return series.c[name]
        if name in RECORD_FIELDS and name in self._table.c:
            return self._table.c[name]
        raise ValueError(f'records are not summed by "{name}"')

    def _key(self, row: Sequence[Any]) -> Key:
        return tuple(row[: len(self._by)])

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
        parts = ("level_high", "level_low", "moment_high", "moment_low")
        group = [*self._by, table.c.start] if dated else self._by
        sums = [func.sum(table.c[part]) for part in parts]
        found = self._select([*group, *sums], table).where(
            table.c.start >= first, table.c.start < last
        )
        for row in connection.execute(found.group_by(*group)):
            if row[-1] is None:
                continue
            start = row[len(self._by)] if dated else first
            level, moment = join_parts(*row[-4:-2]), join_parts(*row[-2:])
            yield Change(self._key(row), start, start + width, level, moment)

    def _single(
        self, connection: Connection, since: int, until: int, dated: bool
    ) -> Iterator[Change]:
        """Yield the changes by single records; equal amounts are counted, which is exact."""
        table = self._table
        for time, sign in ((table.c.since, 1), (table.c.until, -1)):
            group = [*self._by, time, table.c.amount] if dated else [*self._by, table.c.amount]
            found = self._select([*group, func.count()], table)
            found = found.where(time >= since, time < until).group_by(*group)
            for row in connection.execute(found):
                at = row[len(self._by)] if dated else since
                yield Change(self._key(row), at, at, sign * row[-2] * row[-1])

    def at_once(self, connection: Connection, since: int, until: int) -> Iterator[Change]:
        """Yield what single records change in a window, without the times of each change."""
        table = self._table
        for time, sign in ((table.c.since, 1), (table.c.until, -1)):
            group = [*self._by, table.c.amount]
            found = self._select([*group, func.count(), func.sum(time)], table)
            found = found.where(time >= since, time < until).group_by(*group)
            for row in connection.execute(found):
                # Products of amounts and times exceed what databases add up.
                amount, count, times = (int(value) for value in row[-3:])
                level, moment = sign * amount * count, sign * amount * (count * until - times)
                yield Change(self._key(row), since, until, level, moment)

    def by_record(
        self, connection: Connection, since: int, until: int
    ) -> Iterator[tuple[Key, int]]:
        """Yield (key, sum) from all records of a window."""
        table = self._table
        open_end = table.c.until.is_(None) | (table.c.until > until)
        begin = case((table.c.since < since, since), else_=table.c.since)
        end = case((open_end, until), else_=table.c.until)
        group = [*self._by, table.c.amount]
        matching = select(series.c.id).where(*self._of_series)
        for lasting in overlapping(table, since, until):
            found = select(*group, func.sum(end - begin)).where(lasting, *self._of_record)
            found = found.join(series, series.c.id == table.c.series)
            found = found.where(table.c.series.in_(matching)).group_by(*group)
            for row in connection.execute(found):
                yield self._key(row), row[-2] * int(row[-1])

    def _select(self, columns: Sequence[Any], table: Table) -> Select[Any]:
        joined = series.join(table, table.c.series == series.c.id)
        return select(*columns).select_from(joined).where(*self._of_series)
