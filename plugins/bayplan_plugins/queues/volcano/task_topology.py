"""VolcanoTaskTopology: pods go where the bucket of their task is, and where most of it fits.

As volcano-sh/volcano's plugin task-topology scores nodes. The order in which the pods of a job are
placed, bucket by bucket, the plugin task-topology of Queues says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence

import numpy as np

from bayplan import NOTES, SKIP, Args, CycleState, Handle, NodeView, Plugin, PodInfo, hookimpl
from bayplan.plugin.base import Skip
from bayplan.plugin.hookspecs import BoolColumn, FloatColumn, IntColumn
from bayplan_plugins.queues.volcano.filling import requested
from bayplan_plugins.queues.volcano.task_buckets import Bucket, JobBuckets, TaskBuckets

__all__ = ["VolcanoTaskTopology"]

_MOST = 100.0
_ZERO = 90.0
_SCALE = 10.0


class VolcanoTaskTopology(Plugin[Args]):
    """Prefer nodes with pods of the same bucket, with room for more of it, and none to avoid.

    Volcano's score is negative where a node has more to avoid than to be near. This one is a tenth
    of it plus 90: the weight 10 in a profile is 1 of Volcano's.
    """

    def __init__(self, args: Args, handle: Handle) -> None:
        super().__init__(args, handle)
        self._buckets = JobBuckets(handle)

    @hookimpl
    def sign(self, pod: PodInfo) -> Hashable:
        """Sign by the pod's bucket and task."""
        found = self._buckets.of(pod)
        if found is None or pod.key not in found.of:
            return None
        return pod.gang, found.of[pod.key].place, pod.role

    @hookimpl
    def pre_score(self, pod: PodInfo) -> Skip | None:
        """Skip pods without a bucket."""
        found = self._buckets.of(pod)
        return None if found is not None and pod.key in found.of else SKIP

    @hookimpl
    def score(self, pod: PodInfo, nodes: NodeView) -> FloatColumn:
        """Score every node, 90 where it neither has nor takes anything of the bucket."""
        job = self._buckets.of(pod)
        if job is None or pod.key not in job.of:
            return np.full(len(nodes), _ZERO)
        points = nodes.pick(self._points(pod, job, nodes.all())) * _MOST / job.largest
        scores: FloatColumn = np.clip(_ZERO + points / _SCALE, 0.0, _MOST)
        return scores

    @hookimpl
    def reserve(self, pod: PodInfo, state: CycleState) -> None:
        """Note a topology that cannot be read, and so has no effect."""
        job = self._buckets.of(pod)
        if job is not None and job.problem:
            state[NOTES] = [*(state.get(NOTES) or ()), f"no task topology: {job.problem}"]

    @hookimpl
    def unreserve(self) -> None:
        """Undo nothing: a note is no reservation."""

    # Points ------------------------------------------------------------------------------

    def _points(self, pod: PodInfo, job: TaskBuckets, nodes: NodeView) -> IntColumn:
        """Return Volcano's points: what the bucket has there and would, less what is to avoid."""
        bucket = job.of[pod.key]
        placed = self.handle.snapshot.placed
        rows = nodes.table.row_of
        there = Counter(node for key in _keys(bucket) if (node := _node(placed, key)) is not None)
        points = np.zeros(len(nodes), dtype=np.int64)
        for node, count in there.items():
            if node in rows:
                points[rows[node]] += count
        for node, tasks in self._tasks_by_node(job).items():
            if node in rows:
                points[rows[node]] += min(0, job.topology.affinity(pod.role, tasks, True))
        left = [one for one in bucket.pending if one.key not in placed]
        return points + _that_fit(pod, left, nodes)

    def _tasks_by_node(self, job: TaskBuckets) -> Mapping[str, Counter[str]]:
        """Return how many pods of each task of the job every node has."""
        found: dict[str, Counter[str]] = {}
        for key in job.of:
            placed = self.handle.snapshot.placed.get(key)
            if placed is not None:
                found.setdefault(placed[1], Counter())[placed[0].role] += 1
        return found


def _keys(bucket: Bucket) -> Iterator[str]:
    yield from bucket.bound
    yield from (pod.key for pod in bucket.pending)


def _node(placed: Mapping[str, tuple[PodInfo, str]], key: str) -> str | None:
    found = placed.get(key)
    return found[1] if found is not None else None


def _that_fit(pod: PodInfo, left: Sequence[PodInfo], nodes: NodeView) -> IntColumn:
    """Return how many pods that are left of a bucket each node takes, the pod among them.

    The last ones are left out first; 0 where the pod itself does not fit.
    """
    own = requested(pod)
    others = [one for one in left if one.key != pod.key]
    names = {*own, *(name for one in others for name in one.requests)}
    free = {name: nodes.free(name) for name in names}
    needed = Counter(own)
    for one in others:
        needed.update(requested(one))
    count = np.full(len(nodes), 1 + len(others), dtype=np.int64)
    while others and not (fits := _fits(free, needed)).all():
        needed.subtract(requested(others.pop()))
        count -= ~fits
    return np.where(_fits(free, own), count, 0)


def _fits(free: Mapping[str, IntColumn], needed: Mapping[str, int]) -> BoolColumn:
    fits: BoolColumn = np.logical_and.reduce(
        [free[name] >= amount for name, amount in needed.items() if amount]
    )
    return fits
