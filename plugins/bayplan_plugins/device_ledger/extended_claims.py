"""Claims for extended resources that device classes serve on nodes without a device plugin."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from bayplan import PodInfo
from bayplan.api import ObjectMeta, ResourceClaim
from bayplan.api.dra import (
    DeviceClaim,
    DeviceRequest,
    ExactDeviceRequest,
    ResourceClaimSpec,
)
from bayplan.api.pod import ExtendedResourceMapping
from bayplan.snapshot.pods import SpecFacts
from bayplan_dra.allocator import AllocationError, ClaimToAllocate, Features, prepare
from bayplan_plugins.device_ledger.claim_specs import without_claim_name
from bayplan_plugins.device_ledger.device_classes import DeviceClasses

__all__ = ["EXTENDED_NAME", "ExtendedClaim", "ExtendedClaims", "extended_uid"]

EXTENDED_NAME = "<extended-resources>"
"""The name of the claim for extended resources while it is only in memory."""


def extended_uid(pod_uid: str) -> str:
    """Return the uid of the claim for a pod's extended resources while it is only in memory."""
    return f"extended-{pod_uid}"


class ExtendedClaim(msgspec.Struct, frozen=True):
    """The claim that stands for a pod's extended resources, on nodes without a device plugin.

    ``mappings`` say which request stands for which container and resource.
    """

    claim: ClaimToAllocate
    mappings: tuple[ExtendedResourceMapping, ...]
    resources: tuple[str, ...]

    def without(self, served: Sequence[str]) -> ClaimToAllocate:
        """Return the claim for the resources that the node's device plugin does not serve."""
        if not served:
            return self.claim
        gone = {m.request_name for m in self.mappings if m.resource_name in served}
        left = tuple(r for r in self.claim.requests if r.name not in gone)
        return replace(self.claim, requests=left)


class ExtendedClaims:
    """Makes the claims; pods of one spec share the work until a device class changes."""

    def __init__(self, classes: DeviceClasses, features: Features) -> None:
        self._classes = classes
        self._features = features
        self._version = classes.version
        self._known: dict[SpecFacts, ExtendedClaim | AllocationError | None] = {}

    def of(self, pod: PodInfo) -> ExtendedClaim | None:
        """Return the claim for the extended resources of a pod that device classes serve.

        It has one request per container and resource, named ``container-<i>-request-<n>``.

        :raises AllocationError: when no node could serve it.
        """
        if not any("/" in name for name in pod.requests):
            return None
        if self._version != self._classes.version:
            self._known.clear()
            self._version = self._classes.version
        if pod.facts not in self._known:
            self._known[pod.facts] = self._make(pod)
        known = self._known[pod.facts]
        if known is None:
            return None
        if isinstance(known, AllocationError):
            raise known
        spec = known.claim.claim.spec
        meta = ObjectMeta(name=EXTENDED_NAME, namespace=pod.namespace, uid=extended_uid(pod.uid))
        own = replace(known.claim, claim=ResourceClaim(meta, spec))
        return replace(known, claim=own)

    def _make(self, pod: PodInfo) -> ExtendedClaim | AllocationError | None:
        requests: list[DeviceRequest] = []
        mappings: list[ExtendedResourceMapping] = []
        resources: dict[str, None] = {}
        for index, container in enumerate([*pod.spec.init_containers, *pod.spec.containers]):
            amounts = {**container.resources.limits, **container.resources.requests}
            extended = sorted(name for name, a in amounts.items() if "/" in name and a.units)
            for number, resource in enumerate(extended):
                name = self._classes.serving(resource)
                if name is None:
                    continue
                request = f"container-{index}-request-{number}"
                count = amounts[resource].units
                exactly = ExactDeviceRequest(device_class_name=name, count=count)
                requests.append(DeviceRequest(request, exactly))
                mappings.append(ExtendedResourceMapping(container.name, resource, request))
                resources[resource] = None
        if not requests:
            return None
        claim = ResourceClaim(
            ObjectMeta(name=EXTENDED_NAME, namespace=pod.namespace),
            ResourceClaimSpec(DeviceClaim(tuple(requests))),
        )
        try:
            ready = prepare(claim, self._classes.get, self._features)
        except AllocationError as exc:
            text = without_claim_name(str(exc), claim)
            return AllocationError(f"extended resources: {text}")
        return ExtendedClaim(ready, tuple(mappings), tuple(resources))
