"""Binding conditions: what has to be true of allocated devices before a pod is bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bayplan.api import ResourceClaim
from bayplan.api.dra import AllocatedDevice, AllocationResult, Device, DeviceId

__all__ = [
    "HANDED_OVER",
    "failed_condition",
    "hands_over",
    "has_conditions",
    "id_of",
    "missing_text",
    "unready",
]

HANDED_OVER = "Reschedule"
"""The end of the name of a failure condition that means: attached, but it has another name now.

The fabric's driver cannot prepare a device that it attached; the node's own driver does.
"""


def has_conditions(allocation: AllocationResult) -> bool:
    """Tell whether any device has to get ready first."""
    return any(device.binding_conditions for device in allocation.devices.results)


def hands_over(allocation: AllocationResult) -> bool:
    """Tell whether any device may get another name once it is attached."""
    return any(
        name.endswith(HANDED_OVER)
        for device in allocation.devices.results
        for name in device.binding_failure_conditions
    )


def id_of(device: AllocatedDevice) -> DeviceId:
    """Return a device's full name."""
    return DeviceId(device.driver, device.pool, device.device)


def failed_condition(
    claim: ResourceClaim, allocation: AllocationResult
) -> tuple[AllocatedDevice, str] | None:
    """Return the first device with a failure condition that holds, and that condition."""
    for device in allocation.devices.results:
        conditions = _conditions(claim, device)
        for name in device.binding_failure_conditions:
            if conditions.get(name) == "True":
                return device, name
    return None


def unready(claim: ResourceClaim, allocation: AllocationResult) -> list[AllocatedDevice]:
    """Return the devices with binding conditions that do not hold yet."""
    found = []
    for device in allocation.devices.results:
        conditions = _conditions(claim, device)
        if any(conditions.get(name) != "True" for name in device.binding_conditions):
            found.append(device)
    return found


def missing_text(
    devices: Sequence[AllocatedDevice], node: str, specs: Mapping[DeviceId, Device]
) -> str:
    """Say what has to happen to devices; it continues "waits for".

    :param node: where they will be used.
    :param specs: of the devices that the node can use.
    """
    attached: list[str] = []
    other: list[str] = []
    for device in devices:
        spec = specs.get(id_of(device))
        (attached if spec is not None and spec.binds_to_node else other).append(device.device)
    parts = []
    if attached:
        parts.append(f"{_gpus(attached)} to be attached to node {node}")
    if other:
        word = "device" if len(other) == 1 else "devices"
        parts.append(f"{word} {', '.join(other)} to be ready on node {node}")
    return " and ".join(parts)


def _gpus(names: Sequence[str]) -> str:
    return f"device {names[0]}" if len(names) == 1 else f"devices {', '.join(names)}"


def _conditions(claim: ResourceClaim, device: AllocatedDevice) -> Mapping[str, str]:
    """Return the status of each condition of a device, by its type."""
    for status in claim.status.devices:
        if (status.driver, status.pool, status.device, status.share_id) == (
            device.driver,
            device.pool,
            device.device,
            device.share_id,
        ):
            return {condition.type: condition.status for condition in status.conditions}
    return {}
