"""KAI's actions: place on nodes that become free, consolidate, reclaim, preempt."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, cached_property

import msgspec
import numpy as np
from msgspec.structs import replace

from bayplan import Handle, PodInfo, Unit
from bayplan.api.podgroup import LAST_EVICTION
from bayplan.dialects.kai import preemption_delay_of, seconds_of
from bayplan.dialects.reading import timestamp
from bayplan.inputs.durations import parse_duration
from bayplan.queues.ledger import Ledger
from bayplan.queues.tree import EPSILON, AmountRows
from bayplan_plugins.gpus.vendors.kai.groups import GpuGroups
from bayplan_plugins.gpus.vendors.kai.requests import GpuSizes
from bayplan_plugins.queues.kai.args import KaiQueueArgs
from bayplan_plugins.queues.kai.capacity import over_quota
from bayplan_plugins.queues.kai.jobs import Job, Jobs, RunningJobs
from bayplan_plugins.queues.kai.min_runtime import (
    ReclaimResolution,
    preempt_min_runtime,
    reclaim_min_runtime,
)
from bayplan_plugins.queues.kai.movers import Movers
from bayplan_plugins.queues.kai.reclaim import Reclaimer
from bayplan_plugins.queues.kai.scenarios import ScenarioSearch, Way
from bayplan_plugins.queues.kai.shares import FairShares
from bayplan_plugins.queues.kai.standings import victim_line
from bayplan_plugins.queues.kai.texts import EvictionTexts
from bayplan_plugins.queues.policy import EvictionPlan
from bayplan_plugins.shared.victims import Evictable

__all__ = ["Actions"]

_GPU = "nvidia.com/gpu"

Losses = Sequence[tuple[Job, Sequence[PodInfo]]]


class _Candidate(msgspec.Struct, frozen=True):
    """The job that needs room."""

    unit: Unit
    job: Job
    row: int
    requested: AmountRows


class Actions:
    """Finds room for one unit at a time.

    :param shares: returns the fair shares as they are now.
    """

    def __init__(
        self,
        args: KaiQueueArgs,
        handle: Handle,
        ledger: Ledger,
        jobs: Jobs,
        shares: Callable[[], FairShares],
        queue_of: Callable[[PodInfo], str | None],
    ) -> None:
        self._args = args
        self._handle = handle
        self._ledger = ledger
        self._jobs = jobs
        self._shares = shares
        self._queue_of = queue_of
        self._movers = Movers(handle)
        self._resolution = ReclaimResolution(args.reclaim_resolve_method)
        self._gpus = GpuSizes(handle.snapshot)
        self._groups = handle.snapshot.shared(GpuGroups, GpuGroups)
        self._waits: set[float] = set()
        self.searching = False
        """Whether a search places units on nodes that are not free yet."""

    @cached_property
    def _running_jobs(self) -> RunningJobs:
        """The jobs that hold nodes, followed from the first search on."""
        return RunningJobs(self._handle, self._jobs)

    def anyone_leaves(self) -> bool:
        """Tell whether pods are leaving their nodes."""
        return bool(self._movers.leaving())

    def run(self, unit: Unit, queue: str, action: str) -> EvictionPlan | str | None:
        """Return the room that an action finds; a text says why it may not look for any."""
        row = self._ledger.tree.row_of.get(queue)
        if row is None:
            return None
        job = self._jobs.of_unit(unit, queue)
        candidate = _Candidate(unit, job, row, self._ledger.sum_of(unit.pods))
        self.searching = True
        try:
            if action == "allocate":
                return self._allocate(candidate)
            if not self._delay_is_over(job, unit.pods[0]):
                return f"{action}: waits for its preemption delay to end"
            ways = {
                "consolidation": self._consolidate,
                "reclaim": self._reclaim,
                "preempt": self._preempt,
            }
            way = ways[action](candidate)
            if way is None:
                return None
            plan = self._search().run(unit, queue, way)
            if plan is None:
                return None
            self._movers.add(plan.moves)
            texts = EvictionTexts(self._shares(), action, job)
            reported = {pod.key: texts.of(pod, self._queue_of(pod) or "") for pod in plan.victims}
            return replace(plan, reasons=reported)
        finally:
            self.searching = False

    def _search(self) -> ScenarioSearch:
        return ScenarioSearch(
            self._handle,
            self._ledger,
            self._jobs,
            self._shares,
            self._movers,
        )

    def waits_over(self) -> tuple[bool, float | None]:
        """Tell whether a time is over that kept a job from evicting others.

        :returns: that, and when the next such time ends, in the scheduler's seconds.
        """
        now = self._now
        over = {at for at in self._waits if at <= now}
        self._waits -= over
        left = min(self._waits, default=None)
        return bool(over), None if left is None else left - now + self._handle.now

    def _delay_is_over(self, job: Job, pod: PodInfo) -> bool:
        end = self.delay_end(job, pod)
        if self._now < end:
            self._waits.add(end)
        return self._now >= end

    def delay_end(self, job: Job, pod: PodInfo) -> float:
        """Return when a job may evict others, in seconds since 1970; 0 if it need not wait."""
        group = self._jobs.group_of(pod)
        if group is None:
            delay = preemption_delay_of(pod.annotations, pod.owner_settings)
            return job.created + delay if delay else 0.0
        stated = seconds_of(group.spec.preemption_delay)
        if stated is None or stated <= 0:
            return 0.0
        delay, evicted = stated, timestamp(group.metadata.annotations.get(LAST_EVICTION))
        return max(job.created, evicted) + delay

    @property
    def _now(self) -> float:
        return self._handle.unix_time

    # Ways --------------------------------------------------------------------------------

    def _allocate(self, candidate: _Candidate) -> EvictionPlan | None:
        """Wait for pods that are leaving where nothing else is needed."""
        leaving = self._movers.leaving()
        nodes = self._search().without_victims(candidate.unit) if leaving else None
        if nodes is None:
            return None
        used = set(nodes.values())
        waited_for = [pod for pod, node in leaving if node in used]
        return EvictionPlan((waited_for,), nodes)

    def _consolidate(self, candidate: _Candidate) -> Way | None:
        most = self._args.max_consolidation_preemptees
        if most == 0 or not candidate.job.preemptible or not self._are_enough(candidate.unit):
            return None
        victims = self._running(lambda queue, pod: True)
        victims = [job for job in victims if job.key != candidate.job.key]
        if most > 0:
            victims = victims[: most + 1]
        return self._way(candidate, victims, lambda unit, lost: True, moves_all=True)

    def _reclaim(self, candidate: _Candidate) -> Way | None:
        shares = self._frozen()
        reclaimer = self._reclaimer(candidate, candidate.unit, shares)
        if not reclaimer.may_start():
            return None
        own = candidate.job.queue
        row_of = shares.tree.row_of
        consider = cache(lambda queue: queue != own and reclaimer.may_consider(row_of[queue]))
        victims = [
            job
            for job in self._running(lambda queue, pod: consider(queue))
            if job.is_elastic or not self._is_safe(job, candidate)
        ]

        def accepts(unit: Unit, lost: Losses) -> bool:
            if not self._keep_minimum(lost, candidate):
                return False
            return self._reclaimer(candidate, unit, shares).may_take(self._losses(lost))

        return self._way(candidate, victims, accepts, shares=shares)

    def _preempt(self, candidate: _Candidate) -> Way | None:
        job = candidate.job
        if not job.preemptible and over_quota(
            self._ledger.tree, candidate.row, candidate.requested
        ):
            return None
        lower = self._running(lambda queue, pod: queue == job.queue and pod.priority < job.priority)
        victims = [
            other for other in lower if other.is_elastic or not self._is_safe(other, candidate)
        ]
        return self._way(candidate, victims, lambda unit, lost: self._keep_minimum(lost, candidate))

    def _way(
        self,
        candidate: _Candidate,
        victims: Sequence[Job],
        accepts: Callable[[Unit, Losses], bool],
        moves_all: bool = False,
        shares: FairShares | None = None,
    ) -> Way | None:
        if not victims:
            return None
        frozen = shares or self._frozen()

        def line() -> Iterator[tuple[Job, list[PodInfo]]]:
            yield from self._unguarded(candidate.unit, victim_line(frozen, self._ledger, victims))

        return Way(line, accepts, moves_all)

    def _unguarded(
        self, unit: Unit, line: Iterator[tuple[Job, list[PodInfo]]]
    ) -> Iterator[tuple[Job, list[PodInfo]]]:
        """Yield the victims that no disruption budget and no refused eviction keeps."""
        evictable = Evictable.by(unit, self._handle)
        taken: list[PodInfo] = []
        for job, pods in line:
            if any(self._handle.in_eviction_cooldown(pod) for pod in pods):
                continue
            if not evictable.violations((*taken, *pods)):
                taken += pods
                yield job, pods

    def _frozen(self) -> FairShares:
        """Return the shares with what queues use once pods on the move have arrived."""
        shares = self._shares()
        frozen = shares.frozen()
        for pod, _ in self._movers.coming():
            row = self._ledger.row_of(pod)
            if row is not None:
                frozen.used[shares.tree.paths[row]] += self._ledger.amounts_of(pod)
        return frozen

    # Rules -------------------------------------------------------------------------------

    def _reclaimer(self, candidate: _Candidate, unit: Unit, shares: FairShares) -> Reclaimer:
        return Reclaimer(
            shares,
            candidate.row,
            self._ledger.sum_of(unit.pods),
            candidate.job.preemptible,
            self._args.reclaimer_saturation_multiplier,
        )

    def _losses(self, lost: Losses) -> dict[int, list[AmountRows]]:
        """Return what queues lose: surplus pods one by one, what a minimum needs together."""
        by_job: dict[str, tuple[Job, list[PodInfo]]] = {}
        for job, pods in lost:
            by_job.setdefault(job.key, (job, []))[1].extend(pods)
        losses: dict[int, list[AmountRows]] = {}
        for job, pods in by_job.values():
            core: list[PodInfo] = []
            units = losses.setdefault(self._ledger.tree.row_of[job.queue], [])
            for one in job.sets:
                own = {pod.key for pod in one.active}
                mine = [pod for pod in pods if pod.key in own]
                core += mine[: one.least]
                units += [self._ledger.amounts_of(pod) for pod in mine[one.least :]]
            if core:
                units.append(self._ledger.sum_of(core))
        return losses

    def _keep_minimum(self, lost: Losses, candidate: _Candidate) -> bool:
        """Tell whether elastic jobs that are safe for now keep as many pods as they need."""
        going: dict[str, int] = {}
        for job, pods in lost:
            going[job.key] = going.get(job.key, 0) + len(pods)
        for job in {job.key: job for job, _ in reversed(lost)}.values():
            least = sum(one.least for one in job.sets)
            if job.is_elastic and self._is_safe(job, candidate):
                if len(job.pods) - going[job.key] < least:
                    return False
        return True

    def safe_for(self, pod: PodInfo, queue: str) -> float:
        """Return for how many more seconds a pod's job is safe from others of its queue."""
        row = self._ledger.tree.row_of.get(queue)
        if row is None:
            return 0.0
        job = self._jobs.job([pod], queue)
        return max(0.0, job.started + self._preempt_min_runtime(row) - self._now)

    def _preempt_min_runtime(self, row: int) -> float:
        default = parse_duration(self._args.default_preempt_min_runtime)
        return preempt_min_runtime(self._ledger.tree, row, default)

    def _is_safe(self, job: Job, candidate: _Candidate) -> bool:
        """Tell whether a job has not run for as long as its queue grants it."""
        tree = self._ledger.tree
        row = tree.row_of[job.queue]
        if job.queue == candidate.job.queue:
            seconds = self._preempt_min_runtime(row)
        else:
            default = parse_duration(self._args.default_reclaim_min_runtime)
            seconds = reclaim_min_runtime(tree, row, candidate.row, self._resolution, default)
        if seconds <= 0 or self._now >= job.started + seconds:
            return False
        self._waits.add(job.started + seconds)
        return True

    def _are_enough(self, unit: Unit) -> bool:
        """Tell whether the cluster has enough GPUs that are free, or become free, for a unit."""
        table = self._handle.snapshot.nodes
        free = np.maximum(table.allocatable(_GPU) - table.used(_GPU), 0).sum()
        leaving = sum(self._gpus_of(pod) for pod, _ in self._movers.leaving())
        needed = sum(self._gpus_of(pod) for pod in unit.pods)
        return bool(needed <= free + self._groups.free_parts() + leaving + EPSILON)

    def _gpus_of(self, pod: PodInfo) -> float:
        return pod.requests.get(_GPU, 0) + self._gpus.gpus_of(pod)

    def _running(self, may_go: Callable[[str, PodInfo], bool]) -> list[Job]:
        """Return the preemptible jobs that hold nodes, of those queues and pods that may go."""
        rows = self._ledger.tree.row_of

        def queue_of(pod: PodInfo) -> str | None:
            queue = self._queue_of(pod)
            return queue if queue in rows else None

        return self._running_jobs.preemptible(queue_of, may_go)
