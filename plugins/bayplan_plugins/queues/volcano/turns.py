"""Which pods of a job are placed next: the minimum at once, the surplus one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from bayplan import Handle, PodInfo, Unit
from bayplan.api.gang import Gang
from bayplan.gangs.completeness import rank_order
from bayplan_plugins.queues.volcano.tiers import Tiers

__all__ = ["pods_of_turn"]


def pods_of_turn(handle: Handle, tiers: Tiers, unit: Unit) -> Sequence[PodInfo] | None:
    """Return the pods to place now; None for all, where any subset could be the wrong one.

    Pods that no node takes now do not count, and each role's minimum comes first. They are in the
    order of their ranks, unless their job says which of its tasks belong together.
    """
    gang = unit.gang
    if gang is None or gang.sub_groups or unit.parts:
        return None
    gathers = tiers.gathers_tasks(unit.pods[0])
    chosen = _chosen(handle, tiers, unit, gang)
    if chosen is None:
        return _ordered(tiers, unit.pods) if gathers else None
    return _ordered(tiers, chosen) if gathers else sorted(chosen, key=rank_order)


def _ordered(tiers: Tiers, pods: Sequence[PodInfo]) -> Sequence[PodInfo]:
    return sorted(pods, key=lambda pod: (tiers.task_order(pod), rank_order(pod)))


def _chosen(handle: Handle, tiers: Tiers, unit: Unit, gang: Gang) -> Sequence[PodInfo] | None:
    needed = max(1, unit.min_placed)
    if unit.nominated:
        return [pod for pod in unit.pods if pod.key in unit.nominated]
    if needed >= len(unit.pods):
        return None
    ordered = sorted(unit.pods, key=lambda pod: (tiers.task_order(pod), pod.rank or 0))
    fitting = _fitting(handle, ordered)
    lacking = dict(gang.roles)
    for pod, _ in unit.bound:
        if lacking.get(pod.role, 0) > 0:
            lacking[pod.role] -= 1
    first: list[PodInfo] = []
    rest: list[PodInfo] = []
    for pod in fitting:
        wanted = lacking.get(pod.role, 0) > 0
        (first if wanted else rest).append(pod)
        if wanted:
            lacking[pod.role] -= 1
    if any(count > 0 for count in lacking.values()):
        return None
    chosen = [*first, *rest[: max(0, needed - len(first))]]
    return chosen if len(chosen) >= needed else None


def _fitting(handle: Handle, pods: Sequence[PodInfo]) -> list[PodInfo]:
    """Return the pods for which some node has a slot, as many of a kind as there are slots."""
    slots: Counter[object] = Counter()
    for pod in pods:
        kind = (pod.facts, pod.labels_id)
        if kind not in slots:
            slots[kind] = int(handle.free_slots(pod).clip(max=len(pods)).sum())
    found = []
    for pod in pods:
        kind = (pod.facts, pod.labels_id)
        if slots[kind] > 0:
            slots[kind] -= 1
            found.append(pod)
    return found
