"""What others ask of the queues that share the cluster: reports, positions, pending jobs."""

from __future__ import annotations

from collections.abc import Sequence

from bayplan.api import Pod
from bayplan.plugin.base import Unit
from bayplan.queues.report import PendingJob, QueuePosition, QueueReport
from bayplan.scheduler.queued_unit import Place, QueuedUnit
from bayplan.scheduler.state import SchedulerState

__all__ = ["QueueQuestions"]


class QueueQuestions:
    """Answers for all profiles of a scheduler.

    Queues are named ``SYSTEM/NAME``. Every method raises PluginError when a plugin raises.
    """

    def __init__(self, state: SchedulerState) -> None:
        self._state = state

    def reports(self) -> list[QueueReport]:
        """Return what is known of all queues, of all profiles; a queue is reported once."""
        found: dict[tuple[str, str], QueueReport] = {}
        for queueing in self._state.profiles.queueing():
            for report in queueing.reports():
                found.setdefault((report.system, report.name), report)
        return list(found.values())

    def of(self, unit: Unit) -> str | None:
        """Return the queue that a unit belongs to; None for none."""
        queueing = self._state.profiles.queueing_of(unit.pods[0].pod)
        return queueing.queue_of(unit) if queueing is not None else None

    def name_of(self, pod: Pod) -> str:
        """Return the name of a bound pod's queue, without its system; "" for none."""
        info = self._state.snapshot.living.get(pod.key)
        found = self.of(Unit(info.gang or info.key, [info])) if info is not None else None
        return found.partition("/")[2] if found is not None else ""

    def held_back(self, queue: str) -> list[QueuedUnit]:
        """Return the units of a queue that gates hold back, oldest first."""
        units = self._state.queue.units.values()
        gated = [one for one in units if one.place is Place.GATED and one.pods]
        mine = [one for one in gated if self.of(self._state.unit(one)) == queue]
        return sorted(mine, key=lambda one: one.added)

    def position(self, unit: Unit) -> QueuePosition | None:
        """Return where a pending unit stands in its queue; None for a unit without a queue."""
        queueing = self._state.profiles.queueing_of(unit.pods[0].pod)
        return queueing.position(unit) if queueing is not None else None

    def units_of_job(self, kind: str, key: str) -> Sequence[Unit]:
        """Return the pods to come of a job that waits in a queue; none for one that does not."""
        for queueing in self._state.profiles.queueing():
            units = queueing.units_of_job(kind, key)
            if units:
                return units
        return ()

    def jobs(self, queue: str) -> Sequence[PendingJob] | None:
        """Return the jobs that wait for admission to a queue, the next first.

        None where jobs wait as units of the scheduler.
        """
        for queueing in self._state.profiles.queueing():
            jobs = queueing.jobs(queue)
            if jobs is not None:
                return jobs
        return None
