"""What a pod's containers need of NUMA nodes, as far as the kubelet aligns it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from bayplan import PodInfo
from bayplan.api import Container, PodSpec
from bayplan.api.resources import amount_of
from bayplan.snapshot.pods import SpecFacts

__all__ = ["Demand", "demand_of"]

_NATIVE = ("cpu", "memory", "ephemeral-storage", "pods")


@dataclass(frozen=True)
class Demand:
    """Needs by resource: of the whole pod, and of each container.

    ``containers`` are in the order in which the kubelet admits them; each with whether it stays,
    as all but init containers do. Amounts: cpu in milli, everything else in its own unit.
    """

    pod: Mapping[str, int]
    containers: tuple[tuple[Mapping[str, int], bool], ...]


_known: dict[SpecFacts, Demand] = {}
_MOST_KNOWN = 10_000


def demand_of(pod: PodInfo) -> Demand:
    """Return what the kubelet would align of a pod: devices always, cpu and memory if guaranteed.

    CPUs are given to a container of its own only in whole numbers.
    """
    found = _known.get(pod.facts)
    if found is None:
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        found = _known[pod.facts] = _demand(pod.spec)
    return found


def _demand(spec: PodSpec) -> Demand:
    exclusive = _is_guaranteed(spec)
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
    return Demand(dict(most), tuple(containers))


def _is_guaranteed(spec: PodSpec) -> bool:
    """Tell whether every container's requests of cpu and memory are its limits."""
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
