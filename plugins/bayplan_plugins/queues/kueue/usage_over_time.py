"""Admission fair sharing: what LocalQueues have used over time (Kueue's KEP-4136).

Usage decays by half in each half life. An admission counts at once with the share that the next
sample would have, so that a queue cannot admit many workloads between two samples.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import msgspec

from bayplan.api.kueue import ClusterQueue, LocalQueueStatus
from bayplan.dialects.reading import timestamp
from bayplan.queues.usage import Sample, UsageJournal
from bayplan_plugins.queues.kueue.amounts import added, amount_in
from bayplan_plugins.queues.kueue.conditions import has_quota
from bayplan_plugins.queues.kueue.settings import UsageSharing
from bayplan_plugins.queues.kueue.workloads import WorkloadInfo

__all__ = ["UsageLedger", "alpha", "counts_usage", "go_on", "pays_on_entry"]


_ROUNDING = 1e-3
"""Seconds: sums of times since 1970 are not exact."""
_KEPT_SAMPLES = 3
"""Each queue is in one of so many samples, unless it was not sampled for long."""


def alpha(elapsed: float, half_life: float) -> float:
    """Return the part of a sample that new usage makes up: 1 - 0.5^(elapsed / half life)."""
    return 1 - 0.5 ** (elapsed / half_life) if half_life else 0.0


def counts_usage(queue: ClusterQueue, sharing: UsageSharing | None) -> bool:
    """Tell whether a ClusterQueue orders its LocalQueues by usage over time."""
    scope = queue.spec.admission_scope
    usage_based = scope is not None and scope.admission_mode == "UsageBasedAdmissionFairSharing"
    return sharing is not None and usage_based


def pays_on_entry(
    workload: WorkloadInfo, queue: ClusterQueue, sharing: UsageSharing | None
) -> bool:
    """Tell whether an admission counts at once; not that of a workload that has quota already."""
    return counts_usage(queue, sharing) and not has_quota(workload.workload)


def go_on(ledger: UsageLedger, queue: str, status: LocalQueueStatus) -> None:
    """Take over the usage in a LocalQueue's status, unless it is known from then or later."""
    sharing = status.fair_sharing
    written = sharing.admission_fair_sharing_status if sharing is not None else None
    if written is None or not written.last_update:
        return
    # A status tells whole seconds.
    at, known = timestamp(written.last_update), ledger.sampled(queue)
    if known is None or at >= known + 1.0:
        consumed = written.consumed_resources.items()
        ledger.restore(queue, {name: amount_in(name, one) for name, one in consumed}, at)


class _Account(msgspec.Struct):
    """One LocalQueue; ``entries`` are penalties by workload that no sample has settled."""

    consumed: dict[str, float] = msgspec.field(default_factory=dict)
    sampled: float | None = None
    entries: dict[str, dict[str, float]] = msgspec.field(default_factory=dict)


class UsageLedger:
    """The usage over time of all LocalQueues, by ``namespace/name``; amounts by resource.

    ``version`` changes whenever an order by usage may have changed.
    """

    def __init__(self, sharing: UsageSharing) -> None:
        self._sharing = sharing
        self._accounts: dict[str, _Account] = {}
        self.version = 0
        self._journal: UsageJournal | None = None
        if sharing.journal is not None:
            window = _KEPT_SAMPLES * sharing.sampling
            self._journal = UsageJournal(sharing.journal, window, sharing.sampling, None)
            for sample in self._journal.samples:
                for queue, consumed in sample.held.items():
                    self.restore(queue, consumed, sample.at)

    def _account(self, queue: str) -> _Account:
        return self._accounts.setdefault(queue, _Account())

    def consumed(self, queue: str) -> Mapping[str, float]:
        """Return the decayed usage of a LocalQueue, as its status shows it."""
        account = self._accounts.get(queue)
        return dict(account.consumed) if account is not None else {}

    def sampled(self, queue: str) -> float | None:
        """Return when the last sample was taken, in seconds since 1970."""
        account = self._accounts.get(queue)
        return account.sampled if account is not None else None

    def restore(self, queue: str, consumed: Mapping[str, float], sampled: float) -> None:
        """Go on from a status that was written before."""
        account = self._account(queue)
        account.consumed, account.sampled = dict(consumed), sampled
        self.version += 1

    def forget(self, queue: str) -> None:
        """Drop a LocalQueue that is gone."""
        self._accounts.pop(queue, None)
        self.version += 1

    def keep(self, now: float) -> None:
        """Write what was sampled at this time into the journal."""
        accounts = self._accounts.items()
        held = {queue: own.consumed for queue, own in accounts if own.sampled == now}
        if self._journal is not None and held:
            self._journal.add(Sample(now, held, {}))

    def sample(self, queue: str, current: Mapping[str, float], now: float) -> bool:
        """Take a sample of what a LocalQueue uses, if the last one is old enough.

        :param now: seconds since 1970.
        """
        account = self._account(queue)
        last = account.sampled
        if last is not None and now - last < self._sharing.sampling - _ROUNDING:
            return False
        share = alpha(now - last if last is not None else 0.0, self._sharing.half_life)
        total = {name: amount * (1 - share) for name, amount in account.consumed.items()}
        total = added(total, {name: amount * share for name, amount in current.items()})
        account.consumed = added(total, self.penalty(queue))
        account.entries.clear()
        account.sampled = now
        self.version += 1
        return True

    def next_sample(self, queues: Iterable[str]) -> float | None:
        """Return when the next sample of any of some LocalQueues is due; None before the first.

        In seconds since 1970.
        """
        known = (self.sampled(queue) for queue in queues)
        last = min((at for at in known if at is not None), default=None)
        return None if last is None else last + self._sharing.sampling

    # Entries -----------------------------------------------------------------------------

    def enter(self, queue: str, workload: str, requests: Mapping[str, float]) -> None:
        """Count an admission; counting a workload again replaces what was counted."""
        share = alpha(self._sharing.sampling, self._sharing.half_life)
        paid = {name: amount * share for name, amount in requests.items()}
        self.charge(queue, workload, paid)

    def charge(self, queue: str, workload: str, penalty: Mapping[str, float]) -> None:
        """Set the penalty of a workload."""
        self._account(queue).entries[workload] = dict(penalty)
        self.version += 1

    def withdraw(self, queue: str, workload: str) -> None:
        """Take back an admission that failed."""
        account = self._accounts.get(queue)
        if account is not None and account.entries.pop(workload, None) is not None:
            self.version += 1

    def penalty(self, queue: str) -> dict[str, float]:
        """Return the sum of penalties that no sample has settled."""
        total: dict[str, float] = {}
        account = self._accounts.get(queue)
        for one in account.entries.values() if account is not None else ():
            total = added(total, one)
        return total

    # Shares ------------------------------------------------------------------------------

    def share(self, queue: str, weight: float) -> float:
        """Return the weighted usage of a LocalQueue; infinite for weights of 0 and below."""
        if weight <= 0:
            return math.inf
        account = self._accounts.get(queue)
        if account is None:
            return 0.0
        total = added(account.consumed, self.penalty(queue))
        # CPU counts in CPUs, as in Kueue.
        units = {"cpu": 1000.0}
        return (
            sum(
                self._sharing.weights.get(name, 1.0) * total[name] / units.get(name, 1.0)
                for name in sorted(total)
            )
            / weight
        )
