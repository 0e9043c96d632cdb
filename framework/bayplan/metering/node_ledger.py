"""What one node offers over time, as records that cover at every moment what its pods hold.

At every moment the states add up to the larger of what the node offers and what its pods hold.
What pods hold counts as in service, also on a node that is cordoned or has failed, so that what
is in service and not held is idle, and never less than nothing.
"""

from __future__ import annotations

from collections import defaultdict

from bayplan.metering.holdings import MOST_HELD
from bayplan.metering.journal import Entry
from bayplan.metering.pending import Pending
from bayplan.metering.record import CapacityRecord, CapacityState
from bayplan.queues.devices import Key, Offer

__all__ = ["NodeLedger"]


class NodeLedger:
    """The capacity of one node. Times are in ms since 1970.

    ``used`` is what its pods hold. ``reserved`` is what its pool keeps free on it, as far as it
    is; of a node that is ``spare``, all that is free is reserved. Before ``floor``, by key, nothing
    is written anymore: records that ended, and capacity that changed, bound what begins later.
    """

    def __init__(self, node: str, pending: Pending) -> None:
        self._node = node
        self._pending = pending
        self.pool = ""
        self.offer = Offer()
        self.used: dict[Key, int] = defaultdict(int)
        self.reserved: dict[Key, int] = {}
        self.spare = False
        self.floor: dict[Key, int] = {}
        self._entries: dict[tuple[Key, CapacityState], Entry] = {}

    def load(self, entry: Entry, key: Key) -> None:
        """Take in an open record of the journal."""
        record = entry.record
        assert isinstance(record, CapacityRecord)
        if not key.outside:
            self.pool = record.pool
        self._entries[key, record.state] = entry
        if record.state is CapacityState.RESERVED:
            self.reserved[key] = record.amount
        self.raise_floor(key, record.since)

    def known_keys(self) -> set[Key]:
        """Return the keys of all that is offered, used or recorded."""
        recorded = {key for key, _ in self._entries}
        return {*self.offer.amounts, *recorded, *(key for key, held in self.used.items() if held)}

    def raise_floor(self, key: Key, at: int) -> None:
        """Let nothing of a key begin before a time."""
        self.floor[key] = max(at, self.floor.get(key, at))

    def set_back(self, now: int) -> None:
        """Let records begin from now on, whatever a clock that was ahead has dated later."""
        self.floor = {key: min(at, now) for key, at in self.floor.items()}
        for known, entry in self._entries.items():
            if entry.record.since > now:
                self._entries[known] = self._pending.begin_again(entry, now)

    def free(self, key: Key) -> tuple[int, int]:
        """Return (in service in all, free of it for growth), including what is reserved.

        What is free of a spare is not free for growth.
        """
        parts = self._parts(key)
        reserved = parts[CapacityState.RESERVED]
        whole = parts[CapacityState.IN_SERVICE] + reserved
        return whole, 0 if self.spare else whole - self.used.get(key, 0)

    def _parts(self, key: Key) -> dict[CapacityState, int]:
        used = min(self.used.get(key, 0), MOST_HELD)
        total = max(min(self.offer.amounts.get(key, 0), MOST_HELD), used)
        free = total - used
        failed = min(free, self.offer.failed.get(key, 0))
        maintenance = min(free - failed, self.offer.maintenance.get(key, 0))
        left = free - failed - maintenance
        reserved = left if self.spare else min(left, self.reserved.get(key, 0))
        return {
            CapacityState.IN_SERVICE: total - failed - maintenance - reserved,
            CapacityState.RESERVED: reserved,
            CapacityState.MAINTENANCE: maintenance,
            CapacityState.FAILED: failed,
        }

    def record(self, key: Key, at: int) -> None:
        """Record what is offered of a key from a time on, or from its floor."""
        at = max(at, self.floor.get(key, at))
        pool = "" if key.outside else self.pool
        for state, amount in self._parts(key).items():
            entry = self._entries.get((key, state))
            if entry is not None:
                if entry.record.amount == amount and entry.record.pool == pool:
                    continue
                self._pending.close(entry, at)
                del self._entries[key, state]
                self.raise_floor(key, at)
            if amount:
                new = CapacityRecord(pool, self._node, key.resource, key.model, state, amount, at)
                self._entries[key, state] = self._pending.open(new, at)
                self.raise_floor(key, at)
