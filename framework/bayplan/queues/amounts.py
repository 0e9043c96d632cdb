"""Amounts of resources as people read them, and as Kubernetes writes them."""

from __future__ import annotations

from bayplan.api.quantity import Quantity, countable
from bayplan.api.queue import Amounts

__all__ = ["amount_text", "base_resource", "quantities", "total_of"]

_NATIVE = ("cpu", "memory", "ephemeral-storage")
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi")


def base_resource(name: str) -> str:
    """Return the resource that a column counts: "cpu" for "cpu" and for "FLAVOR/cpu".

    Extended resources have one slash of their own, and stay as they are without a flavor.
    """
    _, slash, resource = name.partition("/")
    known = resource in _NATIVE or resource.startswith("hugepages-") or "/" in resource
    return resource if slash and known else name


def amount_text(resource: str, value: float) -> str:
    """Return an amount for people: cores, bytes with a binary suffix, or a number."""
    resource = base_resource(resource)
    if value == float("inf"):
        return "unlimited"
    if resource == "cpu":
        return f"{value / 1000:g}"
    if resource in ("memory", "ephemeral-storage") or resource.startswith("hugepages-"):
        for suffix in _BINARY[:-1]:
            if abs(value) < 1024:
                return f"{value:.4g}{suffix}"
            value /= 1024
        return f"{value:.4g}{_BINARY[-1]}"
    return f"{value:g}"


def total_of(*amounts: Amounts) -> dict[str, float]:
    """Return the sum of amounts, by resource."""
    total: dict[str, float] = {}
    for one in amounts:
        for name, amount in one.items():
            total[name] = total.get(name, 0.0) + amount
    return total


def quantities(amounts: Amounts) -> dict[str, Quantity]:
    """Return amounts as the API writes them, by resource, to a thousandth of a unit.

    More than a quantity can hold is as much as it can hold.
    """
    return {name: Quantity(_quantity_text(name, amounts[name])) for name in sorted(amounts)}


def _quantity_text(resource: str, amount: float) -> str:
    most = countable(amount)
    milli = round(most if resource == "cpu" else most * 1000)
    if milli % 1000:
        return f"{milli}m"
    units = milli // 1000
    power = 0
    while resource == "memory" and units and units % 1024 == 0 and power < len(_BINARY) - 1:
        units //= 1024
        power += 1
    return f"{units}{_BINARY[power]}"
