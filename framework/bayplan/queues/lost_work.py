"""What the end of a pod would lose: GPUs times the time since its work began, or was saved."""

from __future__ import annotations

import math
from functools import lru_cache

from bayplan.api import ResourceClaim
from bayplan.api.gpu_shares import WHOLE
from bayplan.api.times import seconds_of
from bayplan.dialects.kai.shares import GROUP_LABEL
from bayplan.dialects.progress import checkpointed_at
from bayplan.queues.claim_users import claims_of
from bayplan.queues.gpus import gpus_held, is_accelerator
from bayplan.snapshot import PodInfo, Snapshot

__all__ = ["NOT_STARTED", "LostWork", "as_of", "gpu_hours", "saved_at", "started_at"]

NOT_STARTED = math.inf
"""When a pod began that has not started: later than any other."""
_STEP = 300.0
"""Seconds in which what is lost counts as the same, so that what was found stays true."""
_HOUR = 3600 * WHOLE


def as_of(unix_time: float) -> float:
    """Return up to when work counts: the end of these five minutes, in seconds since 1970."""
    return (unix_time // _STEP + 1.0) * _STEP


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
    return at if at is not None else NOT_STARTED


def saved_at(pod: PodInfo) -> float:
    """Return when a pod says that its work was saved, in seconds since 1970; 0 if it never does."""
    return _seconds(checkpointed_at(pod.pod)) or 0.0


class LostWork:
    """How many GPUs each pod holds, those of its claims included; follows the snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._claimed: dict[str, int] = {}
        """Accelerators of claims, by key; a partition counts as a whole one."""
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
        key = (new or old).key  # type: ignore[union-attr]
        allocation = new.status.allocation if new is not None else None
        given = allocation.devices.results if allocation is not None else ()
        count = sum(is_accelerator(one.driver) for one in given)
        if count:
            self._claimed[key] = count
        else:
            self._claimed.pop(key, None)

    def gpus(self, pod: PodInfo) -> int:
        """Return how much of GPUs a pod holds, in thousandths of one."""
        extended = pod.pod.status.extended_resource_claim_status
        if pod.kind in self._kinds_without and extended is None:
            return 0
        table = self._snapshot.nodes
        row = table.row_of.get(pod.spec.node_name)
        node = table.nodes[row] if row is not None else None
        held = gpus_held(pod.pod, node, pod.requests)
        grouped = any(name.startswith(GROUP_LABEL) for name in pod.labels)
        if not (held or grouped or extended is not None or pod.spec.resource_claims):
            self._kinds_without.add(pod.kind)
        for one in extended.request_mappings if extended is not None else ():
            held.pop(one.resource_name, None)
        claimed = sum(map(self._in_claim, claims_of(pod))) if self._claimed else 0
        return sum(held.values()) + WHOLE * claimed

    def _in_claim(self, key: str) -> int:
        return self._claimed.get(key, 0)
