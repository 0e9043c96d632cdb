"""The journal of usage and capacity: records that are appended, closed once, and never rewritten.

One process writes at a time. Each batch is one transaction that also moves the heartbeat, checks
that nobody else has claimed the journal, and counts itself, so that a batch whose answer was lost
can be written again without harm.
"""

from __future__ import annotations

import contextlib
import json
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import msgspec
from sqlalchemy import (
    Connection,
    Row,
    Select,
    Table,
    Update,
    bindparam,
    func,
    insert,
    inspect,
    select,
    update,
)
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.sql.elements import ColumnElement

from bayplan.errors import InputError, Stopped
from bayplan.metering import tables
from bayplan.metering.database import IN_MEMORY, open_database, problem_of
from bayplan.metering.record import CapacityRecord, CapacityState, UsageRecord
from bayplan.metering.rollups import Rollups
from bayplan.metering.tables import SERIES_FIELDS, capacity, journal, series, usage

__all__ = ["Batch", "Entry", "Journal", "Record"]

Record = UsageRecord | CapacityRecord
_VERSION = 1
_ROWS = 10_000
_USAGE_FIELDS = [name for name in UsageRecord.__struct_fields__ if name != "labels"]

# Statements that are executed over and over: putting one together takes longer than its answer.
_MINE = (journal.c.writer == bindparam("me")) & (journal.c.batch == bindparam("before"))
_TAKE = update(journal).where(_MINE).values(batch=bindparam("number"))
_SET_HEARTBEAT = update(journal).values(heartbeat=bindparam("at"))
_MOVE_HEARTBEAT = _SET_HEARTBEAT.where(journal.c.heartbeat < bindparam("at"))
_HEARTBEAT = select(journal.c.heartbeat)
_FIND_SERIES = select(series.c.id).where(
    *(series.c[name] == bindparam(name) for name in SERIES_FIELDS)
)
_MAKE_SERIES = insert(series).returning(series.c.id)


class Entry(msgspec.Struct):
    """A record in the journal, by its number there; usage and capacity are numbered apart."""

    number: int
    record: Record


class Batch(msgspec.Struct):
    """What one transaction writes: new entries, and (entry, until) of those that end.

    A new entry may end in the same batch. ``heartbeat`` is until when all is known, in ms; it moves
    forward only, unless the clock was ``set_back``.
    """

    opened: Sequence[Entry] = ()
    closed: Sequence[tuple[Entry, int]] = ()
    heartbeat: int = 0
    set_back: bool = False


class _Known(msgspec.Struct):
    """What the writer keeps in memory: its place, and the numbers of the series.

    ``last`` is the batch that was written last.
    """

    writer: str = ""
    batch: int = 0
    last: Batch | None = None
    usage: int = 0
    capacity: int = 0
    series: dict[tuple[str, ...], int] = msgspec.field(default_factory=dict)


