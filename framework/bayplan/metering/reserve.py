"""What pools keep free for growth, spread over their nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bayplan.metering.node_ledger import NodeLedger
from bayplan.queues.devices import Key

__all__ = ["spread"]


def spread(part: float, ledgers: Sequence[NodeLedger]) -> Mapping[NodeLedger, set[Key]]:
    """Keep a part of what is in service free, as far as it is; return what changed by node.

    The rule of :class:`bayplan.queues.pools.PoolAmounts`. Nodes keep what they keep already.
    """
    changed: dict[NodeLedger, set[Key]] = {}
    for key in {key for ledger in ledgers for key in ledger.known_keys() if not key.outside}:
        frees = [(ledger, *ledger.free(key)) for ledger in ledgers]
        unit = 1 if key.resource == "cpu" else 1000
        rest = int(sum(whole for _, whole, _ in frees) // unit * part) * unit
        kept = []
        for ledger, _, free in frees:
            kept.append(min(rest, free, ledger.reserved.get(key, 0)))
            rest -= kept[-1]
        for index, (ledger, _, free) in enumerate(frees):
            more = min(rest, free - kept[index])
            rest -= more
            if kept[index] + more != ledger.reserved.get(key, 0):
                ledger.reserved[key] = kept[index] + more
                changed.setdefault(ledger, set()).add(key)
    return changed
