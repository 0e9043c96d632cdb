"""Quotas in step with the scheduler's snapshot, in trials, too."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from bayplan.api import ElasticQuota, ElasticQuotaProfile, Node
from bayplan.dialects.koordinator.elastic_quota import (
    KoordinatorQueueArgs,
    ResourceList,
    definition_of,
    tree_root_of,
)
from bayplan.queues.definitions import Translations
from bayplan.snapshot import PodInfo, Snapshot
from bayplan_plugins.queues.koordinator.features import QuotaFeatures
from bayplan_plugins.queues.koordinator.quotas import Quotas

__all__ = ["FollowedQuotas", "quota_objects"]

_ALL_NODES = "*"


class FollowedQuotas:
    """Follows the snapshot: pods ask for what they request, and use it once they are placed.

    :param now: returns the time in seconds since 1970.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        args: KoordinatorQueueArgs,
        features: QuotaFeatures,
        now: Callable[[], float],
    ) -> None:
        self._snapshot = snapshot
        self._args = args
        self._features = features
        self._now = now
        self._quotas: Quotas | None = None
        self.definitions = Translations(definition_of)
        """By name, as the objects say now."""
        self.recount_at = math.inf
        """When the next pod no longer counts, though nothing else changes; since 1970."""
        self._offered: tuple[tuple[int, int], ResourceList] = ((-1, 0), {})
        snapshot.on_object(ElasticQuota, self._quota_changed)
        snapshot.on_object(ElasticQuotaProfile, self._profile_changed)
        self._following = (snapshot.on_pod(self._pod_moved), snapshot.on_living(self._pod_lives))
        self._count_with(None)
        snapshot.on_supposed(self._supposed)

    def _count_with(self, quotas: Quotas | None) -> None:
        """Keep quotas up to date from now on; None until somebody asks for them."""
        self._quotas = quotas
        for one in self._following:
            one.listens = quotas is not None

    @property
    def quotas(self) -> Quotas:
        """The quotas, as the snapshot is now."""
        offered = self._offer()
        self.recounted_until()
        quotas = self._quotas
        if quotas is None:
            quotas = self.recounted()
            self._count_with(quotas)
        quotas.offer(_ALL_NODES, offered)
        return quotas

    def recounted_until(self) -> float:
        """Count what is due; return when the next pod no longer counts, since 1970."""
        if self.recount_at != math.inf and self._now() > self.recount_at:
            self._count_with(self.recounted())
        return self.recount_at

    def _offer(self) -> ResourceList:
        """Return what all nodes offer together; profiles divide the nodes again when it changes."""
        table = self._snapshot.nodes
        mark = (table.epoch, table.position)
        if self._offered[0] != mark:
            columns = table.allocatable_columns
            offered = {name: int(column.sum(dtype=float)) for name, column in columns.items()}
            if offered != self._offered[1] and self._snapshot.objects(ElasticQuotaProfile):
                self._count_with(None)
            self._offered = (mark, offered)
        return self._offered[1]

    def recounted(self) -> Quotas:
        """Return the quotas as counted from nothing, to compare with those that were followed."""
        quotas = Quotas(self._args, self._features)
        living = {
            name: one
            for name, one in quota_objects(self._snapshot).items()
            if one.metadata.deletion_timestamp is None
        }
        quotas.define(self.definitions.of(living))
        self.recount_at = math.inf
        for pod in self._snapshot.living.values():
            quotas.set_pod(pod.pod, self._now(), pod.requests)
            self._recount_after(pod)
        for pod, _ in self._snapshot.placed.values():
            quotas.reserve(pod.pod)
        quotas.offer(_ALL_NODES, self._offer())
        return quotas

    def _recount_after(self, pod: PodInfo) -> None:
        until = self._features.counts_until(pod.pod)
        if self._now() <= until:
            self.recount_at = min(self.recount_at, until)

    def _quota_changed(self, old: ElasticQuota | None, new: ElasticQuota | None) -> None:
        if old is None and new is not None:
            self._add(new)
        # What the scheduler itself writes changes no definition.
        elif old is None or new is None or _definition(old) != _definition(new):
            self._count_with(None)

    def _add(self, quota: ElasticQuota) -> None:
        """Take over a new quota: with thousands of them, it costs less than to count all again."""
        if self._quotas is None:
            return
        meta = quota.metadata
        own = self.definitions.one(meta.name, quota)
        # These change more than where the pods that name the quota belong.
        alters = own.tree or own.is_tree_root or own.namespaces or meta.deletion_timestamp
        if alters or self._quotas.has(own.name) or self._snapshot.objects(ElasticQuotaProfile):
            self._count_with(None)
            return
        self._quotas.define((own,))
        self._quotas.settle(self._now())

    def _profile_changed(self, old: object, new: object) -> None:
        self._count_with(None)

    def _pod_moved(self, pod: PodInfo, node: str, placed: bool) -> None:
        if self._quotas is not None:
            (self._quotas.reserve if placed else self._quotas.unreserve)(pod.pod)

    def _supposed(self, pods: Sequence[PodInfo], times: int) -> None:
        if self._quotas is not None or quota_objects(self._snapshot):
            quotas = self.quotas
            for pod in pods:
                quotas.suppose(pod.pod, times)

    def _pod_lives(self, pod: PodInfo, added: bool) -> None:
        if self._quotas is None:
            return
        if not added:
            self._quotas.remove_pod(pod.pod)
            return
        self._quotas.set_pod(pod.pod, self._now(), pod.requests)
        self._recount_after(pod)
        if pod.key in self._snapshot.placed:
            self._quotas.reserve(pod.pod)


def quota_objects(snapshot: Snapshot) -> Mapping[str, ElasticQuota]:
    """Return the quotas by name: of several with one name, the one of the first namespace.

    A profile's quota that nobody has written is made here, of the nodes that it selects.
    """
    found: dict[str, ElasticQuota] = {}
    for _, quota in sorted(snapshot.objects(ElasticQuota).items()):
        found.setdefault(quota.metadata.name, quota)
    for _, profile in sorted(snapshot.objects(ElasticQuotaProfile).items()):
        nodes: list[Node] = list(snapshot.nodes.nodes)
        found.setdefault(profile.spec.quota_name, tree_root_of(profile, nodes))
    return found


def _definition(quota: ElasticQuota) -> object:
    own = definition_of(quota)
    deleting = quota.metadata.deletion_timestamp is not None
    weights = own.minimum, own.maximum, own.weight, own.total, own.namespaces, own.problem
    place = own.parent, own.is_parent, own.tree, own.is_tree_root, own.ignores_default_tree
    return (*place, *weights, own.lends, deleting)
