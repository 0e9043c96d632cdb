"""How many pods may be evicted at a time, and be on their way, by node, namespace and controller.

Rules: Koordinator v1.8 (pkg/descheduler/evictions/eviction_limiter.go,
pkg/descheduler/controllers/migration/arbitrator/filter.go).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from bayplan import Handle, PodInfo
from bayplan_plugins.low_node_load.args import LowNodeLoadArgs
from bayplan_plugins.low_node_load.evictable import EVICT
from bayplan_plugins.low_node_load.eviction_rates import Evicted, EvictionRates
from bayplan_plugins.shared.budgets import DisruptionBudgets
from bayplan_plugins.shared.moved_pods import ToCome
from bayplan_plugins.shared.moving import maker_of

__all__ = ["Budgets", "most_away"]

_FEW, _SOME = 3, 10


class _Place(NamedTuple):
    """Of which node, namespace and controller a pod is."""

    node: str
    namespace: str
    maker: str


class Budgets:
    """What may still go in one round.

    A gang goes as a whole, so only disruption budgets, and limits of the whole cluster, of nodes
    and of namespaces, count for it; not those of its own controller.
    """

    def __init__(
        self,
        args: LowNodeLoadArgs,
        handle: Handle,
        on_way: Iterable[ToCome],
        rates: EvictionRates,
    ) -> None:
        self._args = args
        self._rates = rates
        self._clock = handle.now
        self._snapshot = handle.snapshot
        self._on_way = [_Place(one.left, one.namespace, one.maker) for one in on_way]
        self._now: list[_Place] = []
        self._gone: list[PodInfo] = []
        self._of_maker: dict[str, list[PodInfo]] = defaultdict(list)
        for pod, _ in handle.snapshot.placed.values():
            self._of_maker[maker_of(pod)].append(pod)

    def refuses(self, pods: Sequence[PodInfo]) -> str:
        """Return which limit keeps pods of one job; "" for none."""
        placed = self._snapshot.placed
        own = [_Place(placed[pod.key][1], pod.namespace, maker_of(pod)) for pod in pods]
        if DisruptionBudgets.of(self._snapshot).violations([*self._gone, *pods]):
            return "a PodDisruptionBudget"
        at_a_time = self._refused_at_a_time(own)
        if at_a_time:
            return at_a_time
        if all(EVICT in pod.annotations for pod in pods):
            return ""
        by_rate = (self._rates.refuses(self._evicted(pod), self._clock) for pod in pods)
        return (
            next(filter(None, by_rate), "")
            or self._refused_on_way(own)
            or ("" if pods[0].gang is not None else self._refused_by_controller(pods[0]))
        )

    def _evicted(self, pod: PodInfo) -> Evicted:
        """Return what limits of rates ask of a pod; a gang does not count for its controller."""
        if pod.gang is not None or not any(o.controller for o in pod.pod.metadata.owner_references):
            return Evicted(pod.namespace, "", 0)
        maker = maker_of(pod)
        return Evicted(pod.namespace, maker, self._replicas(maker))

    def _replicas(self, maker: str) -> int:
        """Return how many pods a controller has, with those that it has yet to make again."""
        return len(self._of_maker[maker]) + sum(one.maker == maker for one in self._on_way)

    def _refused_at_a_time(self, own: Sequence[_Place]) -> str:
        args = self._args
        return _beyond(
            [*self._now, *own],
            ("maxNoOfPodsToEvictTotal", args.max_no_of_pods_to_evict_total),
            ("maxNoOfPodsToEvictPerNode", args.max_no_of_pods_to_evict_per_node),
            ("maxNoOfPodsToEvictPerNamespace", args.max_no_of_pods_to_evict_per_namespace),
        )

    def _refused_on_way(self, own: Sequence[_Place]) -> str:
        args = self._args
        return _beyond(
            [*self._on_way, *self._now, *own],
            ("maxMigratingGlobally", args.max_migrating_globally),
            ("maxMigratingPerNode", args.max_migrating_per_node),
            ("maxMigratingPerNamespace", args.max_migrating_per_namespace),
        )

    def _refused_by_controller(self, pod: PodInfo) -> str:
        """Return why a pod of several of one controller stays: too many are away, or it is all."""
        args, maker = self._args, maker_of(pod)
        away = sum(one.maker == maker for one in (*self._on_way, *self._now))
        replicas = self._replicas(maker)
        migrating = most_away(args.max_migrating_per_workload, replicas)
        unavailable = most_away(args.max_unavailable_per_workload, replicas)
        if not args.skip_check_expected_replicas and replicas in (1, migrating, unavailable):
            return "skipCheckExpectedReplicas"
        if away and away >= migrating:
            return "maxMigratingPerWorkload"
        others = [one for one in self._of_maker[maker] if one.uid != pod.uid]
        not_ready = sum(not _is_ready(one) for one in others) + away
        return "maxUnavailablePerWorkload" if not_ready >= unavailable else ""

    def take(self, pods: Iterable[PodInfo], nodes: Mapping[str, str]) -> None:
        """Take note that pods are evicted in this round.

        :param nodes: those that they leave, by key.
        """
        for pod in pods:
            self._now.append(_Place(nodes[pod.key], pod.namespace, maker_of(pod)))
            self._gone.append(pod)
            self._rates.take(self._evicted(pod), self._clock)


def _beyond(
    places: Sequence[_Place],
    total: tuple[str, int],
    per_node: tuple[str, int],
    per_namespace: tuple[str, int],
) -> str:
    """Return which limit so many pods are beyond; 0 stands for no limit."""
    if 0 < total[1] < len(places):
        return total[0]
    for (name, most), counted in (
        (per_node, Counter(one.node for one in places)),
        (per_namespace, Counter(one.namespace for one in places)),
    ):
        if 0 < most < max(counted.values()):
            return name
    return ""


def most_away(stated: int | str | None, replicas: int) -> int:
    """Return how many of so many pods may be away; by default the fewer, the more cautious."""
    if isinstance(stated, str):
        return max(1, replicas * int(stated.removesuffix("%")) // 100)
    if stated:
        return stated
    if replicas > _SOME:
        return max(1, replicas * 10 // 100)
    return 2 if replicas > _FEW else 1


def _is_ready(pod: PodInfo) -> bool:
    return any(one.type == "Ready" and one.status == "True" for one in pod.pod.status.conditions)
