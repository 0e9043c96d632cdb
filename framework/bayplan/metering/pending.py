"""What the meter has decided and the journal has not been given yet."""

from __future__ import annotations

from msgspec.structs import replace

from bayplan.metering.journal import Batch, Entry, Journal, Record

__all__ = ["Pending"]


class Pending:
    """Entries to append and to close; one that begins and ends at once is left out."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._opened: dict[int, Entry] = {}
        self._closed: list[tuple[Entry, int]] = []

    def __len__(self) -> int:
        return len(self._opened) + len(self._closed)

    def open(self, record: Record, since: int) -> Entry:
        """Begin a record at a time."""
        entry = self._journal.entry(replace(record, since=since))
        self._opened[id(entry)] = entry
        return entry

    def close(self, entry: Entry, until: int) -> None:
        """End a record at a time, which is not before it began."""
        if until == entry.record.since and self._opened.pop(id(entry), None) is not None:
            return
        self._closed.append((entry, until))

    def take(self, heartbeat: int) -> Batch:
        """Return all of it as one batch, and begin again."""
        batch = Batch(list(self._opened.values()), self._closed, heartbeat)
        self._opened, self._closed = {}, []
        return batch
