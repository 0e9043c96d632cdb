"""Which pods may leave a node that is too busy, and in which order they are tried.

Rules: Koordinator v1.8 (pkg/descheduler/evictions, pkg/descheduler/utils/sorter). A pod that nobody
makes again never goes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bayplan import Handle, PodInfo
from bayplan.api.owners import belongs_to_node
from bayplan.api.times import seconds_of
from bayplan.dialects import may_be_evicted
from bayplan.dialects.koordinator.qos import priority_class, qos_class
from bayplan_plugins.low_node_load.args import LowNodeLoadArgs
from bayplan_plugins.low_node_load.usage import Level
from bayplan_plugins.shared.moving import maker_of

__all__ = ["EvictionRules", "order"]

EVICT = "descheduler.alpha.kubernetes.io/evict"
_COST = "scheduling.koordinator.sh/eviction-cost"
_DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
_NEVER = 2**31 - 1
_CRITICAL = 2_000_000_000
_PRIORITY_ORDER = {"koord-prod": 4, "koord-mid": 3, "koord-batch": 2, "koord-free": 1}
_QOS_ORDER = {"SYSTEM": 4, "LSE": 4, "LSR": 3, "LS": 2, "BE": 1}
_QOS_BY_KUBE = {3: "LSR", 2: "LS", 1: "BE"}


class EvictionRules:
    """Tells which pods may be evicted, by their own words and by the profile."""

    def __init__(self, args: LowNodeLoadArgs, handle: Handle) -> None:
        self._args = args
        self._handle = handle
        stated = (one.selector for one in args.pod_selectors)
        self._selectors = [one.compiled for one in stated if one is not None]

    def allow(self, pod: PodInfo) -> bool:
        """Tell whether a pod may go, be it alone or with its job."""
        handle, queueing = self._handle, self._handle.queueing
        if pod.terminating or not maker_of(pod) or not handle.schedules(pod):
            return False
        if belongs_to_node(pod.pod.metadata) or _cost_of(pod) == _NEVER:
            return False
        if not may_be_evicted(pod.pod) or handle.in_eviction_cooldown(pod):
            return False
        if queueing is not None and queueing.keep_in_place(pod):
            return False
        return EVICT in pod.annotations or self._profile_allows(pod)

    def _profile_allows(self, pod: PodInfo) -> bool:
        args = self._args
        if not args.evict_system_critical_pods:
            most = args.priority_threshold.value if args.priority_threshold else _CRITICAL
            if pod.priority >= min(most, _CRITICAL):
                return False
        volumes = pod.spec.volumes
        if not args.evict_local_storage_pods:
            if any(one.empty_dir is not None or one.host_path is not None for one in volumes):
                return False
        if args.ignore_pvc_pods and any(one.persistent_volume_claim for one in volumes):
            return False
        for namespaces in (args.namespaces, args.evictable_namespaces):
            if not namespaces.allow(pod.namespace):
                return False
        if args.label_selector and not args.label_selector.compiled.matches(pod.labels):
            return False
        return not self._selectors or any(one.matches(pod.labels) for one in self._selectors)


def order(
    pods: Sequence[PodInfo],
    measured: Mapping[str, Mapping[str, int]],
    level: Level,
    weights: Mapping[str, int],
) -> list[PodInfo]:
    """Sort pods, the one to go first first.

    That is the least important one; of equal ones that which uses just as much as has to go.

    :param measured: what pods use, by key.
    :param level: what the node uses, and from where on it is too busy.
    """
    excess = {name: level.used[name] - level.high[name] for name in level.over}

    def key(pod: PodInfo) -> tuple[int | float | str, ...]:
        kube = _kube_qos(pod)
        created = seconds_of(pod.pod.metadata.creation_timestamp)
        usage = measured.get(pod.key)
        return (
            _PRIORITY_ORDER[priority_class(pod.pod)],
            pod.priority,
            kube,
            _QOS_ORDER[qos_class(pod.pod) or _QOS_BY_KUBE[kube]],
            _whole(pod.annotations.get(_DELETION_COST)),
            _cost_of(pod),
            -_share(usage, excess, weights) if usage is not None else 1.0,
            -created,
            pod.key,
        )

    return sorted(pods, key=key)


def _share(
    usage: Mapping[str, int], excess: Mapping[str, int], weights: Mapping[str, int]
) -> float:
    """Return how well a pod's usage covers what is too much: from 1 on, less is better."""
    total = points = 0.0
    for name in usage:
        if name in excess:
            ratio = usage[name] / excess[name]
            points += weights.get(name, 0) * (1 / ratio + 1 if ratio >= 1 else ratio)
            total += weights.get(name, 0)
    return points / total if total else 0.0


def _cost_of(pod: PodInfo) -> int:
    return _whole(pod.annotations.get(_COST))


def _whole(text: str | None) -> int:
    """Return a whole number of 32 bits; 0 for anything else."""
    if text is None or len(text) > 11 or not text.removeprefix("-").isdecimal():
        return 0
    return max(-_NEVER, min(_NEVER, int(text)))


def _kube_qos(pod: PodInfo) -> int:
    """Return 3 for a Guaranteed pod, 2 for a Burstable one, 1 for BestEffort."""
    containers = (*pod.spec.containers, *pod.spec.init_containers)
    named = ("cpu", "memory")
    stated = [(one.resources.requests, one.resources.limits) for one in containers]
    if not any(n in requests or n in limits for requests, limits in stated for n in named):
        return 1
    guaranteed = all(
        n in limits and requests.get(n, limits[n]) == limits[n]
        for requests, limits in stated
        for n in named
    )
    return 3 if guaranteed else 2
