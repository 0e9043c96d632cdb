"""The policy ``fair-share``: queues of KAI, decided as KAI does, checked against the real nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from bayplan import Handle, Overdue, PodInfo, Unit
from bayplan.api import KaiPodGroup, KaiQueue
from bayplan.api.podgroup import UnschedulableReason
from bayplan.api.queue import Amounts
from bayplan.cluster.protocol import PatchAnnotations, PatchStatus
from bayplan.dialects import kai
from bayplan.dialects.kai.shares import GpuShareRequest, mig_gpus
from bayplan.gangs.completeness import rank_order
from bayplan.inputs.durations import parse_duration
from bayplan.queues.definitions import Translations
from bayplan.queues.gate import gate
from bayplan.queues.ledger import Ledger, PodRules
from bayplan.queues.tree import EPSILON, AmountRows
from bayplan.queues.usage import Sample
from bayplan.snapshot import SpecFacts
from bayplan_plugins.gpus.vendors.kai.requests import GpuSizes, known_share
from bayplan_plugins.queues.division import Division
from bayplan_plugins.queues.kai.actions import Actions
from bayplan_plugins.queues.kai.args import KaiQueueArgs
from bayplan_plugins.queues.kai.capacity import job_over_capacity, overrun
from bayplan_plugins.queues.kai.gpu_requests import (
    claim_problem,
    gpus_of_claim,
    gpus_of_slices,
    gpus_of_templates,
)
from bayplan_plugins.queues.kai.jobs import Jobs
from bayplan_plugins.queues.kai.reasons import delayed, no_queue, over_bound
from bayplan_plugins.queues.kai.shares import FairShares
from bayplan_plugins.queues.kai.stale import StaleGangs
from bayplan_plugins.queues.kai.standings import Head, Standings
from bayplan_plugins.queues.kai.status import QueueStatuses
from bayplan_plugins.queues.kai.turns import next_pods
from bayplan_plugins.queues.policy import (
    EvictionCandidates,
    EvictionPlan,
    ProtectsNewJobs,
    QuotaRefusal,
    TellsReasons,
)

__all__ = ["KaiPolicy", "KaiQueueArgs"]

_GPUS = "nvidia.com/gpu"
_KINDS = ("cpu", "memory", _GPUS)
"""What KAI's queues share; they know nothing of other resources."""

_MOST_SPECS = 20_000
_MOST_HEADS = 20_000


