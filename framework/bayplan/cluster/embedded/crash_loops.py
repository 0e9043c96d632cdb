"""Workloads whose pods end as soon as they are made: each round is replaced later than the last."""

from __future__ import annotations

import msgspec

from bayplan.api import Job, OwnerReference, Pod
from bayplan.cluster.embedded.children import Child
from bayplan.cluster.embedded.store import MemoryCluster

__all__ = ["CrashLoops"]

_AT_ONCE = 10.0
"""Seconds that a pod runs, at most, if it ends at once."""
_SHORTEST = 10.0
_LONGEST = 300.0
"""Seconds until the next round, as those of the kubelet's CrashLoopBackOff."""


_ENDLESS = ("ReplicaSet", "StatefulSet")
"""Kinds that replace pods that succeeded, too."""


class _Loop(msgspec.Struct):
    """How many rounds ended at once, until when the next one waits, and whether it was made."""

    rounds: int
    until: float
    made: bool = False


class CrashLoops:
    """Says until when workloads wait before their pods, or Jobs, are replaced.

    The first round that ends at once is replaced at once, the next one after 10 s, which doubles
    up to five minutes. All that is made between two such ends is one round.
    """

    def __init__(self, cluster: MemoryCluster) -> None:
        self._cluster = cluster
        self._loops: dict[str, _Loop] = {}
        self._ended: set[str] = set()

    def see(self, owner: OwnerReference, child: Child, gone: bool) -> None:
        """Note a change of what a workload owns; a DaemonSet waits for each node by itself."""
        uid, loop = child.metadata.uid, self._loops.get(owner.uid)
        if gone:
            self._ended.discard(uid)
        elif owner.kind == "DaemonSet" or uid in self._ended:
            return
        elif isinstance(child, Pod | Job) and _is_replaced(owner, child):
            self._ended.add(uid)
            self._end(owner.uid, child)
        elif loop is not None:
            loop.made = True

    def _end(self, owner: str, child: Pod | Job) -> None:
        now, loop = self._cluster.now, self._loops.get(owner)
        started = child.status.start_time
        if started is not None and now - self._cluster.seconds_of(started) >= _AT_ONCE:
            self._loops.pop(owner, None)
        elif loop is None:
            self._loops[owner] = _Loop(0, now)
        elif loop.made:
            delay = min(_SHORTEST * 2.0 ** min(loop.rounds, 60), _LONGEST)
            self._loops[owner] = _Loop(loop.rounds + 1, now + delay)

    def until(self, owner: str) -> float:
        """Return until when a workload waits, in virtual seconds; 0 for one that need not."""
        loop = self._loops.get(owner)
        return loop.until if loop is not None else 0.0

    def is_hopeless(self, owner: str) -> bool:
        """Tell whether a workload has failed for so long that nobody waits for its next round."""
        loop = self._loops.get(owner)
        return loop is not None and _SHORTEST * 2.0 ** (loop.rounds - 1) >= _LONGEST

    def forget(self, owner: str) -> None:
        """Forget a workload that is gone."""
        self._loops.pop(owner, None)


def _is_replaced(owner: OwnerReference, child: Pod | Job) -> bool:
    """Tell whether a pod or a Job has ended so that its owner makes another one."""
    if isinstance(child, Job):
        return any(c.type == "Failed" and c.status == "True" for c in child.status.conditions)
    ends = ("Failed", "Succeeded") if owner.kind in _ENDLESS else ("Failed",)
    return child.status.phase in ends
