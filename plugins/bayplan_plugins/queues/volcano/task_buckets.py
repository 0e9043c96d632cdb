"""The buckets of a Volcano job: the pods of tasks that belong on one node, and their order.

Rules: volcano-sh/volcano, pkg/scheduler/plugins/task-topology. Pods on nodes are a bucket for each
node; a pending pod joins the bucket with most affinity to its task, among equals the one that
requests least, or starts one where all have more to avoid than to be near.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from bayplan import Handle, PodInfo
from bayplan.api import VolcanoPodGroup
from bayplan.dialects.volcano_tasks import TaskTopology, task_topology_of
from bayplan.gangs.directory import GangMembers
from bayplan.naming import natural_key

__all__ = ["Bucket", "JobBuckets", "TaskBuckets", "buckets_of"]

_UNCOUNTED = 1000
"""In which parts Volcano counts what is neither CPU, memory nor pods."""
_MOST_KEPT = 4096


class Bucket(msgspec.Struct, eq=False):
    """Pods that belong on one node: ``pending`` in order, ``bound`` with a node each."""

    place: int
    pending: list[PodInfo] = msgspec.field(default_factory=list)
    bound: dict[str, str] = msgspec.field(default_factory=dict)
    tasks: Counter[str] = msgspec.field(default_factory=Counter)
    load: float = 0.0

    @property
    def size(self) -> int:
        """How many pods it has."""
        return len(self.pending) + len(self.bound)


class TaskBuckets(msgspec.Struct, frozen=True, eq=False):
    """The buckets of one job, as its pods are now; ``of`` has those of pods, by key.

    ``problem`` says that the topology cannot be read; then it has no effect.
    """

    topology: TaskTopology
    of: Mapping[str, Bucket]
    problem: str = ""

    @property
    def largest(self) -> int:
        """How many pods the largest bucket has."""
        return max((bucket.size for bucket in self.of.values()), default=0)

    def order(self, pod: PodInfo) -> tuple[float, ...]:
        """Return the key of a pod among those of its job: bucket by bucket, the largest first."""
        bucket = self.of.get(pod.key)
        if bucket is None:
            return (1.0, 0.0, 0.0, 0.0, 0.0)
        topology, task = self.topology, pod.role
        own = (-topology.rank.get(task, 0), -topology.priority.get(task, 0))
        return (0.0, -float(len(bucket.pending)), float(bucket.place), *map(float, own))


class JobBuckets:
    """The buckets of jobs, made again when a job's pods or its PodGroup changed.

    Pods that the running cycle places are pending here: what they change is the cycle's own.
    """

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._known: dict[str, tuple[VolcanoPodGroup, int, TaskBuckets | None]] = {}

    def of(self, pod: PodInfo) -> TaskBuckets | None:
        """Return the buckets of a pod's job; None where its PodGroup states no topology."""
        if pod.gang is None:
            return None
        group = self._handle.snapshot.objects(VolcanoPodGroup).get(pod.gang)
        if group is None or not group.metadata.annotations:
            return None
        members = self._handle.gang(pod.gang)
        known = self._known.get(pod.gang)
        if known is None or known[0] is not group or known[1] != members.version:
            if len(self._known) >= _MOST_KEPT:
                self._known.clear()
            known = self._known[pod.gang] = (group, members.version, _of_job(group, members))
        return known[2]


def _of_job(group: VolcanoPodGroup, members: GangMembers) -> TaskBuckets | None:
    pending = list(members.pending.values())
    bound = list(members.bound.values())
    tasks = {pod.role for pod in (*pending, *(pod for pod, _ in bound))}
    try:
        topology = task_topology_of(group.metadata.annotations, tasks)
    except ValueError as exc:
        where = f"PodGroup {group.metadata.namespace}/{group.metadata.name}"
        return TaskBuckets(TaskTopology(frozenset(), frozenset()), {}, f"{where}: {exc}")
    return None if topology is None else TaskBuckets(topology, buckets_of(topology, pending, bound))


def buckets_of(
    topology: TaskTopology,
    pending: Iterable[PodInfo],
    bound: Iterable[tuple[PodInfo, str]],
) -> Mapping[str, Bucket]:
    """Return the bucket of each pod whose task has a topology, by the pod's key."""
    buckets: list[Bucket] = []
    found: dict[str, Bucket] = {}
    by_node: dict[str, Bucket] = {}

    def new() -> Bucket:
        buckets.append(Bucket(len(buckets)))
        return buckets[-1]

    for pod, node in sorted(bound, key=lambda one: one[1]):
        if pod.role in topology.priority:
            bucket = by_node[node] if node in by_node else by_node.setdefault(node, new())
            bucket.bound[pod.key] = node
            bucket.tasks[pod.role] += 1
            found[pod.key] = bucket
    known = [pod for pod in pending if pod.role in topology.priority]
    for pod in sorted(known, key=lambda pod: _first(topology, pod)):
        bucket = _best(topology, pod.role, buckets) or new()
        bucket.pending.append(pod)
        bucket.tasks[pod.role] += 1
        bucket.load += _load(pod)
        found[pod.key] = bucket
    return found


def _first(topology: TaskTopology, pod: PodInfo) -> tuple[object, ...]:
    task = pod.role
    return (-topology.rank.get(task, 0), -topology.priority[task], natural_key(pod.name))


def _best(topology: TaskTopology, task: str, buckets: Iterable[Bucket]) -> Bucket | None:
    """Return the bucket that a pod of a task joins, None for one of its own."""
    best: Bucket | None = None
    most = -math.inf
    for bucket in buckets:
        affinity = topology.affinity(task, bucket.tasks)
        if best is None or affinity > most or (affinity == most and bucket.load < best.load):
            best, most = bucket, affinity
    return best if most >= 0 else None


def _load(pod: PodInfo) -> float:
    """Return what a pod requests as one number: a thousandth of a CPU or GPU is as much as 1Mi."""
    requests = dict(pod.requests)
    load = requests.pop("cpu", 0) + requests.pop("memory", 0) / 2**20
    return load + sum(requests.values()) * _UNCOUNTED + 1
