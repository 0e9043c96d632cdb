"""Sums up, by hour and by day, how the amounts in use change."""

from __future__ import annotations

from functools import cache
from typing import Any

from sqlalchemy import Connection, Table
from sqlalchemy.dialects import postgresql, sqlite

from bayplan.metering.tables import DAY, HOUR, days, hours, split_parts

__all__ = ["Rollups"]

_INSERTS: dict[str, Any] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}


class Rollups:
    """The changes of one batch, to be added to the tables ``hours`` and ``days``."""

    def __init__(self) -> None:
        self._sums: dict[tuple[int, int, int], list[int]] = {}

    def add(self, series: int, at: int, amount: int) -> None:
        """Note that from a time on an amount more (or less, if negative) is in use."""
        for width in (HOUR, DAY):
            start = at - at % width
            found = self._sums.setdefault((width, start, series), [0, 0])
            found[0] += amount
            found[1] += amount * (start + width - at)

    def write(self, connection: Connection) -> None:
        """Add the changes to the tables, within the batch's transaction."""
        for table, width in ((hours, HOUR), (days, DAY)):
            rows = [
                _row(start, series, level, moment)
                for (own, start, series), (level, moment) in self._sums.items()
                if own == width
            ]
            if rows:
                connection.execute(_upsert(connection.dialect.name, table), rows)


def _row(start: int, series: int, level: int, moment: int) -> dict[str, int]:
    level_high, level_low = split_parts(level)
    moment_high, moment_low = split_parts(moment)
    return {
        "start": start,
        "series": series,
        "level_high": level_high,
        "level_low": level_low,
        "moment_high": moment_high,
        "moment_low": moment_low,
    }


@cache
def _upsert(dialect: str, table: Table) -> Any:
    insert = _INSERTS[dialect](table)
    parts = [column for column in table.c if not column.primary_key]
    return insert.on_conflict_do_update(
        index_elements=list(table.primary_key.columns),
        set_={part.name: part + insert.excluded[part.name] for part in parts},
    )
