"""Growth into idle capacity: how many more replicas of which jobs would get nodes now.

Replicas are tried one at a time in a trial on the snapshot, with all plugins of the profile, their
queues' limits among them. The job of the highest priority gets the next replica; of equal ones that
whose queue uses the least of what it deserves, then the one that has the least of its growth.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import msgspec

from bayplan import Handle, PodInfo, Unit
from bayplan.api import ObjectMeta, Pod
from bayplan_plugins.resizer.jobs import State

__all__ = ["Growing", "grow"]

_MOST_AT_ONCE = 64
"""Replicas that are tried in one go; the rest follows."""


class Growing(msgspec.Struct, eq=False):
    """A job that may grow, and by how much so far.

    :param most: how many replicas it may still get.
    """

    state: State
    most: int
    added: int = 0
    queue: str = ""
    unit: Unit | None = None

    @property
    def name(self) -> tuple[str, ...]:
        """What orders jobs that are alike."""
        part = self.state.part
        return part.kind, part.key, part.part

    @property
    def share(self) -> float:
        """How much of its growth it has, from 0 to 1."""
        size = self.state.part.size
        return (size.now + self.added - size.least) / max(1, size.most - size.least)


def grow(handle: Handle, jobs: Sequence[Growing]) -> list[Growing]:
    """Return the jobs that grow, with how many replicas each gets.

    :param jobs: those that may; each has a replica with pods.
    """
    left, shares = list(jobs), _Shares(handle)
    with handle.snapshot.trial():
        for _ in range(_MOST_AT_ONCE):
            job = _next(handle, left, shares)
            if job is None:
                break
            if job.unit is not None and _place(handle, job.unit):
                job.added += 1
                shares.add(job.queue, job.unit)
                job.unit = None
                if job.added >= job.most:
                    left.remove(job)
            else:
                left.remove(job)
    return [job for job in jobs if job.added]


def _next(handle: Handle, jobs: Sequence[Growing], shares: _Shares) -> Growing | None:
    """Return the job whose replica is tried next."""
    for job in jobs:
        if job.unit is None:
            job.unit = handle.unit(_next_replica(job))
            job.queue = _queue_of(handle, job.unit)
    highest = max((job.state.priority for job in jobs), default=0)
    first = [job for job in jobs if job.state.priority == highest]
    return min(first, key=lambda job: (shares.of(job.queue), job.share, job.name), default=None)


def _queue_of(handle: Handle, unit: Unit) -> str:
    return (handle.queueing.queue_of(unit) if handle.queueing is not None else None) or ""


class _Shares:
    """What queues use of what they deserve, with the replicas that were added so far."""

    def __init__(self, handle: Handle) -> None:
        reports = handle.queueing.reports() if handle.queueing is not None else ()
        self._reports = {f"{report.system}/{report.name}": report for report in reports}
        self._added: dict[str, Counter[str]] = {}

    def add(self, queue: str, unit: Unit) -> None:
        """Count a replica for its queue and the queues above it."""
        system = queue.partition("/")[0]
        while queue in self._reports:
            added = self._added.setdefault(queue, Counter())
            for pod in unit.pods:
                added.update(pod.requests)
            queue = f"{system}/{self._reports[queue].parent}"

    def of(self, queue: str) -> tuple[float, ...]:
        """Return the shares of a queue and those above it, the outermost first."""
        found: list[float] = []
        system = queue.partition("/")[0]
        while queue in self._reports:
            report, added = self._reports[queue], self._added.get(queue, Counter[str]())
            parts = [
                (one.used + added[name]) / one.deserved
                for name, one in report.resources.items()
                if 0 < one.deserved < math.inf
            ]
            found.append(max(parts, default=0.0) / max(report.weight, 1e-9))
            queue = f"{system}/{report.parent}"
        return tuple(reversed(found))


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
        found.append(pod.changed(Pod(made, spec)))
    return found
