"""A Workload as admission sees it: what it requests, in which queue, and when it came."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import msgspec

from bayplan.api.kueue import KueueWorkload, PodSetRequest
from bayplan.api.quantity import MAX_QUANTITY
from bayplan.api.resources import effective_requests
from bayplan.api.times import seconds_of
from bayplan.dialects.progress import min_runtime
from bayplan.queues.workload_kinds import equivalence
from bayplan_plugins.queues.kueue.amounts import amount_in, column, quantity_of
from bayplan_plugins.queues.kueue.charged_resources import ChargedResources
from bayplan_plugins.queues.kueue.conditions import condition, is_true, since
from bayplan_plugins.queues.kueue.settings import RequeueOrder, Settings

__all__ = [
    "BOOST",
    "REPLACES",
    "PodSetRequests",
    "WorkloadInfo",
    "beyond_limits",
    "boost_of",
    "creation",
    "local_queue_key",
    "priority_of",
    "queue_time",
]

BOOST = "kueue.x-k8s.io/priority-boost"
REPLACES = "kueue.x-k8s.io/workload-slice-replacement-for"
"""Names the workload slice (``namespace/name``) that a larger one replaces."""
_BEYOND = "requests must not exceed its limits"
_AS_REQUESTED = ChargedResources()
_AFTER = 0.001
"""Seconds by which a preempted workload counts as newer than its preemptor."""


class PodSetRequests(msgspec.Struct, frozen=True):
    """What a pod set requests.

    :param requests: of all its pods together, by resource.
    :param per_pod: of one pod.
    :param flavors: by resource, once quota is reserved.
    """

    name: str
    count: int
    requests: Mapping[str, float]
    per_pod: Mapping[str, float] = msgspec.field(default_factory=dict)
    flavors: Mapping[str, str] = msgspec.field(default_factory=dict)

    def scaled_to(self, count: int) -> PodSetRequests:
        """Return the same pod set with another number of pods."""
        if count == self.count or self.count == 0:
            return self
        requests = {name: amount // self.count * count for name, amount in self.requests.items()}
        return PodSetRequests(self.name, count, requests, self.per_pod, self.flavors)


@dataclass
class WorkloadInfo:
    """A workload with what admission derives from it and remembers about it.

    :param queue: the name of its ClusterQueue.
    :param last_tried: for each pod set, the index of the flavor that was tried last, by resource;
        -1 where the list was exhausted. None to begin with the first flavor.
    :param tried_in: the generation of the queue's quotas in which that was.
    :param tried_at: the number of the cycle in which that was.
    :param nominated: for each pod set, the flavors by resource that an assignment has to keep.
    :param usage_share: the usage over time of its LocalQueue, where that orders victims.
    :param equivalence: equal for workloads that fit the same; None if unknown.

    ``evicted`` says that it has to go, ``reserved_at`` since when it has quota, ``safe_until`` when
    it has run for its minimum; times in seconds since 1970.
    """

    workload: KueueWorkload
    queue: str
    pod_sets: tuple[PodSetRequests, ...]
    last_tried: tuple[Mapping[str, int], ...] | None = None
    tried_in: int = -1
    tried_at: int = -1
    nominated: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    usage_share: float | None = None
    equivalence: Hashable = None
    key: str = field(init=False)
    uid: str = field(init=False)
    evicted: bool = field(init=False)
    reserved_at: float | None = field(init=False)
    safe_until: float = field(init=False)

    def __post_init__(self) -> None:
        self.key, self.uid = self.workload.key, self.workload.metadata.uid
        self.evicted = is_true(self.workload, "Evicted")
        self.reserved_at = since(self.workload, "QuotaReserved")
        self.safe_until = 0.0 if self.evicted else _runs_until(self.workload)

    @classmethod
    def of(
        cls, workload: KueueWorkload, queue: str, charged: ChargedResources = _AS_REQUESTED
    ) -> WorkloadInfo:
        """Derive from a workload that is pending in a queue, or has its quota."""
        has_quota = workload.status.admission is not None
        sets = _assigned(workload) if has_quota else _asked(workload, charged)
        is_slice = REPLACES in workload.metadata.annotations
        asked = [(one.count, one.requests) for one in sets]
        same = None if is_slice else equivalence(workload, asked)
        return cls(workload, queue, sets, equivalence=same)

    def resume(self, other: WorkloadInfo) -> None:
        """Go on where the search for the workload's flavors was before it changed.

        Where it asks for something else now, the search begins with the first flavor.
        """
        if self.equivalence == other.equivalence:
            self.last_tried = other.last_tried
            self.tried_in, self.tried_at = other.tried_in, other.tried_at

    @cached_property
    def usage(self) -> Mapping[str, float]:
        """What it uses of its queue, by column; nothing of resources without a flavor."""
        total: dict[str, float] = {}
        for pod_set in self.pod_sets:
            for resource, flavor in pod_set.flavors.items():
                name = column(flavor, resource)
                total[name] = total.get(name, 0) + pod_set.requests.get(resource, 0)
        return total

    def can_shrink(self) -> bool:
        """Tell whether fewer pods than asked for may be admitted."""
        sets = self.workload.spec.pod_sets
        return any(one.min_count is not None and one.count > one.min_count for one in sets)

    def total_requests(self) -> dict[str, float]:
        """Return what all pod sets request together, by resource."""
        total: dict[str, float] = {}
        for pod_set in self.pod_sets:
            for resource, amount in pod_set.requests.items():
                total[resource] = total.get(resource, 0) + amount
        return total

    def resource_requests(self) -> tuple[PodSetRequest, ...]:
        """Return the requests as a status shows them."""
        return tuple(
            PodSetRequest(one.name, {n: quantity_of(n, a) for n, a in one.requests.items()})
            for one in self.pod_sets
        )


def beyond_limits(workload: KueueWorkload) -> str:
    """Return what asks for more than its own limits, "" for nothing: no pod of it could be made.

    The text is that of Kueue's ``ValidateResources``.
    """
    reported = []
    for number, pod_set in enumerate(workload.spec.pod_sets):
        spec = pod_set.template.spec
        parts = [
            *((f"initContainers[{i}]", c.resources) for i, c in enumerate(spec.init_containers)),
            *((f"containers[{i}]", c.resources) for i, c in enumerate(spec.containers)),
            *([("resources", spec.resources)] if spec.resources is not None else []),
        ]
        for name, resources in parts:
            larger = sorted(
                resource
                for resource, limit in resources.limits.items()
                if resource in resources.requests
                and amount_in(resource, resources.requests[resource]) > amount_in(resource, limit)
            )
            if larger:
                path = f"spec.podSets[{number}].template.spec.{name}"
                shown = ", ".join(f'"{resource}"' for resource in larger)
                reported.append(f"{path}: Invalid value: [{shown}]: {_BEYOND}")
    return f"[{', '.join(reported)}]" if len(reported) > 1 else "".join(reported)


def _runs_until(workload: KueueWorkload) -> float:
    """Return until when a workload has not run for the minimum that its templates state."""
    stated = (min_runtime(one.template.metadata.annotations) for one in workload.spec.pod_sets)
    seconds = max(stated, default=0.0)
    admitted = since(workload, "Admitted") if seconds else None
    return admitted + seconds if admitted is not None else 0.0


def _asked(workload: KueueWorkload, charged: ChargedResources) -> tuple[PodSetRequests, ...]:
    """Return the requests of a pending workload, without pods that need no quota any more."""
    freed = {one.name: one.count for one in workload.status.reclaimable_pods}
    found = []
    for pod_set in workload.spec.pod_sets:
        count = pod_set.count - freed.get(pod_set.name, 0)
        per_pod: dict[str, float] = dict(charged.of(effective_requests(pod_set.template.spec)))
        requests = {name: min(amount * count, MAX_QUANTITY) for name, amount in per_pod.items()}
        found.append(PodSetRequests(pod_set.name, count, requests, per_pod))
    return tuple(found)


def _assigned(workload: KueueWorkload) -> tuple[PodSetRequests, ...]:
    """Return the requests of a workload that has quota, as they were assigned."""
    admission = workload.status.admission
    assert admission is not None
    freed = {one.name: one.count for one in workload.status.reclaimable_pods}
    asked = {one.name: one for one in workload.spec.pod_sets}
    found = []
    for one in admission.pod_set_assignments:
        spec = asked.get(one.name)
        whole = spec.count if spec is not None else one.count or 0
        count = whole if one.count is None else one.count
        requests = {name: amount_in(name, used) for name, used in one.resource_usage.items()}
        per_pod = {name: amount // count if count else 0 for name, amount in requests.items()}
        kept = PodSetRequests(one.name, count, requests, per_pod, one.flavors)
        left = whole - freed.get(one.name, 0)
        found.append(kept.scaled_to(left) if left < count else kept)
    return tuple(found)


# Order -------------------------------------------------------------------------------------


def local_queue_key(workload: KueueWorkload) -> str:
    """Return ``namespace/name`` of a workload's LocalQueue."""
    return f"{workload.metadata.namespace}/{workload.spec.queue_name}"


