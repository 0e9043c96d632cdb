"""What KAI tells pods that it evicts."""

from __future__ import annotations

from dataclasses import dataclass

from bayplan import PodInfo
from bayplan.gangs.directory import GangMembers
from bayplan.queues.tree import AmountRows
from bayplan_plugins.queues.fair_share.jobs import Job, whole_of
from bayplan_plugins.queues.fair_share.shares import FairShares

__all__ = ["EvictionTexts", "stale_text"]

_UNITS = (
    ("GPU", "nvidia.com/gpu", 1.0, ""),
    ("CPU", "cpu", 1000.0, " (cores)"),
    ("memory", "memory", 1e9, " (GB)"),
)


@dataclass(frozen=True)
class EvictionTexts:
    """Texts for the victims of an action, by which room is made for a job.

    :param shares: what queues use and may have before the victims go.
    """

    shares: FairShares
    action: str
    job: Job

    def of(self, victim: PodInfo, queue: str) -> str:
        """Return the text for a victim of a queue."""
        if self.action == "consolidation":
            return (
                f"Pod {victim.key} was preempted and rescheduled due to bin packing "
                "(resource consolidation) procedure"
            )
        if self.action == "preempt":
            return f"Pod {victim.key} was preempted by higher priority workload {self.job.key}"
        lines = [f"Pod {victim.key} was preempted by workload {self.job.key}."]
        return "\n".join([*lines, *self._queues(queue)])

    def _queues(self, queue: str) -> list[str]:
        """Return a line for each of the two queues that compete: siblings, below what both share.

        The queues themselves where they are siblings, else those above them.
        """
        tree = self.shares.tree
        if queue not in tree.row_of or self.job.queue not in tree.row_of:
            return []
        theirs, ours = (tree.path(tree.row_of[name])[::-1] for name in (queue, self.job.queue))
        for victim, other in zip(theirs, ours, strict=False):
            if victim != other:
                return [self._line(victim), self._line(other)]
        return []

    def _line(self, row: int) -> str:
        shares, tree = self.shares, self.shares.tree
        used, quota, fair = (
            self._amounts(amounts[row]) for amounts in (shares.used, tree.deserved, shares.fair)
        )
        return (
            f"{tree.name(row)} uses <{used}> with a quota of <{quota}>, fair-share of <{fair}> "
            f"and queue priority of <{tree.queues[row].priority}>."
        )

    def _amounts(self, row: AmountRows) -> str:
        columns = self.shares.tree.column_of
        return ", ".join(
            f"{name}: {_number(float(row[columns[resource]]) / unit)}{suffix}"
            for name, resource, unit, suffix in _UNITS
        )


def stale_text(victim: PodInfo, members: GangMembers) -> str:
    """Return the text for a member of a gang that has been below its minimum for too long."""
    active = [pod for pod, _ in members.bound.values()]
    short = [one for one in whole_of(members.gang, active, ()).sets if not one.satisfied]
    least = short[0].least if short else 0
    where = f" in sub-group {short[0].name}" if short and short[0].name else ""
    return (
        f"Workload doesn't meet the minimum required number of pods ({least}){where}, "
        f"evicting remaining pod: {victim.key}"
    )


def _number(value: float) -> str:
    return "Unlimited" if value == float("inf") else f"{round(value, 3):.15g}"
