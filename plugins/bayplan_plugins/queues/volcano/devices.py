"""Devices of claims as resources of queues: ``deviceclass/<class>`` counts them.

``<capacity>.deviceclass/<class>`` is what claims ask for of a capacity that devices share. Names as
in volcano-sh/volcano's plugin capacity.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from bayplan import PodInfo
from bayplan.api import ResourceClaim, ResourceClaimTemplate
from bayplan.api.dra import ExactDeviceRequest, ResourceClaimSpec
from bayplan.snapshot import Snapshot

__all__ = ["CLASS_PREFIX", "ClaimedDevices", "is_of_devices"]

CLASS_PREFIX = "deviceclass/"
_SEPARATOR = f".{CLASS_PREFIX}"


def is_of_devices(resource: str) -> bool:
    """Tell whether a resource stands for devices of a class, which nodes do not state."""
    return resource.startswith(CLASS_PREFIX) or _SEPARATOR in resource


class ClaimedDevices:
    """Counts what the claims of pods ask for; a claim that pods share counts for the first one."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._users: dict[str, dict[str, None]] = {}
        snapshot.on_pod(self._moved)

    def of(self, pod: PodInfo) -> Mapping[str, float]:
        """Return what a pod's claims ask for, by class; of alternatives the first counts."""
        found: dict[str, float] = {}
        for spec in self._specs(pod):
            for request in spec.devices.requests:
                exactly = request.exactly or next(iter(request.first_available), None)
                if exactly is not None:
                    _count(exactly, found)
        return found

    def _specs(self, pod: PodInfo) -> Iterator[ResourceClaimSpec]:
        claims = self._snapshot.objects(ResourceClaim)
        templates = self._snapshot.objects(ResourceClaimTemplate)
        for wanted in pod.spec.resource_claims:
            if wanted.resource_claim_name is None:
                template = templates.get(f"{pod.namespace}/{wanted.resource_claim_template_name}")
                if template is not None:
                    yield template.spec.spec
                continue
            key = f"{pod.namespace}/{wanted.resource_claim_name}"
            claim = claims.get(key)
            if claim is not None and next(iter(self._users.get(key, ())), pod.key) == pod.key:
                yield claim.spec

    def _moved(self, pod: PodInfo, node: str, placed: bool) -> None:
        for wanted in pod.spec.resource_claims:
            if wanted.resource_claim_name is None:
                continue
            key = f"{pod.namespace}/{wanted.resource_claim_name}"
            if placed:
                self._users.setdefault(key, {})[pod.key] = None
                continue
            users = self._users.get(key, {})
            users.pop(pod.key, None)
            if not users:
                self._users.pop(key, None)


def _count(request: ExactDeviceRequest, found: dict[str, float]) -> None:
    name = request.device_class_name
    count = request.count or 1
    found[f"{CLASS_PREFIX}{name}"] = found.get(f"{CLASS_PREFIX}{name}", 0.0) + count
    capacity = request.capacity.requests if request.capacity is not None else {}
    for part, amount in capacity.items():
        key = f"{part}{_SEPARATOR}{name}"
        found[key] = found.get(key, 0.0) + count * float(amount.amount)
