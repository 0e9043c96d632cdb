"""Why a queue does not take a job, in KAI's words for the status of its PodGroup."""

from __future__ import annotations

from bayplan.api import Quantity
from bayplan.api.podgroup import QuotaDetails, UnschedulableDetails, UnschedulableReason
from bayplan.queues.amounts import quantities
from bayplan.queues.tree import AmountRows, QueueTree
from bayplan_plugins.queues.kai.capacity import LIMIT
from bayplan_plugins.queues.kai.texts import over_limit_text, over_quota_text
from bayplan_plugins.queues.policy import QuotaRefusal

__all__ = ["delayed", "no_queue", "over_bound"]


def no_queue(message: str) -> UnschedulableReason:
    """Return the reason of a job whose queue does not exist."""
    return UnschedulableReason("QueueDoesNotExist", message)


def delayed() -> UnschedulableReason:
    """Return the reason of a job that fits nowhere and may not evict others yet."""
    return UnschedulableReason(
        "PreemptionDelayNotElapsed", "it evicts no others until its preemption delay is over"
    )


def over_bound(
    tree: QueueTree, refusal: QuotaRefusal, requested: AmountRows, preemptible: bool
) -> UnschedulableReason:
    """Return the reason of a job beyond a limit, or beyond the quota if nothing may preempt it.

    :param requested: what the job asks for.
    """
    row = tree.row_of[refusal.ancestor]
    asked = _quantities(tree, requested)
    of_limit = refusal.bound == LIMIT
    details = QuotaDetails(
        refusal.ancestor,
        queue_requested_resources=_quantities(tree, tree.demand[row]),
        queue_deserved_resources=_quantities(tree, tree.deserved[row]),
        queue_allocated_resources=_quantities(tree, tree.used[row]),
        queue_allocated_non_preemptible_resources=_quantities(tree, tree.fixed[row]),
        queue_resource_limits=_quantities(tree, tree.limit[row]),
        pod_group_requested_resources=asked,
        pod_group_requested_non_preemptible_resources={} if preemptible else asked,
    )
    return UnschedulableReason(
        "OverLimit" if of_limit else "NonPreemptibleOverQuota",
        (over_limit_text if of_limit else over_quota_text)(tree, refusal),
        UnschedulableDetails(details),
    )


def _quantities(tree: QueueTree, row: AmountRows) -> dict[str, Quantity]:
    """Return amounts without those that are unlimited, which have no quantity."""
    amounts = tree.amounts(row)
    return quantities({name: one for name, one in amounts.items() if one != float("inf")})
