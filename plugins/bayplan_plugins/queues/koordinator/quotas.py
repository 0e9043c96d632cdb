"""All quotas of a cluster: trees of quotas, the nodes that they divide, and the pods in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bayplan.api import ElasticQuota, Node, Pod, Quantity
from bayplan.api.resources import amount_of
from bayplan.dialects.koordinator.elastic_quota import (
    DEFAULT_QUOTA,
    SYSTEM_QUOTA,
    KoordinatorQueueArgs,
    QuotaDefinition,
    QuotaNames,
    ResourceList,
    definition_of,
)
from bayplan_plugins.queues.koordinator.features import QuotaFeatures
from bayplan_plugins.queues.koordinator.gate import QuotaGate, QuotaRefusal
from bayplan_plugins.queues.koordinator.manager import QuotaManager, parents_first
from bayplan_plugins.queues.koordinator.resource_lists import added, subtracted

__all__ = ["Quotas"]


class Quotas:
    """The trees of a cluster's quotas, updated object by object.

    Times are in seconds since 1970.

    :param args: the plugin's arguments.
    :param features: the gates that are on.
    """

    def __init__(
        self,
        args: KoordinatorQueueArgs | None = None,
        features: QuotaFeatures | None = None,
    ) -> None:
        self.args = args if args is not None else KoordinatorQueueArgs()
        self.features = features if features is not None else QuotaFeatures()
        self.trees: dict[str, QuotaManager] = {"": self._new_tree("")}
        self._names = QuotaNames(DEFAULT_QUOTA if self.features.default_quota else "")
        self._definitions: dict[str, QuotaDefinition] = {}
        self._homes: dict[str, tuple[str, str]] = {}
        """The tree and the quota that count a pod, by the pod's key."""
        self._strays: dict[str, Pod] = {}
        """Pods that no quota of their own counts."""
        self._nodes: dict[str, ResourceList] = {}

    def _new_tree(self, tree: str) -> QuotaManager:
        return QuotaManager(
            tree,
            _amounts(self.args.system_quota_group_max),
            _amounts(self.args.default_quota_group_max),
            self.args.enable_min_quota_scale,
            self.features.guarantee,
        )

    # Nodes -------------------------------------------------------------------------------

    def set_node(self, node: Node) -> None:
        """Add what a node offers, or what has changed of it, to the default tree."""
        quantities = node.status.allocatable or node.status.capacity
        offered = {name: amount_of(name, quantity) for name, quantity in quantities.items()}
        self.offer(node.metadata.name, offered)

    def offer(self, name: str, amounts: ResourceList) -> None:
        """Set what a node, or many nodes under one name, offer the default tree."""
        before = self._nodes.get(name, {})
        if before != amounts:
            self.add_total("", subtracted(amounts, before))
            self._nodes[name] = amounts

    def add_total(self, tree: str, amounts: Mapping[str, int]) -> None:
        """Add to what a tree has, below 0 to take away."""
        manager = self.trees[tree]
        manager.total = added(manager.total, amounts)

    # Quotas ------------------------------------------------------------------------------

    def set_quota(self, quota: ElasticQuota) -> None:
        """Add a quota, or take over its changes; one that is being deleted is left as it is."""
        self.set_quotas((quota,))

    def set_quotas(self, quotas: Iterable[ElasticQuota]) -> None:
        """Add quotas, or take over their changes, each after its parent: none moves twice."""
        living = (one for one in quotas if one.metadata.deletion_timestamp is None)
        self.define(definition_of(one) for one in living)

    def has(self, name: str) -> bool:
        """Tell whether there is a quota of that name, built in or not."""
        return any(name in tree.quotas for tree in self.trees.values())

    def define(self, definitions: Iterable[QuotaDefinition]) -> None:
        """Add quotas, or take over their changes, by what their objects say."""
        for definition in parents_first({one.name: one for one in definitions}):
            self._set(definition)

    def _set(self, definition: QuotaDefinition) -> None:
        known = self._definitions.get(definition.name)
        tree = self._tree_id(definition)
        if known is not None and self._tree_id(known) != tree:
            self.remove_quota(definition.name)
        elif known is not None:
            self._names.remove(known)
        self._definitions[definition.name] = definition
        self._names.add(definition)
        manager = self.trees.setdefault(tree, self.trees.get(tree) or self._new_tree(tree))
        if definition.is_tree_root and tree and definition.total is not None:
            delta = subtracted(definition.total, manager.total)
            self._give(definition, tree, delta)
        manager.set_quota(definition)

    def remove_quota(self, name: str) -> None:
        """Remove a quota; its pods belong elsewhere from :meth:`settle` on."""
        definition = self._definitions.pop(name, None)
        if definition is None:
            return
        self._names.remove(definition)
        tree = self._tree_id(definition)
        for pod in self.trees[tree].delete_quota(name):
            self._homes.pop(pod.key, None)
            self._strays[pod.key] = pod
        if definition.is_tree_root and tree and definition.total is not None:
            self._give(definition, tree, subtracted({}, definition.total))
            del self.trees[tree]

    def _give(self, definition: QuotaDefinition, tree: str, delta: ResourceList) -> None:
        """Give a tree resources that the default tree has no longer."""
        self.add_total(tree, delta)
        if not definition.ignores_default_tree:
            self.add_total("", subtracted({}, delta))

    def _tree_id(self, definition: QuotaDefinition) -> str:
        return definition.tree if self.features.trees else ""

    def settle(self, now: float) -> int:
        """Count pods where they belong since quotas came and went; return how many moved."""
        fallback = self.trees[""].quotas[DEFAULT_QUOTA]
        astray = [counted.pod for counted in fallback.pods.values()]
        astray = [pod for pod in astray if self.home_of(pod) != self._homes.get(pod.key)]
        astray += [pod for pod in self._strays.values() if self.home_of(pod) is not None]
        for pod in astray:
            self.set_pod(pod, now)
        return len(astray)

    # Pods --------------------------------------------------------------------------------

    def quota_name(self, pod: Pod) -> str:
        """Return the name of the quota that a pod belongs to, "" for none."""
        home = self.home_of(pod)
        return home[1] if home is not None else ""

    def home_of(self, pod: Pod) -> tuple[str, str] | None:
        """Return the tree and the name of a pod's quota; a quota that is missing is the default."""
        name = self._names.named_by(pod)
        definition = self._definitions.get(name)
        if definition is not None:
            return self._tree_id(definition), name
        if name == SYSTEM_QUOTA:
            return "", name
        return ("", DEFAULT_QUOTA) if name and self.features.default_quota else None

    def set_pod(self, pod: Pod, now: float, requests: Mapping[str, int] | None = None) -> None:
        """Count a pod, or what has changed of it, in its quota.

        :param requests: its effective requests, if they are known.
        """
        home = self.home_of(pod) if self.features.counts(pod, now) else None
        before = self._homes.get(pod.key)
        assigned = False
        if before is not None and before != home:
            assigned = self._is_assigned(pod)
            self.remove_pod(pod)
        self._strays.pop(pod.key, None)
        if home is None:
            if self.features.counts(pod, now):
                self._strays[pod.key] = pod
            return
        self._homes[pod.key] = home
        self.trees[home[0]].set_pod(home[1], pod, requests)
        if assigned:
            self.trees[home[0]].assign(home[1], pod)

    def remove_pod(self, pod: Pod) -> None:
        """No longer count a pod."""
        self._strays.pop(pod.key, None)
        home = self._homes.pop(pod.key, None)
        if home is not None:
            self.trees[home[0]].remove_pod(home[1], pod)

    def reserve(self, pod: Pod) -> None:
        """Count a pod as one that has a node."""
        self._assign(pod, True)

    def unreserve(self, pod: Pod) -> None:
        """Count a pod as one that has no node after all."""
        self._assign(pod, False)

    def suppose(self, pod: Pod, times: int) -> None:
        """Count a pod so many times more as one that has a node, or fewer below 0."""
        home = self._homes.get(pod.key)
        if home is not None:
            self.trees[home[0]].suppose(home[1], pod, times)

    def _assign(self, pod: Pod, assigned: bool) -> None:
        home = self._homes.get(pod.key)
        if home is not None:
            self.trees[home[0]].assign(home[1], pod, assigned)

    def _is_assigned(self, pod: Pod) -> bool:
        tree, name = self._homes[pod.key]
        counted = self.trees[tree].quotas[name].pods.get(pod.key)
        return counted is not None and counted.assigned

    # Decisions ---------------------------------------------------------------------------

    def gate_of(
        self, pod: Pod, check_parents: bool = True, runtime: bool = True
    ) -> QuotaGate | None:
        """Return the limits of a pod's quota, for a trial; None for a pod without a quota.

        :param check_parents: whether the limits above it count, where the arguments say so.
        :param runtime: whether its share of the nodes counts, where the arguments say so.
        """
        home = self.home_of(pod)
        if home is None:
            return None
        return QuotaGate(
            self.trees[home[0]],
            home[1],
            runtime and self.args.enable_runtime_quota,
            check_parents and self.args.enable_check_parent_quota,
        )

    def refusal(self, pod: Pod) -> QuotaRefusal | None:
        """Return why a pod may not be placed now, None if its quota admits it."""
        gate = self.gate_of(pod)
        return gate.refusal(pod) if gate is not None else None


def _amounts(texts: Mapping[str, str | int]) -> ResourceList:
    return {name: amount_of(name, Quantity(text)) for name, text in texts.items()}
