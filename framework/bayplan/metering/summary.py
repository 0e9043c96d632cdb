"""What a journal adds up to between two times, to the millisecond.

With the level L at the start of a window (all that has begun and not ended), the sum over the
window is ``L * length``, plus, for each change by an amount A inside it, ``A`` times what is left
of the window. Hours and days hold the sums of such changes, so that only the ragged ends of a
window are read record by record.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, Table

from bayplan.metering.changes import RECORD_FIELDS, ROLLUPS, Change, Changes, Key
from bayplan.metering.journal import Journal
from bayplan.metering.tables import HOUR, capacity, usage

__all__ = ["Hour", "Summary"]


@dataclass(frozen=True)
class Hour:
    """What was in use in the hour that begins at ``start``, in amount times milliseconds."""

    key: Key
    start: int
    total: int


class Summary:
    """Sums of a journal between two times, in amount times milliseconds.

    Records that are open count until the journal's heartbeat: nothing is known beyond it.

    :param since: the start of the window, in ms since 1970.
    :param until: its end.
    :param equal: only what has these values, such as ``{"tenant": "red"}``.
    """

    def __init__(
        self, journal: Journal, since: int, until: int, equal: Mapping[str, str] | None = None
    ) -> None:
        self._journal = journal
        self.since = since
        self.until = max(since, min(until, journal.heartbeat))
        self._equal = dict(equal or {})

    def usage(self, by: Sequence[str]) -> dict[Key, int]:
        """Return what was used, by fields of usage records.

        :param by: of tenant, queue, pool, namespace, resource, model; and job, pod, node, which
            take longer.
        """
        return self._totals(usage, by)

    def capacity(self, by: Sequence[str]) -> dict[Key, int]:
        """Return what was offered, by pool, resource, model and state; and node, as ``usage``."""
        return self._totals(capacity, by)

    def hourly(self, by: Sequence[str]) -> Iterator[Hour]:
        """Yield what was used in each hour in which anything was, by key and time.

        :raises ValueError: for a window that does not begin with an hour.
        """
        if self.since % HOUR:
            raise ValueError("expected the start of an hour")
        found = Changes(usage, by, self._equal)
        with self._journal.transaction() as connection:
            levels = self._levels(connection, found)
            changes: dict[Key, dict[int, list[Change]]] = defaultdict(lambda: defaultdict(list))
            for one in found.changes(connection, self.since, self.until, ROLLUPS[1:]):
                changes[one.key][one.start - one.start % HOUR].append(one)
        for key in sorted({*levels, *changes}):
            yield from self._hours_of(key, levels.get(key, 0), changes.get(key, {}))

    def _hours_of(
        self, key: Key, level: int, changes: Mapping[int, Sequence[Change]]
    ) -> Iterator[Hour]:
        for start in range(self.since, self.until, HOUR):
            end = min(start + HOUR, self.until)
            own = changes.get(start, ())
            total = level * (end - start) + sum(one.until(end) for one in own)
            level += sum(one.level for one in own)
            if total:
                yield Hour(key, start, total)

    def _totals(self, table: Table, by: Sequence[str]) -> dict[Key, int]:
        found = Changes(table, by, self._equal)
        total: dict[Key, int] = defaultdict(int)
        with self._journal.transaction() as connection:
            if any(name in RECORD_FIELDS for name in (*by, *self._equal)):
                parts: Iterable[tuple[Key, int]] = found.by_record(
                    connection, self.since, self.until
                )
                for key, part in parts:
                    total[key] += part
            else:
                for key, level in self._levels(connection, found).items():
                    total[key] += level * (self.until - self.since)
                for one in found.changes(connection, self.since, self.until, ROLLUPS):
                    total[one.key] += one.until(self.until)
        return {key: value for key, value in total.items() if value}

    def _levels(self, connection: Connection, found: Changes) -> dict[Key, int]:
        """Return what is in use at the start of the window."""
        levels: dict[Key, int] = defaultdict(int)
        for one in found.changes(connection, 0, self.since, ROLLUPS, dated=False):
            levels[one.key] += one.level
        return levels
