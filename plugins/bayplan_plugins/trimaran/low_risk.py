"""LowRiskOverCommitment: keep pods off nodes that may have to give more than they have.

Formula: kubernetes-sigs/scheduler-plugins, pkg/trimaran/lowriskovercommitment.
"""

from __future__ import annotations

import math

import numpy as np

from bayplan import SKIP, Handle, NodeView, Plugin, PodInfo, hookimpl
from bayplan.plugin.base import Skip
from bayplan.plugin.hookspecs import FloatColumn, IntColumn
from bayplan_plugins.loads.columns import LATEST, LoadColumns
from bayplan_plugins.loads.ledger import NodeLoads
from bayplan_plugins.trimaran.args import LowRiskOverCommitmentArgs
from bayplan_plugins.trimaran.beta import Fit
from bayplan_plugins.trimaran.recent import rounded
from bayplan_plugins.trimaran.usage_rules import LIMITS, LatestUsage, limits_with_requests

__all__ = ["LowRiskOverCommitment"]

_MOST = 100.0


class LowRiskOverCommitment(Plugin[LowRiskOverCommitmentArgs]):
    """Score by two risks: that limits exceed the node, and that pods use more than they requested.

    The first is by how much limits exceed what the node offers, of how much they exceed requests.
    The second is the probability, by a beta distribution with the measured mean and deviation, of a
    use beyond the requests of the pods that are there. The riskier of CPU and memory counts. A node
    without a recent report scores 0.
    """

    Args = LowRiskOverCommitmentArgs
    by_spec = True

    def __init__(self, args: LowRiskOverCommitmentArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        loads = handle.snapshot.shared(NodeLoads, NodeLoads)
        self._columns = LoadColumns(handle.snapshot, loads, LatestUsage(), (LATEST, LIMITS))

    @hookimpl
    def pre_score(self, pod: PodInfo) -> Skip | None:
        """Skip pods without requests and limits of CPU and memory."""
        return None if any(limits_with_requests(pod)) else SKIP

    @hookimpl
    def score(self, pod: PodInfo, nodes: NodeView) -> FloatColumn:
        """Rate nodes by the higher risk of both resources."""
        self._columns.refresh()
        everywhere = nodes.all()
        risks = [
            self._risk(place, name, pod.requests.get(name, 0), limit, everywhere.used(name))
            for place, (name, limit) in enumerate(
                zip(self._columns.resources, limits_with_requests(pod), strict=True)
            )
        ]
        return nodes.pick(rounded(self._columns, (1 - np.maximum(*risks)) * _MOST))

    def _risk(
        self, place: int, name: str, request: int, limit: int, requested: IntColumn
    ) -> FloatColumn:
        """Return the risk of one resource, 0 to 1.

        :param requested: what the pods on each node request.
        """
        columns = self._columns
        offered, limits = columns.allocatable[:, place], columns.used(LIMITS)[:, place]
        most, asked = limits + limit, np.minimum(requested + request, offered)
        over = np.where(most > offered, (most - offered) / np.maximum(most - asked, 1), 0.0)
        weight = self.args.limit_weight(name)
        before = np.minimum(requested, offered)
        load = self._load_risk(place, before, limits, offered)
        risk: FloatColumn = np.clip(weight * over + (1 - weight) * load, 0.0, 1.0)
        return risk

    def _load_risk(
        self, place: int, requested: IntColumn, limits: IntColumn, offered: IntColumn
    ) -> FloatColumn:
        """Return the probability that more is used than the pods on the node request.

        Where their limits are below what the node offers, they use no more than these.
        """
        columns = self._columns
        has, size = np.maximum(columns.capacity[:, place], 1), np.maximum(offered, 1)
        there = offered > 0
        mean = np.where(there, np.clip(columns.used(LATEST)[:, place] / has, 0.0, 1.0), 0.0)
        deviation = np.clip(columns.deviation[:, place] / has, 0.0, 1.0)
        fit = Fit(mean, np.where(there, deviation * math.sqrt(self.args.windows), 0.0))
        probability = fit.below(np.clip(requested / size, 0.0, 1.0))
        bounded = (limits < offered) & (requested <= limits)
        within = fit.below(np.clip(limits / size, 0.0, 1.0))
        conditioned = np.clip(probability / np.where(within > 0, within, 1.0), 0.0, 1.0)
        probability = np.where(bounded & fit.exists & (within > 0), conditioned, probability)
        probability = np.where(bounded & (limits == 0), 1.0, probability)
        risk: FloatColumn = 1 - probability
        return risk
