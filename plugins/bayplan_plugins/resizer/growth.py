"""Growth into idle capacity: how many more replicas of which jobs would get nodes now.

Replicas are tried one at a time in a trial on the snapshot, with all plugins of the profile, their
queues' limits among them. The job of the highest priority gets the next replica; of equal ones that
whose queue is next by its policy, then the one that has the least of its growth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from bayplan import Handle, PodInfo, Unit
from bayplan.api import ObjectMeta, Pod
from bayplan_plugins.resizer.jobs import State

__all__ = ["Growing", "grow"]

_MOST_AT_ONCE = 64
"""Replicas that are tried in one go; the rest follows."""


@dataclass(eq=False)
class Growing:
    """A job that may grow, and by how much so far.

    :param most: how many replicas it may still get.
    """

    state: State
    most: int
    added: int = 0
    queue: str = ""
    unit: Unit | None = field(default=None, repr=False)

    @property
    def share(self) -> float:
        """How much of its growth it has, from 0 to 1."""
        size = self.state.part.size
        return (size.now + self.added - size.least) / max(1, size.most - size.least)


def grow(handle: Handle, jobs: Sequence[Growing]) -> list[Growing]:
    """Return the jobs that grow, with how many replicas each gets.

    :param jobs: those that may; each has a replica with pods.
    """
    left = list(jobs)
    with handle.snapshot.trial():
        for _ in range(_MOST_AT_ONCE):
            job = _next(handle, left)
            if job is None:
                break
            if job.unit is not None and _place(handle, job.unit):
                job.added += 1
                job.unit = None
                if job.added >= job.most:
                    left.remove(job)
            else:
                left.remove(job)
    return [job for job in jobs if job.added]


def _next(handle: Handle, jobs: Sequence[Growing]) -> Growing | None:
    """Return the job whose replica is tried next."""
    if not jobs:
        return None
    for job in jobs:
        if job.unit is None:
            job.unit = handle.unit(_next_replica(job))
            job.queue = _queue_of(handle, job.unit)
    highest = max(job.state.priority for job in jobs)
    first = [job for job in jobs if job.state.priority == highest]
    heads: dict[str, Growing] = {}
    for job in sorted(first, key=lambda one: (one.share, one.state.part.key, one.state.part.part)):
        heads.setdefault(job.queue, job)
    if len(heads) > 1:
        units = {name: job.unit for name, job in heads.items() if job.unit is not None}
        queue = _next_queue(handle, units)
        if queue is not None:
            return heads[queue]
    return min(heads.values(), key=lambda one: one.share)


def _queue_of(handle: Handle, unit: Unit) -> str:
    for call in handle.hook("queue_of"):
        queue: str | None = call(unit)
        if queue is not None:
            return queue
    return ""


def _next_queue(handle: Handle, heads: Mapping[str, Unit]) -> str | None:
    for call in handle.hook("next_queue"):
        queue: str | None = call(heads, "")
        if queue is not None:
            return queue
    return None


def _place(handle: Handle, unit: Unit) -> bool:
    """Place all pods of a unit within the running trial; leave none there if one does not fit."""
    snapshot = handle.snapshot
    for candidate in handle.offers(unit).candidates:
        with snapshot.trial() as trial:
            nodes = handle.place(unit, candidate)
            if nodes is not None and len(nodes) == len(unit.pods):
                trial.keep()
                return True
    return False


def _next_replica(job: Growing) -> list[PodInfo]:
    """Return the pods that one more replica would have: like those of the last one."""
    number = job.state.part.size.now + job.added
    like = job.state.replicas[-1].pods
    each = max(1, job.state.part.pods_each)
    found = []
    for at in range(each):
        pod = like[at % len(like)]
        meta = pod.pod.metadata
        # Kubernetes gives no pod a name with a colon.
        made = ObjectMeta(
            name=f"{job.state.part.obj.metadata.name}:{number}:{at}",
            namespace=meta.namespace,
            labels=meta.labels,
            annotations=meta.annotations,
            owner_references=meta.owner_references,
        )
        spec = msgspec.structs.replace(pod.spec, node_name="")
        found.append(PodInfo(Pod(made, spec), pod.inherited))
    return found