class Journal:
    """A journal in SQLite (a path, or ``:memory:``) or PostgreSQL (a URL).

    Safe to use from several threads. All times are in milliseconds since 1970.

    :param create: whether to create what is missing.
    :raises InputError: when the place cannot be used, or holds another version of the schema.
    """

    def __init__(self, place: str = IN_MEMORY, create: bool = True) -> None:
        self.engine = open_database(place, create)
        self._known = _Known()
        self._lock = threading.Lock()
        try:
            self._check(create)
        except SQLAlchemyError as exc:
            self.close()
            raise problem_of(self.engine, exc) from None
        except InputError:
            self.close()
            raise

    def _check(self, create: bool) -> None:
        if create:
            tables.metadata.create_all(self.engine)
        place = self.engine.url.database or ""
        with self.engine.begin() as connection:
            if not inspect(connection).has_table(journal.name):
                raise InputError("holds no journal of usage", place)
            found = connection.execute(select(journal.c.version)).scalar()
            if found is None and create:
                first = {"id": 1, "version": _VERSION, "writer": "", "batch": 0, "heartbeat": 0}
                connection.execute(insert(journal), first)
                found = _VERSION
        if found != _VERSION:
            text = f"expected a journal of version {_VERSION}, got {found}"
            raise InputError(text, place)

    def close(self) -> None:
        """Close the connections; a journal in memory is gone."""
        self.engine.dispose()

    # Writing -------------------------------------------------------------------------------

    def claim(self) -> None:
        """Become the one who writes; what another process writes from now on is refused."""
        writer = str(uuid.uuid4())
        with self._lock, self.transaction() as connection:
            connection.execute(update(journal).values(writer=writer))
            batch = connection.execute(select(journal.c.batch)).scalar_one()
            known = _Known(writer, batch)
            known.usage = connection.execute(select(func.max(usage.c.id))).scalar() or 0
            known.capacity = connection.execute(select(func.max(capacity.c.id))).scalar() or 0
            columns = [series.c[name] for name in SERIES_FIELDS]
            for row in connection.execute(select(series.c.id, *columns)):
                known.series[tuple(row[1:])] = row[0]
            self._known = known

    def entry(self, record: Record) -> Entry:
        """Give a new record its number; only the process that has claimed the journal may."""
        known = self._known
        if isinstance(record, UsageRecord):
            known.usage += 1
            return Entry(known.usage, record)
        known.capacity += 1
        return Entry(known.capacity, record)

    def write(self, batch: Batch) -> None:
        """Write a batch; one that was written before is not written twice.

        After an error the same batch has to be written again before any other.

        :raises Stopped: when another process has claimed the journal.
        :raises InputError: when the database fails.
        """
        with self._lock:
            if batch is self._known.last:
                # Whoever asked for it did not wait for the answer.
                return
            try:
                with self.transaction() as connection:
                    if self._begin(connection, batch):
                        self._append(connection, batch)
            except BaseException:
                # What it numbered may not be there.
                self._known.series.clear()
                raise
            self._known.batch += 1
            self._known.last = batch

    def append(self, records: Sequence[Record]) -> None:
        """Write records as they are, as one batch; the heartbeat moves to their last time."""
        entries = [self.entry(record) for record in records]
        self.write(Batch(entries, heartbeat=max((_last(one) for one in records), default=0)))

    def _begin(self, connection: Connection, batch: Batch) -> bool:
        """Take the journal for a batch; return False if it has been written already."""
        known = self._known
        # The first statement writes, so that SQLite takes its lock before it reads anything.
        mine = {"me": known.writer, "before": known.batch, "number": known.batch + 1}
        if connection.execute(_TAKE, mine).rowcount == 1:
            moved = _SET_HEARTBEAT if batch.set_back else _MOVE_HEARTBEAT
            connection.execute(moved, {"at": batch.heartbeat})
            return True
        row = connection.execute(select(journal.c.writer, journal.c.batch)).one()
        if row.writer == known.writer and row.batch == known.batch + 1:
            return False
        raise Stopped("another process writes the journal of usage")

    def _append(self, connection: Connection, batch: Batch) -> None:
        rollups = Rollups()
        ends = {id(entry): until for entry, until in batch.closed}
        rows: dict[str, list[dict[str, Any]]] = {usage.name: [], capacity.name: []}
        for entry in batch.opened:
            record = entry.record
            number = self._series_of(connection, record)
            until = ends.pop(id(entry), record.until)
            rows[_table_of(record).name].append(_row_of(entry, number, until))
            rollups.add(number, record.since, record.amount)
            if until is not None:
                rollups.add(number, until, -record.amount)
        for table in (usage, capacity):
            if rows[table.name]:
                connection.execute(insert(table), rows[table.name])
        late = [(entry, until) for entry, until in batch.closed if id(entry) in ends]
        for entry, until in late:
            rollups.add(self._series_of(connection, entry.record), until, -entry.record.amount)
        self._end(connection, late)
        rollups.write(connection)

    def _end(self, connection: Connection, late: Sequence[tuple[Entry, int]]) -> None:
        for table in (usage, capacity):
            ends = [
                {"number": entry.number, "end": until}
                for entry, until in late
                if _table_of(entry.record) is table
            ]
            if ends:
                done = connection.execute(_ending(table), ends)
                assert done.rowcount == len(ends), "a record is closed once"

    def _series_of(self, connection: Connection, record: Record) -> int:
        key = _series_key(record)
        known = self._known.series
        if key not in known:
            values = dict(zip(SERIES_FIELDS, key, strict=True))
            found = connection.execute(_FIND_SERIES, values).scalar()
            if found is None:
                found = connection.execute(_MAKE_SERIES, values).scalar_one()
            known[key] = found
        return known[key]

    # Reading -------------------------------------------------------------------------------

    @property
    def heartbeat(self) -> int:
        """Until when all is known; open records are known to hold until then."""
        with self.transaction() as connection:
            found: int = connection.execute(_HEARTBEAT).scalar_one()
            return found

    def open_entries(self) -> list[Entry]:
        """Return the entries that have not ended, usage and capacity."""
        with self.transaction() as connection:
            return [
                Entry(row.id, _record_of(table, row))
                for table in (usage, capacity)
                for row in connection.execute(_open(table))
            ]

    def ended_after(self, since: int) -> dict[tuple[str, str, str], int]:
        """Return when the last record did that ended after a time, by (node, resource, model)."""
        last: dict[tuple[str, str, str], int] = {}
        with self.transaction() as connection:
            for table in (usage, capacity):
                for row in connection.execute(_ended(table), {"since": since}):
                    key = (row[0], row[1], row[2])
                    last[key] = max(row[3], last.get(key, row[3]))
        return last

    def records(self, since: int, until: int, tenant: str | None = None) -> Iterator[UsageRecord]:
        """Yield the records that hold anything between two times, whole, in no given order."""
        for record in self._stream(usage, since, until, tenant):
            assert isinstance(record, UsageRecord)
            yield record

    def records_of_short(
        self, since: int, until: int, tenant: str, shorter: int
    ) -> Iterator[UsageRecord]:
        """Yield those of ``records`` whose pod has one that ended and is shorter than this."""
        ended = (usage.c.until > since) & (usage.c.since + 0 < until)
        short = ended & (usage.c.until - usage.c.since < shorter)
        of_tenant = usage.c.series.in_(select(series.c.id).where(series.c.tenant == tenant))
        pods = select(usage.c.pod_uid).where(of_tenant, short)
        for record in self._stream(usage, since, until, tenant, usage.c.pod_uid.in_(pods)):
            assert isinstance(record, UsageRecord)
            yield record

    def capacity(self, since: int, until: int) -> Iterator[CapacityRecord]:
        """Yield the records of capacity between two times, whole, in no given order."""
        for record in self._stream(capacity, since, until):
            assert isinstance(record, CapacityRecord)
            yield record

    def _stream(
        self,
        table: Table,
        since: int,
        until: int,
        tenant: str | None = None,
        only: ColumnElement[bool] | None = None,
    ) -> Iterator[Record]:
        matching = select(series.c.id)
        if tenant is not None:
            matching = matching.where(series.c.tenant == tenant)
        with self.transaction() as connection:
            streamed = connection.execution_options(yield_per=_ROWS)
            for lasting in tables.overlapping(table, since, until):
                found = _joined(table).where(table.c.series.in_(matching), lasting)
                if only is not None:
                    found = found.where(only)
                for row in streamed.execute(found):
                    yield _record_of(table, row)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Run statements in a transaction.

        :raises InputError: when the database fails.
        """
        try:
            with self.engine.begin() as connection:
                yield connection
        except SQLAlchemyError as exc:
            raise problem_of(self.engine, exc) from None


def _table_of(record: Record) -> Table:
    return usage if isinstance(record, UsageRecord) else capacity


def _last(record: Record) -> int:
    return record.since if record.until is None else record.until


def _series_key(record: Record) -> tuple[str, ...]:
    if isinstance(record, UsageRecord):
        return (
            record.tenant,
            record.queue,
            record.pool,
            record.namespace,
            record.resource,
            record.model,
            "",
        )
    return ("", "", record.pool, "", record.resource, record.model, record.state.value)


def _row_of(entry: Entry, number: int, until: int | None) -> dict[str, Any]:
    record = entry.record
    row = {
        "id": entry.number,
        "series": number,
        "node": record.node,
        "amount": record.amount,
        "since": record.since,
        "until": until,
    }
    if isinstance(record, UsageRecord):
        row |= {"job": record.job, "pod": record.pod, "pod_uid": record.pod_uid}
        row["labels"] = _text(record.labels)
    return row


def _text(labels: Mapping[str, str]) -> str:
    return json.dumps(dict(labels), separators=(",", ":")) if labels else ""


@cache
def _ending(table: Table) -> Update:
    open_one = (table.c.id == bindparam("number")) & table.c.until.is_(None)
    return update(table).where(open_one).values(until=bindparam("end"))


@cache
def _open(table: Table) -> Select[Any]:
    return _joined(table).where(table.c.until.is_(None))


@cache
def _ended(table: Table) -> Select[Any]:
    """Return when the last record after ``since`` ended, by node, resource and model."""
    columns = (table.c.node, series.c.resource, series.c.model)
    found = select(*columns, func.max(table.c.until))
    found = found.join(series, series.c.id == table.c.series)
    found = found.where(table.c.series.in_(select(series.c.id)))
    return found.where(table.c.until > bindparam("since")).group_by(*columns)


def _joined(table: Table) -> Select[Any]:
    columns = [series.c[name] for name in SERIES_FIELDS]
    return select(table, *columns).join(series, series.c.id == table.c.series)


def _record_of(table: Table, row: Row[Any]) -> Record:
    found = row._mapping
    if table is usage:
        text = found["labels"]
        return UsageRecord(
            labels=json.loads(text) if text else {}, **{name: found[name] for name in _USAGE_FIELDS}
        )
    return CapacityRecord(
        found["pool"],
        found["node"],
        found["resource"],
        found["model"],
        CapacityState(found["state"]),
        found["amount"],
        found["since"],
        found["until"],
    )
