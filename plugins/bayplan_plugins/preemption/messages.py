"""What preemption reports, in kube-scheduler's words where it has some."""

from __future__ import annotations

from bayplan import Placement, Preemption, PreemptionTrial
from bayplan_plugins.preemption.search import VictimSet
from bayplan_plugins.shared.victims import Evictable

__all__ = [
    "NO_VICTIMS",
    "UNHELPFUL",
    "UNHELPFUL_FOR_GANGS",
    "preemption_of",
    "refused_evictions",
    "trial_of",
]

NO_VICTIMS = "No preemption victims found for incoming pod"
UNHELPFUL = "Preemption is not helpful for scheduling"
UNHELPFUL_FOR_GANGS = (
    "no domain would hold the job even without all pods of lower priority that may be evicted."
)
_MOST_NAMED = 5


def refused_evictions(evictable: Evictable) -> str:
    """Return which evictions the cluster refused, and by which budgets; "" for none."""
    pods = list(evictable.in_cooldown.values())
    if not pods:
        return ""
    names = ", ".join(pod.key for pod in pods[:_MOST_NAMED])
    if len(pods) > _MOST_NAMED:
        names += f" and {len(pods) - _MOST_NAMED} more"
    budgets = dict.fromkeys(name for pod in pods for name in evictable.budgets.covering(pod))
    why = f" by PodDisruptionBudget {', '.join(budgets)}" if budgets else ""
    return f" The eviction of {names} was refused{why}."


def trial_of(placement: Placement, solution: VictimSet | None) -> PreemptionTrial:
    """Return what a decision records about one candidate."""
    name = placement.name or "cluster"
    if solution is None:
        return PreemptionTrial(name, refusal="would not hold it even without them")
    keys = [pod.key for pod in solution.victims]
    return PreemptionTrial(name, keys, solution.cost.describe())


def preemption_of(solution: VictimSet, evictable: Evictable) -> Preemption:
    """Return the answer of PostFilter: the victims, the unit's nodes, and why."""
    victims = solution.victims
    names = ", ".join(pod.key for pod in victims[:_MOST_NAMED])
    if len(victims) > _MOST_NAMED:
        names += f" and {len(victims) - _MOST_NAMED} more"
    where = solution.placement.name or "the cluster"
    real = [pod for pod in victims if not evictable.is_free(pod)]
    verb = "evicting" if real else "waiting for the end of"
    text = f"preemption: {verb} {len(victims)} pod{'s'[: len(victims) != 1]} ({names}) "
    return Preemption(
        victims,
        solution.nodes,
        f"{text}makes room in {where}.",
        solution.placement.name,
        frozenset(pod.key for pod in real if evictable.budgets.covering(pod)),
    )
