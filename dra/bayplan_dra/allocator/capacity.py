"""Consumable capacity: what a request consumes of a device, rounded by the device's policy."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from bayplan.api.dra import CapacityRequestPolicy, Device, DeviceCapacity
from bayplan.api.quantity import Quantity
from bayplan_dra.allocator.model import Amount

__all__ = ["as_quantity", "consumption"]


def consumption(device: Device, requested: Mapping[str, Quantity]) -> Mapping[str, Amount] | None:
    """Return what a request consumes of each capacity; None if the device cannot serve it.

    A capacity that is not requested costs the policy's default, or all of it without a default.
    """
    consumed: dict[str, Amount] = {}
    for name in requested:
        if name not in device.capacity:
            return None
    for name, offered in device.capacity.items():
        amount = _rounded(requested.get(name), offered)
        if amount is None or amount > offered.value.number:
            return None
        consumed[name] = amount
    return consumed


def _rounded(asked: Quantity | None, offered: DeviceCapacity) -> Amount | None:
    """Return the amount that a request consumes; None if the policy does not allow it."""
    policy = offered.request_policy
    if asked is None:
        if policy is not None and policy.default is not None:
            return policy.default.number
        return offered.value.number
    if policy is None:
        return asked.number
    if policy.valid_range is not None:
        return _in_range(asked.number, policy)
    if policy.valid_values:
        fitting = [v.number for v in policy.valid_values if v.number >= asked.number]
        return min(fitting, default=None)
    return asked.number


def _in_range(asked: Amount, policy: CapacityRequestPolicy) -> Amount | None:
    span = policy.valid_range
    assert span is not None
    low = span.min.number
    amount = max(asked, low)
    if span.step is not None and span.step.number > 0:
        steps = -((low - amount) // span.step.number)
        amount = low + steps * span.step.number
    if span.max is not None and amount > span.max.number:
        return None
    return amount


def as_quantity(amount: Amount, like: Quantity) -> Quantity:
    """Return an amount as a quantity, in the unit of ``like`` if that is exact."""
    if like.number == amount:
        return like
    suffix = like.text.lstrip("+-0123456789.")
    if suffix and "e" not in suffix.lower():
        unit = Quantity(f"1{suffix}").number
        if amount % unit == 0:
            return Quantity(f"{amount // unit}{suffix}")
    if isinstance(amount, Fraction):
        return Quantity(f"{int(amount * 10**9)}n")
    return Quantity(str(amount))