def boost_of(workload: KueueWorkload) -> int:
    """Return the priority boost of a workload's annotation; 0 if it is not a 32-bit integer."""
    try:
        boost = int(workload.metadata.annotations.get(BOOST, "0"))
    except ValueError:
        return 0
    return boost if -(2**31) <= boost < 2**31 else 0


def priority_of(workload: KueueWorkload, settings: Settings) -> int:
    """Return a workload's priority, boosted where boosts count."""
    priority = workload.spec.priority or 0
    return priority + boost_of(workload) if settings.boosted_priorities else priority


def creation(workload: KueueWorkload) -> float:
    """Return when a workload was created, in seconds since 1970."""
    return seconds_of(workload.metadata.creation_timestamp)


def queue_time(workload: KueueWorkload, settings: Settings) -> float:
    """Return the time that a workload's place in the queue counts from, in seconds since 1970.

    It is the creation, or the eviction of a workload whose pods or admission checks did not get
    ready.
    """
    gone = condition(workload, "Evicted")
    at = since(workload, "Evicted")
    if gone is not None and at is not None:
        late = gone.reason == "PodsReadyTimeout"
        if gone.reason == "AdmissionCheck":
            return at
        if late and settings.requeue_order is RequeueOrder.EVICTION:
            return at
    if not settings.priority_across_queues:
        preempted = condition(workload, "Preempted")
        at = since(workload, "Preempted")
        reason = "InCohortReclaimWhileBorrowing"
        if preempted is not None and at is not None and preempted.reason == reason:
            return at + _AFTER
    return creation(workload)
