"""What pods ask of a node's CPU and GPUs, and how often each kind of pod comes.

A *pod class* is all that the policies know of a pod. The workload is either given, or learned from
the pods that arrive.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from bayplan import PodInfo
from bayplan.api import PodSpec
from bayplan.api.gpu_shares import WHOLE
from bayplan.api.pod import (
    Affinity,
    NodeAffinity,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
)
from bayplan.snapshot import SpecFacts
from bayplan_plugins.gpus.requests import Requests
from bayplan_plugins.gpus.vendors.adapter import ShareRequest

__all__ = [
    "LearnedWorkload",
    "NodeChoice",
    "PodClass",
    "WeightedClass",
    "choice_of_models",
    "class_of",
    "weighted",
]

_TO_LEARN = 8
_DRIFT = 0.1
_MOST_CLASSES = 2048
_MOST_SEEN = 1 << 16
_SIZES = (2, 4, 8)


@dataclass(frozen=True)
class NodeChoice:
    """Which nodes a pod allows: by spec.nodeSelector and required node affinity.

    ``spec`` is a pod's that has them; choices of equal ``text`` are the same.
    """

    text: str = ""
    spec: PodSpec = field(default_factory=PodSpec, compare=False, repr=False)


class PodClass(msgspec.Struct, frozen=True, cache_hash=True):
    """What a pod asks for: milli-CPU, a number of GPUs, thousandths of each, and which nodes.

    A pod without GPUs has ``gpus`` 0. Shares of less than a GPU are of one GPU only, or of
    several GPUs by as much each.
    """

    cpu: int
    gpus: int
    compute: int
    choice: NodeChoice

    @property
    def whole(self) -> bool:
        """Whether the pod asks for whole GPUs."""
        return self.gpus > 0 and self.compute >= WHOLE

    @property
    def cluster(self) -> int:
        """The number of whole GPUs, 0 for shares."""
        return self.gpus if self.whole else 0

    @property
    def total(self) -> int:
        """The thousandths of GPUs in all."""
        return self.gpus * self.compute


class WeightedClass(msgspec.Struct, frozen=True):
    """A pod class and the part of all pods that have it, 0 to 1."""

    pod_class: PodClass
    part: float


_ANY = NodeChoice()


def choice_of(spec: PodSpec) -> NodeChoice:
    """Return which nodes a pod's spec allows."""
    affinity = spec.affinity.node_affinity if spec.affinity else None
    required = affinity.required if affinity is not None else None
    if not spec.node_selector and required is None:
        return _ANY
    return NodeChoice(f"{sorted(spec.node_selector.items())} {required}", spec)


