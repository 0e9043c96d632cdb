"""The effective resource requests of a pod.

The rule (Kubernetes, resource management of pods with init containers and sidecars): the larger of
the sum of all containers and sidecars, and the peak of the init phase, where each init container
runs beside the sidecars started before it. Pod-level resources then replace the sum for the
resources that they name, and the pod's overhead is added.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from bayplan.api.pod import Container, PodSpec
from bayplan.api.quantity import Quantity

__all__ = [
    "DEFAULT_MEMORY",
    "DEFAULT_MILLI_CPU",
    "LARGEST_AMOUNT",
    "PodRequests",
    "amount_of",
    "effective_requests",
    "is_scalar",
    "pod_requests",
]

LARGEST_AMOUNT = 2**53
"""The most of any resource that a pod may request and a node may offer, in bayplan's units.

It keeps the sums of a node's pods within 64 bits, and shares exact in floating point.
"""
DEFAULT_MILLI_CPU = 100
"""The milli-CPU that scoring assumes for a container without a request (as kube-scheduler)."""
DEFAULT_MEMORY = 200 * 1024 * 1024
"""The bytes of memory that scoring assumes for a container without a request."""

_POD_LEVEL = ("cpu", "memory")


class PodRequests(msgspec.Struct, frozen=True):
    """The requests of a pod: CPU in milli-CPU, everything else in whole units.

    ``effective`` is what Filter counts, without resources of amount 0. ``scoring`` includes the
    defaults for containers that request no CPU or no memory. ``by_containers`` is the same without
    what the pod requests as a whole.
    """

    effective: Mapping[str, int]
    scoring: Mapping[str, int]
    by_containers: Mapping[str, int]


def amount_of(resource: str, quantity: Quantity) -> int:
    """Return a quantity in bayplan's unit for the resource: milli-CPU for cpu, else whole units."""
    return quantity.milli if resource == "cpu" else quantity.units


def is_scalar(resource: str) -> bool:
    """Tell whether schedulers count a resource by its name alone, as kube-scheduler does.

    These are extended resources, huge pages and attachable volumes; no names of quotas such as
    ``requests.cpu``.
    """
    if resource.startswith(("hugepages-", "attachable-volumes-")) or "kubernetes.io/" in resource:
        return True
    return "/" in resource and not resource.startswith("requests.")


def pod_requests(spec: PodSpec) -> PodRequests:
    """Return the effective requests of a pod."""
    effective = effective_requests(spec)
    defaults = {"cpu": DEFAULT_MILLI_CPU, "memory": DEFAULT_MEMORY}
    scoring = by_containers = _sum_up(spec, defaults)
    if spec.resources is not None:
        by_containers = _sum_up(msgspec.structs.replace(spec, resources=None), defaults)
    positive = {name: value for name, value in effective.items() if value}
    return PodRequests(positive, scoring, by_containers)


def effective_requests(spec: PodSpec) -> dict[str, int]:
    """Return what a pod requests, with resources of which it requests 0."""
    return _sum_up(spec, defaults={})


def _sum_up(spec: PodSpec, defaults: Mapping[str, int]) -> dict[str, int]:
    pod_level = spec.resources
    if pod_level is not None:
        named = {*pod_level.requests, *pod_level.limits}
        defaults = {name: value for name, value in defaults.items() if name not in named}
    total: dict[str, int] = {}
    for container in spec.containers:
        _add(total, _requests(container, defaults))
    peak: dict[str, int] = {}
    sidecars: dict[str, int] = {}
    for container in spec.init_containers:
        needs = _requests(container, defaults)
        if container.restart_policy == "Always":
            _add(total, needs)
            _add(sidecars, needs)
            needs = sidecars
        else:
            needs = dict(needs)
            _add(needs, sidecars)
        _raise_to(peak, needs)
    _raise_to(total, peak)
    if pod_level is not None:
        for name in _POD_LEVEL:
            quantity = pod_level.requests.get(name)
            if quantity is None and not total.get(name):
                # The API server uses the limit as the request if no container requests any.
                quantity = pod_level.limits.get(name)
            if quantity is not None:
                total[name] = amount_of(name, quantity)
        for name, quantity in pod_level.requests.items():
            if name.startswith("hugepages-"):
                total[name] = amount_of(name, quantity)
    _add(total, {name: amount_of(name, quantity) for name, quantity in spec.overhead.items()})
    return total


def _requests(container: Container, defaults: Mapping[str, int]) -> dict[str, int]:
    # The API server uses the limit as a missing request.
    needs = {
        name: amount_of(name, quantity)
        for name, quantity in {
            **container.resources.limits,
            **container.resources.requests,
        }.items()
    }
    return {**defaults, **needs}


def _add(into: dict[str, int], what: Mapping[str, int]) -> None:
    for name, value in what.items():
        into[name] = into.get(name, 0) + value


def _raise_to(into: dict[str, int], what: Mapping[str, int]) -> None:
    for name, value in what.items():
        into[name] = max(into.get(name, 0), value)
