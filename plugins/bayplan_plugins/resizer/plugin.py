"""Resizer: elastic jobs grow into idle capacity, and shrink before anybody is evicted.

A job with the annotation ``bayplan.dev/resize: "true"`` starts at its minimum. Once nothing that
waits can be placed, jobs whose replicas all run get more, as many as would really be placed. When
a unit does not fit, replicas beyond the minimum go, the last ones first; their pods are reported
``notice`` seconds before. A job grows at most every ``growAfter`` seconds, and shrinks no sooner
than ``shrinkAfter`` seconds after its last change.

All that has to survive a restart is in annotations: when a job was resized, when a pod goes.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import msgspec
from pydantic import Field

from bayplan import (
    SKIP,
    Args,
    ClusterEvent,
    Handle,
    NodeView,
    Overdue,
    Plugin,
    PodInfo,
    Preemption,
    Reads,
    Unit,
    hookimpl,
)
from bayplan.api.times import seconds_of
from bayplan.dialects.elastic import RESIZED_ANNOTATION, Mark, Replicas, index_of
from bayplan.dialects.queued_jobs import QUEUE_LABEL
from bayplan.naming import counted
from bayplan.plugin.hookspecs import FloatColumn
from bayplan_plugins.resizer.growth import Growing, grow
from bayplan_plugins.resizer.jobs import ElasticJobs, Replica, State
from bayplan_plugins.resizer.moving import gain_of_moving
from bayplan_plugins.resizer.nearness import Nearness
from bayplan_plugins.resizer.shrinking import Shrinking, shrink_for, shrink_for_quota
from bayplan_plugins.resizer.writes import Writes

__all__ = ["SHRINK", "Resizer", "ResizerArgs"]

SHRINK = "shrink"
"""The action of this plugin: free what jobs have beyond their minimum."""
_MOST_SHRUNK = 32
"""Jobs that are considered to shrink for one unit."""
_NAMED = 3


class ResizerArgs(Args):
    """Arguments of Resizer, in seconds."""

    grow_after: float = Field(default=60.0, ge=0)
    shrink_after: float = Field(default=10.0, ge=0)
    notice: float = Field(default=30.0, ge=0)


class _Round(msgspec.Struct):
    """What one look at all jobs found: those that may grow, and when to look again."""

    growing: list[Growing] = msgspec.field(default_factory=list)
    times: list[float] = msgspec.field(default_factory=list)
    settled: list[State] = msgspec.field(default_factory=list)
    shrinks: bool = False
    """Whether any job gives up replicas now, or is about to."""


class Resizer(Plugin[ResizerArgs]):
    """Grow elastic jobs into idle capacity, and shrink them before anybody is evicted."""

    Args = ResizerArgs
    reads = Reads.CLUSTER
    requeue_on = ClusterEvent.ANY
    actions = ("", SHRINK)
    writes_beside = True

    def __init__(self, args: ResizerArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._jobs = ElasticJobs(handle)
        self._writes = Writes(handle, self._jobs)
        self._nearness = Nearness(handle, self._jobs)
        self._compared: dict[Mark, frozenset[tuple[str, str]]] = {}
        """Where the pods of each job were when it was last found out what moving would gain."""
        self._asked_for_quota = -math.inf
        """When it was last found out what shrinking would do for jobs that wait for quota."""

    # The start ---------------------------------------------------------------------------

    @hookimpl
    def admit(self) -> None:
        """Set jobs that have not started to their minimum."""
        for part in self._jobs.all() if self._jobs else ():
            if self._starts_smaller(part) and not self._writes.is_pending(part):
                self._writes.resize(part, part.size.least, "it starts at its minimum")

    @hookimpl
    def concerns(self, pod: PodInfo) -> bool:
        """Concern pods while there is any job to resize."""
        return bool(self._jobs)

    @hookimpl
    def pre_enqueue(self, pod: PodInfo) -> str | None:
        """Hold back the pods of a job that has to be set to its minimum first."""
        part = self._jobs.part_of(pod)
        if part is None or not self._starts_smaller(part) or self._writes.is_refused(part):
            return None
        return f"its job is set to its minimum of {counted(part.size.least, 'replica')} first"

    def _starts_smaller(self, part: Replicas) -> bool:
        if part.problem or part.size.now <= part.size.least:
            return False
        # What had grown and was suspended again starts from its minimum, too.
        is_new = RESIZED_ANNOTATION not in part.obj.metadata.annotations
        if not (part.waits or (part.active and is_new)):
            return False
        placed = self.handle.snapshot.placed
        return not any(pod.key in placed for pod in self._jobs.pods_of(part))

    # Growing -----------------------------------------------------------------------------

    @hookimpl
    def overdue(self) -> Overdue | None:
        """Remove replicas whose notice is over, and grow jobs, now that nothing else is placed."""
        if not self._jobs:
            return None
        now, found = self.handle.unix_time, _Round()
        for part in self._jobs.all():
            if part.problem:
                self._writes.tell(part, "Warning", "NotResized", part.problem)
            elif part.active and not self._writes.is_pending(part):
                self._look_at(self._jobs.state(part), now, found)
        self._give_up_quota(now, found)
        for job in grow(self.handle, found.growing) if found.growing else ():
            part = job.state.part
            self._writes.resize(part, part.size.now + job.added, "there is idle capacity")
        soonest = min((at for at in found.times if at > now), default=None)
        return Overdue(again=None if soonest is None else self.handle.now + soonest - now)

    def _look_at(self, state: State, now: float, found: _Round) -> None:
        """Do what is due for one job; note whether it may grow, and when it is looked at again."""
        part, size = state.part, state.part.size
        due = state.due(now)
        if due and size.now > size.least:
            left = max(size.least, due[0].index)
            found.shrinks = True
            self._writes.resize(part, left, "others wait for its nodes", due)
            return
        found.times += state.going_at
        if state.going:
            found.shrinks = True
            return
        if size.now > size.most:
            gone = state.replicas[size.most :]
            self._writes.resize(part, size.most, "it has more than its maximum", gone)
        elif state.placed < len(state.replicas) and size.now > size.least:
            self._give_up_unplaced(state, now, found)
        elif state.is_settled:
            found.settled.append(state)
            self._compare(state)
            self._may_grow(state, now, found)

    def _may_grow(self, state: State, now: float, found: _Round) -> None:
        size = state.part.size
        if size.now < size.most:
            ready = 0.0 if state.changed is None else state.changed + self.args.grow_after
            if ready <= now:
                found.growing.append(Growing(state, size.most - size.now))
            else:
                found.times.append(ready)

    def _compare(self, state: State) -> None:
        """Say what the job would gain by moving, once for each change of where it is."""
        placed, part = self.handle.snapshot.placed, state.part
        pods = (pod for one in state.replicas for pod in one.pods)
        where = frozenset((pod.key, placed[pod.key][1]) for pod in pods)
        tree = self._nearness.tree
        if tree is not None and self._compared.get(part.mark) != where:
            self._compared[part.mark] = where
            self._writes.advise(part, gain_of_moving(self.handle, tree, state))

    def _give_up_unplaced(self, state: State, now: float, found: _Round) -> None:
        """Take back the last replicas when they got no nodes: what is idle is others' by now."""
        part, size = state.part, state.part.size
        left = max(size.least, state.placed)
        gone = state.replicas[left:]
        pods = [pod for one in gone for pod in one.pods]
        if any(map(self.handle.is_nominated, pods)):
            # Another scheduler is about to bind them.
            return
        stamps = [pod.pod.metadata.creation_timestamp for pod in pods]
        born = max((seconds_of(stamp) for stamp in stamps), default=now)
        ready = max(born, state.changed or 0.0) + self.args.shrink_after
        if not gone:
            return
        if ready > now:
            found.times.append(ready)
        else:
            self._writes.resize(part, left, "the others have no nodes", gone)

    # Shrinking ---------------------------------------------------------------------------

    @hookimpl
    def may_preempt(self, unit: Unit, action: str) -> bool | None:
        """Tell whether there is any job to shrink; what is beyond a minimum itself waits."""
        return bool(self._jobs) and not self._is_surplus(unit)

    @hookimpl
    def post_filter(self, unit: Unit) -> Preemption | None:
        """Let jobs give up replicas beyond their minimum, if the unit then really fits."""
        if not self._jobs or self._is_surplus(unit):
            return None
        own = {id(part) for part in map(self._jobs.part_of, unit.pods) if part is not None}
        states = [
            self._jobs.state(part)
            for part in self._jobs.all()
            if part.active
            and not part.problem
            and id(part) not in own
            and not self._writes.is_pending(part)
        ]
        may_shrink = sorted(filter(self._may_shrink, states), key=_last_to_keep)[:_MOST_SHRUNK]
        leaving = self._jobs.leaving()
        if not may_shrink and not leaving:
            return None
        found = shrink_for(self.handle, unit, may_shrink, leaving)
        if found is None or not (found.gone or found.leaving):
            return None
        return self._carry_out(unit, found)

    @hookimpl
    def may_give_up(self) -> list[PodInfo]:
        """Return the pods beyond the minimum of jobs in queues, and those that go already."""
        if not self._jobs:
            return []
        found = list(self._jobs.leaving())
        for part in self._jobs.all():
            if part.problem or not part.active or not _is_queued(part):
                continue
            state = self._jobs.state(part)
            if state.going or (state.is_settled and self._may_shrink(state)):
                found += [pod for one in state.surplus for pod in one.pods]
            kept = {pod.key for one in state.replicas for pod in one.pods}
            # Its controller removes what is beyond its size.
            found += [pod for pod in self._jobs.pods_of(part) if pod.key not in kept]
        return found

    def _give_up_quota(self, now: float, found: _Round) -> None:
        """Let jobs shrink for one that waits for quota which they have beyond their minimum."""
        states = [one for one in found.settled if _is_queued(one.part) and self._may_shrink(one)]
        if not states or found.shrinks:
            return
        next_time = self._asked_for_quota + self.args.shrink_after
        if now < next_time:
            found.times.append(next_time)
            return
        self._asked_for_quota = now
        states = sorted(states, key=_last_to_keep)[:_MOST_SHRUNK]
        search = shrink_for_quota(self.handle, states, self._jobs.leaving())
        if search is not None:
            job, gone = search
            found.times += self._announce(gone, job)

    def _may_shrink(self, state: State) -> bool:
        snapshot, handle = self.handle.snapshot, self.handle
        pods = [pod for one in state.surplus for pod in one.pods]
        return bool(pods) and all(
            pod.spec.node_name and pod.key in snapshot.placed and not handle.is_nominated(pod)
            for pod in pods
        )

    def _carry_out(self, unit: Unit, found: Shrinking) -> Preemption:
        self._announce(found.gone, unit.key)
        jobs = [f"{state.part.key} by {len(replicas)}" for state, replicas in found.gone]
        names = ", ".join(jobs[:_NAMED])
        if len(jobs) > _NAMED:
            names += f" and {len(jobs) - _NAMED} more"
        what = f"shrinking {names}" if jobs else "what leaves already"
        message = f"{SHRINK}: {what} frees capacity."
        pods = [*found.pods, *found.leaving]
        leaving = frozenset(pod.key for pod in pods)
        reason = f"its job gives up replicas beyond its minimum for {unit.key}"
        return Preemption(pods, found.nodes, message, leaving=leaving, reason=reason)

    def _announce(self, gone: Sequence[tuple[State, Sequence[Replica]]], who: str) -> list[float]:
        """Tell pods when they go, and jobs for whom; return these times, in seconds since 1970."""
        times = []
        for state, replicas in gone:
            now, changed = self.handle.unix_time, state.changed or 0.0
            at = max(now + self.args.notice, changed + self.args.shrink_after)
            self._writes.give_notice([pod for one in replicas for pod in one.pods], at)
            text = f"{counted(len(replicas), 'replica')} will go for {who}"
            self._writes.tell(state.part, "Normal", "Shrinking", text)
            times.append(at)
        return times

    def _is_surplus(self, unit: Unit) -> bool:
        """Tell whether all pods of a unit are beyond the minimum of their jobs."""
        return all(self._is_beyond(pod) for pod in unit.pods)

    def _is_beyond(self, pod: PodInfo) -> bool:
        part = self._jobs.part_of(pod)
        if part is None:
            return False
        if part.indexed:
            index = index_of(pod.pod.metadata)
            return index is not None and index >= part.size.least
        placed = self.handle.snapshot.placed
        running = sum(one.key in placed for one in self._jobs.pods_of(part))
        return running >= part.size.least * max(1, part.pods_each)

    # Topology ----------------------------------------------------------------------------

    @hookimpl
    def sign(self, pod: PodInfo) -> Hashable:
        """Sign by the job."""
        part = self._jobs.part_of(pod)
        return None if part is None else part.mark

    @hookimpl
    def pre_score(self, pod: PodInfo) -> object:
        """Skip pods of other jobs, and clusters without a network."""
        return None if self._nearness.applies(pod) else SKIP

    @hookimpl
    def score(self, pod: PodInfo, nodes: NodeView) -> FloatColumn:
        """Score nodes by how near they are, in the network, to the other pods of the job."""
        return nodes.pick(self._nearness.scores(pod))


def _is_queued(part: Replicas) -> bool:
    return QUEUE_LABEL in part.obj.metadata.labels


def _last_to_keep(state: State) -> tuple[object, ...]:
    """Order jobs that shrink: the lowest priority, then the largest part of its growth first."""
    size = state.part.size
    share = (size.now - size.least) / max(1, size.most - size.least)
    return (state.priority, -share, state.part.key, state.part.part)
