"""Virtual time of a cluster without a scheduler."""

from __future__ import annotations

from bayplan.cluster.embedded.store import MemoryCluster


def pass_time(cluster: MemoryCluster, seconds: float) -> None:
    """Let time pass: events are delivered, and what is due is done at its time."""
    clock = cluster.clock
    end = clock.now + seconds
    while True:
        while cluster.deliver():
            pass
        due = clock.next_time()
        if due is None or due > end:
            break
        clock.advance(due)
    clock.advance(end)
