"""Which pods a job can lose and still run: by its minimum, its roles' and that of sub-groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from bayplan import PodInfo
from bayplan.api.gang import SubGroup
from bayplan_plugins.queues.volcano.jobs import Job, Jobs

__all__ = ["Surplus"]


class Surplus:
    """What a job has beyond what it needs, as its pods on nodes are now.

    As in volcano-sh/volcano, a role keeps its minimum, and as many sub-groups stay whole as have
    to; one that lacks a pod already may lose others.
    """

    def __init__(self, jobs: Jobs, job: Job) -> None:
        self._left = jobs.surplus(job)
        gang = jobs.gang(job.key)
        self._roles = dict(gang.roles) if gang is not None else {}
        placed = job.placed.values()
        self._of_role = Counter(pod.role for pod in placed)
        groups = gang.sub_groups if gang is not None else ()
        self._groups = [_Groups(one, placed) for one in groups]

    def spares(self, pod: PodInfo) -> bool:
        """Tell whether the job runs without this one of its pods."""
        if not self._left:
            return False
        if self._of_role[pod.role] <= self._roles.get(pod.role, 0):
            return False
        return all(group.spares(pod) for group in self._groups)


class _Groups:
    """The sub-groups that one definition makes of a job's pods."""

    def __init__(self, definition: SubGroup, pods: Iterable[PodInfo]) -> None:
        self._definition = definition
        marks = (self._mark(pod) for pod in pods)
        self._sizes = Counter(mark for mark in marks if mark is not None)
        whole = sum(count >= definition.size for count in self._sizes.values())
        self._to_spare = whole - definition.min_groups

    def spares(self, pod: PodInfo) -> bool:
        """Tell whether enough sub-groups stay whole without a pod."""
        mark = self._mark(pod)
        if mark is None or self._sizes[mark] != self._definition.size:
            return True
        return self._to_spare > 0

    def _mark(self, pod: PodInfo) -> tuple[str, ...] | None:
        """Return the values that tell a pod's sub-group from others; None if it is in none."""
        labels = pod.pod.metadata.labels
        mark = tuple(labels.get(key, "") for key in self._definition.label_keys)
        selected = all(mark) and self._definition.selector.matches(labels)
        return mark if selected else None
