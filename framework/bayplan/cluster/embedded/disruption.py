"""The disruption controller, as k8s.io/kubernetes pkg/controller/disruption."""

from __future__ import annotations

from msgspec.structs import replace

from bayplan.api import Pod, PodDisruptionBudget
from bayplan.api.object_key import object_key
from bayplan.api.selector_index import SelectorIndex
from bayplan.api.selectors import compile_selector
from bayplan.cluster.embedded.disruption_budgets import disruptions_allowed
from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.cluster.protocol import WatchEvent, WatchType

__all__ = ["DisruptionController"]


class DisruptionController:
    """Keeps ``status.disruptionsAllowed`` of all budgets current.

    Only budgets are counted again of which a pod, or the budget itself, has changed.
    """

    def __init__(self, cluster: MemoryCluster) -> None:
        self._cluster = cluster
        self._known: dict[str, PodDisruptionBudget] = {}
        self._budgets = SelectorIndex()
        self._covered: dict[str, dict[str, Pod]] = {}
        """The pods of each budget, by the keys of both."""
        self._covering: dict[str, list[str]] = {}
        """The budgets of each pod that has any."""
        self._changed: dict[str, None] = {}
        """Budgets to be counted again, once for all events of an instant."""
        cluster.watch(self.handle)

    def handle(self, event: WatchEvent) -> None:
        """Recount what changed after all events of this instant."""
        before = bool(self._changed)
        if event.type is WatchType.RESYNC:
            self._begin_again()
        elif isinstance(event.obj, PodDisruptionBudget):
            self._budget(event.obj, event.type is WatchType.DELETED)
        elif isinstance(event.obj, Pod) and self._budgets:
            self._pod(event.obj, event.type is WatchType.DELETED)
        if self._changed and not before:
            self._cluster.clock.call_later(0, self._count)

    def _begin_again(self) -> None:
        for key in list(self._covered):
            self._forget(key)
        for budget in self._cluster.list(PodDisruptionBudget):
            self._budget(budget, gone=False)

    def _budget(self, budget: PodDisruptionBudget, gone: bool) -> None:
        key = object_key(budget)
        known = self._known.get(key)
        if gone or known is None or known.spec.selector != budget.spec.selector:
            self._forget(key)
        if gone:
            return
        self._known[key], self._changed[key] = budget, None
        if key not in self._covered:
            self._cover(key, budget)

    def _cover(self, key: str, budget: PodDisruptionBudget) -> None:
        """Find the pods that a budget covers."""
        namespace = budget.metadata.namespace
        selector = compile_selector(budget.spec.selector)
        self._budgets.put(key, namespace, budget.spec.selector)
        pods = self._covered[key] = {}
        for pod in self._cluster.list(Pod):
            if pod.metadata.namespace == namespace and selector.matches(pod.metadata.labels):
                pods[pod.key] = pod
                self._covering.setdefault(pod.key, []).append(key)

    def _forget(self, key: str) -> None:
        """Forget a budget and whom it covers."""
        self._known.pop(key, None)
        self._budgets.drop(key)
        self._changed.pop(key, None)
        for pod in self._covered.pop(key, {}):
            self._covering[pod].remove(key)

    def _pod(self, pod: Pod, gone: bool) -> None:
        before = self._covering.pop(pod.key, [])
        for key in before:
            del self._covered[key][pod.key]
        meta = pod.metadata
        after = [] if gone else self._budgets.matching(meta.namespace, meta.labels)
        for key in after:
            self._covered[key][pod.key] = pod
        if after:
            self._covering[pod.key] = after
        self._changed |= dict.fromkeys((*before, *after))

    def _count(self) -> None:
        changed, self._changed = self._changed, {}
        for key in changed:
            budget = self._cluster.get(PodDisruptionBudget, key)
            if budget is None:
                continue
            allowed = disruptions_allowed(budget, list(self._covered[key].values()))
            if allowed != budget.status.disruptions_allowed:
                status = replace(budget.status, disruptions_allowed=allowed)
                self._cluster.update(replace(budget, status=status))
