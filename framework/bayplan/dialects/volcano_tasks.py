"""Volcano's task topology: which tasks of a job belong on one node, and which do not.

Names as in volcano-sh/volcano, pkg/scheduler/plugins/task-topology: annotations of a PodGroup, with
the tasks of a group joined by commas, and groups by semicolons.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

__all__ = ["TaskTopology", "task_topology_of"]

_AFFINITY = "volcano.sh/task-topology-affinity"
_ANTI_AFFINITY = "volcano.sh/task-topology-anti-affinity"
_ORDER = "volcano.sh/task-topology-task-order"
_SELF_AFFINITY, _AFFINITY_OF_TWO, _ANTI_AFFINITY_OF_TWO, _SELF_ANTI_AFFINITY = 2, 3, 1, 4
"""Which tasks come first where no order is stated: those of the highest number."""

Groups = Sequence[Sequence[str]]


class TaskTopology(msgspec.Struct, frozen=True):
    """The affinities of a job's tasks, by pairs; a pair of one task with itself stands for its own.

    ``rank`` is the place of a task in the stated order, the first the highest; ``priority`` follows
    from its affinities. Tasks without ``priority`` have no topology.
    """

    near: frozenset[tuple[str, str]]
    apart: frozenset[tuple[str, str]]
    rank: Mapping[str, int] = msgspec.field(default_factory=dict)
    priority: Mapping[str, int] = msgspec.field(default_factory=dict)

    def affinity(self, task: str, others: Mapping[str, int], only_apart: bool = False) -> int:
        """Return how many of the other tasks a task belongs with, less those that it avoids.

        :param others: how many there are of each task.
        """
        found = 0
        for other, count in others.items():
            if not only_apart and (task, other) in self.near:
                found += count
            if (task, other) in self.apart:
                found -= count
        return found


def task_topology_of(annotations: Mapping[str, str], tasks: Collection[str]) -> TaskTopology | None:
    """Return the topology that the annotations of a PodGroup state, None without any.

    :param tasks: the names of the job's tasks.
    :raises ValueError: for a task that the job has not, or that is named twice in a group.
    """
    if not any(name in annotations for name in (_AFFINITY, _ANTI_AFFINITY, _ORDER)):
        return None
    near = _groups(annotations, _AFFINITY, tasks)
    apart = _groups(annotations, _ANTI_AFFINITY, tasks)
    order = [task for group in _groups(annotations, _ORDER, tasks, ",") for task in group]
    _check([order], _ORDER, tasks)
    priority: dict[str, int] = {}
    kinds = (
        (near, _SELF_AFFINITY, _AFFINITY_OF_TWO),
        (apart, _SELF_ANTI_AFFINITY, _ANTI_AFFINITY_OF_TWO),
    )
    for groups, alone, together in kinds:
        for group in groups:
            value = alone if len(group) == 1 else together
            priority |= {task: max(priority.get(task, 0), value) for task in group}
    rank = {task: len(order) - place for place, task in enumerate(order)}
    return TaskTopology(_pairs(near), _pairs(apart), rank, priority)


def _groups(
    annotations: Mapping[str, str], key: str, tasks: Collection[str], separator: str = ";"
) -> Groups:
    if key not in annotations:
        return ()
    groups = [
        [task.strip() for task in text.split(",")] for text in annotations[key].split(separator)
    ]
    _check(groups, key, tasks)
    return groups


def _check(groups: Groups, key: str, tasks: Collection[str]) -> None:
    for group in groups:
        named = [task for task in group if task]
        for task in named:
            if task not in tasks:
                raise ValueError(f'{key}: the job has no task "{task[:60]}"')
            if named.count(task) > 1:
                raise ValueError(f'{key}: the task "{task[:60]}" is named twice')


def _pairs(groups: Groups) -> frozenset[tuple[str, str]]:
    pairs = set()
    for group in groups:
        if len(group) == 1:
            pairs.add((group[0], group[0]))
        for place, one in enumerate(group):
            pairs |= {pair for other in group[:place] for pair in ((one, other), (other, one))}
    return frozenset(pairs)
