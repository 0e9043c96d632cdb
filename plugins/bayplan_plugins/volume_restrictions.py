"""VolumeRestrictions: a claim with access mode ReadWriteOncePod has one user at a time."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator

import numpy as np

from bayplan import (
    SKIP,
    Args,
    ClusterEvent,
    Handle,
    NodeView,
    Plugin,
    PodInfo,
    Reads,
    Reject,
    Remedy,
    hookimpl,
)
from bayplan.plugin.hookspecs import IntColumn
from bayplan_plugins.shared.volumes.lookup import (
    ClaimUsers,
    claim_of,
    missing_claims,
    not_found,
    used_by,
)

__all__ = ["VolumeRestrictions"]

_REASON = (
    "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already "
    "in-use by another pod"
)
_EXCLUSIVE = "ReadWriteOncePod"


class VolumeRestrictions(Plugin[Args]):
    """Refuse every node while another pod uses an exclusive claim of the pod."""

    reads = Reads.NODE
    requeue_on = ClusterEvent.POD_REMOVED | ClusterEvent.OBJECT_CHANGED

    def __init__(self, args: Args, handle: Handle) -> None:
        super().__init__(args, handle)
        self._users = handle.snapshot.shared(ClaimUsers, ClaimUsers)

    @hookimpl
    def concerns(self, pod: PodInfo) -> bool:
        """Concern pods with volumes that are claims."""
        return pod.facts.uses_claims

    @hookimpl
    def sign(self, pod: PodInfo) -> Hashable:
        """Sign by whether a claim is missing, in use, or exclusive."""
        if not pod.facts.uses_claims:
            return None
        return self._missing(pod), bool(self._in_use(pod)), self._exclusive(pod)

    @hookimpl
    def requeue_hint(self, pod: PodInfo, event: ClusterEvent, subject: PodInfo | None) -> bool:
        """A removed pod helps only if it used a claim of this pod."""
        if event is not ClusterEvent.POD_REMOVED or subject is None:
            return True
        same = subject.namespace == pod.namespace
        return same and not set(used_by(subject)).isdisjoint(used_by(pod))

    @hookimpl
    def pre_filter(self, pod: PodInfo) -> object:
        """Skip pods without exclusive claims; refuse pods whose claims do not exist."""
        if not pod.facts.uses_claims:
            return SKIP
        missing = self._missing(pod)
        if missing:
            return missing
        return None if self._exclusive(pod) else SKIP

    def _missing(self, pod: PodInfo) -> str:
        for used in used_by(pod):
            if not used.ephemeral and claim_of(pod, used, self.handle.snapshot) is None:
                return not_found("persistentvolumeclaim", used.name)
        return ""

    def _exclusive(self, pod: PodInfo) -> bool:
        return any(True for _ in self._exclusive_claims(pod))

    def _exclusive_claims(self, pod: PodInfo) -> Iterator[str]:
        """Yield the keys of the pod's exclusive claims."""
        for used in used_by(pod):
            claim = claim_of(pod, used, self.handle.snapshot)
            if claim is not None and _EXCLUSIVE in claim.spec.access_modes and not used.ephemeral:
                yield claim.key

    def _in_use(self, pod: PodInfo) -> list[tuple[str, PodInfo]]:
        """Return the pod's exclusive claims that others use, each with such a pod."""
        return [
            (key, user)
            for key in self._exclusive_claims(pod)
            for user in self._users.of(key).values()
            if user.uid != pod.uid
        ]

    @hookimpl
    def filter(self, pod: PodInfo, nodes: NodeView) -> Iterator[Reject]:
        """Refuse all nodes: where the pod runs does not matter."""
        if self._in_use(pod):
            yield Reject(np.ones(len(nodes), dtype=np.bool_), _REASON)

    @hookimpl
    def slots(self, nodes: NodeView) -> IntColumn:
        """Return 1: a second pod with the same claim never fits."""
        return np.ones(len(nodes), dtype=np.int64)

    @hookimpl
    def remedies(self, pod: PodInfo, nodes: NodeView) -> Iterable[Remedy]:
        """Suggest creating the missing claim, or name the pods that have to end."""
        yield from missing_claims(pod, self.handle.snapshot)
        in_use = self._in_use(pod)
        names = " and ".join(dict.fromkeys(user.key for _, user in in_use))
        claims = " and ".join(dict.fromkeys(key for key, _ in in_use))
        for row in map(nodes.row_at, range(len(nodes))) if in_use else ():
            text = f"would fit when {names} has ended, which uses {claims}"
            ends = tuple(dict.fromkeys(user.key for _, user in in_use))
            yield Remedy(text, row, cost=2.0, ends=ends)
