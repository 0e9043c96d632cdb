"""KAI's texts: for pods that it evicts, for groups that are stale or beyond what a queue may have.

Amounts are GPUs, cores and GB, as KAI writes them.
"""

from __future__ import annotations

import msgspec

from bayplan import PodInfo
from bayplan.queues.tree import AmountRows, QueueTree
from bayplan_plugins.queues.kai.jobs import Job, Part
from bayplan_plugins.queues.kai.shares import FairShares
from bayplan_plugins.queues.policy import QuotaRefusal

__all__ = ["EvictionTexts", "over_limit_text", "over_quota_text", "stale_job_text", "stale_text"]

_UNITS = (
    ("GPU", "nvidia.com/gpu", 1.0, ""),
    ("CPU", "cpu", 1000.0, " (cores)"),
    ("memory", "memory", 1e9, " (GB)"),
)


class EvictionTexts(msgspec.Struct, frozen=True):
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
            f"{_name(tree, row)} uses <{used}> with a quota of <{quota}>, fair-share of <{fair}> "
            f"and queue priority of <{tree.queues[row].priority}>."
        )

    def _amounts(self, row: AmountRows) -> str:
        columns = self.shares.tree.column_of
        return ", ".join(
            f"{name}: {_number(float(row[columns[resource]]) / unit)}{suffix}"
            for name, resource, unit, suffix in _UNITS
        )


class _Words(msgspec.Struct, frozen=True):
    """How KAI speaks of a resource: ``asked`` of a job, ``kind`` for the whole of it."""

    asked: str
    counted: str
    kind: str
    unit: float


_WORDS = {
    "nvidia.com/gpu": _Words("GPUs", "GPUs", "GPUs", 1.0),
    "cpu": _Words("CPU cores", "cores", "CPU cores", 1000.0),
    "memory": _Words("GB memory", "GB", "memory", 1e9),
}


def over_limit_text(tree: QueueTree, refusal: QuotaRefusal) -> str:
    """Return the text for a job beyond the limit of its queue, or of one above it."""
    words = _WORDS[refusal.resource]
    most, used, requested = (f"{one} {words.counted}" for one in _in_units(refusal, words))
    return (
        f"{_name(tree, tree.row_of[refusal.ancestor])} quota has reached the allowable limit of "
        f"{words.kind}. Limit is {most}, currently {used} allocated and workload requested "
        f"{requested}"
    )


def over_quota_text(tree: QueueTree, refusal: QuotaRefusal) -> str:
    """Return the text for a job that nothing may preempt, beyond the quota for such jobs."""
    words = _WORDS[refusal.resource]
    most, used, requested = _in_units(refusal, words)
    return (
        f"Non-preemptible workload is over quota. Workload requested {requested} {words.asked}, "
        f"but {_name(tree, tree.row_of[refusal.ancestor])} quota is {most} {words.counted}, "
        f"while {used} {words.counted} are already allocated for non-preemptible pods. "
        "Use a preemptible workload to go over quota."
    )


def _in_units(refusal: QuotaRefusal, words: _Words) -> tuple[str, str, str]:
    amounts = (refusal.most, refusal.used, refusal.requested)
    most, used, requested = (_number(amount / words.unit) for amount in amounts)
    return most, used, requested


def stale_job_text(whole: Part) -> str:
    """Return what a gang that lost members is reported: how many it has and needs."""
    sets = whole.sets
    active = sum(len(one.active) for one in sets)
    text = f"{active} pods are active, minMember is {sum(one.least for one in sets)}"
    if whole.children and whole.least < len(whole.children):
        text = (
            f"{active} pods are active, {whole.count} of {whole.least} "
            "required subGroups are satisfied"
        )
    short = [
        f", subGroup {one.name} minMember is {one.least} and {len(one.active)} pods are active"
        for one in sets
        if one.name and not one.satisfied
    ]
    return f"Job is stale. {text}{''.join(short)}"


def stale_text(victim: PodInfo, whole: Part) -> str:
    """Return the text for a member of a gang that has been below its minimum for too long."""
    short = [one for one in whole.sets if not one.satisfied]
    least = short[0].least if short else 0
    where = f" in sub-group {short[0].name}" if short and short[0].name else ""
    return (
        f"Workload doesn't meet the minimum required number of pods ({least}){where}, "
        f"evicting remaining pod: {victim.key}"
    )


def _name(tree: QueueTree, row: int) -> str:
    return tree.queues[row].display_name or tree.name(row)


def _number(value: float) -> str:
    """Return a number with three decimals at most, cut and not rounded."""
    if value == float("inf"):
        return "Unlimited"
    return f"{value:.6f}"[:-3].rstrip("0").rstrip(".")
