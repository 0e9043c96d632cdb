"""The nodes where no eviction can help a pod."""

from __future__ import annotations

import numpy as np

from bayplan import Handle, PodInfo
from bayplan.plugin.hookspecs import BoolColumn

__all__ = ["unresolvable"]


def unresolvable(handle: Handle, pod: PodInfo) -> BoolColumn:
    """Return the rows where no eviction can help the pod."""
    mask = np.zeros(len(handle.snapshot.nodes), dtype=np.bool_)
    for refusal in handle.refusals(pod):
        mask |= refusal.unresolvable
    return mask
