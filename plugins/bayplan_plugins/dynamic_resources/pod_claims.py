"""The claims of one pod: which there are, which are allocated, and what is still missing."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace

from bayplan import PodInfo
from bayplan.api import Namespace, ObjectMeta, ResourceClaim, ResourceClaimTemplate
from bayplan.api.dra import (
    ADMIN_ACCESS_LABEL,
    IMPLICIT_RESOURCE_PREFIX,
    DeviceClaim,
    DeviceRequest,
    ExactDeviceRequest,
    ResourceClaimSpec,
)
from bayplan.api.pod import ExtendedResourceMapping, NodeSelector
from bayplan.snapshot import Snapshot
from bayplan_dra.allocator import AllocationError, ClaimToAllocate, prepare
from bayplan_plugins.dynamic_resources.ledger import DeviceLedger, extended_uid

__all__ = ["NO_CLAIMS", "Extended", "PodClaims", "claims_of", "extended_of", "why_waiting"]

EXTENDED_NAME = "<extended-resources>"
"""The name of the claim for extended resources while it is only in memory."""


@dataclass(frozen=True)
class Extended:
    """The claim that stands for a pod's extended resources, on nodes without a device plugin."""

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


@dataclass
class PodClaims:
    """A pod's claims.

    ``open`` are to be allocated; ``fixed`` are allocated, by the API or in this unit, with the
    nodes that can use them (None: all); ``problem`` refuses every node; ``key`` is equal for pods
    that get the same answer everywhere.
    """

    open: list[ClaimToAllocate] = field(default_factory=list)
    fixed: list[tuple[ResourceClaim, NodeSelector | None]] = field(default_factory=list)
    extended: Extended | None = None
    problem: str = ""
    key: Hashable = None

    def __bool__(self) -> bool:
        return bool(self.open or self.fixed or self.extended or self.problem)


NO_CLAIMS = PodClaims()
"""What a pod that asks for no devices has."""


def why_waiting(pod: PodInfo, snapshot: Snapshot) -> str | None:
    """Say which claim a pod has to wait for before it can be tried, None for none."""
    claims = snapshot.objects(ResourceClaim)
    statuses = {s.name: s.resource_claim_name for s in pod.pod.status.resource_claim_statuses}
    for wanted in pod.spec.resource_claims:
        name = wanted.resource_claim_name
        generated = name is None
        if name is None:
            if wanted.name not in statuses:
                template = wanted.resource_claim_template_name
                known = f"{pod.namespace}/{template}" in snapshot.objects(ResourceClaimTemplate)
                missing = "" if known else ", which does not exist"
                return (
                    f'waiting for resource claim "{wanted.name}" to be created from template '
                    f'"{template}"{missing}'
                )
            name = statuses[wanted.name]
            if name is None:
                continue
        claim = claims.get(f"{pod.namespace}/{name}")
        if claim is None:
            return f'waiting for resource claim "{name}", which does not exist'
        if claim.metadata.deletion_timestamp is not None:
            return f'waiting: resource claim "{name}" is being deleted'
        if generated and all(r.uid != pod.uid for r in claim.metadata.owner_references):
            return f'resource claim "{name}" was not created for this pod'
        if _wants_admin(claim) and not _admin_allowed(pod.namespace, snapshot):
            return (
                f'resource claim "{name}" asks for admin access, which needs the label '
                f'{ADMIN_ACCESS_LABEL}: "true" on namespace {pod.namespace}'
            )
    return None


def _wants_admin(claim: ResourceClaim) -> bool:
    return any(r.exactly and r.exactly.admin_access for r in claim.spec.devices.requests)


def _admin_allowed(namespace: str, snapshot: Snapshot) -> bool:
    found = snapshot.objects(Namespace).get(namespace)
    return found is not None and found.metadata.labels.get(ADMIN_ACCESS_LABEL) == "true"


def claims_of(pod: PodInfo, snapshot: Snapshot, ledger: DeviceLedger) -> PodClaims:
    """Return a pod's claims as they are now."""
    found = PodClaims()
    key: list[Hashable] = []
    if pod.spec.resource_claims:
        _read_claims(pod, snapshot, ledger, found, key)
    if _read_extended(pod, snapshot, found, key):
        found.key = (tuple(key), found.problem, pod.gang, ledger.class_version)
        return found
    implicit = any(name.startswith(IMPLICIT_RESOURCE_PREFIX) for name in pod.requests)
    if not found.problem and (implicit or ledger.has_extended_resources()):
        try:
            found.extended = extended_of(pod, ledger)
        except AllocationError as exc:
            found.problem = str(exc)
    if found.extended is not None:
        key.append(("extended", pod.facts))
    if found:
        # Members of one gang may exchange the devices that they were given in the same cycle.
        found.key = (tuple(key), found.problem, pod.gang, ledger.class_version)
    return found


