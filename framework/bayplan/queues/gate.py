"""Whether a queue takes jobs at all: the texts that its pending pods get where it does not."""

from __future__ import annotations

from bayplan.api.queue import QueueState
from bayplan.queues.tree import QueueTree

__all__ = ["gate"]


def gate(tree: QueueTree, kind: str, name: str, leaves_only: bool = True) -> str | None:
    """Return why a queue takes no jobs, None if it does.

    :param kind: what its system calls it, such as "Queue".
    :param leaves_only: whether a queue with children takes none.
    """
    row = tree.row_of.get(name)
    if row is None:
        return f'waiting for {kind} "{name}", which does not exist'
    queue = tree.queues[row]
    if queue.problem:
        return f'{kind} "{name}": {queue.problem}'
    if queue.state is not QueueState.OPEN:
        return f'{kind} "{name}" is {queue.state.value} and takes no jobs'
    if leaves_only and not tree.is_leaf(row):
        return f'{kind} "{name}" has child queues and takes no jobs itself'
    return None
