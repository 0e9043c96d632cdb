"""VolcanoRevocableNodes: pods that may use revocable nodes go there first.

As volcano-sh/volcano's plugin tdm scores nodes. Which pods may use which nodes, and in which hours,
the plugin tdm of Queues says; nodes that are closed are out before they are scored.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import numpy.typing as npt

from bayplan import SKIP, Args, NodeView, Plugin, PodInfo, Reads, hookimpl
from bayplan.plugin.base import Skip
from bayplan_plugins.queues.volcano.plugins.time_division import ZONE_LABEL, may_use_lent_nodes

__all__ = ["VolcanoRevocableNodes"]

_BEST = 100.0


class VolcanoRevocableNodes(Plugin[Args]):
    """Leave nodes that are always there to the pods that may use no others."""

    reads = Reads.NODE

    @hookimpl
    def sign(self, pod: PodInfo) -> Hashable:
        """Sign by whether the pod may use revocable nodes."""
        return may_use_lent_nodes(pod)

    @hookimpl
    def pre_score(self, pod: PodInfo) -> Skip | None:
        """Skip pods that may not use revocable nodes."""
        return None if may_use_lent_nodes(pod) else SKIP

    @hookimpl
    def score(self, pod: PodInfo, nodes: NodeView) -> npt.NDArray[np.float64]:
        """Score revocable nodes best, and others not at all."""
        zones = nodes.label(ZONE_LABEL)
        lent = zones.where(bool(zone) for zone in zones.values)
        return np.where(lent, _BEST, 0.0)
