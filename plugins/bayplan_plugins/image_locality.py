"""ImageLocality: prefer nodes that already have the pod's images.

An image counts with its size in bytes times the share of nodes that have it, so that a rare image
does not pull all pods to one node (kube-scheduler, imagelocality).
"""

from __future__ import annotations

import numpy as np

from bayplan import SKIP, Args, NodeView, Plugin, PodInfo, Reads, hookimpl
from bayplan.plugin.hookspecs import FloatColumn

__all__ = ["ImageLocality"]

_MIN_BYTES = 23 * 1024 * 1024
_MAX_BYTES_PER_CONTAINER = 1000 * 1024 * 1024


class ImageLocality(Plugin[Args]):
    """Score 0..100 by the sum of the scaled sizes of the images that a node has."""

    # The share of nodes with an image concerns the whole cluster, but it changes with node
    # objects only, and then everything is recomputed.
    reads = Reads.NODE
    by_spec = True

    @hookimpl
    def pre_score(self, pod: PodInfo, nodes: NodeView) -> object:
        """Skip if no node has any of the images."""
        return None if any(nodes.image_size(i).any() for i in _images(pod)) else SKIP

    @hookimpl
    def score(self, pod: PodInfo, nodes: NodeView) -> FloatColumn:
        """Scale the sum of the images' weights between the two thresholds."""
        everywhere = nodes.all()
        total = np.zeros(len(nodes), dtype=np.int64)
        for image in _images(pod):
            holders = int(np.count_nonzero(everywhere.image_size(image)))
            share = holders / max(1, len(everywhere))
            total += (nodes.image_size(image) * share).astype(np.int64)
        most = _MAX_BYTES_PER_CONTAINER * len(_images(pod))
        clipped = np.clip(total, _MIN_BYTES, most)
        return np.floor(100.0 * (clipped - _MIN_BYTES) / (most - _MIN_BYTES))


def _images(pod: PodInfo) -> tuple[str, ...]:
    spec = pod.spec
    return tuple(_normalized(c.image) for c in (*spec.init_containers, *spec.containers) if c.image)


def _normalized(image: str) -> str:
    """Add ":latest" if there is neither a tag nor a digest."""
    return image if ":" in image.rsplit("/", 1)[-1] else f"{image}:latest"
