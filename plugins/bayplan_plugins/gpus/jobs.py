"""How many GPUs the pods of each job hold, by node, and which rails they use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from bayplan import PodInfo

__all__ = ["JobShares", "PodShare", "job_of"]


class PodShare(NamedTuple):
    """A pod's part of its job: its node, how many GPUs, and the rails of the NICs near them."""

    node: str
    gpus: int
    rails: frozenset[int]


_NOTHING = PodShare("", 0, frozenset())


class _JobTotals(msgspec.Struct):
    """The shares of a job's pods by uid, and their sums by node and by rail."""

    pods: dict[str, PodShare] = msgspec.field(default_factory=dict)
    nodes: Counter[str] = msgspec.field(default_factory=Counter)
    rails: Counter[int] = msgspec.field(default_factory=Counter)

    def add(self, uid: str, share: PodShare) -> None:
        self.pods[uid] = share
        self.nodes[share.node] += share.gpus
        if share.rails:
            self.rails.update(share.rails)

    def remove(self, uid: str) -> None:
        share = self.pods.pop(uid, None)
        if share is None:
            return
        self.nodes[share.node] -= share.gpus
        if not self.nodes[share.node]:
            del self.nodes[share.node]
        if share.rails:
            self.rails.subtract(share.rails)


class JobShares:
    """The jobs that have pods with GPUs on nodes, by name; pods by uid."""

    def __init__(self) -> None:
        self._jobs: dict[str, _JobTotals] = {}

    def enter(self, job: str, uid: str, share: PodShare) -> None:
        """Set a pod's share of its job."""
        totals = self._jobs.get(job)
        if totals is None:
            totals = self._jobs[job] = _JobTotals()
        totals.remove(uid)
        totals.add(uid, share)

    def leave(self, job: str, uid: str) -> None:
        """Remove a pod from its job."""
        totals = self._jobs.get(job)
        if totals is not None:
            totals.remove(uid)
            if not totals.pods:
                del self._jobs[job]

    def pods(self, job: str) -> Iterable[tuple[str, PodShare]]:
        """Return the pods of a job with their shares."""
        totals = self._jobs.get(job)
        return totals.pods.items() if totals is not None else ()

    def nodes(self, job: str, but: str = "") -> Mapping[str, int]:
        """Return how many GPUs a job holds by node, not counting the pod ``but``."""
        totals = self._jobs.get(job)
        if totals is None:
            return {}
        found = dict(totals.nodes)
        if but in totals.pods:
            own = totals.pods[but]
            found[own.node] -= own.gpus
        return {node: count for node, count in found.items() if count}

    def rails(self, job: str, but: str = "") -> frozenset[int]:
        """Return the rails that a job uses, not counting the pod ``but``."""
        totals = self._jobs.get(job)
        if totals is None or not totals.rails:
            return frozenset()
        own = totals.pods.get(but, _NOTHING).rails
        return frozenset(rail for rail, count in totals.rails.items() if count > (rail in own))


def job_of(pod: PodInfo) -> str:
    """Return the key of the pod's gang, else of its controller; "" for neither."""
    if pod.gang is not None:
        return pod.gang
    for owner in pod.pod.metadata.owner_references:
        if owner.controller:
            return f"{pod.namespace}/{owner.kind}/{owner.name}"
    return ""
