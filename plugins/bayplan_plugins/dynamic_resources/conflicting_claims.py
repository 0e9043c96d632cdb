"""Claims that two schedulers gave the same thing at once: the API server accepts both."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from bayplan.api import Node, ResourceClaim
from bayplan_dra.allocator import AllocatedState, CounterKey, DeviceTable, HeldDevice, Usage
from bayplan_plugins.device_ledger.ledger import DeviceLedger

__all__ = ["earlier_claim"]


def earlier_claim(ledger: DeviceLedger, claim: ResourceClaim, node: Node) -> str:
    """Return the key of a claim that got a device of this one, or too much of it, before it.

    "" if all devices of the claim are its own, and enough is there of those that it shares. Of
    claims that were allocated at once, those that watchers saw first keep what they got.

    :param node: where the claim's devices will be used.
    """
    held = ledger.allocated.held(claim.metadata.uid)
    table = ledger.devices.table(node)
    twice = any(ledger.usage.holders_of(one.id) > 1 for one in held if one.consumed is None)
    if not twice and not _overdrawn(held, ledger.state, table):
        return ""
    before = ledger.allocated.before(claim.metadata.uid)
    state = AllocatedState()
    for _, theirs in before:
        state.take(theirs)
    if not any(one.id in state.devices for one in held):
        state.take(held)
        if not _overdrawn(held, state, table):
            return ""
    mine = {one.id for one in held}
    counters = {key for one in held for key in _counters(one, table)}
    for key, theirs in reversed(before):
        for one in theirs:
            if one.id in mine or not counters.isdisjoint(_counters(one, table)):
                return key
    return ""


def _overdrawn(held: Sequence[HeldDevice], state: AllocatedState, table: DeviceTable) -> bool:
    """Tell whether devices are held both as a whole and in shares, or more of one than it has.

    :param state: all that is held, ``held`` included.
    """
    for one in held:
        if one.id in (state.shared if one.consumed is None else state.devices):
            return True
    if not any(one.consumed is not None or _counters(one, table) for one in held):
        return False
    usage = Usage.of(state, table.pools)
    for one in held:
        if any(usage.counters.get(key, 0) < 0 for key in _counters(one, table)):
            return True
        if one.consumed is not None and one.id in table.index:
            device = table.devices[table.index[one.id]]
            names = one.consumed.keys() & device.spec.capacity.keys()
            if any(usage.share_left(device, name) < 0 for name in names):
                return True
    return False


def _counters(held: HeldDevice, table: DeviceTable) -> Collection[CounterKey]:
    """Return which counters a device takes from; none if the node does not have it."""
    place = table.index.get(held.id)
    return table.needs[place].keys() if place is not None else ()
