"""Allocated claims, for people: which pods use which devices, and what the devices share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from bayplan.api import ResourceClaim, ResourceSlice
from bayplan.api.dra import AllocatedDevice, Device, DeviceId
from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.naming import natural_key

__all__ = ["ClaimRow", "claim_rows"]


class ClaimRow(msgspec.Struct, frozen=True):
    """One allocated claim: its key, its pods, its devices by request, what they share."""

    claim: str
    pods: Sequence[str]
    devices: str
    common: str


def claim_rows(cluster: MemoryCluster) -> list[ClaimRow]:
    """Return the allocated claims in the order of their pods' names."""
    known = {
        DeviceId(obj.spec.driver, obj.spec.pool.name, device.name): device
        for obj in cluster.list(ResourceSlice)
        for device in obj.spec.devices
    }
    rows = [_row(claim, known) for claim in cluster.list(ResourceClaim) if claim.status.allocation]
    return sorted(rows, key=lambda row: [natural_key(name) for name in (*row.pods, row.claim)])


def _row(claim: ResourceClaim, known: Mapping[DeviceId, Device]) -> ClaimRow:
    assert claim.status.allocation is not None
    results = claim.status.allocation.devices.results
    by_request: dict[str, list[str]] = {}
    for one in results:
        by_request.setdefault(one.request, []).append(one.device)
    devices = "; ".join(f"{name}: {', '.join(own)}" for name, own in by_request.items())
    namespace = claim.metadata.namespace
    pods = tuple(f"{namespace}/{reference.name}" for reference in claim.status.reserved_for)
    return ClaimRow(claim.key, pods, devices, _common(claim, results, known))


def _common(
    claim: ResourceClaim, results: Sequence[AllocatedDevice], known: Mapping[DeviceId, Device]
) -> str:
    """Return the values on which the claim's matchAttribute constraints settled."""
    parts = []
    for constraint in claim.spec.devices.constraints:
        name = constraint.match_attribute
        if name is None:
            continue
        values = []
        for one in results:
            request, _, _ = one.request.partition("/")
            if constraint.requests and not {one.request, request} & set(constraint.requests):
                continue
            device = known.get(DeviceId(one.driver, one.pool, one.device))
            if device is not None:
                values.append(_values(device, one.driver, name))
        shared = sorted(set.intersection(*values)) if values else []
        if shared:
            parts.append(f"{name.rpartition('/')[2]} {', '.join(shared)}")
    return "; ".join(parts)


def _values(device: Device, driver: str, name: str) -> set[str]:
    domain, _, identifier = name.rpartition("/")
    found = device.attributes.get(name)
    if found is None and domain == driver:
        found = device.attributes.get(identifier)
    if found is None:
        return set()
    scalars = (found.integer, found.boolean, found.string, found.version)
    lists = (found.integers, found.booleans, found.strings, found.versions)
    values = [value for value in scalars if value is not None]
    return {str(value) for value in (*values, *(v for own in lists for v in own or ()))}
