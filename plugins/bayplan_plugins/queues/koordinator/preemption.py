"""Preemption inside a quota: which pods may be evicted for another, and which have to be."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from bayplan.api import Pod
from bayplan.dialects.koordinator.elastic_quota import DEFAULT_QUOTA, is_preemptible
from bayplan_plugins.queues.koordinator.gate import QuotaGate
from bayplan_plugins.queues.koordinator.importance import by_importance, priority_of

__all__ = ["may_preempt", "victims_on_node"]


def may_preempt(
    pod: Pod, victim: Pod, quota_of: Callable[[Pod], str], spare_default: bool = True
) -> bool:
    """Tell whether a pod may have another evicted: one of its quota, with a lower priority.

    :param spare_default: spare the pods of the default quota, which others may have placed.
    """
    quota = quota_of(victim)
    if not is_preemptible(victim) or quota_of(pod) != quota:
        return False
    return not (spare_default and quota == DEFAULT_QUOTA) and priority_of(pod) > priority_of(victim)


def victims_on_node(
    pod: Pod,
    candidates: Iterable[Pod],
    gate: QuotaGate,
    fits: Callable[[Sequence[Pod]], bool],
) -> list[Pod] | None:
    """Return the fewest pods of a node to evict for a pod, None if evicting all does not help.

    The most important ones are spared first, as long as the pod fits and its quota admits it.

    :param candidates: pods of the node that the pod may have evicted.
    :param gate: the pod's quota; it is left without the victims.
    :param fits: tells whether the pod fits on the node once these pods are gone.
    """
    gone = by_importance(candidates)
    for victim in gone:
        gate.remove(victim)
    if not gone or not fits(gone):
        return None
    victims: list[Pod] = []
    for place, one in enumerate(gone):
        gate.add(one)
        if gate.refusal(pod) is not None or not fits([*victims, *gone[place + 1 :]]):
            gate.remove(one)
            victims.append(one)
    return victims
