"""The status of KAI's queues, as KAI's queue controller writes it, with its conditions."""

from __future__ import annotations

from collections.abc import Iterator

from bayplan.api import KaiQueue
from bayplan.api.queue_objects import KaiQueueCondition, KaiQueueStatus
from bayplan.cluster.protocol import PatchStatus
from bayplan.queues.amounts import amount_text, quantities
from bayplan.queues.ledger import Ledger
from bayplan.queues.tree import EPSILON, QueueTree
from bayplan.snapshot import Snapshot
from bayplan_plugins.queues.isolation import alone

__all__ = ["statuses"]

_ORPHAN, _OVER_QUOTA = "Orphan", "OverQuota"


def statuses(snapshot: Snapshot, ledger: Ledger) -> Iterator[PatchStatus]:
    """Yield the status of each queue: its children, what its jobs ask for and what they have.

    Conditions of other programs stay.
    """
    tree = ledger.tree
    queues = snapshot.objects(KaiQueue)
    for name, queue in queues.items():
        with alone(f"status of Queue {name}"):
            parent = queue.spec.parent_queue
            orphan = _orphan(parent, not parent or parent in queues)
            yield PatchStatus(KaiQueue, name, _status(queue, tree, tree.row_of[name], orphan))


def _status(
    queue: KaiQueue, tree: QueueTree, row: int, orphan: KaiQueueCondition
) -> KaiQueueStatus:
    others = [one for one in queue.status.conditions if one.type not in (_ORPHAN, _OVER_QUOTA)]
    return KaiQueueStatus(
        tuple(sorted(tree.name(child) for child in tree.children[row])),
        quantities(tree.amounts(tree.demand[row])),
        quantities(tree.amounts(tree.used[row])),
        quantities(tree.amounts(tree.fixed[row])),
        (*others, orphan, _over_quota(tree, row)),
    )


def _orphan(parent: str, has_parent: bool) -> KaiQueueCondition:
    if has_parent:
        return KaiQueueCondition(_ORPHAN, "False")
    message = f'its parent, Queue "{parent}", does not exist'
    return KaiQueueCondition(_ORPHAN, "True", "ParentNotFound", message)


def _over_quota(tree: QueueTree, row: int) -> KaiQueueCondition:
    over = tree.used[row] > tree.deserved[row] + EPSILON
    if not over.any():
        return KaiQueueCondition(_OVER_QUOTA, "False")
    column = int(over.argmax())
    name = tree.resources[column]
    used, quota = (amount_text(name, rows[row, column]) for rows in (tree.used, tree.deserved))
    message = f"it has {used} of {name}, its quota is {quota}"
    return KaiQueueCondition(_OVER_QUOTA, "True", "QuotaExceeded", message)
