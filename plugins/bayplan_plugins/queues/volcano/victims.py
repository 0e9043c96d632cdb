"""Who may go for a job, and in what order: reclaim from other queues, preempt in the same one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from bayplan import PodInfo
from bayplan.dialects import may_be_evicted
from bayplan_plugins.queues.policy import Moves, Step
from bayplan_plugins.queues.volcano.jobs import Job
from bayplan_plugins.queues.volcano.session import Claimant, Session, Victim
from bayplan_plugins.queues.volcano.surplus import Surplus
from bayplan_plugins.queues.volcano.tiers import Tiers

__all__ = ["VolcanoPlan", "plan_for"]

_VOTES = {
    "preempt": "preemptable",
    "reclaim": "reclaimable",
    "gangpreempt": "preemptable",
    "gangreclaim": "reclaimable",
}


def plan_for(
    session: Session, tiers: Tiers, claimant: Claimant, action: str
) -> VolcanoPlan | str | None:
    """Return how an action preempts for a claimant; a text says why it may not.

    :param action: preempt, reclaim, gangpreempt or gangreclaim.
    """
    job, pending = claimant.job, len(claimant.pods)
    if not tiers.starving(job, pending):
        return "the job has the pods that it needs"
    if any(pod.pod.spec.preemption_policy == "Never" for pod in claimant.pods):
        return "its preemptionPolicy is Never"
    within = _VOTES[action] == "preemptable"
    queue = session.tree.name(claimant.row)
    if not within:
        if tiers.overused(claimant.row):
            return f'queue "{queue}" has what it deserves'
        if not tiers.preemptive(claimant):
            return f'queue "{queue}" would have more than it deserves'
    plan = VolcanoPlan(session, tiers, claimant, within, action.startswith("gang"))
    return plan if plan.decides() else None


@dataclass
class VolcanoPlan:
    """The victims of one action for one claimant, the first to go first.

    ``within`` takes them from the claimant's queue, else from others. ``whole`` lets jobs end that
    are at their minimum, whatever the gang plugin says.
    """

    session: Session
    tiers: Tiers
    claimant: Claimant
    within: bool
    whole: bool
    moves: Moves = Moves.NONE
    leaving_count: bool = False
    _accepts: Callable[[Victim], bool] | None = field(default=None, init=False)

    @cached_property
    def _requests(self) -> bool:
        return any(any(pod.requests.values()) for pod in self.claimant.pods)

    def decides(self) -> bool:
        """Tell whether there is any victim, and settle which tier decides."""
        kind = "preemptable" if self.within else "reclaimable"
        self._accepts = self.tiers.victims_of_tiers(kind, self.claimant, self._samples, self.whole)
        return self._accepts is not None

    def _samples(self) -> Iterator[Victim]:
        """Yield what each job would give up, whether or not its pods may be evicted."""
        ledger, jobs = self.session.ledger, self.session.jobs
        for job in self._jobs():
            assert job.row is not None, "asked of jobs of queues"
            extra = self._surplus(job)
            if extra:
                yield Victim(job, extra[:1], job.row, ledger.amounts_of(extra[0]), False)
            elif job.key != self.claimant.job.key:
                yield Victim(job, list(job.placed.values()), job.row, jobs.allocated(job), True)

    def steps(self) -> Iterator[Step]:
        """Yield victims in Volcano's order, judged by what is left after those before.

        Whole jobs end only after what all jobs can spare. The queue that gives next is chosen again
        for each victim, so that none loses more than its part; the order of the jobs of a queue is
        settled at the start.
        """
        done: set[str] = set()
        for whole in (False, True):
            yield from self._of_lines(self._lines(), whole, done)

    def _of_lines(self, lines: dict[int, list[Job]], whole: bool, done: set[str]) -> Iterator[Step]:
        while lines:
            for row in self._order(lines):
                victim = self._next(lines[row], whole, done)
                if victim is not None:
                    done |= {pod.key for pod in victim.pods}
                    yield victim.pods
                    break
                del lines[row]

    def accepts(self, victims: Sequence[Step]) -> bool:
        """Refuse to leave a job less than its minimum, and what could be taken back at once."""
        if any(self._broken(step) for step in victims):
            return False
        return self.within or not any(self._taken_back(step) for step in victims)

    def _broken(self, step: Step) -> bool:
        """Tell whether a job is left with pods that cannot run without those that go."""
        jobs = self.session.jobs
        job = jobs.named(step[0].gang or step[0].key, step[0])
        return len(job.placed) > 0 and jobs.ready(job) < jobs.min_available(job)

    def _next(self, line: list[Job], whole: bool, done: set[str]) -> Victim | None:
        """Return the first victim of a queue's jobs, without those that can give up nothing.

        What a job may not give up now it may not later: its queue only loses more.
        """
        assert self._accepts is not None, "decides was asked first"
        while line:
            for victim in self._parts(line[-1], whole):
                fresh = not any(pod.key in done for pod in victim.pods)
                if fresh and self._accepts(victim):
                    return victim
            line.pop()
        return None

    # Order -------------------------------------------------------------------------------

    def _lines(self) -> dict[int, list[Job]]:
        """Return the jobs by queue, the first to give up pods last."""
        lines: dict[int, list[Job]] = {}
        own = self.claimant.job.key
        # Pods of other jobs go before those of the same one.
        for job in sorted(self._jobs(), key=self._job_key):
            assert job.row is not None, "asked of jobs of queues"
            line = lines.setdefault(job.row, [])
            line.insert(0 if job.key == own else len(line), job)
        return lines

    def _order(self, rows: Iterable[int]) -> list[int]:
        """Return the queues, the first to give up pods first, as they stand now."""
        order = sorted(rows, key=self.tiers.queue_order, reverse=True)
        # The sort is stable: in one branch of the tree the last in order comes first.
        order.sort(key=lambda row: self.tiers.victim_queue_order(row, self.claimant.row))
        return order

    def _job_key(self, job: Job) -> tuple[object, ...]:
        return self.tiers.job_order(job), self.session.jobs.created(job.key), job.key

    # Who ---------------------------------------------------------------------------------

    def _jobs(self) -> Iterator[Job]:
        """Yield the jobs that may give up pods."""
        tree = self.session.tree
        for job in self.session.jobs.with_pods():
            assert job.row is not None, "with_pods returns jobs of queues"
            if self.within:
                if job.row == self.claimant.row:
                    yield job
            elif job.row != self.claimant.row and tree.queues[job.row].reclaimable:
                yield job

    def _parts(self, job: Job, whole: bool) -> Iterator[Victim]:
        """Yield what a job can give up now: pods beyond its minimum, or the ``whole`` job."""
        assert job.row is not None, "asked of jobs of queues"
        extra = self._surplus(job)
        for pod in extra:
            if self._may_go(pod):
                yield Victim(job, [pod], job.row, self.session.ledger.amounts_of(pod), False)
        if whole and not extra and job.placed and job.key != self.claimant.job.key:
            pods = list(job.placed.values())
            if all(self._may_go(pod) for pod in pods):
                yield Victim(job, pods, job.row, self.session.jobs.allocated(job), True)

    def _surplus(self, job: Job) -> list[PodInfo]:
        """Return the pods that a job can lose, one of them, and still run; the first to go first.

        What it lost before counts: each is one of those that can go next.
        """
        surplus = Surplus(self.session.jobs, job)
        found = [pod for pod in job.placed.values() if surplus.spares(pod)]
        return sorted(found, key=self._task_key, reverse=True)

    def _task_key(self, pod: PodInfo) -> tuple[object, ...]:
        return self.tiers.task_order(pod), pod.rank or 0, pod.key

    def _may_go(self, pod: PodInfo) -> bool:
        handle = self.session.handle
        if handle.is_nominated(pod) or handle.in_eviction_cooldown(pod):
            return False
        if not may_be_evicted(pod.pod):
            return False
        # Pods without requests never displace one with some.
        return self._requests or not any(pod.requests.values())

    # No endless exchange -----------------------------------------------------------------

    def _taken_back(self, step: Step) -> bool:
        """Tell whether a victim's queue, without it, might reclaim from the claimant's queue."""
        session, jobs = self.session, self.session.jobs
        job = jobs.named(step[0].gang or step[0].key, step[0])
        if job.row is None or self._is_lent(job, step):
            return False
        takes = session.ledger.sum_of(step)
        back = Claimant(job, step, job.row, takes, jobs.priority(job, step))
        if self.tiers.overused(job.row) or not self.tiers.preemptive(back):
            return False
        claimant = self.claimant
        mine = Victim(claimant.job, claimant.pods, claimant.row, claimant.request, False)
        return self.tiers.victims_of_tiers("reclaimable", back, lambda: [mine], True) is not None

    def _is_lent(self, job: Job, step: Step) -> bool:
        """Tell whether the gang plugin gives up what a job, without it, may not ask room for."""
        return self.tiers.gives_up_surplus and not self.tiers.starving(job, len(step))
