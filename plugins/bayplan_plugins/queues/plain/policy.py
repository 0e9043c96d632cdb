"""One policy in four flavours: fifo, priority, fair_share and capacity.

- ``fifo`` and ``priority`` take queues by priority, then weight, and jobs by age or by priority;
  nobody is evicted for another queue.
- ``fair_share`` and ``capacity`` take the queue that has least of what it may have. A queue may
  have what it is guaranteed, and by weight a part of what is left over; with ``capacity`` only what
  it is guaranteed is taken back from others, with ``fair_share`` all of that.

A job may take back what its queue may have; it never takes its queue beyond that. So what it takes
cannot be taken back from it by the same job, and settled demand settles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal

import numpy as np
from msgspec.structs import replace

from bayplan import Args, Handle, Overdue, PodInfo, Unit
from bayplan.api import ApiObject
from bayplan.api.queue import Order, Queue, QueueState
from bayplan.cluster.protocol import PatchStatus
from bayplan.queues.amounts import amount_text
from bayplan.queues.claim_users import claims_of
from bayplan.queues.ledger import Ledger, PodRules
from bayplan.queues.tree import EPSILON, AmountRows, QueueTree
from bayplan.snapshot import Snapshot
from bayplan_plugins.queues.division import Division
from bayplan_plugins.queues.plain.claimed_devices import ClaimedDevices
from bayplan_plugins.queues.policy import EvictionCandidates, Moves, QuotaRefusal, Step
from bayplan_plugins.queues.victims import RunningJob, running_jobs

__all__ = ["Flavour", "PlainArgs", "PlainPolicy"]

Flavour = Literal["fifo", "priority", "fair_share", "capacity"]
_SHARING: tuple[Flavour, ...] = ("fair_share", "capacity")


class PlainArgs(Args):
    """Arguments of a plain policy; without ``reclaim`` nobody is evicted for another queue."""

    policy: Flavour = "fair_share"
    reclaim: bool = True
    preempt: bool = True


class PlainPolicy:
    """The policy of one kind of plain queues.

    :param system: the name of that kind.
    :param kinds: the types of the objects that define the queues.
    :param define: returns the queues of the snapshot.
    :param queue_of: returns the name of a pod's queue, None for none.
    :param concerns: whether an object of ``kinds`` defines a queue.
    :param devices: counts devices of claims for the queues; without it they do not count.
    """

    actions: Sequence[str] = ("reclaim", "preempt")

    def __init__(
        self,
        system: str,
        args: PlainArgs,
        handle: Handle,
        kinds: Sequence[type[ApiObject]],
        define: Callable[[Snapshot], Iterable[Queue]],
        queue_of: Callable[[PodInfo], str | None],
        concerns: Callable[[ApiObject], bool] = bool,
        devices: ClaimedDevices | None = None,
    ) -> None:
        self.name: str = args.policy
        self.system = system
        self._args = args
        self._handle = handle
        self._kinds = kinds
        self._queue_of = queue_of
        rules = PodRules(
            queue_of=self.queue_of,
            amounts=lambda pod: {**pod.requests, "pods": 1.0},
            is_fixed=lambda pod: False,
            counts=lambda pod: not pod.terminating,
        )
        if devices is not None:
            rules = replace(
                rules,
                amounts=devices.of_pod,
                claim=devices.of_claim,
                claims=claims_of,
                basis=lambda: devices.basis,
            )
        self.ledger = Ledger(handle.snapshot, define, kinds, (), rules, concerns)
        self._fair: tuple[object, AmountRows] | None = None

    @property
    def active(self) -> bool:
        """Whether the cluster has any queue of this kind."""
        return any(map(self._handle.snapshot.objects, self._kinds)) and len(self.ledger.tree) > 0

    def queue_of(self, pod: PodInfo) -> str | None:
        """Return the name of a pod's queue."""
        return self._queue_of(pod)

    def gate(self, pod: PodInfo, queue: str) -> str | None:
        """Hold back pods of queues that are missing, closed or broken."""
        tree = self.ledger.tree
        row = tree.row_of.get(queue)
        if row is None:
            return f"waiting for {self.title(queue)}, which does not exist"
        found = tree.queues[row]
        if found.problem is not None:
            return f"{self.title(queue)}: {found.problem}"
        if found.state is not QueueState.OPEN:
            return f"{self.title(queue)} is {found.state.value} and takes no jobs"
        return None

    def title(self, queue: str) -> str:
        """Return what messages call a queue."""
        return f'queue "{queue}"'

    # Order -------------------------------------------------------------------------------

    def admit(self) -> None:
        """Admit nothing: pods are gated one by one."""

    def order(self, unit: Unit, added: float) -> tuple[float, ...]:
        """Order by age in a FIFO queue, else by priority, then by age."""
        row = self.ledger.row_of(unit.pods[0])
        order = self.ledger.tree.queues[row].order if row is not None else Order.PRIORITY
        if self.name == "fifo" or order in (Order.FIFO, Order.STRICT_FIFO):
            return (added,)
        return (-float(unit.priority), added)

    def next_queue(self, heads: Mapping[str, Unit], action: str) -> str | None:
        """Return the queue with the highest priority and weight, or with the least of its share."""
        tree = self.ledger.tree
        known = [name for name in heads if name in tree.row_of]
        return min(known, key=self._rank, default=None)

    def _rank(self, name: str) -> tuple[float, ...]:
        tree = self.ledger.tree
        row = tree.row_of[name]
        queue = tree.queues[row]
        share = self._share(row) if self.name in _SHARING else 0.0
        return (-float(queue.priority), share, -queue.weight.other, float(row))

    def _share(self, row: int) -> float:
        """Return the queue's dominant share of what it may have now."""
        tree, fair = self.ledger.tree, self.fair()
        used = tree.used[row]
        bounded = (used > EPSILON) & np.isfinite(fair[row])
        if not bounded.any():
            return 0.0
        ratios = used[bounded] / np.maximum(fair[row][bounded], EPSILON)
        return float(ratios.max())

    def turn(self, unit: Unit) -> Sequence[PodInfo] | None:
        """Place the minimum of an elastic job first, then one pod at a time."""
        gang = unit.gang
        if gang is None or gang.min_member >= len(unit.pods) + len(unit.bound):
            return None
        return unit.pods[: max(1, unit.min_placed)]

    # Limits ------------------------------------------------------------------------------

    def refusal(self, unit: Unit) -> QuotaRefusal | None:
        """Refuse a unit that takes its queue, or an ancestor, beyond its limit."""
        row = self.ledger.row_of(unit.pods[0])
        if row is None:
            return None
        least = unit.pods[: max(1, unit.min_placed)]
        return self.beyond(row, self.ledger.sum_of(least), 1.0)

    def overrun(self, pod: PodInfo) -> QuotaRefusal | None:
        """Refuse a pod that took its queue, or an ancestor, beyond its limit."""
        row = self.ledger.row_of(pod)
        return None if row is None else self.beyond(row, self.ledger.amounts_of(pod), 0.0)

    def beyond(self, row: int, request: AmountRows, more: float) -> QuotaRefusal | None:
        """Return the first limit that is exceeded; ``more`` is 1 if the request comes on top."""
        tree = self.ledger.tree
        width = len(request)
        for ancestor in tree.path(row):
            after = tree.used[ancestor, :width] + more * request
            over = (request > 0) & (after > tree.limit[ancestor, :width] + EPSILON)
            for column in np.flatnonzero(over).tolist():
                asked = float(request[column])
                return QuotaRefusal(
                    tree.name(row),
                    tree.name(ancestor),
                    tree.resources[column],
                    "limit",
                    float(tree.limit[ancestor, column]),
                    float(after[column]) - asked,
                    asked,
                )
        return None

    # Shares ------------------------------------------------------------------------------

    def fair(self) -> AmountRows:
        """Return what each queue may have now: guarantees first, the rest by weight and demand."""
        tree = self.ledger.tree
        nodes = self._handle.snapshot.nodes
        state = (id(tree), len(tree.resources), self.ledger.version, nodes.node_version)
        if self._fair is None or self._fair[0] != state:
            total = self._total(tree)
            self._fair = (state, Division(tree).fair_shares(total))
        return self._fair[1]

    def _total(self, tree: QueueTree) -> AmountRows:
        """Return what the nodes offer, without what pods outside of the queues use.

        Pods of the queues that are leaving are not outside: what they hold is divided already.
        """
        nodes = self._handle.snapshot.nodes
        placed = self._handle.snapshot.placed.values()
        leaving = [pod for pod, _ in placed if pod.terminating and self._queue_of(pod)]
        inside = tree.used[tree.roots].sum(axis=0)
        going = self.ledger.sum_of(leaving)
        inside[: len(going)] += going
        total = np.zeros(len(tree.resources))
        for name, column in tree.column_of.items():
            offered = float(nodes.allocatable(name).sum(dtype=np.float64))
            outside = float(nodes.used(name).sum(dtype=np.float64)) - inside[column]
            total[column] = offered - max(0.0, outside)
        return total

    def overdue(self) -> Overdue | None:
        """Evict nobody for whom no unit waits."""
        return None

    def statuses(self) -> Sequence[PatchStatus]:
        """Write nothing: ConfigMaps and ResourceQuotas have no status of queues."""
        return ()

    # Preemption --------------------------------------------------------------------------

    def may_preempt(self, unit: Unit, action: str) -> bool:
        """Tell whether the unit's queue may take anything back, or has jobs of lower priority."""
        plan = self.plan(unit, action)
        return plan is not None and not isinstance(plan, str)

    def plan(self, unit: Unit, action: str) -> EvictionCandidates | str | None:
        """Return how to take back what the unit's queue may have, or to preempt in the queue."""
        row = self.ledger.row_of(unit.pods[0])
        if row is None:
            return None
        if action == "preempt" and self._args.preempt:
            return _Preempt(self, self._handle, unit, row)
        if action != "reclaim" or not self._args.reclaim or self.name not in _SHARING:
            return None
        request = self.ledger.sum_of(unit.pods[: max(1, unit.min_placed)])
        enough = self.enough(row, request)
        if enough:
            return f"reclaim: {self.title(self.ledger.tree.name(row))} {enough}"
        return _Reclaim(self, self._handle, row, request)

    def enough(self, row: int, request: AmountRows) -> str:
        """Return why a queue may take nothing back from others for a request; "" if it may.

        With ``capacity`` it may take what it is guaranteed, of the resources that it names; a queue
        that is guaranteed nothing of what is requested has enough.
        """
        tree, width = self.ledger.tree, len(request)
        asked = request > 0
        most = self.fair()[row, :width]
        if self.name == "capacity":
            most = tree.deserved[row, :width]
            asked &= most > 0
        if not asked.any():
            return "is guaranteed nothing of what is requested"
        used = tree.used[row, :width]
        for column in np.flatnonzero(asked & (used + request > most + EPSILON)).tolist():
            name = tree.resources[column]
            has, may, wants = (
                amount_text(name, float(one[column])) for one in (used, most, request)
            )
            return f"has {has} of the {may} {name} that it may take back, {wants} requested"
        return ""


