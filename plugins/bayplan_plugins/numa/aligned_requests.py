"""The requests of a pod that the kubelet aligns to NUMA nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec

from bayplan import PodInfo
from bayplan.api import Container, PodSpec
from bayplan.api.resources import amount_of
from bayplan.snapshot.pods import SpecFacts

__all__ = ["AlignedRequests", "aligned_requests_of"]

_NATIVE = ("cpu", "memory", "ephemeral-storage", "pods")


class AlignedRequests(msgspec.Struct, frozen=True):
    """Requests by resource: of the whole pod, and of each container.

    ``containers`` are in the order in which the kubelet admits them, each with whether it keeps
    running (False for init containers that end). CPU is in milli-CPU, the rest in its own unit.
    """

    pod: Mapping[str, int]
    containers: tuple[tuple[Mapping[str, int], bool], ...]


_known: dict[SpecFacts, AlignedRequests] = {}
_MOST_KNOWN = 10_000


def aligned_requests_of(pod: PodInfo) -> AlignedRequests:
    """Return what the kubelet aligns: devices always, cpu and memory of guaranteed pods.

    A container gets exclusive CPUs only if it requests a whole number of them; no container of a
    pod with resources of its own (``spec.resources``) has CPUs or memory aligned.
    """
    found = _known.get(pod.facts)
    if found is None:
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        found = _known[pod.facts] = _read(pod.spec)
    return found


def _read(spec: PodSpec) -> AlignedRequests:
    exclusive = _is_exclusive(spec)
    containers: list[tuple[Mapping[str, int], bool]] = []
    most: Counter[str] = Counter()
    now: Counter[str] = Counter()
    starting = [(one, one.restart_policy == "Always") for one in spec.init_containers]
    for container, stays in (*starting, *((one, True) for one in spec.containers)):
        needs = _aligned(container, exclusive)
        most |= now + Counter(needs)
        if stays:
            now.update(needs)
        if needs:
            containers.append((needs, stays))
    return AlignedRequests(dict(most), tuple(containers))


def _is_exclusive(spec: PodSpec) -> bool:
    """Tell whether containers get CPUs and memory of their own: requests equal limits in each."""
    if spec.resources is not None and (spec.resources.requests or spec.resources.limits):
        return False
    for container in (*spec.containers, *spec.init_containers):
        limits, requests = container.resources.limits, container.resources.requests
        for name in ("cpu", "memory"):
            if name not in limits or requests.get(name, limits[name]) != limits[name]:
                return False
    return True


def _aligned(container: Container, exclusive: bool) -> dict[str, int]:
    resources = {**container.resources.limits, **container.resources.requests}
    needs = {}
    for name, quantity in resources.items():
        amount = amount_of(name, quantity)
        if name == "cpu" and (not exclusive or amount % 1000):
            continue
        if name == "memory" or name.startswith("hugepages-"):
            if not exclusive:
                continue
        elif name in _NATIVE and name != "cpu":
            continue
        if amount:
            needs[name] = amount
    return needs
