"""TargetLoadPacking: fill nodes up to a share of their CPUs that is really used, not requested.

Formula: kubernetes-sigs/scheduler-plugins, pkg/trimaran/targetloadpacking.
"""

from __future__ import annotations

import numpy as np

from bayplan import Handle, NodeView, Plugin, PodInfo, hookimpl
from bayplan.plugin.hookspecs import FloatColumn
from bayplan_plugins.loads.columns import LATEST, LoadColumns
from bayplan_plugins.loads.ledger import NodeLoads
from bayplan_plugins.trimaran.args import TargetLoadPackingArgs
from bayplan_plugins.trimaran.recent import rounded
from bayplan_plugins.trimaran.usage_rules import PredictedCpus

__all__ = ["TargetLoadPacking"]

_ALL = 100.0


class TargetLoadPacking(Plugin[TargetLoadPackingArgs]):
    """Prefer the node that the pod brings closest to the target; far beyond it, empty ones.

    The score rises from the target to 100 as the predicted use rises to the target, and falls from
    there to 0 at full use. A node without a recent report scores 0.
    """

    Args = TargetLoadPackingArgs
    by_spec = True

    def __init__(self, args: TargetLoadPackingArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        loads = handle.snapshot.shared(NodeLoads, NodeLoads)
        self._rule = PredictedCpus(loads, args.multiplier, args.unstated)
        self._columns = LoadColumns(handle.snapshot, loads, self._rule, (LATEST,))

    @hookimpl
    def score(self, pod: PodInfo, nodes: NodeView) -> FloatColumn:
        """Rate nodes by how much of their CPUs would be used."""
        columns = self._columns
        columns.refresh()
        has = columns.capacity[:, 0]
        used = columns.used(LATEST)[:, 0] + self._rule.of(pod)
        percent = np.where(has > 0, _ALL * used / np.maximum(has, 1), 0.0)
        target = float(self.args.target)
        below = (_ALL - target) * percent / target + target
        beyond = np.maximum(target * (_ALL - percent) / (_ALL - target), 0.0)
        return nodes.pick(rounded(columns, np.where(percent > target, beyond, below)))
