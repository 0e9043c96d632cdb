"""The status of KAI's queues, as KAI's queue controller writes it, with its conditions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from bayplan.api import KaiQueue
from bayplan.api.queue_objects import KaiQueueCondition, KaiQueueStatus
from bayplan.cluster.protocol import PatchStatus
from bayplan.queues.amounts import amount_text, quantities
from bayplan.queues.ledger import Ledger
from bayplan.queues.tree import EPSILON, QueueTree
from bayplan.snapshot import Snapshot
from bayplan_plugins.queues.isolation import alone

__all__ = ["QueueStatuses"]

_ORPHAN, _OVER_QUOTA = "Orphan", "OverQuota"


class QueueStatuses:
    """The status of each queue: its children, what its jobs ask for and what they have.

    Conditions of other programs stay. There may be thousands of queues, of which few change at a
    time: the others keep the status that was made last.
    """

    def __init__(self, snapshot: Snapshot, ledger: Ledger) -> None:
        self._snapshot = snapshot
        self._ledger = ledger
        self._known: dict[str, tuple[object, PatchStatus]] = {}
        self._seen: tuple[object, ...] | None = None

    def all(self) -> Iterator[PatchStatus]:
        """Yield the status of each queue."""
        tree = self._ledger.tree
        seen = tree, tree.changes, len(tree.resources), self._snapshot.objects_version
        if self._seen == seen:
            yield from [status for _, status in self._known.values()]
            return
        queues = self._snapshot.objects(KaiQueue)
        known, self._known = self._known, {}
        names = tuple(tree.resources)
        for name, queue in queues.items():
            with alone(f"status of Queue {name}"):
                row = tree.row_of[name]
                columns = (tree.demand, tree.used, tree.fixed, tree.deserved)
                orphaned = bool(queue.spec.parent_queue) and queue.spec.parent_queue not in queues
                others = _of_others(queue)
                amounts = [column[row].tobytes() for column in columns]
                children = [tree.name(child) for child in tree.children[row]]
                mark = (names, amounts, children, orphaned, others)
                last = known.get(name)
                if last is None or last[0] != mark:
                    orphan = _orphan(queue.spec.parent_queue, not orphaned)
                    status = _status(others, tree, row, orphan)
                    last = mark, PatchStatus(KaiQueue, name, status)
                self._known[name] = last
                yield last[1]
        self._seen = seen


def _of_others(queue: KaiQueue) -> tuple[KaiQueueCondition, ...]:
    """Return the conditions that other programs wrote."""
    stated = queue.status.conditions
    return tuple(one for one in stated if one.type not in (_ORPHAN, _OVER_QUOTA))


def _status(
    others: Iterable[KaiQueueCondition], tree: QueueTree, row: int, orphan: KaiQueueCondition
) -> KaiQueueStatus:
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
