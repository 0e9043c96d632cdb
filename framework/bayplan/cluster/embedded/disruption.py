"""Disruption budgets of the embedded cluster: how many pods may go, and who asks first.

As kube-controller-manager's disruption controller, with the pods that a budget selects counted
as the expected ones.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from msgspec.structs import replace

from bayplan.api import Pod, PodDisruptionBudget
from bayplan.api.selectors import compile_selector
from bayplan.cluster.protocol import WatchEvent
from bayplan.errors import TooManyDisruptions

if TYPE_CHECKING:
    from bayplan.cluster.embedded.store import MemoryCluster

__all__ = ["DisruptionBudgets"]


class DisruptionBudgets:
    """Keeps ``status.disruptionsAllowed`` of all budgets, and takes evictions off it."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self._cluster = cluster
        self._waiting = False
        cluster.watch(self.handle)

    def handle(self, event: WatchEvent) -> None:
        """Count anew once this instant's events are all known."""
        interesting = isinstance(event.obj, Pod | PodDisruptionBudget)
        if interesting and not self._waiting and self._cluster.list(PodDisruptionBudget):
            self._waiting = True
            self._cluster.clock.call_later(0, self._count_all)

    def _count_all(self) -> None:
        self._waiting = False
        for budget in self._cluster.list(PodDisruptionBudget):
            allowed = disruptions_allowed(budget, self._cluster.list(Pod))
            if allowed != budget.status.disruptions_allowed:
                status = replace(budget.status, disruptions_allowed=allowed)
                self._cluster.update(replace(budget, status=status))


def disruptions_allowed(budget: PodDisruptionBudget, pods: list[Pod]) -> int:
    """Return how many of the pods that a budget selects may be evicted now."""
    healthy, wanted = health(budget, pods)
    return max(0, healthy - wanted)


def health(budget: PodDisruptionBudget, pods: list[Pod]) -> tuple[int, int]:
    """Return how many of the pods that a budget selects are healthy, and how many have to be."""
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
        wanted = len(own) - _amount(budget.spec.max_unavailable, len(own))
    elif budget.spec.min_available is not None:
        wanted = _amount(budget.spec.min_available, len(own))
    else:
        wanted = len(own) - 1
    return healthy, wanted


def _amount(value: int | str, total: int) -> int:
    """Return a count, or a percentage of the pods, rounded up."""
    if isinstance(value, str):
        return math.ceil(float(value.removesuffix("%")) * total / 100)
    return value


def budgets_of(cluster: MemoryCluster, pod: Pod) -> list[PodDisruptionBudget]:
    """Return the budgets that cover a pod."""
    return [
        budget
        for budget in cluster.list(PodDisruptionBudget)
        if budget.metadata.namespace == pod.metadata.namespace
        and compile_selector(budget.spec.selector).matches(pod.metadata.labels)
    ]


def take_one(cluster: MemoryCluster, pod: Pod) -> None:
    """Take one disruption off every budget that covers a pod.

    :raises TooManyDisruptions: when one of them allows none; then nothing is taken.
    """
    covering = budgets_of(cluster, pod)
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
        cluster.update(replace(budget, status=status))
