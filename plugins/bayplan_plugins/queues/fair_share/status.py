"""The status of KAI's queues, as KAI's queue controller writes it."""

from __future__ import annotations

from collections.abc import Iterator

from bayplan.api import KaiQueue
from bayplan.api.queue_objects import KaiQueueStatus
from bayplan.cluster.protocol import PatchStatus
from bayplan.queues.amounts import quantities
from bayplan.queues.ledger import Ledger
from bayplan.snapshot import Snapshot

__all__ = ["statuses"]


def statuses(snapshot: Snapshot, ledger: Ledger) -> Iterator[PatchStatus]:
    """Yield the status of each queue: its children, what its jobs ask for and what they have."""
    tree = ledger.tree
    for name in snapshot.objects(KaiQueue):
        row = tree.row_of[name]
        status = KaiQueueStatus(
            tuple(sorted(tree.name(child) for child in tree.children[row])),
            quantities(tree.amounts(tree.demand[row])),
            quantities(tree.amounts(tree.used[row])),
            quantities(tree.amounts(tree.fixed[row])),
        )
        yield PatchStatus(KaiQueue, name, status)
