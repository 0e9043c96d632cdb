"""Jobs as the rules of ``fair-share`` see them: their pods, their minimum, when they started."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from bayplan import Handle, PodInfo, Unit
from bayplan.api import KaiPodGroup, Pod
from bayplan.api.gang import Gang, SubGroup
from bayplan.api.podgroup import LAST_START
from bayplan.dialects.kai import preemptibility_of
from bayplan.dialects.reading import timestamp
from bayplan_plugins.queues.kai.capacity import is_preemptible
from bayplan_plugins.shared.moving import started_at

__all__ = ["Job", "Jobs", "Part", "RunningJobs", "has_surplus", "pod_order", "whole_of"]

_TASK_PRIORITY = "kai.scheduler/task-priority"


def pod_order(pod: PodInfo) -> tuple[object, ...]:
    """Sort key of a job's pods: labelled ones by falling priority, then by age, then by name."""
    label = pod.labels.get(_TASK_PRIORITY, "")
    given = label.lstrip("-").isdigit()
    created = pod.pod.metadata.creation_timestamp or ""
    return (not given, -int(label) if given else 0, created, pod.uid)


class Part(msgspec.Struct, frozen=True):
    """A job, or a part of it with a minimum of its own.

    A pod set needs ``least`` of its pods: ``active`` ones hold nodes, ``pending`` ones wait. Any
    other part needs ``least`` of its ``children``.
    """

    name: str
    least: int
    active: Sequence[PodInfo] = ()
    pending: Sequence[PodInfo] = ()
    children: Sequence[Part] = ()

    @property
    def count(self) -> int:
        """How many of its pods hold nodes, or how many of its children have what they need."""
        if self.children:
            return sum(child.satisfied for child in self.children)
        return len(self.active)

    @property
    def satisfied(self) -> bool:
        """Whether it has as many as it needs."""
        return self.count >= self.least

    @property
    def sets(self) -> list[Part]:
        """The pod sets in it."""
        if not self.children:
            return [self]
        return [one for child in self.children for one in child.sets]

    def without(self, gone: frozenset[str]) -> Part:
        """Return the part without some of its active pods, by key."""
        return replace(
            self,
            active=[pod for pod in self.active if pod.key not in gone],
            children=[child.without(gone) for child in self.children],
        )

    def offering(self, ready: Collection[str]) -> Part:
        """Return the part without pending pods that may not be placed yet; ``ready`` by key."""
        return replace(
            self,
            pending=[pod for pod in self.pending if pod.key in ready],
            children=[child.offering(ready) for child in self.children],
        )


class Job(msgspec.Struct, frozen=True):
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
    whole: Part = msgspec.field(default=Part("", 1))
    size: int = 1

    @property
    def sets(self) -> list[Part]:
        """The pod sets, each with a minimum of its own."""
        return self.whole.sets

    @property
    def is_elastic(self) -> bool:
        """Whether the job runs with fewer pods than it has."""
        return sum(one.least for one in self.sets) < self.size

    @property
    def standing(self) -> int:
        """Return 0 below the minimum, 1 at it, 2 above it."""
        if not self.whole.satisfied:
            return 0
        return 2 if has_surplus(self.whole) else 1

    def order(self) -> tuple[object, ...]:
        """Sort key among the jobs of a queue: the one that is served first, and evicted last."""
        return (-self.priority, self.standing, self.created, self.key)


def has_surplus(part: Part) -> bool:
    """Tell whether a part has more than it needs, anywhere in it."""
    return part.count > part.least or any(has_surplus(child) for child in part.children)


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
        if group is not None:
            return is_preemptible(group.spec.preemptibility, pod.priority)
        said = preemptibility_of(pod.labels, pod.owner_settings)
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
            whole = Part("", 1, active, [pod for pod in pods if pod not in active])
            size = len(pods)
        else:
            whole, size = self._whole(first.gang, gone)
            active = [pod for one in whole.sets for pod in one.active]
        starts = [started_at(pod) for pod in active]
        return Job(
            first.gang or first.key,
            queue,
            sorted(active, key=pod_order),
            first.priority,
            self.is_preemptible(first),
            self.created(first),
            self._last_start(first) or min(starts, default=0.0),
            whole,
            size,
        )

    def _last_start(self, pod: PodInfo) -> float:
        group = self.group_of(pod)
        return timestamp(group.metadata.annotations.get(LAST_START)) if group is not None else 0.0

    def of_unit(self, unit: Unit, queue: str) -> Job:
        """Return the job of a unit."""
        return self.job(unit.pods, queue)

    def _whole(self, gang_key: str, gone: frozenset[str]) -> tuple[Part, int]:
        members = self._handle.gang(gang_key)
        everyone = [*(pod for pod, _ in members.bound.values()), *members.pending.values()]
        living = [pod for pod in everyone if not pod.terminating]
        active = [pod for pod in living if self._is_active(pod) and pod.key not in gone]
        held = {pod.key for pod in active}
        pending = [pod for pod in living if pod.key not in held]
        gang = members.gang
        size = len(active) + len(pending)
        return whole_of(gang, active, pending), size

    def _is_active(self, pod: PodInfo) -> bool:
        """Tell whether a pod holds a node, or has one nominated."""
        return not pod.terminating and pod.key in self._handle.snapshot.placed