def _read_extended(pod: PodInfo, snapshot: Snapshot, found: PodClaims, key: list[Hashable]) -> bool:
    """Take over the claim that an earlier try made for the pod's extended resources."""
    status = pod.pod.status.extended_resource_claim_status
    if status is None:
        return False
    claim = snapshot.objects(ResourceClaim).get(f"{pod.namespace}/{status.resource_claim_name}")
    if claim is None or claim.status.allocation is None:
        return False
    found.fixed.append((claim, claim.status.allocation.node_selector))
    key.append((claim.metadata.uid, claim.metadata.resource_version))
    return True


def _read_claims(
    pod: PodInfo,
    snapshot: Snapshot,
    ledger: DeviceLedger,
    found: PodClaims,
    key: list[Hashable],
) -> None:
    objects = snapshot.objects(ResourceClaim)
    statuses = {s.name: s.resource_claim_name for s in pod.pod.status.resource_claim_statuses}
    unit = pod.gang or pod.key
    names = [c.resource_claim_name or statuses.get(c.name) for c in pod.spec.resource_claims]
    for name in dict.fromkeys(names):
        if name is None:
            continue
        claim = objects.get(f"{pod.namespace}/{name}")
        if claim is None:
            found.problem = f'resource claim "{name}" does not exist'
            return
        allocation = claim.status.allocation
        flight = ledger.flights.get(claim.metadata.uid)
        if allocation is not None:
            found.fixed.append((claim, allocation.node_selector))
            key.append((claim.metadata.uid, claim.metadata.resource_version))
        elif flight is not None and flight.unit == unit:
            found.fixed.append((claim, flight.allocation.node_selector))
            key.append((claim.metadata.uid, flight.node))
        elif flight is not None:
            found.problem = f"resource claim {claim.key} is in the process of being allocated"
            return
        else:
            try:
                found.open.append(ledger.prepared(claim))
            except AllocationError as exc:
                found.problem = _without_claim(str(exc), claim)
                return
            key.append(ledger.spec_of(claim))


def _without_claim(message: str, claim: ResourceClaim) -> str:
    """Leave out a generated claim's name, so that a job's pods are told the same."""
    meta = claim.metadata
    return message.removeprefix(f"claim {meta.namespace}/{meta.name}").lstrip(":, ")


def extended_of(pod: PodInfo, ledger: DeviceLedger) -> Extended | None:
    """Return the claim for the extended resources of a pod that device classes serve.

    There is one request per container and resource, named ``container-<i>-request-<n>``.

    :raises AllocationError: when no node could serve it.
    """
    if not any("/" in name for name in pod.requests):
        return None
    if pod.facts not in ledger.extended:
        ledger.extended[pod.facts] = _make_extended(pod, ledger)
    known = ledger.extended[pod.facts]
    if known is None:
        return None
    if isinstance(known, AllocationError):
        raise known
    assert isinstance(known, Extended)
    spec = known.claim.claim.spec
    meta = ObjectMeta(name=EXTENDED_NAME, namespace=pod.namespace, uid=extended_uid(pod.uid))
    own = replace(known.claim, claim=ResourceClaim(meta, spec))
    return replace(known, claim=own)


def _make_extended(pod: PodInfo, ledger: DeviceLedger) -> Extended | AllocationError | None:
    requests: list[DeviceRequest] = []
    mappings: list[ExtendedResourceMapping] = []
    resources: dict[str, None] = {}
    containers = [*pod.spec.init_containers, *pod.spec.containers]
    for index, container in enumerate(containers):
        amounts = {**container.resources.limits, **container.resources.requests}
        extended = sorted(name for name, amount in amounts.items() if "/" in name and amount.units)
        for number, resource in enumerate(extended):
            name = _class_name(resource, ledger)
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
        ready = prepare(claim, ledger.device_class, ledger.inventory.features)
    except AllocationError as exc:
        return AllocationError(f"extended resources: {_without_claim(str(exc), claim)}")
    return Extended(ready, tuple(mappings), tuple(resources))


def _class_name(resource: str, ledger: DeviceLedger) -> str | None:
    if resource.startswith(IMPLICIT_RESOURCE_PREFIX):
        name = resource.removeprefix(IMPLICIT_RESOURCE_PREFIX)
        return name if ledger.device_class(name) is not None else None
    found = ledger.class_of_resource(resource)
    return found.metadata.name if found is not None else None
