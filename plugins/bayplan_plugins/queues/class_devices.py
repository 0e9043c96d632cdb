"""Devices of claims as resources of queues: ``deviceclass/<class>`` counts them.

``<capacity>.deviceclass/<class>`` is what claims ask for of a capacity that devices share. Names as
in volcano-sh/volcano's plugin capacity.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bayplan import PodInfo
from bayplan.api import ResourceClaim, ResourceClaimTemplate
from bayplan.api.dra import ExactDeviceRequest, ResourceClaimSpec
from bayplan.snapshot import Snapshot

__all__ = ["CLASS_PREFIX", "devices_of", "devices_of_templates", "is_of_devices"]

CLASS_PREFIX = "deviceclass/"
_SEPARATOR = f".{CLASS_PREFIX}"


def is_of_devices(resource: str) -> bool:
    """Tell whether a resource stands for devices of a class, which nodes do not state."""
    return resource.startswith(CLASS_PREFIX) or _SEPARATOR in resource


def devices_of(claim: ResourceClaim) -> Mapping[str, float]:
    """Return what a claim asks for, by class."""
    return _counted([claim.spec])


def devices_of_templates(pod: PodInfo, snapshot: Snapshot) -> Mapping[str, float]:
    """Return what the claims ask for that are made for a pod alone, by class."""
    templates = snapshot.objects(ResourceClaimTemplate)
    names = (one.resource_claim_template_name for one in pod.spec.resource_claims)
    found = (templates.get(f"{pod.namespace}/{name}") for name in names if name is not None)
    return _counted(one.spec.spec for one in found if one is not None)


def _counted(specs: Iterable[ResourceClaimSpec]) -> dict[str, float]:
    """Count devices and their capacities by class; of alternatives the first counts."""
    found: dict[str, float] = {}
    for spec in specs:
        for request in spec.devices.requests:
            exactly = request.exactly or next(iter(request.first_available), None)
            if exactly is not None:
                _count(exactly, found)
    return found


def _count(request: ExactDeviceRequest, found: dict[str, float]) -> None:
    name = request.device_class_name
    count = request.count or 1
    found[f"{CLASS_PREFIX}{name}"] = found.get(f"{CLASS_PREFIX}{name}", 0.0) + count
    capacity = request.capacity.requests if request.capacity is not None else {}
    for part, amount in capacity.items():
        key = f"{part}{_SEPARATOR}{name}"
        found[key] = found.get(key, 0.0) + count * float(amount.amount)