class KaiPolicy(TellsReasons, ProtectsNewJobs):
    """Order, limits and victims as KAI decides them."""

    name = "fair-share"
    system = "kai"

    def __init__(self, args: KaiQueueArgs, handle: Handle) -> None:
        self.args = args
        self._handle = handle
        self.actions: Sequence[str] = tuple(
            action for action in args.actions if action != "stalegangeviction"
        )
        self._jobs = Jobs(handle)
        self._plain: dict[SpecFacts, Amounts] = {}
        self._gpus = GpuSizes(handle.snapshot)
        rules = PodRules(
            queue_of=self.queue_of,
            amounts=self._amounts,
            is_fixed=lambda pod: not self._jobs.is_preemptible(pod),
            counts=lambda pod: not pod.terminating,
            claim=lambda claim, _: {_GPUS: gpus_of_claim(claim)},
            basis=self._gpus.basis,
        )
        snapshot = handle.snapshot
        queues = Translations(kai.queue_of)
        self.ledger = Ledger(
            snapshot,
            lambda snapshot: queues.of(snapshot.objects(KaiQueue)),
            (KaiQueue,),
            (KaiPodGroup,),
            rules,
        )
        self._statuses = QueueStatuses(snapshot, self.ledger)
        self._journal = args.usage.opened() if args.usage is not None else None
        self._heads: dict[str, tuple[Unit, Head]] = {}
        self._shares: tuple[object, FairShares] | None = None
        self._standings: tuple[FairShares, Standings] | None = None
        self._actions = Actions(args, handle, self.ledger, self._jobs, self.shares, self.queue_of)
        self._stale = StaleGangs(handle, parse_duration(args.default_staleness_grace_period))

    @property
    def active(self) -> bool:
        """Whether the cluster has any KAI Queue."""
        return bool(self._handle.snapshot.objects(KaiQueue))

    def shares(self) -> FairShares:
        """Return the fair shares as they follow from the queues, the demand and the nodes."""
        tree = self.ledger.tree
        tree.add_resources(_KINDS)
        table = self._handle.snapshot.nodes
        total = np.array(
            [float(table.allocatable(name).sum(dtype=np.float64)) for name in tree.resources]
        )
        total[tree.column_of[_GPUS]] += gpus_of_slices(self._handle.snapshot)
        total[tree.column_of[_GPUS]] += sum(
            mig_gpus(name) * float(column.sum())
            for name, column in table.allocatable_columns.items()
        )
        past = self._journal.version if self._journal is not None else 0
        mark = (self.ledger.version, id(tree), total.tobytes(), past)
        if self._shares is None or self._shares[0] != mark:
            fair = Division(tree, self.args.k_value).fair_shares(total, self._past_usage())
            self._shares = (mark, FairShares(tree, fair, total))
        return self._shares[1]

    def _past_usage(self) -> AmountRows | None:
        """Return what queues used before, as parts of the cluster; None without a journal."""
        if self._journal is None:
            return None
        tree = self.ledger.tree
        past = np.zeros_like(tree.used)
        for name, amounts in self._journal.usage(self._handle.unix_time).items():
            row = tree.row_of.get(name)
            for resource, part in amounts.items() if row is not None else ():
                if resource in tree.column_of:
                    past[row, tree.column_of[resource]] = part
        return past

    def _sample(self) -> float | None:
        """Take a sample of what queues use if one is due; return when the next is, by ``now``."""
        journal, handle = self._journal, self._handle
        if journal is None:
            return None
        if journal.next_time() <= handle.unix_time:
            tree = self.ledger.tree
            held = {queue.name: tree.amounts(tree.used[r]) for r, queue in enumerate(tree.queues)}
            capacity = tree.amounts(self.shares().total)
            journal.add(Sample(handle.unix_time, held, capacity))
        return handle.now + journal.next_time() - handle.unix_time

    def fair(self) -> AmountRows:
        """Return the fair share of each queue."""
        return self.shares().fair

    # In the queue ------------------------------------------------------------------------

    def queue_of(self, pod: PodInfo) -> str | None:
        """Return the queue of the pod's group, else the one of its or its owner's labels."""
        group = self._jobs.group_of(pod)
        if group is not None and group.spec.queue:
            return group.spec.queue
        name, stated = kai.queues_of(pod.labels, pod.owner_settings)
        if stated or (name in self.ledger.tree.row_of and self._handle.schedules(pod)):
            return name
        return None

    def gate(self, pod: PodInfo, queue: str) -> str | None:
        """Hold back pods of queues that do not exist, are broken or have children."""
        problem = gate(self.ledger.tree, "Queue", queue)
        return problem or claim_problem(pod, queue, self._handle.snapshot)

    def _amounts(self, pod: PodInfo) -> Amounts:
        known = self._plain.get(pod.facts)
        if known is None:
            if len(self._plain) >= _MOST_SPECS:
                self._plain.clear()
            known = {name: float(pod.requests.get(name, 0)) for name in _KINDS}
            slices = ((mig_gpus(name), amount) for name, amount in pod.requests.items())
            known[_GPUS] += sum(gpus * amount for gpus, amount in slices)
            self._plain[pod.facts] = known
        gpus = self._gpus.gpus_of(pod)
        if pod.spec.resource_claims:
            gpus += gpus_of_templates(pod, self._handle.snapshot)
        return {**known, _GPUS: known[_GPUS] + gpus} if gpus else known

    def _least_of(self, pods: Sequence[PodInfo]) -> AmountRows:
        """Return what pods take at least, wherever they are placed: of the biggest GPUs."""
        total = self.ledger.sum_of(pods)
        if any(isinstance(known_share(pod), GpuShareRequest) for pod in pods):
            more = sum(self._gpus.gpus_of(pod) - self._gpus.gpus_of(pod, True) for pod in pods)
            total = total.copy()
            total[self.ledger.tree.column_of[_GPUS]] -= more
        return total

    def admit(self) -> None:
        """Admit nothing: pods are gated one by one."""

    def order(self, unit: Unit, added: float) -> tuple[float, ...]:
        """Order by priority; then jobs below their minimum, at it, above it; then by age."""
        job = self._jobs.of_unit(unit, "")
        return (-float(job.priority), float(job.standing), job.created, added)

    def next_queue(self, heads: Mapping[str, Unit], action: str) -> str | None:
        """Return the queue whose first job comes first."""
        shares = self.shares()
        if self._standings is None or self._standings[0] is not shares:
            self._standings = (shares, Standings(shares))
        found: dict[int, Head] = {}
        for name, unit in heads.items():
            known = self._heads.get(unit.key)
            head = known[1] if known is not None and known[0] is unit else self._head(unit)
            found[shares.tree.row_of[name]] = head
        return shares.tree.name(self._standings[1].first(found))

    def _head(self, unit: Unit) -> Head:
        """Return what a head asks for; kept for a unit that asks for no claims' devices."""
        head = Head(self.ledger.sum_of(self.turn(unit) or unit.pods))
        if not any(pod.spec.resource_claims or known_share(pod) for pod in unit.pods):
            if len(self._heads) >= _MOST_HEADS:
                self._heads.clear()
            self._heads[unit.key] = (unit, head)
        return head

    def turn(self, unit: Unit) -> Sequence[PodInfo] | None:
        """Place what the minimum lacks together, then one pod at a time."""
        if unit.gang is None:
            return None
        if unit.nominated:
            # They count as placed, and yet it is they that are placed now.
            return [pod for pod in unit.pods if pod.key in unit.nominated]
        ready = {pod.key for pod in unit.pods}
        pods = next_pods(self._jobs.of_unit(unit, "").whole.offering(ready))
        return sorted(pods, key=rank_order)

    # Limits ------------------------------------------------------------------------------

    def refusal(self, unit: Unit) -> QuotaRefusal | str | None:
        """Refuse a job beyond a limit, or beyond the quota if it cannot be preempted."""
        if "allocate" not in self.args.actions and not self._actions.searching:
            return "the profile's actions place no job on free nodes"
        row = self.ledger.row_of(unit.pods[0])
        if row is None:
            return None
        requested = self._least_of(unit.pods)
        preemptible = self._jobs.is_preemptible(unit.pods[0])
        return job_over_capacity(self.ledger.tree, row, requested, preemptible)

    def unschedulable_reason(self, unit: Unit) -> UnschedulableReason | None:
        """Return why the queue of a pending unit does not take it, None if it does."""
        pod, tree = unit.pods[0], self.ledger.tree
        queue = self.queue_of(pod)
        row = tree.row_of.get(queue or "")
        if queue is None or row is None:
            return no_queue(gate(tree, "Queue", queue or "") or "")
        requested = self._least_of(self.turn(unit) or unit.pods)
        preemptible = self._jobs.is_preemptible(pod)
        refusal = job_over_capacity(tree, row, requested, preemptible)
        if refusal is not None:
            return over_bound(tree, refusal, requested, preemptible)
        end = self._actions.delay_end(self._jobs.of_unit(unit, queue), pod)
        return delayed() if self._handle.unix_time < end else None

    def overrun(self, pod: PodInfo) -> QuotaRefusal | str | None:
        """Refuse a pod that took a queue beyond what it may have."""
        row = self.ledger.row_of(pod)
        if row is None:
            return None
        preemptible = self._jobs.is_preemptible(pod)
        return overrun(self.ledger.tree, row, self.ledger.amounts_of(pod), preemptible)

    # Preemption --------------------------------------------------------------------------

    def may_preempt(self, unit: Unit, action: str) -> bool:
        """Tell by the unit's queue alone: a no is certain, a yes is not."""
        row = self.ledger.row_of(unit.pods[0])
        if row is None:
            return False
        tree = self.ledger.tree
        if action == "allocate":
            return self._actions.anyone_leaves()
        if action == "preempt":
            return bool(tree.used[row].any())
        if action == "reclaim":
            asked = self.ledger.sum_of(self.turn(unit) or unit.pods)
            used = tree.used[row, : len(asked)]
            fair = self.shares().fair[row, : len(asked)]
            return bool((used + asked <= fair + EPSILON).all())
        return True

    def plan(self, unit: Unit, action: str) -> EvictionCandidates | EvictionPlan | str | None:
        """Return the room that an action finds for a unit."""
        queue = self.queue_of(unit.pods[0])
        if queue is None or action not in self.actions:
            return None
        return self._actions.run(unit, queue, action)

    def safe_for(self, pod: PodInfo, queue: str) -> float:
        """Return for how long the minimum runtime of a pod's queue goes on."""
        return self._actions.safe_for(pod, queue)

    def overdue(self) -> Overdue | None:
        """Return the pods of gangs that have been below their minimum for too long.

        Jobs that had to wait for a time that is over now are tried again.
        """
        stale = None
        if "stalegangeviction" in self.args.actions:
            stale = self._stale.overdue()
        waited, next_end = self._actions.waits_over()
        sampled = self._sample()
        if stale is None and not waited and next_end is None and sampled is None:
            return None
        times = [next_end, sampled, stale.again if stale is not None else None]
        again = min((at for at in times if at is not None), default=None)
        stale = stale or Overdue()
        return Overdue(stale.victims, again, waited, at_once=stale.at_once)

    def statuses(self) -> Iterable[PatchStatus | PatchAnnotations]:
        """Return the status of each Queue, and since when PodGroups are stale."""
        return [*self._statuses.all(), *self._stale.annotations()]
