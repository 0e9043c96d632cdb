"""Jobs as the rules of ``fair-share`` see them: their pods, their minimum, when they started."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bayplan import Handle, PodInfo, Unit
from bayplan.api import KaiPodGroup
from bayplan.api.gang import Gang, SubGroup
from bayplan.dialects.reading import timestamp
from bayplan_plugins.queues.fair_share.capacity import is_preemptible

__all__ = ["Job", "Jobs", "PodSet", "pod_order"]

_TASK_PRIORITY = "kai.scheduler/task-priority"
_LAST_START = "kai.scheduler/last-start-timestamp"


def pod_order(pod: PodInfo) -> tuple[object, ...]:
    """Sort key of a job's pods: labelled ones by falling priority, then by age, then by name."""
    label = pod.labels.get(_TASK_PRIORITY, "")
    given = label.lstrip("-").isdigit()
    created = pod.pod.metadata.creation_timestamp or ""
    return (not given, -int(label) if given else 0, created, pod.uid)


@dataclass(frozen=True)
class PodSet:
    """Pods of a job with a minimum of their own: ``active`` hold nodes, ``pending`` wait."""

    name: str
    least: int
    active: Sequence[PodInfo]
    pending: Sequence[PodInfo] = ()

    @property
    def satisfied(self) -> bool:
        """Whether as many pods as needed hold nodes."""
        return len(self.active) >= self.least


@dataclass(frozen=True)
class Job:
    """A pod, or a pod group with its members; ``created`` and ``started`` in seconds since 1970.

    ``pods`` are the members that hold nodes and are not terminating.
    """

    key: str
    queue: str
    pods: Sequence[PodInfo]
    priority: int
    preemptible: bool
    created: float
    started: float
    sets: Sequence[PodSet] = field(default=())
    size: int = 1

    @property
    def is_elastic(self) -> bool:
        """Whether the job runs with fewer pods than it has."""
        return sum(one.least for one in self.sets) < self.size

    @property
    def standing(self) -> int:
        """Return 0 below the minimum, 1 at it, 2 above it."""
        if any(not one.satisfied for one in self.sets):
            return 0
        return 2 if any(len(one.active) > one.least for one in self.sets) else 1

    def order(self) -> tuple[object, ...]:
        """Sort key among the jobs of a queue: the one that is served first, and evicted last."""
        return (-self.priority, self.standing, self.created, self.key)


class Jobs:
    """Looks up jobs by their pods."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def group_of(self, pod: PodInfo) -> KaiPodGroup | None:
        """Return the PodGroup of a pod."""
        if pod.gang is None:
            return None
        groups: Mapping[str, KaiPodGroup] = self._handle.snapshot.objects(KaiPodGroup)
        return groups.get(pod.gang)

    def is_preemptible(self, pod: PodInfo) -> bool:
        """Tell whether the pod's job may be preempted."""
        group = self.group_of(pod)
        said = group.spec.preemptibility if group is not None else None
        return is_preemptible(said, pod.priority)

    def created(self, pod: PodInfo) -> float:
        """Return when the pod's job was created, in seconds since 1970."""
        group = self.group_of(pod)
        meta = group.metadata if group is not None else pod.pod.metadata
        return timestamp(meta.creation_timestamp)

    def job(self, pods: Sequence[PodInfo], queue: str, gone: frozenset[str] = frozenset()) -> Job:
        """Return the job of some of its pods, as it is without those of ``gone``."""
        first = pods[0]
        if first.gang is None:
            active = [pod for pod in pods if pod.key not in gone and self._is_active(pod)]
            sets = [PodSet("", 1, active, [pod for pod in pods if pod not in active])]
            size = len(pods)
        else:
            sets, size = self._sets(first.gang, gone)
            active = [pod for one in sets for pod in one.active]
        starts = [timestamp(pod.pod.status.start_time) for pod in active]
        return Job(
            first.gang or first.key,
            queue,
            sorted(active, key=pod_order),
            first.priority,
            self.is_preemptible(first),
            self.created(first),
            self._last_start(first) or max(starts, default=0.0),
            sets,
            size,
        )

    def _last_start(self, pod: PodInfo) -> float:
        group = self.group_of(pod)
        return timestamp(group.metadata.annotations.get(_LAST_START)) if group is not None else 0.0

    def of_unit(self, unit: Unit, queue: str) -> Job:
        """Return the job of a unit."""
        return self.job(unit.pods, queue)

    def _sets(self, gang_key: str, gone: frozenset[str]) -> tuple[list[PodSet], int]:
        members = self._handle.gang(gang_key)
        everyone = [*(pod for pod, _ in members.bound.values()), *members.pending.values()]
        living = [pod for pod in everyone if not pod.terminating]
        active = [pod for pod in living if self._is_active(pod) and pod.key not in gone]
        held = {pod.key for pod in active}
        pending = [pod for pod in living if pod.key not in held]
        gang = members.gang
        if gang is None:
            return [PodSet("", 1, active, pending)], len(active) + len(pending)
        return pod_sets(gang, active, pending), len(active) + len(pending)

    def _is_active(self, pod: PodInfo) -> bool:
        """Tell whether a pod holds a node, or has one nominated."""
        return not pod.terminating and pod.key in self._handle.snapshot.placed


def pod_sets(gang: Gang, active: Iterable[PodInfo], pending: Iterable[PodInfo]) -> list[PodSet]:
    """Return the pod sets of a gang: its innermost sub-groups, or all of it."""
    here, there = sorted(active, key=pod_order), sorted(pending, key=pod_order)
    parents = {one.parent for one in gang.sub_groups}
    leaves = [one for one in gang.sub_groups if one.name not in parents]
    if not leaves:
        return [PodSet("", gang.min_member, here, there)]
    return [PodSet(one.name, one.size, _members(one, here), _members(one, there)) for one in leaves]


def _members(group: SubGroup, pods: Iterable[PodInfo]) -> list[PodInfo]:
    return [pod for pod in pods if group.selector.matches(pod.labels)]