def class_of(pod: PodInfo, requests: Requests, gpu_memory: int) -> PodClass:
    """Return the pod class of a pod.

    :param requests: what it asks of GPUs, by adapter.
    :param gpu_memory: the memory in bytes of a typical GPU; 0 if it is not known.
    """
    request = next(iter(sorted(requests.values(), key=lambda one: one.implicit)), None)
    cpu = pod.requests.get("cpu", 0)
    choice = choice_of(pod.spec)
    if request is None:
        return PodClass(cpu, 0, 0, choice)
    compute = max(request.compute, round(request.share * WHOLE))
    if request.memory and gpu_memory:
        compute = max(compute, -(-request.memory * WHOLE // gpu_memory))
    return PodClass(cpu, request.gpus, min(WHOLE, compute), choice)


def choice_of_models(label: str, models: Sequence[str]) -> NodeChoice:
    """Return the choice of the nodes whose label has one of the values; all nodes without any."""
    if not models:
        return _ANY
    requirement = NodeSelectorRequirement(key=label, operator="In", values=tuple(models))
    term = NodeSelectorTerm(match_expressions=(requirement,))
    required = NodeSelector(node_selector_terms=(term,))
    return choice_of(PodSpec(affinity=Affinity(node_affinity=NodeAffinity(required=required))))


def weighted(counts: Iterable[tuple[PodClass, float]], covered: float = 1.0) -> list[WeightedClass]:
    """Return the most frequent pod classes that cover a part of all pods, summing up to 1.

    Of equally frequent pod classes, the one that asks for more comes first.
    """
    ordered = sorted(counts, key=lambda one: (-one[1], -one[0].total, -one[0].cpu))
    total = sum(count for _, count in ordered)
    found: list[tuple[PodClass, float]] = []
    reached = 0.0
    for pod_class, count in ordered:
        found.append((pod_class, count / total))
        reached += count / total
        if reached >= covered:
            break
    kept = sum(part for _, part in found)
    return [WeightedClass(pod_class, part / kept) for pod_class, part in found]


class LearnedWorkload:
    """The pod classes of the pods seen so far; the policies use it once enough have been seen.

    ``latest`` are the pod classes at the last look, which comes whenever a quarter more pods have
    been seen; there, pods of several whole GPUs are taken as if one of each size had come already,
    and four that take a largest node.
    ``in_use`` changes only when the pod classes differ from it by more than a tenth of all pods, so
    that scores stay comparable and need not be computed again.

    :param largest: returns the most CPU (milli) and GPUs (thousandths) that nodes have.
    """

    def __init__(self, largest: Callable[[], tuple[int, int]]) -> None:
        self._largest = largest
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._counts: Counter[tuple[SpecFacts, tuple[ShareRequest, ...]]] = Counter()
        self._classes: dict[tuple[SpecFacts, tuple[ShareRequest, ...]], PodClass] = {}
        self._next = _TO_LEARN
        self.in_use: list[WeightedClass] = []
        self.latest: list[WeightedClass] = []

    def unseen(self) -> list[WeightedClass]:
        """Return the workload while too few pods have been seen: pods of several GPUs may come."""
        return weighted(expected(Counter(), *self._largest()).items())

    def see(self, pod: PodInfo, requests: Requests, gpu_memory: int) -> bool:
        """Count a pod once; return whether ``latest``, and maybe ``in_use``, have changed."""
        if pod.uid in self._seen:
            return False
        self._seen[pod.uid] = None
        if len(self._seen) > _MOST_SEEN:
            self._seen.popitem(last=False)
        key = (pod.facts, tuple(requests.values()))
        if key not in self._counts:
            if len(self._counts) >= _MOST_CLASSES:
                return False
            self._classes[key] = class_of(pod, requests, gpu_memory)
        self._counts[key] += 1
        total = self._counts.total() if len(self._seen) >= self._next else 0
        if total < self._next:
            return False
        self._next = total * 5 // 4 + 1
        pod_classes: Counter[PodClass] = Counter()
        for one, count in self._counts.items():
            pod_classes[self._classes[one]] += count
        if self._drift(pod_classes, total) > _DRIFT:
            self.in_use = weighted(pod_classes.items())
        self.latest = weighted((pod_classes + expected(pod_classes, *self._largest())).items())
        return True

    def _drift(self, pod_classes: Mapping[PodClass, int], total: int) -> float:
        """Return which part of all pods would have to have another pod class to be as in use."""
        used = {one.pod_class: one.part for one in self.in_use}
        more = (
            count / total - used.get(pod_class, 0.0) for pod_class, count in pod_classes.items()
        )
        return sum(part for part in more if part > 0)


def expected(seen: Counter[PodClass], most_cpu: int, most_gpus: int) -> Counter[PodClass]:
    """Return pods of several GPUs that may come though none like them has been seen.

    One each of two, four and eight whole GPUs with as much CPU a GPU as others have, and four
    that take all of a largest node.
    """
    gpus = sum(pod_class.total * count for pod_class, count in seen.items()) / WHOLE
    cpu = sum(pod_class.cpu * count for pod_class, count in seen.items() if pod_class.gpus)
    each = int(cpu / gpus) if gpus else 0
    found = Counter(PodClass(each * size, size, WHOLE, _ANY) for size in _SIZES)
    if most_gpus >= 2 * WHOLE:
        found[PodClass(most_cpu, most_gpus // WHOLE, WHOLE, _ANY)] += 4
    return found
