"""Locks of nodes: whether a write can have one now, and what it writes into it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bayplan.api.times import rfc3339
from bayplan.cluster.protocol import Bind, Evict
from bayplan.dialects.hami.node_lock import lock_text, read_lock
from bayplan.errors import Locked

__all__ = ["lock_for"]


def lock_for(
    write: Bind | Evict, annotations: Mapping[str, str], now: float, holds: Callable[[str], bool]
) -> str:
    """Return the value of the lock that a write needs; that of an eviction names no pod.

    :param annotations: of the node.
    :param now: seconds since 1970.
    :param holds: tells whether a pod, by key, may still hold a lock.
    :raises Locked: while another pod has it, with the seconds until it may be broken.
    """
    assert write.lock is not None, "the write needs a lock"
    pod = write.pod if isinstance(write, Bind) else ""
    text = annotations.get(write.lock.annotation)
    if text is not None:
        held = read_lock(text)
        left = held.since + write.lock.seconds - now
        held_by_other = not held.pod or (held.pod != pod and holds(held.pod))
        if left >= 0 and held_by_other:
            whose = f" for pod {held.pod}" if held.pod else ""
            raise Locked(f"Node {write.node} is locked{whose}", retry_after=left)
    if not pod:
        return rfc3339(now)
    namespace, _, name = pod.partition("/")
    return lock_text(now, namespace, name)
