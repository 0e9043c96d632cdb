"""Derives records of usage and capacity from what happens in a cluster.

A pod holds its resources from its binding to its end. What changes meanwhile, such as its amounts
or its tenant, ends one record and begins the next. Lost events are made up for at the start and
whenever a watch breaks: what is gone then is charged until it was last known to be there.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable

import msgspec
from msgspec.structs import replace

from bayplan.api import Pod
from bayplan.api.pools import reserved_part
from bayplan.api.times import seconds_of
from bayplan.cluster.protocol import WatchHandler
from bayplan.metering.clock import MeterClock
from bayplan.metering.holdings import amounts_of, records_of, scheduled_at, with_node
from bayplan.metering.journal import Batch, Entry, Journal
from bayplan.metering.node_ledger import NodeLedger
from bayplan.metering.object_view import ObjectView
from bayplan.metering.pending import Pending
from bayplan.metering.record import CapacityRecord, UsageRecord
from bayplan.metering.reserve import spread
from bayplan.queues.devices import Key, Offer, is_device

__all__ = ["Meter"]

_HEARTBEAT = 10_000
"""Milliseconds after which the heartbeat moves although nothing has happened."""


class _Change(msgspec.Struct):
    """A record that ends (``entry``) or begins (``record``) at a time."""

    at: int
    key: Key
    entry: Entry | None = None
    record: UsageRecord | None = None


class Meter:
    """Follows a cluster's watch events and writes a journal.

    Give ``handle`` all watch events, call ``settle`` when no event is left to be handed over, and
    write what ``take`` returns. ``flush`` does so at once.

    :param unix_time: returns the time in seconds since 1970.
    :param queue_of: returns a pod's queue, "" for none.
    :param spares: returns the nodes, by name, that are kept for jobs which lose one; None as long
        as that is not known, as at a start: what the journal says of reserves stays until then.
    """

    def __init__(
        self,
        journal: Journal,
        unix_time: Callable[[], float],
        queue_of: Callable[[Pod], str] = lambda pod: "",
        spares: Callable[[], Iterable[str] | None] = lambda: (),
    ) -> None:
        self.clock = MeterClock(unix_time)
        self._journal = journal
        self._queue_of = queue_of
        self._spares = spares
        self._spare: set[str] | None = None
        """The nodes that are recorded as spares; None before they were known."""
        self._unreserved: set[str] = set()
        """Nodes that changed before that, whose pools may keep other things free."""
        self._objects = ObjectView()
        self._pending = Pending(journal)
        self._open: dict[str, dict[Key, Entry]] = defaultdict(dict)
        self._ledgers: dict[str, NodeLedger] = {}
        self._reserving: set[str] = set()
        """Pools that keep anything free."""
        self._loaded = False
        self._begins = 0
        self._first = 0
        self._began_behind: dict[int, int] = {}
        """What the clock said when records began while it was behind, by their number."""
        self._moved: set[str] = set()
        self._alive = 0
        self._written = 0
        self.reconciled_at = 0
        """When records were last compared with all objects, in milliseconds since 1970."""

    @property
    def handle(self) -> WatchHandler:
        """Takes in one watch event."""
        return self._objects.handle

    @property
    def waiting(self) -> int:
        """How many records wait to be written."""
        return len(self._pending)

    def restart(self) -> None:
        """Expect all objects again, as after a new watch; what is missing then is gone."""
        self._objects.restart()

    def stand_by(self) -> None:
        """Keep up with the cluster while another process writes the journal."""
        self._objects.forget_changes()
        self._objects.relisted = True

    def settle(self) -> None:
        """Turn what has changed into records.

        :raises InputError: when the journal cannot be read at the start.
        """
        now = self._load() if not self._loaded else self.clock.now()
        self._pending.wall = self.clock.wall if self.clock.behind else None
        if self.clock.went_back:
            self._set_back(now)
        objects = self._objects
        gone = now
        if objects.relisted:
            objects.relisted = False
            self.reconciled_at = now
            gone = self._alive
            objects.changed_pods |= {*self._open, *objects.pods}
            objects.changed_nodes |= {*self._ledgers, *objects.nodes}
        if objects.changed_pods or objects.changed_nodes:
            self._apply(now, gone)
        self._follow_spares(now)
        self._alive = now

    def _follow_spares(self, now: int) -> None:
        """Record which nodes have become spares, and which are none any more."""
        found = self._spares()
        if found is None:
            return
        spare = self._ledgers.keys() & set(found)
        changed = spare ^ (self._spare or set())
        first, self._spare = self._spare is None, spare
        for name in changed:
            self._ledgers[name].spare = name in spare
            self._ledgers[name].reserved.clear()
        if changed or first:
            self._reserve({*changed, *self._unreserved}, now)
            self._unreserved.clear()
        for name in sorted(changed):
            for key in self._ledgers[name].known_keys():
                self._ledgers[name].record(key, now)

    def _set_back(self, now: int) -> None:
        """Follow the clock back: what was dated after now began when the clock said so."""
        for records in self._open.values():
            for key, entry in records.items():
                if entry.record.since > now:
                    began = min(now, self._began_behind.get(entry.number, now))
                    records[key] = self._pending.begin_again(entry, began)
        for ledger in self._ledgers.values():
            ledger.set_back(now)
        self._pending.set_back()
        self._began_behind.clear()
        self._alive, self._begins = min(self._alive, now), min(self._begins, now)
        self._first, self._written = min(self._first, now), 0

    def take(self) -> Batch | None:
        """Return what is to be written next, None if nothing has happened for a while."""
        if not len(self._pending) and self._alive < self._written + _HEARTBEAT:
            return None
        self._written = self._alive
        return self._pending.take(self._alive)

    def flush(self) -> None:
        """Write everything, and the heartbeat.

        :raises Stopped: when another process has claimed the journal.
        :raises InputError: when the journal cannot be written.
        """
        self._written = self._alive
        self._journal.write(self._pending.take(self._alive))

    # The start -------------------------------------------------------------------------------

    def _load(self) -> int:
        """Claim the journal and go on from what it says; return the time."""
        self._journal.claim()
        heartbeat = self._journal.heartbeat
        self.clock.start_at(heartbeat)
        now = self.clock.now()
        self._alive = self._begins = heartbeat or now
        # The first time that a journal is written, nothing before it counts.
        self._first = 0 if heartbeat else now
        if not heartbeat:
            self._journal.write(Batch(heartbeat=now))
        first = now
        for entry in self._journal.open_entries():
            if isinstance(entry.record, UsageRecord):
                self._hold(entry, self._key_of(entry.record))
            else:
                self._ledger(entry.record.node).load(entry, self._key_of(entry.record))
                # What it reserves is found again: it may have changed while nobody looked.
                self._reserving.add(entry.record.pool)
        for pod in self._objects.pods.values():
            first = min(first, self.clock.refined(scheduled_at(pod), now))
        for (node, *key), until in self._journal.ended_after(first).items():
            for outside in (False, True):
                self._ledger(node).raise_floor(Key(key[0], key[1], outside), until)
        self._loaded = True
        return now

    def _key_of(self, record: UsageRecord | CapacityRecord) -> Key:
        """Return the key of a record of the journal: without a pool, its devices are outside."""
        selects = self._objects.selector_of(record.node) is not None
        outside = selects and not record.pool and is_device(record.resource)
        return Key(record.resource, record.model, outside)

    def _hold(self, entry: Entry, key: Key) -> None:
        record = entry.record
        assert isinstance(record, UsageRecord)
        self._open[record.pod_uid][key] = entry
        self._ledger(record.node).used[key] += record.amount

    def _ledger(self, node: str) -> NodeLedger:
        if node not in self._ledgers:
            self._ledgers[node] = NodeLedger(node, self._pending)
        return self._ledgers[node]

    # Changes ---------------------------------------------------------------------------------

    def _apply(self, now: int, gone: int) -> None:
        """Record all changes; ``gone`` is when what is missing was last known to be there."""
        objects = self._objects
        nodes = {name: self._offer(name) for name in objects.changed_nodes}
        for name in nodes:
            if name not in self._ledgers:
                self._begin_node(name, nodes[name], now, gone)
        changes: dict[str, list[_Change]] = defaultdict(list)
        for uid in sorted(objects.changed_pods):
            self._compare(uid, now, gone, changes)
        if gone != now:
            # What nodes offered meanwhile is not known; it may have been what they offer now.
            for name, offer in nodes.items():
                self._record_offer(name, offer, gone)
        for name, found in changes.items():
            self._record_usage(name, found)
        for name, offer in nodes.items():
            self._record_offer(name, offer, now)
        self._reserve({*nodes, *changes}, now)
        objects.forget_changes()

    def _offer(self, name: str) -> Offer:
        offer = self._objects.devices.offer(name, self._objects.selector_of(name))
        node = self._objects.nodes.get(name)
        if node is not None:
            return with_node(node, offer)
        # Devices that several nodes reach have none; those of a node that is gone are gone, too.
        return Offer() if name else offer

    def _begin_node(self, name: str, offer: Offer, now: int, gone: int) -> None:
        """Record a new node from its creation on, but not from before the journal began."""
        node = self._objects.nodes.get(name)
        created = seconds_of(node.metadata.creation_timestamp) if node is not None else 0.0
        at = max(self._begins, self.clock.refined(created, now)) if created else gone
        self._ledger(name)
        self._record_offer(name, offer, at)

    def _compare(self, uid: str, now: int, gone: int, changes: dict[str, list[_Change]]) -> None:
        """Add what ends and begins, so that a pod's open records say what it holds."""
        objects = self._objects
        pod = objects.pods.get(uid)
        have = self._open.get(uid, {})
        end, since = now, now
        wanted: dict[Key, UsageRecord] = {}
        if pod is None:
            stated = objects.ends.get(uid, 0.0)
            end = self.clock.refined(stated, now) if stated else gone
        else:
            node = objects.last_seen.get(pod.spec.node_name)
            name = pod.spec.node_name
            pool, selector = objects.pool_of(name), objects.selector_of(name)
            amounts = amounts_of(pod, node, objects.claims_of(uid), objects.devices, selector)
            wanted = records_of(pod, amounts, pool, self._queue_of)
            if not have:
                since = self.clock.refined(scheduled_at(pod), now)
        for key, entry in list(have.items()):
            record = entry.record
            assert isinstance(record, UsageRecord)
            if key in wanted and _same(record, wanted[key]):
                del wanted[key]
                continue
            changes[record.node].append(_Change(max(end, record.since), key, entry=entry))
        for key, record in wanted.items():
            changes[record.node].append(_Change(since, key, record=record))

    def _record_usage(self, name: str, changes: list[_Change]) -> None:
        """Record changes on one node in the order of their times, what ends first.

        What begins waits for an end if the node has no room for it before: one of the two is
        dated wrongly.
        """
        ledger = self._ledger(name)
        ends = Counter(one.key for one in changes if one.entry is not None)
        waiting: list[_Change] = []
        for one in changes:
            if one.record is not None:
                one.at = max(one.at, self._first, ledger.floor.get(one.key, 0))
        for one in sorted(changes, key=lambda one: (one.at, one.entry is None)):
            if one.entry is not None:
                self._release(one.entry, one.key, one.at)
                ends[one.key] -= 1
                ledger.raise_floor(one.key, one.at)
                ledger.record(one.key, one.at)
            else:
                waiting.append(one)
            waiting = [
                late for late in waiting if not self._begin(ledger, late, one.at, ends[late.key])
            ]

    def _begin(self, ledger: NodeLedger, change: _Change, at: int, ends: int) -> bool:
        """Begin a record, unless it waits for one of ``ends`` others; return whether it began."""
        record, key = change.record, change.key
        assert record is not None
        offered = ledger.offer.amounts.get(key, 0)
        if ends and ledger.used[key] + record.amount > offered:
            return False
        entry = self._pending.open(record, max(change.at, at))
        self._hold(entry, key)
        if self.clock.behind:
            self._began_behind[entry.number] = self.clock.wall
        ledger.record(key, max(change.at, at))
        return True

    def _release(self, entry: Entry, key: Key, until: int) -> None:
        record = entry.record
        assert isinstance(record, UsageRecord)
        self._pending.close(entry, until)
        self._ledger(record.node).used[key] -= record.amount
        del self._open[record.pod_uid][key]
        if not self._open[record.pod_uid]:
            del self._open[record.pod_uid]

    def _record_offer(self, name: str, offer: Offer, at: int) -> None:
        ledger = self._ledger(name)
        pool = self._objects.pool_of(name)
        now_in = pool.metadata.name if pool is not None else ""
        if ledger.pool != now_in:
            self._moved.add(ledger.pool)
            ledger.reserved.clear()
        ledger.offer, ledger.pool = offer, now_in
        for key in ledger.known_keys():
            ledger.record(key, at)

    def _reserve(self, nodes: set[str], now: int) -> None:
        """Keep free what the pools of changed nodes reserve, beside their spares."""
        if self._spare is None:
            self._unreserved |= nodes
            return
        pools = {self._ledgers[name].pool for name in nodes if name in self._ledgers}
        for pool in pools | self._moved:
            known = self._objects.pools.get(pool)
            part = (reserved_part(known.spec.capacity) or 0.0) if known is not None else 0.0
            if not part and pool not in self._reserving:
                continue
            (self._reserving.add if part else self._reserving.discard)(pool)
            ledgers = [self._ledgers[one] for one in sorted(self._ledgers)]
            own = [ledger for ledger in ledgers if ledger.pool == pool]
            for ledger, keys in spread(part, own).items():
                for key in keys:
                    ledger.record(key, now)
        self._moved.clear()


def _same(have: UsageRecord, wanted: UsageRecord) -> bool:
    """Tell whether a record goes on; labels that change do not end it."""
    return wanted == replace(have, since=0, until=None, labels=wanted.labels)
