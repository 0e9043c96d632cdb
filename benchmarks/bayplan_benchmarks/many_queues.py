"""Many queues: how long the scheduler is deaf while the queues of a large organisation change.

10,000 queues of each system, side by side (``flat``) or each below the one before it (``chain``,
which every system cuts at its depth). ``firstMilliseconds`` is the longest step of the first look,
``changeMilliseconds`` the longest step after a queue was created or a pod came. Between two steps
the live scheduler answers its API server, probes and pages.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec

from bayplan.api import (
    ApiObject,
    ElasticQuota,
    KaiQueue,
    LabelSelector,
    Namespace,
    Node,
    ObjectMeta,
    Pod,
    Quantity,
    VolcanoQueue,
)
from bayplan.api.elastic_quota import ElasticQuotaSpec
from bayplan.api.kueue import (
    ClusterQueue,
    ClusterQueueSpec,
    Cohort,
    CohortSpec,
    FlavorQuotas,
    LocalQueue,
    LocalQueueSpec,
    ResourceFlavor,
    ResourceGroup,
    ResourceQuota,
)
from bayplan.api.node import NodeStatus
from bayplan.api.pod import Container, PodSpec, ResourceRequirements
from bayplan.api.queue_objects import (
    KaiQueueResource,
    KaiQueueResources,
    KaiQueueSpec,
    VolcanoQueueSpec,
)
from bayplan.benchmark import Benchmark, BenchmarkResult
from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.garbage import collect_rarely
from bayplan.profiles.loading import default_profiles
from bayplan.scheduler.scheduler import Scheduler

__all__ = ["SYSTEMS", "LongestSteps", "longest_steps", "many_queues", "queues_of"]

_GPU = "nvidia.com/gpu"
_NAMESPACE = "bench"
_CHANGES = 3
_PODS = 100


def _kai(name: str, parent: str) -> Iterator[ApiObject]:
    each = KaiQueueResource(1, 1, -1)
    spec = KaiQueueSpec(parent_queue=parent, resources=KaiQueueResources(each, each, each))
    yield KaiQueue(ObjectMeta(name=name), spec)


def _volcano(name: str, parent: str) -> Iterator[ApiObject]:
    deserved = {_GPU: Quantity("1")}
    yield VolcanoQueue(ObjectMeta(name=name), VolcanoQueueSpec(deserved=deserved, parent=parent))


def _koordinator(name: str, parent: str) -> Iterator[ApiObject]:
    labels = {"quota.scheduling.koordinator.sh/is-parent": "false"}
    if parent:
        labels["quota.scheduling.koordinator.sh/parent"] = parent
    spec = ElasticQuotaSpec({"cpu": Quantity("1")}, {"cpu": Quantity("64"), _GPU: Quantity("8")})
    yield ElasticQuota(ObjectMeta(name=name, namespace=_NAMESPACE, labels=labels), spec)


def _kueue(name: str, parent: str) -> Iterator[ApiObject]:
    cohort = f"cohort-{name}"
    yield Cohort(ObjectMeta(name=cohort), CohortSpec(f"cohort-{parent}" if parent else ""))
    quotas = FlavorQuotas("plain", (ResourceQuota(_GPU, Quantity("8")),))
    group = ResourceGroup((_GPU,), (quotas,))
    spec = ClusterQueueSpec((group,), cohort, namespace_selector=LabelSelector())
    yield ClusterQueue(ObjectMeta(name=name), spec)
    yield LocalQueue(ObjectMeta(name=name, namespace=_NAMESPACE), LocalQueueSpec(name))


SYSTEMS: Mapping[str, Callable[[str, str], Iterator[ApiObject]]] = {
    "kai": _kai,
    "volcano": _volcano,
    "koordinator": _koordinator,
    "kueue": _kueue,
}
_LABELS = {
    "kai": "kai.scheduler/queue",
    "koordinator": "quota.scheduling.koordinator.sh/name",
    "kueue": "kueue.x-k8s.io/queue-name",
}


def queues_of(system: str, count: int, chain: bool) -> Iterator[ApiObject]:
    """Yield the objects of ``count`` queues of a system.

    :param chain: whether each is below the one before it.
    """
    yield Namespace(ObjectMeta(name=_NAMESPACE))
    if system == "kueue":
        yield ResourceFlavor(ObjectMeta(name="plain"))
    for index in range(count):
        parent = f"queue-{index - 1}" if chain and index else ""
        yield from SYSTEMS[system](f"queue-{index}", parent)


def _node(index: int) -> Node:
    amounts = {"cpu": "64", "memory": "512Gi", "pods": "110", _GPU: "8"}
    quantities = {key: Quantity(value) for key, value in amounts.items()}
    return Node(ObjectMeta(name=f"node-{index}"), status=NodeStatus(quantities, quantities))


def _pod(system: str, name: str, queue: str) -> Pod:
    requests = {_GPU: Quantity("1")}
    main = Container("main", "image", ResourceRequirements(requests, requests))
    given = {_LABELS[system]: queue} if system in _LABELS else {}
    annotations = {} if given else {"scheduling.volcano.sh/queue-name": queue}
    meta = ObjectMeta(name=name, namespace=_NAMESPACE, labels=given, annotations=annotations)
    return Pod(meta, PodSpec(containers=(main,)))


def _longest_step(cluster: MemoryCluster, scheduler: Scheduler) -> float:
    """Return the seconds of the longest step until nothing is left to do at this instant."""
    longest = 0.0
    more = True
    while more:
        more = False
        for part in (cluster.deliver, scheduler.tick, scheduler.step):
            started = time.perf_counter()
            more |= bool(part())
            longest = max(longest, time.perf_counter() - started)
    return longest


class LongestSteps(msgspec.Struct, frozen=True):
    """The seconds of the longest step of the first look, and of the longest one after changes.

    ``bound`` is the number of pods that were bound after these.
    """

    first: float
    later: float
    bound: int


def longest_steps(system: str, nodes: int, objects: Iterable[ApiObject]) -> LongestSteps:
    """Run a scheduler on nodes and objects of one system, and create queues with one pod each."""
    cluster = MemoryCluster()
    scheduler = Scheduler(cluster, default_profiles())
    for obj in (*map(_node, range(nodes)), *objects):
        cluster.create(obj)
    cluster.deliver()
    collect_rarely()
    first = _longest_step(cluster, scheduler)
    before = scheduler.statistics.bound
    longest = 0.0
    for index in range(_CHANGES):
        for obj in SYSTEMS[system](f"new-{index}", ""):
            cluster.create(obj)
        longest = max(longest, _longest_step(cluster, scheduler))
        cluster.create(_pod(system, f"new-{index}", f"new-{index}"))
        longest = max(longest, _longest_step(cluster, scheduler))
    return LongestSteps(first, longest, scheduler.statistics.bound - before)


def _measure(nodes: int, queues: int) -> BenchmarkResult:
    first: dict[str, float] = {}
    changes: dict[str, float] = {}
    for system in SYSTEMS:
        for shape in ("flat", "chain"):
            objects = queues_of(system, queues, shape == "chain")
            step = max(1, queues // _PODS)
            pods = [_pod(system, f"pod-{at}", f"queue-{at}") for at in range(0, queues, step)]
            found = longest_steps(system, nodes, (*objects, *pods))
            first[f"{system}-{shape}"] = round(1000 * found.first, 1)
            changes[f"{system}-{shape}"] = round(1000 * found.later, 1)
    figures = {"firstMilliseconds": first, "changeMilliseconds": changes}
    return BenchmarkResult({"nodes": nodes, "queues": queues}, figures)


many_queues = Benchmark("the longest step with many queues", (16,), 10_000, _measure)
