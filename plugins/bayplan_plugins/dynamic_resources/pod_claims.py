"""The claims of one pod: which are allocated, and which have to be."""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache

import msgspec

from bayplan import PodInfo
from bayplan.api import Namespace, ResourceClaim, ResourceClaimTemplate
from bayplan.api.dra import ADMIN_ACCESS_LABEL, IMPLICIT_RESOURCE_PREFIX
from bayplan.api.pod import NodeSelector
from bayplan.snapshot import Snapshot, SpecFacts
from bayplan_dra.allocator import AllocationError, ClaimToAllocate
from bayplan_plugins.device_ledger.claim_specs import without_claim_name
from bayplan_plugins.device_ledger.device_classes import DeviceClasses
from bayplan_plugins.device_ledger.extended_claims import ExtendedClaim
from bayplan_plugins.device_ledger.ledger import DeviceLedger
from bayplan_plugins.dynamic_resources.claims_to_come import (
    claim_to_come,
    prepared_to_come,
    templates_to_come,
)

__all__ = ["NO_CLAIMS", "PodClaims", "claims_of", "may_have_claims", "why_waiting"]


class PodClaims(msgspec.Struct):
    """A pod's claims.

    ``open`` have to be allocated; ``fixed`` are allocated, in the API or in flight for this unit,
    with the nodes that can use them (None: all); ``problem`` refuses every node; ``key`` is equal
    for pods that get the same answer from every node, without an exchange in their gangs.
    """

    open: list[ClaimToAllocate] = msgspec.field(default_factory=list)
    fixed: list[tuple[ResourceClaim, NodeSelector | None]] = msgspec.field(default_factory=list)
    extended: ExtendedClaim | None = None
    problem: str = ""
    key: Hashable = None

    def __bool__(self) -> bool:
        return bool(self.open or self.fixed or self.extended or self.problem)


NO_CLAIMS = PodClaims()
"""The claims of a pod that requests no devices."""


def why_waiting(pod: PodInfo, snapshot: Snapshot) -> str | None:
    """Return which claim a pod has to wait for before it enters the queue, None for none."""
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


def may_have_claims(pod: PodInfo, ledger: DeviceLedger) -> bool:
    """Tell whether a pod may use devices of claims: a no is certain and cheap to find."""
    if not pod.facts.wants_devices:
        return False
    return (
        bool(pod.spec.resource_claims)
        or pod.pod.status.extended_resource_claim_status is not None
        or ledger.classes.serve_extended_resources()
        or _asks_by_class(pod.facts)
    )


@lru_cache(4096)
def _asks_by_class(facts: SpecFacts) -> bool:
    """Tell whether a resource is named after a device class."""
    return any(name.startswith(IMPLICIT_RESOURCE_PREFIX) for name in facts.requests)


def claims_of(pod: PodInfo, snapshot: Snapshot, ledger: DeviceLedger) -> PodClaims:
    """Return a pod's current claims."""
    found = PodClaims()
    key: list[Hashable] = []
    if pod.spec.resource_claims:
        _read_claims(pod, snapshot, ledger, found, key)
        _read_to_come(pod, snapshot, ledger, found, key)
    if _read_extended(pod, snapshot, found, key):
        found.key = (tuple(key), found.problem, ledger.classes.version)
        return found
    if not found.problem and (
        _asks_by_class(pod.facts) or ledger.classes.serve_extended_resources()
    ):
        try:
            found.extended = ledger.extended.of(pod)
        except AllocationError as exc:
            found.problem = str(exc)
    if found.extended is not None:
        key.append(("extended", pod.facts))
    if found:
        found.key = (tuple(key), found.problem, ledger.classes.version)
    return found


def _read_extended(pod: PodInfo, snapshot: Snapshot, found: PodClaims, key: list[Hashable]) -> bool:
    """Use the claim that an earlier attempt made for the pod's extended resources."""
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
    named: dict[str, str] = {}
    for wanted in pod.spec.resource_claims:
        name = wanted.resource_claim_name or statuses.get(wanted.name)
        if name is not None:
            named.setdefault(name, wanted.name)
    for name, called in named.items():
        claim = objects.get(f"{pod.namespace}/{name}")
        if claim is None:
            found.problem = f'resource claim "{name}" does not exist'
            return
        # Pods that share the claim went in a trial: it is allocated again.
        freed = ledger.trial_holds.is_freed(claim.metadata.uid)
        allocation = claim.status.allocation if not freed else None
        in_flight = ledger.in_flight.get(claim.metadata.uid)
        if allocation is not None:
            found.fixed.append((claim, allocation.node_selector))
            key.append((claim.metadata.uid, claim.metadata.resource_version))
        elif in_flight is not None and in_flight.unit == unit:
            found.fixed.append((claim, in_flight.allocation.node_selector))
            key.append((claim.metadata.uid, in_flight.node))
        elif in_flight is not None:
            found.problem = f"resource claim {claim.key} is in the process of being allocated"
            return
        else:
            found.problem = _missing_class(claim, ledger.classes)
            if found.problem:
                return
            try:
                ready = ledger.specs.prepared(claim, called)
            except AllocationError as exc:
                found.problem = without_claim_name(str(exc), claim)
                return
            found.open.append(ready)
            # The label, because the answer names the claim.
            key.append((ledger.specs.number(claim), ready.label))


def _read_to_come(
    pod: PodInfo,
    snapshot: Snapshot,
    ledger: DeviceLedger,
    found: PodClaims,
    key: list[Hashable],
) -> None:
    """Read the claims of a pod that is only tried: nobody has made them from their templates."""
    for wanted in templates_to_come(pod):
        claim = claim_to_come(pod, wanted, snapshot)
        if claim is None:
            name = wanted.resource_claim_template_name
            found.problem = f'resource claim template "{name}" does not exist'
            return
        in_flight = ledger.in_flight.get(f"{pod.uid}/{wanted.name}")
        if in_flight is not None:
            found.fixed.append((claim, in_flight.allocation.node_selector))
            key.append((pod.uid, in_flight.node))
            continue
        found.problem = found.problem or _missing_class(claim, ledger.classes)
        if found.problem:
            return
        try:
            ready = prepared_to_come(pod, wanted, claim, ledger.specs)
        except AllocationError as exc:
            found.problem = without_claim_name(str(exc), claim)
            return
        found.open.append(ready)
        key.append((ledger.specs.number(claim), ready.label))


def _missing_class(claim: ResourceClaim, classes: DeviceClasses) -> str:
    """Return which request names a device class that does not exist, "" when none does."""
    for request in claim.spec.devices.requests:
        if request.first_available:
            named = [(f"{request.name}/{s.name}", s) for s in request.first_available]
        else:
            named = [(request.name, request.exactly)] if request.exactly is not None else []
        for name, asked in named:
            if asked.device_class_name and classes.get(asked.device_class_name) is None:
                return f"request {name}: device class {asked.device_class_name} does not exist"
    return ""
