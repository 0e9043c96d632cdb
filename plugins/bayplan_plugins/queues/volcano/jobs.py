"""Jobs as Volcano's plugins see them: a pod group with its pods, or a pod without one.

What a job has follows the snapshot, in trials, too, so that a search for victims sees what is
left of each job.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property

import msgspec
import numpy as np

from bayplan import Handle, PodInfo, Unit
from bayplan.api import PriorityClass, VolcanoPodGroup
from bayplan.api.gang import Gang
from bayplan.dialects import volcano
from bayplan.dialects.reading import share, timestamp
from bayplan.queues.ledger import Ledger
from bayplan.queues.tree import AmountRows

__all__ = ["Job", "Jobs", "task_priority", "widened"]

_DEFAULT_TASK_PRIORITY = 1
_MOST_KNOWN = 100_000


class Job(msgspec.Struct):
    """A job: its pods on nodes by key (``placed``), without those that are terminating.

    ``row`` is that of its queue, None without one. ``allocated`` is what its pods take, None until
    it is asked for.
    """

    key: str
    row: int | None
    placed: dict[str, PodInfo] = msgspec.field(default_factory=dict)
    allocated: AmountRows | None = None


class Jobs:
    """All jobs of one ledger's queues that have pods on nodes; any job can be asked about."""

    def __init__(self, handle: Handle, ledger: Ledger) -> None:
        self._handle = handle
        self._snapshot = handle.snapshot
        self._ledger = ledger
        self._least: dict[str, tuple[object, object, AmountRows]] = {}
        """The ``minResources`` of groups, by key, with what they follow from."""

    @cached_property
    def _jobs(self) -> dict[str, Job]:
        """The jobs by key, followed from the first question on: unused, they cost nothing."""
        jobs: dict[str, Job] = {}
        for pod, _ in self._snapshot.placed.values():
            _count(jobs, pod, True)
        self._snapshot.on_pod(lambda pod, _, placed: _count(jobs, pod, placed))
        return jobs

    # Which jobs --------------------------------------------------------------------------

    def of(self, pod: PodInfo) -> Job:
        """Return the job of a pod; one without pods on nodes is empty."""
        return self.named(pod.gang or pod.key, pod)

    def named(self, key: str, pod: PodInfo | None = None) -> Job:
        """Return a job by key; ``pod`` is any pod of one that has none on nodes."""
        found = self._jobs.get(key)
        if found is not None:
            found.row = self._row(found, pod)
            return found
        return Job(key, self._ledger.row_of(pod) if pod is not None else self._group_row(key))

    def with_pods(self) -> Iterable[Job]:
        """Return the jobs of queues that have pods on nodes."""
        for job in list(self._jobs.values()):
            job.row = self._row(job, None)
            if job.row is not None:
                yield job

    def _row(self, job: Job, pod: PodInfo | None) -> int | None:
        some = next(iter(job.placed.values()), pod)
        return self._ledger.row_of(some) if some is not None else None

    def _group_row(self, key: str) -> int | None:
        group = self.group(key)
        tree = self._ledger.tree
        return tree.row_of.get(group.spec.queue) if group is not None else None

    # Facts -------------------------------------------------------------------------------

    def group(self, key: str) -> VolcanoPodGroup | None:
        """Return a job's pod group."""
        return self._snapshot.objects(VolcanoPodGroup).get(key)

    def groups(self) -> Mapping[str, VolcanoPodGroup]:
        """Return all pod groups."""
        return self._snapshot.objects(VolcanoPodGroup)

    def gang(self, key: str) -> Gang | None:
        """Return a job's gang."""
        return self._handle.gang(key).gang if key in self.groups() else None

    def min_available(self, job: Job) -> int:
        """Return how many pods the job needs to run."""
        group = self.group(job.key)
        return group.spec.min_member if group is not None else 1

    def ready(self, job: Job) -> int:
        """Return how many pods of the job have a node or have succeeded."""
        if job.key not in self.groups():
            return len(job.placed)
        return len(job.placed) + self._handle.gang(job.key).count_ended("Succeeded")

    def priority(self, job: Job, pods: Iterable[PodInfo] = ()) -> int:
        """Return the value of the job's priority class, or the highest priority of its pods."""
        group = self.group(job.key)
        if group is not None and group.spec.priority_class_name:
            found = self._snapshot.objects(PriorityClass).get(group.spec.priority_class_name)
            if found is not None:
                return found.value
        return max((pod.priority for pod in (*job.placed.values(), *pods)), default=0)

    def created(self, key: str) -> float:
        """Return when a job's pod group was made, or its pod, in seconds since 1970."""
        group = self.group(key)
        if group is not None:
            return timestamp(group.metadata.creation_timestamp)
        pod = self._snapshot.living.get(key)
        return timestamp(pod.pod.metadata.creation_timestamp) if pod is not None else 0.0

    def min_resources(self, key: str) -> AmountRows | None:
        """Return what counts of the pod group's ``minResources``, None where it states none."""
        group = self.group(key)
        if group is None or not group.spec.min_resources:
            return None
        tree, stated = self._ledger.tree, group.spec.min_resources
        known = self._least.get(key)
        if known is None or known[0] is not stated or known[1] is not tree:
            if len(self._least) >= _MOST_KNOWN:
                self._least.clear()
            vector = tree.vector(share(volcano.counted(stated)).amounts)
            vector.flags.writeable = False
            known = self._least[key] = (stated, tree, vector)
        return known[2]

    def allocated(self, job: Job) -> AmountRows:
        """Return what the job's pods on nodes take."""
        if job.allocated is None:
            job.allocated = self._ledger.sum_of(job.placed.values())
        return job.allocated

    def gated(self, key: str) -> AmountRows:
        """Return what the job's pods with scheduling gates ask for."""
        if key not in self.groups():
            return self._ledger.sum_of(())
        waiting = self._handle.gang(key).pending.values()
        return self._ledger.sum_of([pod for pod in waiting if volcano.is_gated(pod.pod)])

    def elastic(self, job: Job) -> AmountRows:
        """Return what the job has beyond its ``minResources``."""
        return self.beyond(self.allocated(job), self.min_resources(job.key))

    @staticmethod
    def beyond(allocated: AmountRows, least: AmountRows | None) -> AmountRows:
        """Return the part of amounts that exceeds the least, resource by resource."""
        if least is None:
            return allocated
        width = max(len(allocated), len(least))
        return np.maximum(widened(allocated, width) - widened(least, width), 0.0)

    def surplus(self, job: Job) -> int:
        """Return how many pods the job can lose and still run."""
        return max(0, self.ready(job) - self.min_available(job))

    def key_of(self, unit: Unit) -> str:
        """Return the key of the job that a unit, or a part of one, belongs to."""
        return unit.pods[0].gang or unit.pods[0].key

    # Following ---------------------------------------------------------------------------


def _count(jobs: dict[str, Job], pod: PodInfo, placed: bool) -> None:
    """Count a pod that was placed on a node, or removed from it, in its job."""
    key = pod.gang or pod.key
    job = jobs.get(key)
    if job is not None:
        job.allocated = None
    if not placed:
        if job is not None and job.placed.pop(pod.key, None) is not None and not job.placed:
            del jobs[key]
    elif not pod.terminating:
        if job is None:
            job = jobs[key] = Job(key, None)
        job.placed[pod.key] = pod


def widened(amounts: AmountRows, width: int) -> AmountRows:
    """Return amounts with zeros for the columns that were added since."""
    return amounts if len(amounts) == width else np.pad(amounts, (0, width - len(amounts)))


def task_priority(pod: PodInfo) -> int:
    """Return a pod's priority as Volcano counts it: 1 for a pod that states none."""
    stated = pod.pod.spec.priority
    return _DEFAULT_TASK_PRIORITY if stated is None else stated
