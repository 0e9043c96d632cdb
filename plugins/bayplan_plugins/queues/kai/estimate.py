"""An upper bound of what fits where, by amounts alone, before anything is tried."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from bayplan import Handle, PodInfo
from bayplan.dialects.kai.shares import GPU, GpuShareRequest
from bayplan.plugin.hookspecs import IntColumn
from bayplan_plugins.gpus.vendors.kai.requests import known_share

__all__ = ["Estimate", "kinds_of", "slots"]

Moves = Iterable[tuple[PodInfo, str]]


def kinds_of(pods: Iterable[PodInfo]) -> list[list[PodInfo]]:
    """Return pods in lists of equal ones, in their order."""
    kinds: dict[object, list[PodInfo]] = {}
    for pod in pods:
        kinds.setdefault((pod.facts, pod.labels_id), []).append(pod)
    return list(kinds.values())


def slots(free: Mapping[str, IntColumn], pod: PodInfo, most: int) -> IntColumn:
    """Return how many such pods each node takes by its free amounts, at most ``most``."""
    found = np.clip(free["pods"], 0, most)
    for name, need in pod.requests.items():
        # What no node offers as an amount may come from device classes.
        if name in free:
            found = np.minimum(found, np.maximum(free[name], 0) // need)
    return found


class Estimate:
    """The free amounts of all nodes, with pods that are about to leave or to come counted.

    :param leaving: pods with their nodes; ``coming`` likewise.
    """

    def __init__(self, handle: Handle, leaving: Moves, coming: Moves) -> None:
        table = handle.snapshot.nodes
        self._rows = table.row_of
        names = {"pods", *table.used_columns, *table.allocatable_columns}
        self.now: dict[str, IntColumn] = {
            name: table.allocatable(name) - table.used(name) for name in names
        }
        """What is free by resource, one number a node row, before anybody leaves."""
        self.later = {name: column.copy() for name, column in self.now.items()}
        """What will be free once they have left and come."""
        self._move(self.later, leaving, 1)
        self._move(self.later, coming, -1)
        self._steps: Sequence[object] = ()
        self._without = {name: column.copy() for name, column in self.later.items()}

    def may_hold(
        self,
        pods: Sequence[PodInfo],
        steps: Sequence[tuple[object, Sequence[PodInfo]]],
        placed: Mapping[str, tuple[PodInfo, str]],
    ) -> bool:
        """Tell whether the amounts are enough for pods once victims, step by step, are gone."""
        known = len(self._steps)
        if tuple(steps[:known]) != self._steps:
            known = 0
            self._without = {name: column.copy() for name, column in self.later.items()}
        gone = (pod for _, step in steps[known:] for pod in step)
        self._move(self._without, ((pod, placed[pod.key][1]) for pod in gone), 1)
        self._steps = tuple(steps)
        return all(
            slots(self._without, kind[0], len(kind)).sum() >= len(kind) for kind in kinds_of(pods)
        )

    def _move(self, free: dict[str, IntColumn], pods: Moves, sign: int) -> None:
        for pod, node in pods:
            row = self._rows.get(node)
            if row is None:
                continue
            free["pods"][row] += sign
            for name, amount in pod.requests.items():
                if name in free:
                    free[name][row] += sign * amount
            share = known_share(pod) if sign > 0 else None
            if isinstance(share, GpuShareRequest) and GPU in free:
                # Each of its GPUs may become free as a whole.
                free[GPU][row] += share.devices
