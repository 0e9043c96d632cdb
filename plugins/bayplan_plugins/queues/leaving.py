"""Pods that are about to leave their nodes: what they hold is as good as free."""

from __future__ import annotations

from bayplan import Handle, PodInfo
from bayplan.dialects.reading import timestamp

__all__ = ["is_stuck", "leaving_pods"]

_STUCK_AFTER = 60.0
"""Seconds beyond its grace period after which a pod that has not ended counts as stuck."""


def is_stuck(handle: Handle, pod: PodInfo) -> bool:
    """Tell whether a terminating pod should have ended long ago."""
    meta = pod.pod.metadata
    grace = meta.deletion_grace_period_seconds or 0
    return handle.unix_time > timestamp(meta.deletion_timestamp) + grace + _STUCK_AFTER


def leaving_pods(handle: Handle) -> list[tuple[PodInfo, str]]:
    """Return the pods that are terminating and not stuck, with their nodes."""
    placed = handle.snapshot.placed.values()
    return [pair for pair in placed if pair[0].terminating and not is_stuck(handle, pair[0])]
