"""What the API says: which claims are allocated, and which pods they are reserved for."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Set

from bayplan.api import Node, ResourceClaim
from bayplan.api.dra import DELETE_PROTECTION
from bayplan.api.nodeselection import selects
from bayplan.api.pod import NodeSelector
from bayplan_dra.allocator import HeldDevice

__all__ = ["AllocatedDevices"]


class AllocatedDevices:
    """The devices and consumers of each claim, by uid, as last seen in the API.

    ``held`` is not counted in the usage here: the ledger does that, because a trial or an
    in-flight allocation may stand for the same devices.
    """

    def __init__(self) -> None:
        self._held: dict[str, list[HeldDevice]] = {}
        self._where: dict[str, NodeSelector] = {}
        """The nodes that can use what a claim holds, where that is not all of them."""
        self._first_seen: dict[str, tuple[int, str]] = {}
        self._seen = 0
        self._consumers: dict[str, frozenset[str]] = {}
        self._claims_of: dict[str, dict[str, None]] = {}
        self._stay: set[str] = set()
        """The claims that stay allocated when nobody uses them any more."""

    def note(self, claim: ResourceClaim) -> None:
        """Record a claim's consumers, what frees it, and when its allocation was first seen."""
        uid = claim.metadata.uid
        self._stay.discard(uid)
        if _stays_allocated(claim):
            self._stay.add(uid)
        allocation = claim.status.allocation
        self._where.pop(uid, None)
        if allocation is not None and allocation.node_selector is not None:
            self._where[uid] = allocation.node_selector
        if allocation is None:
            self._first_seen.pop(uid, None)
        elif uid not in self._first_seen:
            self._seen += 1
            self._first_seen[uid] = (self._seen, claim.key)
        self._set_consumers(uid, frozenset(r.uid for r in claim.status.reserved_for))

    def forget(self, uid: str) -> list[HeldDevice]:
        """Drop a claim that is gone; return what it held."""
        self._first_seen.pop(uid, None)
        self._where.pop(uid, None)
        self._set_consumers(uid, frozenset())
        self._stay.discard(uid)
        return self._held.pop(uid, [])

    def held(self, uid: str) -> list[HeldDevice]:
        """Return what a claim holds."""
        return self._held.get(uid, [])

    def reaches(self, uid: str, node: Node) -> bool:
        """Tell whether a node can use what a claim holds."""
        where = self._where.get(uid)
        return where is None or selects(where, node)

    def set_held(self, uid: str, held: list[HeldDevice]) -> None:
        """Record what a claim holds."""
        self._held[uid] = held

    def claims_of(self, pod: str) -> Collection[str]:
        """Return the claims that are reserved for a pod; all by uid."""
        return self._claims_of.get(pod, ())

    def freed_without(self, pod: str, gone: Set[str]) -> Iterator[str]:
        """Yield a pod's claims whose devices are free once it and all of ``gone`` are: all by uid.

        The last pod that uses a claim frees its devices, whoever made the claim.
        """
        for uid in self._claims_of.get(pod, ()):
            if uid in self._held and uid not in self._stay and self._consumers[uid] <= gone:
                yield uid

    def before(self, uid: str) -> list[tuple[str, list[HeldDevice]]]:
        """Return the claims whose allocations were seen before a claim's, in that order.

        By key, with what they hold; none if the claim has no allocation.
        """
        mine = self._first_seen.get(uid)
        earlier = [
            (seen, self._held[other])
            for other, seen in self._first_seen.items()
            if mine is not None and seen < mine and other in self._held
        ]
        return [(key, held) for (_, key), held in sorted(earlier, key=lambda one: one[0])]

    def _set_consumers(self, uid: str, pods: frozenset[str]) -> None:
        before = self._consumers.get(uid, frozenset())
        if pods == before:
            return
        for pod in before - pods:
            claims = self._claims_of[pod]
            claims.pop(uid, None)
            if not claims:
                del self._claims_of[pod]
        for pod in pods - before:
            self._claims_of.setdefault(pod, {})[uid] = None
        if pods:
            self._consumers[uid] = pods
        else:
            self._consumers.pop(uid, None)


def _stays_allocated(claim: ResourceClaim) -> bool:
    """Tell whether a claim stays allocated when its last consumer goes.

    Kubernetes deallocates those that bear its finalizer, as all that a scheduler allocated do. A
    claim without any finalizer that was made for a pod goes with it.
    """
    meta = claim.metadata
    if DELETE_PROTECTION in meta.finalizers:
        return False
    return bool(meta.finalizers) or all(one.kind != "Pod" for one in meta.owner_references)
