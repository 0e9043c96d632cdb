"""PodDisruptionBudgets: how many pods may be evicted now.

All pods that a budget selects count as expected; Kubernetes asks their controllers instead.
"""

from __future__ import annotations

from msgspec.structs import replace

from bayplan.api import Pod, PodDisruptionBudget
from bayplan.api.selectors import compile_selector
from bayplan.cluster.embedded.int_or_percent import amount_of
from bayplan.cluster.embedded.object_store import ObjectStore
from bayplan.errors import TooManyDisruptions

__all__ = ["budgets_of", "disruptions_allowed", "health", "take_disruption"]


def disruptions_allowed(budget: PodDisruptionBudget, pods: list[Pod]) -> int:
    """Return how many of the pods that a budget selects may be evicted now."""
    healthy, wanted = health(budget, pods)
    return max(0, healthy - wanted)


def health(budget: PodDisruptionBudget, pods: list[Pod]) -> tuple[int, int]:
    """Return how many of a budget's pods are healthy, and how many must be."""
    selector = compile_selector(budget.spec.selector)
    own = [
        pod
        for pod in pods
        if pod.metadata.namespace == budget.metadata.namespace
        and selector.matches(pod.metadata.labels)
        and pod.status.phase in ("Pending", "Running")
    ]
    healthy = sum(
        pod.status.phase == "Running" and pod.metadata.deletion_timestamp is None for pod in own
    )
    if budget.spec.max_unavailable is not None:
        wanted = len(own) - amount_of(budget.spec.max_unavailable, len(own), up=True)
    elif budget.spec.min_available is not None:
        wanted = amount_of(budget.spec.min_available, len(own), up=True)
    else:
        wanted = len(own) - 1
    return healthy, wanted


def budgets_of(store: ObjectStore, pod: Pod) -> list[PodDisruptionBudget]:
    """Return the budgets that cover a pod."""
    return [
        budget
        for budget in store.list(PodDisruptionBudget)
        if budget.metadata.namespace == pod.metadata.namespace
        and compile_selector(budget.spec.selector).matches(pod.metadata.labels)
    ]


def take_disruption(store: ObjectStore, pod: Pod) -> None:
    """Count one disruption against every budget that covers a pod.

    :raises TooManyDisruptions: when a budget allows none; then nothing is counted.
    """
    covering = budgets_of(store, pod)
    running = pod.status.phase == "Running" and pod.metadata.deletion_timestamp is None
    for budget in covering if running else ():
        if budget.status.disruptions_allowed < 1:
            raise TooManyDisruptions(
                f"Cannot evict pod {pod.key}: it would violate the disruption budget "
                f"{budget.metadata.namespace}/{budget.metadata.name}"
            )
    for budget in covering if running else ():
        left = budget.status.disruptions_allowed - 1
        status = replace(budget.status, disruptions_allowed=left)
        store.update(replace(budget, status=status))
