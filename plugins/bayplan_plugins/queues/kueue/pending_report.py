"""Pending workloads of a ClusterQueue for people: who waits, why, for what, and for whose end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from bayplan import Handle, PodInfo, Unit
from bayplan.api.kueue import ResourceFlavor
from bayplan.api.queue import Amounts
from bayplan.queues.report import PendingJob
from bayplan_plugins.queues.kueue.admission import Admission
from bayplan_plugins.queues.kueue.amounts import column
from bayplan_plugins.queues.kueue.conditions import (
    Reason,
    condition,
    has_quota,
    is_true,
)
from bayplan_plugins.queues.kueue.dry_run import DryRun
from bayplan_plugins.queues.kueue.job_workloads import JobWorkloads
from bayplan_plugins.queues.kueue.pod_workloads import PodWorkloads
from bayplan_plugins.queues.kueue.pods_to_come import PodToCome
from bayplan_plugins.queues.kueue.quotas import QuotaForest
from bayplan_plugins.queues.kueue.slices import replaced_key
from bayplan_plugins.queues.kueue.workloads import (
    PodSetRequests,
    WorkloadInfo,
    creation,
    priority_of,
)
from bayplan_plugins.queues.policy import QuotaRefusal

__all__ = ["PendingReport"]

_MOST_TRIED = 8
"""Of those that wait, how many elastic jobs may shrink for at a time."""


class PendingReport:
    """What is known of those that wait, and whether they would be admitted without others."""

    def __init__(
        self,
        handle: Handle,
        admission: Admission,
        pods: PodWorkloads,
        jobs: JobWorkloads,
        dry_run: DryRun,
    ) -> None:
        self._handle = handle
        self._admission = admission
        self._pods = pods
        self._jobs = jobs
        self._dry_run = dry_run

    # Who waits ---------------------------------------------------------------------------

    def units_of_job(self, kind: str, key: str) -> list[Unit]:
        """Return the pods that a job would have, if it waits: gangs, and single pods."""
        for home, job in self._jobs.jobs.items():
            name = self._jobs.current(home)
            found = self._admission.store.workloads.get(name)
            if job.kind == kind and job.key == key:
                admitted = found is not None and is_true(found, "Admitted")
                if admitted or job.state.end is not None:
                    return []
                sets = found.spec.pod_sets if found is not None else job.pods
                counts = {one.name: one.count for one in sets}
                flavors = self._first_flavors(name)
                of_sets = dict.fromkeys(counts, flavors)
                return self._units(self._pods.to_come(name, counts, of_sets))
        return []

    def _units(self, pods: Iterable[PodToCome]) -> list[Unit]:
        together: dict[str, list[PodToCome]] = {}
        for one in pods:
            together.setdefault(one.pod.gang or one.pod.key, []).append(one)
        return [
            self._handle.unit([one.pod for one in own], own[0].gang) for own in together.values()
        ]

    def _first_flavors(self, key: str) -> list[ResourceFlavor]:
        """Return the flavors that are tried first for a workload."""
        store = self._admission.store
        queue = next((name for name, line in store.pending.items() if line.get(key)), None)
        groups = store.cluster_queues[queue].spec.resource_groups if queue is not None else ()
        names = dict.fromkeys(group.flavors[0].name for group in groups if group.flavors)
        return [store.flavors[name] for name in names if name in store.flavors]

    def any_would_fit(self) -> bool:
        """Tell whether the first that waits in any queue would be admitted now."""
        store = self._admission.store
        first = [next(iter(line), None) for line in store.pending.values()]
        waiting = [one for one in first if one is not None]
        with self._dry_run.running(()):
            return any(
                self._admission.would_fit(one, (), self._handle.unix_time)
                for one in waiting
                if store.inactive_reason(one.queue) is None
            )

    def jobs(self, queue: str) -> list[PendingJob]:
        """Return the workloads that wait for a queue's quota, the next one first."""
        return [
            PendingJob(
                self._name(one.key),
                place,
                sum(pod_set.count for pod_set in one.pod_sets),
                priority_of(one.workload, self._admission.settings),
                max(0.0, self._handle.unix_time - creation(one.workload)),
                self.reason(one, queue),
                one.key,
            )
            for place, one in enumerate(self._admission.store.pending.get(queue, ()), 1)
        ]

    def name_of(self, pod: PodInfo) -> str:
        """Return what a pod's workload is called in the line."""
        return self._name(self._pods.key_of(pod))

    def counts(self) -> dict[str, tuple[int, int]]:
        """Return how many workloads wait for each ClusterQueue, and how many have its quota."""
        store = self._admission.store
        return {
            name: (len(store.pending[name]), len(store.reserving.get(name, ())))
            for name in store.cluster_queues
        }

    def _name(self, key: str) -> str:
        job = self._jobs.job_of(key)
        return job.key if job is not None else self._pods.name_of(key)

    def reason(self, one: WorkloadInfo, queue: str) -> str:
        """Return why a workload waits."""
        closed = self._admission.store.inactive_reason(queue)
        if closed is not None:
            return closed[1].rstrip(".")
        stated = condition(one.workload, "QuotaReserved")
        if stated is not None and stated.message:
            return stated.message
        line = self._admission.store.pending[queue]
        if line.reason_of_equivalent(one.equivalence) is not None:
            return "another one that asks for the same was tried and does not fit"
        return "its turn has not come"

    # What would admit one ----------------------------------------------------------------

    def _waiting(self, unit: Unit) -> WorkloadInfo | None:
        store = self._admission.store
        key = self._pods.key_of(unit.pods[0])
        found = store.workloads.get(key)
        if found is None or has_quota(found):
            return None
        lines = (line.get(key) for line in store.pending.values())
        return next((one for one in lines if one is not None), None)

    def shortfall(self, unit: Unit) -> QuotaRefusal | None:
        """Return what of its queue's quota is missing most, in the flavor that lacks least."""
        one = self._waiting(unit)
        if one is None:
            return None
        store = self._admission.store
        forest, row = store.forest(), store.forest().row_of.get(one.queue)
        if row is None:
            return None
        asked = one.total_requests()
        found: list[QuotaRefusal] = []
        for group in store.cluster_queues[one.queue].spec.resource_groups:
            lacks = [
                max(
                    (
                        _lack(forest, row, one.queue, column(flavor.name, resource), amount)
                        for resource, amount in asked.items()
                        if resource in group.covered_resources
                    ),
                    key=lambda lack: lack.missing,
                    default=None,
                )
                for flavor in group.flavors
            ]
            found += sorted((one for one in lacks if one), key=lambda lack: lack.missing)[:1]
        most = max(found, key=lambda lack: lack.missing, default=None)
        return most if most is not None and most.missing > 0 else None

    def growth_refusal(
        self,
        queue: str,
        asked: Amounts,
        others: Sequence[tuple[str, Amounts]],
    ) -> QuotaRefusal | str | None:
        """Return why a job may not grow by a pod; None if quota for it is idle.

        :param asked: what the pod takes, by column.
        :param others: pods that jobs have grown by already, each with its ClusterQueue.
        """
        store = self._admission.store
        forest = store.forest().copy()
        for name, amounts in others:
            if name in forest.row_of:
                forest.add(forest.row_of[name], amounts)
        row = forest.row_of[queue]
        lacks = [_lack(forest, row, queue, name, amount) for name, amount in asked.items()]
        most = max(lacks, key=lambda lack: lack.missing, default=None)
        if most is not None and most.missing > 0:
            return most
        waiting = next(self._waiting_beside(queue), None)
        return f"{self._name(waiting.key)} waits for quota" if waiting is not None else None

    def _waiting_beside(self, queue: str) -> Iterator[WorkloadInfo]:
        """Yield what waits in a queue, and in those that share its quota, and may be admitted."""
        store = self._admission.store
        for name in store.cohort_of(queue):
            if store.inactive_reason(name) is None:
                yield from filter(_may_be_admitted, store.pending[name])

    def until_admitted(self, unit: Unit, jobs: Sequence[Sequence[PodInfo]]) -> int:
        """Return how many running jobs have to end, in order, for a unit to be admitted."""
        one = self._waiting(unit)
        if one is None:
            return 0
        ended: dict[str, int] = {}
        with self._dry_run.running(()):
            for count, pods in enumerate(jobs, 1):
                for pod in pods:
                    self._handle.snapshot.remove_pod(pod.key)
                    key = self._pods.key_of(pod)
                    ended[key] = ended.get(key, 0) + 1
                gone = [key for key, number in ended.items() if number >= self._living(key)]
                if self._admission.would_fit(one, gone, self._handle.unix_time):
                    return count
        return 0

    # What elastic jobs could give up ----------------------------------------------------------

    def admitted_without(self, pods: Iterable[PodInfo], job: str, admitted: Iterable[str]) -> str:
        """Return the first that would be admitted if elastic jobs had some pods less; "" for none.

        :param pods: these pods; they are gone from the snapshot.
        :param job: the only one to ask for, as it was returned before; "" for any.
        :param admitted: the keys of workloads whose pods without nodes get theirs first.
        """
        smaller = self._smaller(pods)
        queues = {old.queue for old, _ in smaller} or self._admission.store.cluster_queues.keys()
        waiting = self._first_in_line(queues)
        # The pods that are gone from the snapshot would get nodes again.
        shrinking = {old.key for old, _ in smaller}
        with self._dry_run.running(key for key in admitted if key not in shrinking):
            for one in waiting:
                name = self._name(one.key)
                if job not in ("", name):
                    continue
                if self._admission.would_fit_beside(one, smaller, self._handle.unix_time):
                    return name
        return ""

    def needs_no_victims(self, one: WorkloadInfo, pods: Sequence[PodInfo]) -> bool:
        """Tell whether a workload is the next for which elastic jobs would give up enough pods.

        :param pods: all that they would give up, or give up already.
        """
        smaller = self._smaller(pods)
        first = self._first_in_line({one.queue, *(old.queue for old, _ in smaller)}, one)
        if all(other.key != one.key for other in first):
            return False
        with self._dry_run.without(pods):
            return self._admission.would_fit_beside(one, smaller, self._handle.unix_time)

    def _smaller(self, pods: Iterable[PodInfo]) -> list[tuple[WorkloadInfo, WorkloadInfo]]:
        """Return the workloads of some pods as they are, and as they would be without these.

        Pods that a workload was not admitted with, or is no longer, have no quota of it.
        """
        by_key: dict[str, list[PodInfo]] = {}
        for pod in pods:
            by_key.setdefault(self._pods.key_of(pod), []).append(pod)
        found: list[tuple[WorkloadInfo, WorkloadInfo]] = []
        for reserving in self._admission.store.reserving.values():
            for key in reserving.keys() & by_key.keys():
                old = reserving[key]
                counts = {one.name: one.count for one in old.pod_sets}
                within = {pod.key for pod in self._pods.within(key, counts)}
                own = (pod for pod in by_key[key] if pod.key in within)
                gone = Counter(map(self._pods.pod_set_of, own))
                found.append((old, replace(old, pod_sets=_without(old.pod_sets, gone))))
        return found

    def _first_in_line(
        self, queues: Iterable[str], tried: WorkloadInfo | None = None
    ) -> list[WorkloadInfo]:
        """Return the first that wait in some queues, and in those that share their quota.

        What a job that runs already would grow by waits for idle quota.

        :param tried: one that is being tried, and so in no line.
        """
        store, settings = self._admission.store, self._admission.settings
        found = [tried] if tried is not None and replaced_key(tried.workload) is None else []
        for name in sorted({other for queue in queues for other in store.cohort_of(queue)}):
            if store.inactive_reason(name) is None:
                line = store.pending[name]
                first = [one for one in line if replaced_key(one.workload) is None]
                found += first[: 1 if line.strict else _MOST_TRIED]
        found = [one for one in found if _may_be_admitted(one) and not _has_victims(one)]
        found.sort(key=lambda one: (-priority_of(one.workload, settings), creation(one.workload)))
        return found[:_MOST_TRIED]

    def _living(self, key: str) -> int:
        return len(self._pods.members(key))


def _without(sets: Sequence[PodSetRequests], gone: Mapping[str, int]) -> tuple[PodSetRequests, ...]:
    return tuple(one.scaled_to(max(0, one.count - gone.get(one.name, 0))) for one in sets)


def _may_be_admitted(one: WorkloadInfo) -> bool:
    stated = condition(one.workload, "QuotaReserved")
    never = (Reason.EXCEEDS_QUOTA, Reason.NO_FLAVOR, Reason.MISCONFIGURED)
    return stated is None or stated.reason not in never


def _has_victims(one: WorkloadInfo) -> bool:
    """Tell whether room is being made for a workload already."""
    stated = condition(one.workload, "QuotaReserved")
    return stated is not None and stated.reason == Reason.WAITING_FOR_VICTIMS


def _lack(forest: QuotaForest, row: int, queue: str, resource: str, asked: float) -> QuotaRefusal:
    used = forest.used[row].get(resource, 0.0)
    most = used + forest.available(row, resource)
    return QuotaRefusal(queue, queue, resource, "quota", most, used, asked)
