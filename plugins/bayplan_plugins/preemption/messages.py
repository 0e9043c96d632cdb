"""What preemption reports, in kube-scheduler's words where it has some."""

from __future__ import annotations

from collections.abc import Sequence

from bayplan import Placement, PodInfo, Preemption, PreemptionTrial
from bayplan_plugins.preemption.search import VictimSet
from bayplan_plugins.shared.victims import Evictable

__all__ = [
    "NO_VICTIMS",
    "UNHELPFUL",
    "UNHELPFUL_FOR_GANGS",
    "kept_for_now",
    "preemption_of",
    "trial_of",
]

NO_VICTIMS = "No preemption victims found for incoming pod"
UNHELPFUL = "Preemption is not helpful for scheduling"
UNHELPFUL_FOR_GANGS = (
    "no domain would hold the job even without all pods of lower priority that may be evicted."
)
_MOST_NAMED = 5


def kept_for_now(evictable: Evictable) -> str:
    """Return whom nobody may evict for now, and why: budgets, or a minimum; "" for none."""
    young: list[PodInfo] = []
    refused: list[PodInfo] = []
    for pod in evictable.in_cooldown.values():
        (young if evictable.is_young(pod) else refused).append(pod)
    text = ""
    if refused:
        found = (name for pod in refused for name in evictable.budgets.covering(pod))
        budgets = ", ".join(dict.fromkeys(found))
        why = f" by PodDisruptionBudget {budgets}" if budgets else ""
        text = f" The eviction of {_names(refused)} was refused{why}."
    if young:
        count = "has" if len(young) == 1 else "have"
        text += f" {_names(young)} {count} not run for the minimum yet."
    return text


def _names(pods: Sequence[PodInfo]) -> str:
    names = ", ".join(pod.key for pod in pods[:_MOST_NAMED])
    more = len(pods) - _MOST_NAMED
    return f"{names} and {more} more" if more > 0 else names


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
    where = solution.placement.name or "the cluster"
    real = [pod for pod in victims if not evictable.is_free(pod)]
    verb = "evicting" if real else "waiting for the end of"
    text = f"preemption: {verb} {len(victims)} pod{'s'[: len(victims) != 1]} ({_names(victims)}) "
    return Preemption(
        victims,
        solution.nodes,
        f"{text}frees capacity in {where}.",
        solution.placement.name,
        frozenset(pod.key for pod in real if evictable.budgets.covering(pod)),
    )
