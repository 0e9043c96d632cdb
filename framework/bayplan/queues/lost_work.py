"""What the end of a pod would lose: GPUs times the time since its work began, or was saved."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache

from bayplan.api import Node, ResourceClaim
from bayplan.api.gpu_shares import WHOLE
from bayplan.api.times import seconds_of
from bayplan.dialects.kai.shares import GROUP_LABEL, mig_gpus
from bayplan.dialects.nvidia import gpu_labels
from bayplan.dialects.progress import checkpointed_at
from bayplan.queues.claim_users import claims_of
from bayplan.queues.gpus import gpus_held, is_accelerator
from bayplan.snapshot import PodInfo, Snapshot

__all__ = ["NOT_STARTED", "LostWork", "gpu_hours", "saved_at", "started_at"]

NOT_STARTED = math.inf
"""When a pod began that has not started: later than any other."""
_STEP = 300.0
"""Seconds in which what is lost counts as the same, so that what was found stays true."""
_HOUR = 3600 * WHOLE
_MOST_GPUS = 1000 * WHOLE
"""More than a node has; whoever asks for more asks for nonsense, and sums have to stay integers."""
_EARLIEST = 631_152_000.0
"""1990, before any cluster, real or simulated: what says otherwise is nonsense, too."""
_NVIDIA = "nvidia.com/"
"""Its device plugins offer NICs, too."""
_SHARED = f"{_NVIDIA}gpu.shared"
_SLICES = 7
"""Compute slices of a GPU that is partitioned."""


def gpu_hours(lost: int) -> float:
    """Return work in hours of a GPU.

    :param lost: thousandths of a GPU times seconds.
    """
    return lost / _HOUR


@lru_cache(maxsize=4096)
def _seconds(text: str | None) -> float | None:
    return seconds_of(text) or None


def started_at(pod: PodInfo) -> float:
    """Return when a pod started, in seconds since 1970; NOT_STARTED if it has not."""
    at = _seconds(pod.pod.status.start_time)
    return max(at, _EARLIEST) if at is not None else NOT_STARTED


def saved_at(pod: PodInfo) -> float:
    """Return when a pod says that its work was saved, in seconds since 1970; 0 if it never does."""
    return _seconds(checkpointed_at(pod.pod)) or 0.0


class LostWork:
    """How many GPUs each pod holds, those of its claims included; follows the snapshot.

    ``as_of`` is up to when the work of pods counts, in seconds since 1970. It never goes back, so
    what was found of a pod stays a lower bound.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._claimed: dict[str, int] = {}
        """What each user of a claim has of accelerators, by the claim's key, in thousandths.

        A partition counts as a whole one, and users of one claim share it.
        """
        self.as_of = 0.0
        self._kinds_without: set[int] = set()
        """The kinds of pods that hold no GPUs, by their numbers."""
        snapshot.on_object(ResourceClaim, self._claim_changed)
        for claim in snapshot.objects(ResourceClaim).values():
            self._claim_changed(None, claim)

    @classmethod
    def of(cls, snapshot: Snapshot) -> LostWork:
        """Return the one of a snapshot."""
        return snapshot.shared(cls, cls)

    def _claim_changed(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        claim = new if new is not None else old
        assert claim is not None, "one of them is there"
        before = self._claimed.pop(claim.key, 0)
        parts = _part_of_each_user(new) if new is not None else 0
        if parts:
            self._claimed[claim.key] = parts
        if parts < before:
            # What is known of its pods' nodes is too much.
            users = {name for one in (old, new) if one is not None for name in _users(one)}
            placed = self._snapshot.placed
            self._snapshot.touch([placed[pod][1] for pod in users if pod in placed])

    def advance(self, unix_time: float) -> None:
        """Count work up to the end of these five minutes from now on."""
        self.as_of = max(self.as_of, (unix_time // _STEP + 1.0) * _STEP)

    def gpus(self, pod: PodInfo) -> int:
        """Return how much of GPUs a pod holds, in thousandths of one."""
        extended = pod.pod.status.extended_resource_claim_status
        if pod.kind in self._kinds_without and extended is None:
            return 0
        table = self._snapshot.nodes
        row = table.row_of.get(pod.spec.node_name)
        node = table.nodes[row] if row is not None else None
        held = _others(pod, node) | gpus_held(pod.pod, node, pod.requests)
        grouped = any(name.startswith(GROUP_LABEL) for name in pod.labels)
        if not (held or grouped or extended is not None or pod.spec.resource_claims):
            self._kinds_without.add(pod.kind)
        for one in extended.request_mappings if extended is not None else ():
            held.pop(one.resource_name, None)
        claimed = sum(map(self._in_claim, claims_of(pod))) if self._claimed else 0
        return min(sum(held.values()) + claimed, _MOST_GPUS)

    def _in_claim(self, key: str) -> int:
        return self._claimed.get(key, 0)


def _others(pod: PodInfo, node: Node | None) -> dict[str, int]:
    """Return what a pod requests of other accelerators, and of parts of GPUs, in thousandths."""
    found = {}
    for name, amount in pod.requests.items():
        slices = mig_gpus(name)
        if slices:
            found[name] = amount * WHOLE * slices // _SLICES
        elif name == _SHARED:
            found[name] = amount * WHOLE // _replicas(node)
        elif is_accelerator(name) and not name.startswith(_NVIDIA):
            found[name] = amount * WHOLE
    return found


def _replicas(node: Node | None) -> int:
    """Return how many times a node offers each GPU that NVIDIA's plugin shares."""
    try:
        labels = gpu_labels(node.metadata.labels) if node is not None else None
    except ValueError:
        return 1
    return max(1, labels.replicas.get(_SHARED, 1)) if labels is not None else 1


def _users(claim: ResourceClaim) -> Iterator[str]:
    """Return the keys of the pods that a claim is reserved for."""
    namespace = claim.metadata.namespace
    return (f"{namespace}/{one.name}" for one in claim.status.reserved_for)


def _part_of_each_user(claim: ResourceClaim) -> int:
    """Return what each pod that uses a claim has of accelerators, in thousandths of one."""
    allocation = claim.status.allocation
    given = allocation.devices.results if allocation is not None else ()
    # Whoever watches devices as an administrator keeps nobody from them.
    count = sum(is_accelerator(one.driver) and not one.admin_access for one in given)
    return count * WHOLE // max(1, len(claim.status.reserved_for))
