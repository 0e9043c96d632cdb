"""What a journal adds up to between two times, to the millisecond.

With the level L at the start of a window (all that has begun and not ended), the sum over the
window is ``L * length``, plus, for each change by an amount A inside it, ``A`` times what is left
of the window. Hours and days hold the sums of such changes, so that only the ragged ends of a
window are read record by record.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from sqlalchemy import Connection, Table

from bayplan.metering.changes import RECORD_FIELDS, ROLLUPS, Changes, Key
from bayplan.metering.journal import Journal
from bayplan.metering.tables import capacity, usage

__all__ = ["Summary"]


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