class _Reclaim:
    """Take back what a queue may have from queues that have more than they may."""

    moves = Moves.ALLOWED
    leaving_count = False

    def __init__(self, policy: PlainPolicy, handle: Handle, row: int, request: AmountRows) -> None:
        self._policy = policy
        self._handle = handle
        self._row = row
        self._request = request

    def steps(self) -> Iterator[Step]:
        """Yield jobs of the queue furthest beyond its share, of low priority and young first."""
        tree = self._policy.ledger.tree
        jobs = {
            row: _steps(self._handle, pods, lambda pod: True)
            for row, pods in self._policy.ledger.placed().items()
            if row != self._row and tree.queues[row].reclaimable
        }
        while True:
            over = [row for row, own in jobs.items() if own and self._is_beyond(row)]
            if not over:
                return
            yield jobs[max(over, key=self._policy._share)].pop()

    def _is_beyond(self, row: int) -> bool:
        """Whether a queue, and its ancestor beside the unit's, have more than their share.

        The unit's side, up to that ancestor's sibling, has to stay within its own: what is above
        both has what it had.
        """
        tree, fair = self._policy.ledger.tree, self._policy.fair()
        branches = tree.branches(self._row, row)
        if branches is None:
            return False
        path = tree.path(self._row)
        own = path[: path.index(branches[0]) + 1]
        if any(self._policy.enough(ancestor, self._request) for ancestor in own):
            return False
        width = len(self._request)
        asked = self._request > 0
        return all(
            bool((asked & (tree.used[r, :width] > fair[r, :width] + EPSILON)).any())
            for r in {row, branches[1]}
        )

    def accepts(self, victims: Sequence[Step]) -> bool:
        """Accept all victims: each was beyond its share when it was taken."""
        return True


