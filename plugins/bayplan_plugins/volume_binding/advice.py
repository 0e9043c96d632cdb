"""What would let a node serve a pod's volumes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bayplan import NodeView, Remedy
from bayplan.api import PersistentVolume
from bayplan.api.volumes import STORAGE
from bayplan_plugins.volume_binding.finder import (
    AFFINITY,
    NO_STORAGE,
    NO_VOLUMES,
    OpenClaim,
    PodVolumes,
    VolumeFinder,
)

__all__ = ["advice"]

_MOST_NODES = 64


def advice(finder: VolumeFinder, volumes: PodVolumes, nodes: NodeView) -> Iterator[Remedy]:
    """Yield remedies for the first nodes that are refused."""
    for reason, mask in finder.refused(volumes):
        for row in np.flatnonzero(mask)[:_MOST_NODES].tolist():
            text = _text(finder, volumes, reason, row)
            if text:
                cost = 1.0 if reason == NO_STORAGE else 3.0
                yield Remedy(f"would fit on {nodes.names[row]} {text}", row, cost)


def _text(finder: VolumeFinder, volumes: PodVolumes, reason: str, row: int) -> str:
    if reason == AFFINITY:
        far = [v for _, v in volumes.bound if v is not None and not finder.reached(v)[row]]
        names = " and ".join(volume.metadata.name for volume in far)
        return f"if volume{'s'[: len(far) > 1]} {names} could be reached from there"
    wanted = [f"{_size(one)} of class {one.needs.storage_class}" for one in volumes.open]
    if reason == NO_STORAGE:
        return f"if storage of {' and '.join(wanted)} were free there"
    if reason == NO_VOLUMES:
        away = [one for one in volumes.open if one.selected]
        if away:
            return f"if no volume were being made for node {away[0].selected}"
        kept: list[PersistentVolume] = [one.kept for one in volumes.open if one.kept is not None]
        if kept:
            return f"if volume {kept[0].metadata.name} could be reached from there"
        return f"with a persistent volume of {' and '.join(wanted)} there"
    return ""


def _size(one: OpenClaim) -> str:
    return one.claim.spec.resources.requests[STORAGE].text
