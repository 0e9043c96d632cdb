"""PodDisruptionBudgets: which ones cover a pod, and how many evictions they allow."""

from __future__ import annotations

from collections.abc import Iterable

from bayplan import PodInfo
from bayplan.api import PodDisruptionBudget
from bayplan.api.selector_index import SelectorIndex
from bayplan.snapshot import Snapshot

__all__ = ["Allowed", "DisruptionBudgets"]

_MOST_LABELS = 20_000
"""How many sets of labels are remembered; every pod may have labels of its own."""


class DisruptionBudgets:
    """All budgets of the cluster, by key; what is asked costs as much as the budgets it is about.

    ``version`` changes when other pods may be covered than before.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self.version = 0
        self._selectors = SelectorIndex()
        self._known: dict[object, tuple[str, ...]] = {}
        for budget in snapshot.objects(PodDisruptionBudget).values():
            self._changed(None, budget)
        snapshot.on_object(PodDisruptionBudget, self._changed)

    @classmethod
    def of(cls, snapshot: Snapshot) -> DisruptionBudgets:
        """Return the budgets that all users of a snapshot share."""
        return snapshot.shared(cls, cls)

    def __bool__(self) -> bool:
        return bool(self._selectors)

    def _changed(self, old: PodDisruptionBudget | None, new: PodDisruptionBudget | None) -> None:
        if old is not None and new is not None and old.spec.selector == new.spec.selector:
            return
        if new is not None:
            self._selectors.put(_key(new), new.metadata.namespace, new.spec.selector)
        elif old is not None:
            self._selectors.drop(_key(old))
        self._known.clear()
        self.version += 1

    def covering(self, pod: PodInfo) -> tuple[str, ...]:
        """Return the budgets that cover a pod, by key."""
        if not self._selectors:
            return ()
        known = self._known.get(pod.labels_id)
        if known is None:
            if len(self._known) >= _MOST_LABELS:
                self._known.clear()
            found = self._selectors.matching(pod.namespace, pod.labels)
            known = self._known[pod.labels_id] = tuple(found)
        return known

    def allowed(self) -> Allowed:
        """Return how many evictions each budget, by key, allows."""
        return Allowed(self._snapshot)

    def violations(self, pods: Iterable[PodInfo]) -> int:
        """Return how many of these pods cannot be evicted without violating a budget."""
        if not self._selectors:
            return 0
        allowed, count = self.allowed(), 0
        for pod in pods:
            own = self.covering(pod)
            for key in own:
                allowed[key] -= 1
            count += any(allowed[key] < 0 for key in own)
        return count


class Allowed(dict[str, int]):
    """How many evictions budgets allow, by key: read from a budget when it is asked for."""

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__()
        self._budgets = snapshot.objects(PodDisruptionBudget)

    def __missing__(self, key: str) -> int:
        budget = self._budgets.get(key)
        return budget.status.disruptions_allowed if budget is not None else 0


def _key(budget: PodDisruptionBudget) -> str:
    return f"{budget.metadata.namespace}/{budget.metadata.name}"