class _Preempt:
    """Evict jobs of lower priority in the unit's own queue."""

    moves = Moves.NONE
    leaving_count = False

    def __init__(self, policy: PlainPolicy, handle: Handle, unit: Unit, row: int) -> None:
        self._policy = policy
        self._handle = handle
        self._unit = unit
        self._row = row

    def steps(self) -> Iterator[Step]:
        """Yield jobs of low priority and young first."""
        pods = self._policy.ledger.placed().get(self._row, [])
        steps = _steps(self._handle, pods, lambda pod: pod.priority < self._unit.priority)
        while steps:
            yield steps.pop()

    def accepts(self, victims: Sequence[Step]) -> bool:
        """Accept all victims: each has a lower priority."""
        return True


def _steps(
    handle: Handle, pods: Iterable[PodInfo], wanted: Callable[[PodInfo], bool]
) -> list[Step]:
    """Return the steps of a queue's running jobs, the first to go last."""
    jobs = running_jobs(handle, pods, wanted)
    jobs.sort(key=_importance)
    steps = [step for job in jobs for step in job.steps()]
    return steps[::-1]


def _importance(job: RunningJob) -> tuple[float, float, str]:
    """Sort jobs by who may go first: low priority, then the youngest."""
    return (job.priority, -job.started, job.key)
