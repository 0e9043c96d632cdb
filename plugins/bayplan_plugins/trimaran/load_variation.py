"""LoadVariationRiskBalancing: prefer nodes whose use is low and steady.

Formula: kubernetes-sigs/scheduler-plugins, pkg/trimaran/loadvariationriskbalancing.
"""

from __future__ import annotations

import math

import numpy as np

from bayplan import Handle, NodeView, Plugin, PodInfo, hookimpl
from bayplan.plugin.hookspecs import FloatColumn
from bayplan_plugins.loads.columns import LATEST, LoadColumns
from bayplan_plugins.loads.ledger import NodeLoads
from bayplan_plugins.trimaran.args import LoadVariationRiskBalancingArgs
from bayplan_plugins.trimaran.recent import rounded
from bayplan_plugins.trimaran.usage_rules import LatestUsage

__all__ = ["LoadVariationRiskBalancing"]

_MOST = 100.0


class LoadVariationRiskBalancing(Plugin[LoadVariationRiskBalancingArgs]):
    """Score by the mean of what is used, with the pod's requests, and its standard deviation.

    The risk of a resource is half the sum of both, as shares of what the node offers; the riskier
    of CPU and memory counts. A node without a recent report scores 0.
    """

    Args = LoadVariationRiskBalancingArgs
    by_spec = True

    def __init__(self, args: LoadVariationRiskBalancingArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        loads = handle.snapshot.shared(NodeLoads, NodeLoads)
        self._columns = LoadColumns(handle.snapshot, loads, LatestUsage(), (LATEST,))
        margin, sensitivity = args.safe_variance_margin, args.safe_variance_sensitivity
        self._margin = margin if margin >= 0 else 1.0
        sensitivity = sensitivity if sensitivity >= 0 else 1.0
        self._power = 1 / sensitivity if sensitivity else math.inf

    @hookimpl
    def score(self, pod: PodInfo, nodes: NodeView) -> FloatColumn:
        """Rate nodes by the lower score of both resources."""
        self._columns.refresh()
        points = np.minimum(
            *(
                self._points(place, pod.requests.get(name, 0))
                for place, name in enumerate(self._columns.resources)
            )
        )
        return nodes.pick(rounded(self._columns, points))

    def _points(self, place: int, request: int) -> FloatColumn:
        columns = self._columns
        offered, has = columns.allocatable[:, place], columns.capacity[:, place]
        share = np.clip(columns.used(LATEST)[:, place] / np.maximum(has, 1), 0.0, 1.0)
        mean = np.clip(share + request / np.maximum(offered, 1), 0.0, 1.0)
        deviation = np.clip(columns.deviation[:, place] / np.maximum(has, 1), 0.0, 1.0)
        spread = np.clip(deviation**self._power * self._margin, 0.0, 1.0)
        points: FloatColumn = np.where(offered > 0, (1 - (mean + spread) / 2) * _MOST, 0.0)
        return points
