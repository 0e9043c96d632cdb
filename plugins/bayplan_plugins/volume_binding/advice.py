"""What would let a node serve a pod's volumes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bayplan import NodeView, Remedy
from bayplan.api.volumes import STORAGE
from bayplan_plugins.volume_binding.finder import (
    AFFINITY,
    NO_STORAGE,
    NO_VOLUMES,
    PodVolumes,
    VolumeFinder,
)

__all__ = ["advice"]

_MOST_NODES = 64


def advice(finder: VolumeFinder, volumes: PodVolumes, nodes: NodeView) -> Iterator[Remedy]:
    """Yield remedies for the first nodes that are refused for one reason only."""
    refused = list(finder.refused(volumes))
    reasons = np.zeros(len(nodes), dtype=np.int64)
    for _, mask in refused:
        reasons += mask
    for reason, mask in refused:
        for row in np.flatnonzero(mask & (reasons == 1))[:_MOST_NODES].tolist():
            text = _text(finder, volumes, reason, row)
            if text:
                cost = 1.0 if reason == NO_STORAGE else 3.0
                yield Remedy(f"would fit on {nodes.names[row]} {text}", row, cost)


def _text(finder: VolumeFinder, volumes: PodVolumes, reason: str, row: int) -> str:
    """Return what would have to be for a node to be taken, "" where nothing small would do."""
    if reason == AFFINITY:
        far = [v.metadata.name for _, v in volumes.bound if v and not finder.reached(v)[row]]
        return f"if volume {' and '.join(far)} could be reached from there"
    lacking = finder.lacking_on(volumes, row)
    if any(one.selected or one.kept for one in lacking):
        return ""
    wanted = " and ".join(
        f"{one.claim.spec.resources.requests[STORAGE].text} of class {one.needs.storage_class}"
        for one in lacking
    )
    if reason == NO_STORAGE:
        return f"if storage of {wanted} were free there"
    return f"with a persistent volume of {wanted} there" if reason == NO_VOLUMES else ""
