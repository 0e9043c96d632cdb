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
        self._set_back = False
        self._late: list[tuple[Entry, int, int]] = []
        self.wall: int | None = None
        """What a clock says that is far behind: which of the two times is right shows later."""

    def __len__(self) -> int:
        return len(self._opened) + len(self._closed) + len(self._late)

    def open(self, record: Record, since: int) -> Entry:
        """Begin a record at a time."""
        entry = self._journal.entry(replace(record, since=since))
        self._opened[id(entry)] = entry
        return entry

    def close(self, entry: Entry, until: int) -> None:
        """End a record at a time, which is not before it began."""
        if until == entry.record.since and self._opened.pop(id(entry), None) is not None:
            return
        if self.wall is not None:
            self._late.append((entry, until, self.wall))
        else:
            self._closed.append((entry, until))

    def begin_again(self, entry: Entry, since: int) -> Entry:
        """Let a record begin earlier, which was dated by a clock that was ahead."""
        self.close(entry, entry.record.since)
        return self.open(entry.record, since)

    def set_back(self) -> None:
        """Let the heartbeat be earlier, and records end when the clock said that was behind."""
        self._set_back = True
        self._late = [
            (entry, max(entry.record.since, min(until, wall)), wall)
            for entry, until, wall in self._late
        ]

    def take(self, heartbeat: int) -> Batch:
        """Return all of it as one batch, and begin again; ends wait while the clock is behind."""
        if self.wall is None:
            self._closed += [(entry, until) for entry, until, _ in self._late]
            self._late = []
        batch = Batch(list(self._opened.values()), self._closed, heartbeat, self._set_back)
        self._opened, self._closed, self._set_back = {}, [], False
        return batch
