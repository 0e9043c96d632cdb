"""Meters a live cluster: follows the scheduler's watch, writes the journal in the background."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable

from bayplan.api import Pod
from bayplan.cluster.protocol import WatchEvent
from bayplan.errors import BayplanError, Stopped
from bayplan.metering.journal import Batch, Journal
from bayplan.metering.meter import Meter

__all__ = ["UsageWriter"]

_EVERY = 1.0
"""Seconds after which a batch is due although nothing begins or ends, or the last one failed."""
_GAP = 0.1
"""Seconds between two batches: what is younger is lost if the process is killed."""
_RETRY = 5.0
"""Seconds after which a journal that could not be read is tried again."""

_MILLIS = 1000

_log = logging.getLogger("bayplan.metering")


class UsageWriter:
    """Runs a meter while this process leads.

    What begins or ends is written at once: a pod that is gone when a killed process is followed by
    another is charged only if its record was written. What could not be written is kept and written
    later; scheduling goes on meanwhile.

    :param leads: tells whether this process leads.
    :param unix_time: returns the time in seconds since 1970.
    :param queue_of: returns a pod's queue, "" for none.
    :param spares: returns the nodes, by name, that are kept for jobs which lose one; None as long
        as that is not known.
    """

    def __init__(
        self,
        journal: Journal,
        leads: Callable[[], bool],
        unix_time: Callable[[], float],
        queue_of: Callable[[Pod], str],
        spares: Callable[[], Iterable[str] | None],
    ) -> None:
        self._journal = journal
        self._leads = leads
        self._unix_time = unix_time
        self._meter = Meter(journal, unix_time, queue_of, spares)
        self._unwritten: Batch | None = None
        self._wake = asyncio.Event()
        self._failing = False
        self._retry_at = 0.0
        self._settled = False
        self._ended = False
        self._known_until = 0
        self._writing = asyncio.Lock()
        self.written = 0
        """How many records were written."""
        self.errors = 0
        """How many writes failed."""

    @property
    def waiting(self) -> int:
        """How many beginnings and ends of records are not written yet."""
        batch = self._unwritten
        begun = len(batch.opened) + len(batch.closed) if batch is not None else 0
        return begun + self._meter.waiting

    @property
    def lag(self) -> float | None:
        """For how many seconds what is used has not been written; None while nothing has to be."""
        if not self._settled or not self._leads():
            return None
        return max(0.0, self._unix_time() - self._known_until / _MILLIS)

    @property
    def reconciled_at(self) -> float:
        """When usage was last compared with all objects, in seconds since 1970; 0 for never."""
        return self._meter.reconciled_at / _MILLIS

    def handle(self, event: WatchEvent) -> None:
        """Take in a watch event."""
        if not self._ended:
            self._meter.handle(event)

    def restart(self) -> None:
        """Expect all objects again."""
        self._meter.restart()

    def delivered(self) -> None:
        """Take in what all events so far amount to; to be called when none is left."""
        if self._ended:
            return
        if not self._leads():
            self._meter.stand_by()
            return
        if self._unix_time() < self._retry_at:
            return
        try:
            self._meter.settle()
            if not self._settled:
                self._known_until = self._meter.reconciled_at
            self._settled = True
            if self._meter.waiting:
                self._wake.set()
        except BayplanError as exc:
            self._retry_at = self._unix_time() + _RETRY
            _log.warning("usage is not recorded now: %s", exc)

    async def run(self) -> None:
        """Write what there is, as soon as there is any, until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), _EVERY)
            self._wake.clear()
            try:
                await self._write()
            except Exception:
                # Pods are more important than what they cost.
                _log.exception("usage could not be written")
            await asyncio.sleep(_EVERY if self._failing else _GAP)

    async def finish(self) -> None:
        """Write the rest, if this process still leads."""
        if self._leads():
            self.delivered()
            await self._write()

    async def _write(self) -> None:
        # At the end, what is under way has to be answered before the rest is written.
        async with self._writing:
            await self._write_next()

    async def _write_next(self) -> None:
        if self._ended or not self._settled or not self._leads():
            return
        batch = self._unwritten or self._meter.take()
        if batch is None:
            return
        self._unwritten = batch
        try:
            # A write that is cancelled may have been carried out; the batch counts once anyway.
            await asyncio.to_thread(self._journal.write, batch)
        except Stopped as exc:
            self.errors += 1
            self._ended = True
            _log.error("usage is not recorded any longer: %s", exc)
        except BayplanError as exc:
            self.errors += 1
            if not self._failing:
                _log.warning("usage is kept in memory until it can be written: %s", exc)
            self._failing = True
        else:
            if self._failing:
                _log.info("usage is written again")
            self._unwritten, self._failing = None, False
            self.written += len(batch.opened)
            self._known_until = batch.heartbeat

    async def close(self) -> None:
        """Close the journal."""
        with contextlib.suppress(BayplanError):
            await asyncio.to_thread(self._journal.close)
