"""What is odd about the definition of a queue, though it works: nobody is held back by it."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from bayplan.api.queue import Queue
from bayplan.queues.amounts import amount_text, base_resource
from bayplan.queues.tree import EPSILON, QueueTree

__all__ = ["notes_on"]

_VERBS = {"guaranteed": "are guaranteed", "deserved": "deserve"}


def notes_on(tree: QueueTree, row: int, offered: Collection[str]) -> Iterator[str]:
    """Yield the notes on a queue.

    :param offered: the resources that some node offers; empty where there are no nodes.
    """
    queue = tree.queues[row]
    if queue.problem:
        return
    if not queue.pools:
        yield from _promised_twice(tree, row)
    if not any((queue.weight.other, *queue.weight.amounts.values())):
        yield "its weight is 0, so it gets nothing of what is left over"
    for resource in sorted(_named(queue)) if offered else ():
        if base_resource(resource) not in offered:
            yield f"it has a quota of {resource}, which no node offers"


def _promised_twice(tree: QueueTree, row: int) -> Iterator[str]:
    children = tree.children[row]
    for field, verb in _VERBS.items() if children else ():
        amounts = getattr(tree, field)
        promised = amounts[children].sum(axis=0)
        for column in np.flatnonzero(promised > amounts[row] + EPSILON).tolist():
            resource = tree.resources[column]
            texts = [amount_text(resource, float(one[column])) for one in (promised, amounts[row])]
            yield (
                f"its children {verb} {texts[0]} {resource} together, more than its own {texts[1]}"
            )


def _named(queue: Queue) -> set[str]:
    """Return the resources of which a queue says that it may have something."""
    shares = (queue.deserved, queue.guaranteed, queue.limit)
    return {name for share in shares for name, amount in share.amounts.items() if amount > 0}
