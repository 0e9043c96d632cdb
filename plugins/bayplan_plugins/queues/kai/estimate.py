"""An upper bound of what fits where, by amounts alone, before anything is tried."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from bayplan import Handle, PodInfo
from bayplan.plugin.hookspecs import IntColumn
from bayplan_plugins.queues.leaving import free_now, give_back

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
        self.now = free_now(table)
        """What is free by resource, one number a node row, before anybody leaves."""
        self.later = {name: column.copy() for name, column in self.now.items()}
        """What will be free once they have left and come."""
        give_back(self.later, self._rows, leaving)
        give_back(self.later, self._rows, coming, -1)
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
        give_back(self._without, self._rows, ((pod, placed[pod.key][1]) for pod in gone))
        self._steps = tuple(steps)
        return all(
            slots(self._without, kind[0], len(kind)).sum() >= len(kind) for kind in kinds_of(pods)
        )
