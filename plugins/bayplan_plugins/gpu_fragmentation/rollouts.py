"""What of a node's GPUs stays idle when a few pods of the workload are offered to it.

Each node is offered several fixed sequences of pods; a pod that does not fit is skipped, a share
takes the fitting GPU with the least left. All nodes and sequences advance together. At each step
all sequences offer a pod of the same sort (whole GPUs, a share, none), in the workload's
proportions, so that a step needs a few operations on columns only.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import msgspec
import numpy as np

from bayplan.api.gpu_shares import WHOLE
from bayplan.plugin.hookspecs import BoolColumn, FloatColumn, IntColumn
from bayplan_plugins.gpu_fragmentation.pod_classes import PodClass, WeightedClass
from bayplan_plugins.gpus.columns import GpuMatrix

__all__ = ["Rollouts"]

_SEED = 7
_NO_FIT = 1 << 30


class _Sort(Enum):
    NONE = 0
    SHARE = 1
    WHOLE = 2


class _Step(msgspec.Struct, frozen=True):
    """One pod for each sequence: its CPU, GPUs, compute and the place of its choice of nodes."""

    sort: _Sort
    cpu: IntColumn
    gpus: IntColumn
    compute: IntColumn
    choice: IntColumn


class Rollouts:
    """Fixed sequences of pods that represent a workload.

    :param workload: the pod classes and how often they come.
    :param choices: the place of each pod class's choice of nodes in the columns of ``allowed``.
    :param sequences: how many sequences are offered to each node.
    :param length: how many pods each of them has.
    """

    def __init__(
        self,
        workload: Sequence[WeightedClass],
        choices: Sequence[int],
        sequences: int,
        length: int,
    ) -> None:
        self._sequences = sequences
        self._steps = _steps(workload, choices, sequences, length)

    def idle(self, cpu: IntColumn, left: GpuMatrix, allowed: BoolColumn) -> FloatColumn:
        """Return the thousandths of GPUs that stay idle on each node, the mean of all sequences.

        :param cpu: milli-CPU left, by node.
        :param left: thousandths left, by node and GPU.
        :param allowed: by node and choice, whether pods of the choice may use the node.
        """
        count, times, size = len(cpu), self._sequences, left.shape[1]
        cpu = np.repeat(cpu, times).reshape(count, times)
        gpus = np.repeat(left.astype(np.int32), times, axis=0).reshape(count, times, size)
        # The same numbers in one row, and where each rollout begins: it takes a GPU by its place.
        row = gpus.reshape(-1)
        starts = np.arange(0, row.size, size)
        anywhere = np.count_nonzero(allowed) == allowed.size
        for step in self._steps:
            fits = step.cpu <= cpu
            if step.sort is not _Sort.NONE and not anywhere:
                fits &= allowed[:, step.choice]
            if step.sort is _Sort.WHOLE:
                free = gpus == WHOLE
                order = free.cumsum(axis=2, dtype=np.int32)
                fits &= order[:, :, -1] >= step.gpus
                free &= order <= (step.gpus * fits)[:, :, None]
                np.copyto(gpus, 0, where=free)
            elif step.sort is _Sort.SHARE:
                fitting = np.where(gpus >= step.compute[:, None], gpus, _NO_FIT)
                best = fitting.argmin(axis=2).reshape(-1)
                best += starts
                fits &= (fitting.reshape(-1)[best] != _NO_FIT).reshape(count, times)
                row[best] -= (step.compute * fits).reshape(-1)
            cpu -= step.cpu * fits
        idle: FloatColumn = gpus.sum(axis=2).mean(axis=1)
        return idle


def _steps(
    workload: Sequence[WeightedClass], choices: Sequence[int], sequences: int, length: int
) -> list[_Step]:
    """Return the steps: systematic samples of each sort of pods, spread evenly over the length."""
    random = np.random.default_rng(_SEED)
    drawn: list[tuple[float, _Step]] = []
    for sort in _Sort:
        members = [place for place, one in enumerate(workload) if _sort(one.pod_class) is sort]
        part = sum(workload[place].part for place in members)
        steps = round(part * length)
        if not steps:
            continue
        bounds = np.cumsum([workload[place].part for place in members]) / part
        points = (np.arange(steps * sequences) + 0.5) / (steps * sequences)
        picked = np.minimum(np.searchsorted(bounds, points), len(members) - 1)
        table = random.permutation(picked).reshape(steps, sequences)
        for number, row in enumerate(table):
            pods = [workload[members[place]].pod_class for place in row.tolist()]
            step = _Step(
                sort,
                np.array([pod.cpu for pod in pods]),
                np.array([pod.gpus for pod in pods], dtype=np.int32),
                np.array([pod.compute for pod in pods], dtype=np.int32),
                np.array([choices[members[place]] for place in row.tolist()]),
            )
            drawn.append(((number + 0.5) / steps, step))
    return [step for _, step in sorted(drawn, key=lambda one: one[0])]


def _sort(pod_class: PodClass) -> _Sort:
    if not pod_class.gpus:
        return _Sort.NONE
    return _Sort.WHOLE if pod_class.whole or pod_class.gpus > 1 else _Sort.SHARE