class RunningJobs:
    """The jobs that hold nodes. One that has not changed is not looked up again."""

    def __init__(self, handle: Handle, jobs: Jobs) -> None:
        self._handle = handle
        self._jobs = jobs
        self._pods: dict[str, dict[str, PodInfo]] = {}
        """The pods that hold nodes and do not leave them, by their key, by that of their job."""
        self._known: dict[str, _Known] = {}
        for pod, node in handle.snapshot.placed.values():
            self._moved(pod, node, True)
        handle.snapshot.on_pod(self._moved)
        handle.snapshot.on_living(self._lives)

    def _moved(self, pod: PodInfo, node: str, placed: bool) -> None:
        key = pod.gang or pod.key
        self._known.pop(key, None)
        if placed and not pod.terminating:
            self._pods.setdefault(key, {})[pod.key] = pod
            return
        pods = self._pods.get(key)
        if pods is not None:
            pods.pop(pod.key, None)
            if not pods:
                del self._pods[key]

    def _lives(self, pod: PodInfo, added: bool) -> None:
        self._known.pop(pod.gang or pod.key, None)

    def preemptible(
        self, queue_of: Callable[[PodInfo], str | None], may_go: Callable[[str, PodInfo], bool]
    ) -> list[Job]:
        """Return the preemptible jobs whose queue, and first pod, may go.

        :param queue_of: returns the queue of a pod, None where it has none that is known.
        """
        found = []
        for key, pods in self._pods.items():
            first = next(iter(pods.values()))
            queue = queue_of(first)
            if queue is not None and may_go(queue, first) and self._jobs.is_preemptible(first):
                found.append(self._job(key, pods, queue))
        return found

    def _job(self, key: str, pods: Mapping[str, PodInfo], queue: str) -> Job:
        first = next(iter(pods.values()))
        gang = self._handle.gang(key).gang if first.gang is not None else None
        group = self._jobs.group_of(first)
        # Also a new status, which may say when a pod started, is another object.
        objects = [pod.pod for pod in pods.values()]
        known = self._known.get(key)
        if known is not None and known.is_of(gang, group, objects) and known.job.queue == queue:
            return known.job
        job = self._jobs.job(list(pods.values()), queue)
        self._known[key] = _Known(gang, group, objects, job)
        return job


class _Known(msgspec.Struct, frozen=True, eq=False):
    """A job, and the objects that it follows from."""

    gang: Gang | None
    group: KaiPodGroup | None
    pods: Sequence[Pod]
    job: Job

    def is_of(self, gang: Gang | None, group: KaiPodGroup | None, pods: Sequence[Pod]) -> bool:
        """Tell whether these are still the same objects."""
        if gang is not self.gang or group is not self.group or len(pods) != len(self.pods):
            return False
        return all(map(operator.is_, pods, self.pods))


def whole_of(gang: Gang | None, active: Iterable[PodInfo], pending: Iterable[PodInfo]) -> Part:
    """Return a gang as the tree of its sub-groups."""
    here, there = sorted(active, key=pod_order), sorted(pending, key=pod_order)
    if gang is None:
        return Part("", 1, here, there)
    if not gang.sub_groups:
        return Part("", gang.min_member, here, there)
    children = _parts(gang, "", here, there)
    return Part("", _needed(gang, ""), children=children)


def _parts(
    gang: Gang, parent: str, active: Sequence[PodInfo], pending: Sequence[PodInfo]
) -> list[Part]:
    parts = []
    for one in gang.sub_groups:
        if one.parent != parent:
            continue
        here, there = _members(one, active), _members(one, pending)
        children = _parts(gang, one.name, here, there)
        if children:
            parts.append(Part(one.name, _needed(gang, one.name), children=children))
        else:
            parts.append(Part(one.name, one.size, here, there))
    return parts


def _needed(gang: Gang, parent: str) -> int:
    """Return how many children of a sub-group have to run."""
    return max((one.min_groups for one in gang.sub_groups if one.parent == parent), default=0)


def _members(group: SubGroup, pods: Iterable[PodInfo]) -> list[PodInfo]:
    return [pod for pod in pods if group.selector.matches(pod.labels)]
