"""What is known of one queue: its place in the tree, and why each job in its line waits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from bayplan.errors import InputError, did_you_mean
from bayplan.explain.waits import waited
from bayplan.queues.report import PendingJob, QueueReport
from bayplan.scheduler.queued_unit import QueuedUnit
from bayplan.scheduler.scheduler import Scheduler

__all__ = ["QueueDetail", "find_queue", "queue_detail", "queues_json", "some_queues"]


class QueueDetail(msgspec.Struct, frozen=True):
    """A queue with its ancestors (its parent first), its children and its waiting jobs."""

    queue: QueueReport
    ancestors: Sequence[QueueReport]
    children: Sequence[QueueReport]
    line: Sequence[PendingJob]

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {
            "queue": self.queue.as_json(),
            "ancestors": [one.as_json() for one in self.ancestors],
            "children": [one.as_json() for one in self.children],
            "line": [msgspec.structs.asdict(one) for one in self.line],
        }


def queues_json(at: float, reports: Iterable[QueueReport]) -> dict[str, Any]:
    """Return all queues as one JSON object; ``at`` is the cluster's time in seconds."""
    return {"at": round(at, 3), "queues": [one.as_json() for one in reports]}


def some_queues(scheduler: Scheduler) -> list[QueueReport]:
    """Return the reports of all queues.

    :raises InputError: when there are none.
    """
    reports = scheduler.queues.reports()
    if not reports:
        raise InputError("there is no queue: neither an object nor a profile defines any")
    return reports


def find_queue(reports: Sequence[QueueReport], name: str) -> QueueReport:
    """Return a queue by ``NAME`` or ``SYSTEM/NAME``.

    :raises InputError: when there is none, or several systems have one of that name.
    """
    found = [one for one in reports if name in (one.name, f"{one.system}/{one.name}")]
    if len(found) > 1:
        names = " or ".join(f"{one.system}/{one.name}" for one in found)
        raise InputError(
            f'there is no queue "{name}" alone, several systems have one: ask for {names}'
        )
    if not found:
        near = did_you_mean(name, {one.name for one in reports})
        raise InputError(f'there is no queue "{name}"{near}')
    return found[0]


def queue_detail(scheduler: Scheduler, name: str) -> QueueDetail:
    """Return what is known of a queue.

    :param name: ``NAME`` or ``SYSTEM/NAME``.
    :raises InputError: as ``find_queue`` and ``some_queues`` do.
    """
    reports = some_queues(scheduler)
    queue = find_queue(reports, name)
    own = {one.name: one for one in reports if one.system == queue.system}
    ancestors: list[QueueReport] = []
    above = own.get(queue.parent)
    while above is not None and above not in ancestors:
        ancestors.append(above)
        above = own.get(above.parent)
    children = [own[child] for child in queue.children if child in own]
    return QueueDetail(queue, ancestors, children, _line(scheduler, queue))


def _line(scheduler: Scheduler, queue: QueueReport) -> list[PendingJob]:
    """Return the jobs of a queue: those in the line in order, then those that are held back."""
    name = f"{queue.system}/{queue.name}"
    admitted = scheduler.queues.jobs(name)
    if admitted is not None:
        return list(admitted)
    waiting = [_job(scheduler, one, at) for at, one in enumerate(scheduler.queue.pending(name), 1)]
    return waiting + [_job(scheduler, one, 0) for one in scheduler.queues.held_back(name)]


def _job(scheduler: Scheduler, queued: QueuedUnit, place: int) -> PendingJob:
    decision = scheduler.decisions.get(queued.key)
    why = decision.message if decision is not None else ""
    if place == 0:
        why = next((reason for _, reason in queued.gated.values()), why)
    priority = max(pod.priority for pod in queued.pods.values())
    waits = waited(scheduler, queued.key, queued.pods.values())
    return PendingJob(queued.key, place, len(queued.pods), priority, waits, why)
