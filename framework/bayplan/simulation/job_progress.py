"""The work of jobs that fail and go on: what they get done, what they lose, how long they stand.

A job of several pods works only while enough of them run at once, as training that synchronizes
after each step does. When one of them ends before its time, or its node is lost, the job falls back
to its last checkpoint. It goes on once it is whole again and has restarted, and it ends when all of
its work is done. Its other pods need not be made again for that: their containers restart.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import Enum
from functools import partial

import msgspec
from msgspec.structs import replace

from bayplan.api import Pod
from bayplan.api.object_key import controller_key
from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.dialects.progress import EVICTION_NOTICE
from bayplan.gangs.completeness import has_minimum, missing_role
from bayplan.inputs.durations import stated_duration
from bayplan.scheduler.scheduler import Scheduler
from bayplan.simulation.faults import Faults
from bayplan.snapshot import PodInfo

__all__ = ["Interruption", "Job", "JobProgress", "JobState"]

_INDEX = "batch.kubernetes.io/job-completion-index"
_CLOSE = 1e-6
"""Seconds by which times may differ and count as equal."""


class JobState(Enum):
    """What a job does with what it holds."""

    WORKS = "works"
    RESTARTS = "restarts"
    """It is whole, and loads its checkpoint."""
    WAITS = "waits"
    """It is not whole."""


class Interruption(msgspec.Struct):
    """A job that stopped working: when, whether for a fault, and when it worked again (seconds)."""

    at: float
    by_fault: bool
    over_at: float | None = None


class _Member(msgspec.Struct, frozen=True):
    """A pod that holds a node: how many GPUs, for how long it works, and whether it runs.

    ``weight`` is 0 on a node that has failed. ``base`` is how far its job was when its own work
    began, in seconds.
    """

    pod: PodInfo
    weight: int
    duration: float | None
    runs: bool
    base: float


class Job(msgspec.Struct, eq=False):
    """A gang, or a pod of its own.

    ``part`` has the pods that take part in the work, by uid, with their GPUs, and ``weights`` how
    many GPUs these had from which time on in this run. ``done`` are the seconds of work that
    checkpoints of earlier runs keep. It works ``since`` a time, which is later than now while it
    restarts; None where it does not. ``run`` counts its starts and stops. ``bases`` are those of
    pods that were lost, for the next ones.
    """

    key: str
    members: dict[str, _Member] = msgspec.field(default_factory=dict)
    part: dict[str, int] = msgspec.field(default_factory=dict)
    weights: list[tuple[float, int]] = msgspec.field(default_factory=list)
    bases: list[float] = msgspec.field(default_factory=list)
    done: float = 0.0
    since: float | None = None
    run: int = 0
    succeeded: int = 0
    stopped: Interruption | None = None
    noticed: set[str] = msgspec.field(default_factory=set)
    """The pods, by uid, that had notice of their eviction, so that they saved their work."""

    def progress(self, now: float) -> float:
        """Return how many seconds of work are done."""
        return self.done + (max(0.0, now - self.since) if self.since is not None else 0.0)

    def worth(self, begin: float, now: float) -> float:
        """Return the work from a time of this run on, in GPUs (thousandths) times seconds."""
        ends = [*(at for at, _ in self.weights[1:]), now]
        spans = zip(self.weights, ends, strict=False)
        return sum(weight * max(0.0, end - max(at, begin)) for (at, weight), end in spans)

    def state(self, now: float) -> JobState:
        """Return what it does now."""
        if self.since is None:
            return JobState.WAITS
        return JobState.WORKS if self.since <= now else JobState.RESTARTS


class JobProgress:
    """Follows the jobs of a simulation, and ends their pods when their work is done.

    :param finish: lets a pod succeed, by its key and uid.
    """

    def __init__(
        self,
        cluster: MemoryCluster,
        scheduler: Scheduler,
        faults: Faults,
        finish: Callable[[str, str], None],
    ) -> None:
        self._cluster = cluster
        self._scheduler = scheduler
        self._faults = faults
        self._finish = finish
        self._jobs: dict[str, Job] = {}
        self._job_of: dict[str, Job] = {}
        self._orphans: dict[str, list[Job]] = {}
        """The work of pods that are gone, for the next pods of their controller."""
        self._hit: set[str] = set()
        self._left: set[str] = set()
        """The pods, by uid, whose work is there for the next ones already."""
        self.interruptions: list[Interruption] = []
        self.holding = dict.fromkeys(JobState, 0)
        """How many GPUs (thousandths) jobs hold that do each of these now."""
        self._counted: dict[Job, dict[JobState, int]] = {}
        self.lost = 0.0
        """The work that was lost, in GPUs (thousandths) times seconds."""

    def hit(self, uid: str) -> None:
        """Note that a fault hits a pod: what its job loses then is not the scheduler's doing."""
        self._hit.add(uid)

    def job_of(self, uid: str) -> Job | None:
        """Return the job of a pod that holds a node."""
        return self._job_of.get(uid)

    # Which pods it has ---------------------------------------------------------------------------

    def put(self, pod: Pod, weight: int, is_up: bool) -> Job | None:
        """Take in a pod that holds a node, or its new version; return its job.

        :param weight: how many GPUs it holds, in thousandths.
        :param is_up: whether its node is.
        """
        uid = pod.metadata.uid
        info = self._scheduler.snapshot.living.get(pod.key)
        if info is None or info.uid != uid:
            return self._job_of.get(uid)
        job = self._job_of.get(uid) or self._joined(info)
        self._job_of[uid] = job
        runs = is_up and pod.status.phase == "Running" and not pod.metadata.deletion_timestamp
        duration = stated_duration(pod.metadata.annotations, None)
        if EVICTION_NOTICE in pod.metadata.annotations:
            job.noticed.add(uid)
        known = job.members.get(uid)
        base = known.base if known is not None else self._base_for(job)
        job.members[uid] = _Member(info, weight if is_up else 0, duration, runs, base)
        if pod.metadata.deletion_timestamp and uid not in self._left:
            # The next pod may come before this one has ended.
            self._left.add(uid)
            self._leave(job, job.members[uid])
        return job

    def take_out(self, uid: str) -> Job | None:
        """Take out a pod that holds nothing any more; return its job."""
        job = self._job_of.pop(uid, None)
        member = job.members.pop(uid, None) if job is not None else None
        if job is None or member is None:
            return job
        ended = self._cluster.get(Pod, member.pod.key)
        if ended is not None and ended.metadata.uid == uid and ended.status.phase == "Succeeded":
            job.succeeded += 1
            job.part.pop(uid, None)
        elif uid not in self._left:
            self._leave(job, member)
        self._left.discard(uid)
        return job

    def _leave(self, job: Job, member: _Member) -> None:
        """Leave a pod's work to the next ones."""
        job.bases.append(member.base)
        if _is_interchangeable(member.pod):
            owner = controller_key(member.pod.pod.metadata)
            self._orphans.setdefault(owner, []).append(job)

    def _base_for(self, job: Job) -> float:
        """Return where a new pod's work begins: where that of one that was lost did, or here."""
        return job.bases.pop(0) if job.bases else job.progress(self._cluster.now)

    def _joined(self, pod: PodInfo) -> Job:
        """Return the job of a pod that holds a node for the first time."""
        owner = controller_key(pod.pod.metadata)
        key = pod.gang or (pod.key if owner else pod.uid)
        if _is_interchangeable(pod) and self._orphans.get(owner):
            job = self._orphans[owner].pop(0)
            self._jobs.pop(job.key, None)
            job.key = key
            return self._jobs.setdefault(key, job)
        if pod.gang is None and _INDEX in pod.pod.metadata.annotations:
            key = f"{owner}#{pod.pod.metadata.annotations[_INDEX]}"
        return self._jobs.setdefault(key, Job(key))

    # What becomes of it --------------------------------------------------------------------------

    def reconsider(self, job: Job) -> None:
        """Stop or start a job whose pods have changed."""
        running = {uid: member.weight for uid, member in job.members.items() if member.runs}
        gone = job.part.keys() - running.keys()
        if job.since is not None and gone:
            self._stop(job, gone)
        if job.since is None and running and self._is_whole(job, running):
            self._start(job)
        if job.since is not None:
            for uid in running.keys() - job.part.keys():
                self._plan_end(job, uid)
            if running != job.part or not job.weights:
                job.weights.append((self._cluster.now, sum(running.values())))
            job.part = running
        if not job.part:
            # Nothing is left that works.
            job.since = None
        if not job.members and job.stopped is None:
            self._jobs.pop(job.key, None)
        self._count(job)

    def _count(self, job: Job) -> None:
        """Count again what a job holds."""
        for state, before in self._counted.pop(job, {}).items():
            self.holding[state] -= before
        if not job.members:
            return
        held = sum(member.weight for member in job.members.values())
        # What ends, or has not started, does not work, whatever the others do.
        active = sum(member.weight for member in job.members.values() if member.runs)
        counted = dict.fromkeys(JobState, 0)
        counted[job.state(self._cluster.now)] += active
        counted[JobState.WAITS] += held - active
        self._counted[job] = counted
        for state, weight in counted.items():
            self.holding[state] += weight

    def _is_whole(self, job: Job, running: Collection[str]) -> bool:
        """Tell whether enough pods of a job run, or have done their part."""
        members = self._scheduler.gangs.all().get(job.key)
        gang = members.gang if members is not None else None
        if gang is None:
            return True
        if not has_minimum(gang, len(running) + job.succeeded):
            return False
        pods = [job.members[uid].pod for uid in running]
        return bool(job.succeeded) or missing_role(gang, pods) is None

    def _start(self, job: Job) -> None:
        job.run += 1
        job.weights = []
        self._hit.difference_update(job.members)
        again = job.stopped is not None
        job.since = self._cluster.now + (self._faults.restart if again else 0.0)
        if again:
            # Somebody may stop it again before.
            self._cluster.clock.call_at(job.since, partial(self._goes_on, job, job.run))

    def _goes_on(self, job: Job, run: int) -> None:
        if job.run == run and job.stopped is not None:
            job.stopped.over_at = self._cluster.now
            job.stopped = None
            self._count(job)

    def _stop(self, job: Job, gone: Collection[str]) -> None:
        """Let a job fall back to its last checkpoint."""
        worked = job.progress(self._cluster.now) - job.done
        every, by_fault = self._faults.checkpoint_every, not self._hit.isdisjoint(gone)
        kept = (worked + _CLOSE) // every * every if every else 0.0
        if job.noticed.issuperset(gone) and not by_fault:
            kept = worked
        if job.since is not None:
            self.lost += job.worth(job.since + kept, self._cluster.now)
        is_counted = any(job.part.values())
        job.done += kept
        # Whoever joined since the checkpoint has done nothing yet.
        job.bases = [min(base, job.done) for base in job.bases]
        for uid, member in job.members.items():
            job.members[uid] = replace(member, base=min(member.base, job.done))
        job.since, job.part = None, {}
        job.run += 1
        if job.stopped is None and is_counted:
            job.stopped = Interruption(self._cluster.now, by_fault)
            self.interruptions.append(job.stopped)

    def _plan_end(self, job: Job, uid: str) -> None:
        """Plan when a pod ends that takes part from now on."""
        duration = job.members[uid].duration
        if duration is not None and job.since is not None:
            due = job.since + max(0.0, job.members[uid].base + duration - job.done)
            self._cluster.clock.call_at(due, partial(self._end, job, job.run, uid))

    def _end(self, job: Job, run: int, uid: str) -> None:
        member = job.members.get(uid)
        if job.run != run or member is None or member.duration is None:
            return
        if job.progress(self._cluster.now) - member.base >= member.duration - _CLOSE:
            self._finish(member.pod.key, uid)


def _is_interchangeable(pod: PodInfo) -> bool:
    """Tell whether any later pod of its controller takes up a pod's work, whatever its name."""
    meta = pod.pod.metadata
    owner = next((one for one in meta.owner_references if one.controller), None)
    if pod.gang is not None or owner is None or owner.kind == "StatefulSet":
        return False
    return _INDEX not in meta.annotations
