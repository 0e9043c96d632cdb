"""Room for pods of several GPUs, and what it costs to use it up.

A node has a *slot* for a pod of n whole GPUs when that many are free, with enough CPU. A share on
a free GPU may use up a slot. How dear slots are follows from how many there are, and how many will
be needed until the idle GPUs of the cluster are used up.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from bayplan.api.gpu_shares import WHOLE
from bayplan.plugin.hookspecs import BoolColumn, FloatColumn, IntColumn
from bayplan_plugins.gpu_fragmentation.pod_classes import WeightedClass
from bayplan_plugins.gpu_fragmentation.states import NodeStates

__all__ = ["SlotLosses", "SlotTable", "Slots"]

SlotTable = npt.NDArray[np.float64]
"""Numbers of slots: a row for each size of pod, a column for each node."""
_LEAST_PRICE = 40.0
_MOST_PRICE = 3000.0
_LARGEST = 8
_FEWEST = 0.5


class SlotLosses:
    """Numbers the different losses of slots, so that the cost of each is computed once.

    Number 0 is to lose none.

    :param sizes: of how many sizes slots are.
    """

    def __init__(self, sizes: int) -> None:
        self._table = np.zeros((1, sizes))
        self._numbers: dict[tuple[float, ...], int] = {(0.0,) * sizes: 0}

    def __len__(self) -> int:
        return len(self._table)

    def number(self, lost: tuple[float, ...]) -> int:
        """Return the number of a loss: how many slots of each size."""
        number = self._numbers.setdefault(lost, len(self._numbers))
        if number == len(self._table):
            self._table = np.vstack((self._table, lost))
        return number

    def of(self, lost: SlotTable) -> IntColumn:
        """Return the numbers of losses, one for each column of a table."""
        if not np.count_nonzero(lost):
            return np.zeros(lost.shape[1], dtype=np.int64)
        return np.array([self.number(tuple(one)) for one in lost.T.tolist()], dtype=np.int64)

    def costs(self, prices: FloatColumn) -> FloatColumn:
        """Return what each loss costs, by its number.

        :param prices: of a slot of each size.
        """
        costs: FloatColumn = self._table @ prices
        return costs


class Slots:
    """Counts and prices slots.

    :param workload: the pod classes and how often they come.
    :param choices: the place of each pod class's choice of nodes in the columns of ``allowed``.
    """

    def __init__(self, workload: Sequence[WeightedClass], choices: Sequence[int]) -> None:
        several = [
            (one, choice)
            for one, choice in zip(workload, choices, strict=True)
            if one.pod_class.gpus > 1
        ]
        pod_classes = [one.pod_class for one, _ in several]
        part = np.array([one.part for one, _ in several])
        self._class_gpus = np.array([[pod_class.gpus] for pod_class in pod_classes], dtype=np.int64)
        self._class_cpu = np.array(
            [[max(1, pod_class.cpu)] for pod_class in pod_classes], dtype=np.int64
        )
        self._class_choice = [choice for _, choice in several]
        sizes = sorted({pod_class.gpus for pod_class in pod_classes})
        self.gpus = np.array(sizes, dtype=np.float64)
        own = np.array([[pod_class.gpus == size for pod_class in pod_classes] for size in sizes])
        self._mean = own * part / (own * part).sum(axis=1, keepdims=True) if sizes else own
        # A pod of eight GPUs uses up four slots of two.
        asked = [
            (pod_class.gpus, weight * pod_class.gpus)
            for pod_class, weight in zip(pod_classes, part, strict=True)
        ]
        needed = [sum(sum_ for gpus, sum_ in asked if gpus >= size) / size for size in sizes]
        self._sizes, self._needs = self.gpus.tolist(), needed
        self._each = sum(one.part * one.pod_class.total for one in workload) or float(WHOLE)

    def of(self, states: NodeStates, allowed: BoolColumn) -> SlotTable:
        """Return how many slots nodes have, the mean of the pod classes of one size.

        :param allowed: by node and choice, whether pods of the choice may use the node.
        """
        if not len(self.gpus) or not len(states):
            return np.zeros((len(self.gpus), len(states)))
        free = (states.left >= WHOLE).sum(axis=1)
        slots = np.minimum(free // self._class_gpus, states.cpu.clip(min=0) // self._class_cpu)
        mean: SlotTable = self._mean @ (slots * allowed[:, self._class_choice].T)
        return mean

    def prices(self, slots: FloatColumn, idle: float) -> FloatColumn:
        """Return what a slot of each size is worth, in thousandths of a GPU.

        :param slots: the number of slots of each size in the cluster.
        :param idle: the thousandths of GPUs that are idle in the cluster.
        """
        # The few sizes are faster in plain numbers.
        each = idle / self._each
        found = []
        for gpus, needed, there in zip(self._sizes, self._needs, slots.tolist(), strict=True):
            scarcity = min(1.0, each * needed / max(there, _FEWEST))
            found.append(gpus / _LARGEST * (_LEAST_PRICE + _MOST_PRICE * (scarcity * scarcity)))
        return np.array(found)
