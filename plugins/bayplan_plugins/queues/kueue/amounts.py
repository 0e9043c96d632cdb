"""Amounts of resources in flavors, and their text as Kubernetes writes quantities."""

from __future__ import annotations

from collections.abc import Mapping

from bayplan.api.quantity import Quantity, countable
from bayplan.api.queue import UNLIMITED
from bayplan.api.resources import amount_of

__all__ = ["amount_in", "column", "quantity_of", "quantity_text", "resource_of"]

_DECIMAL = ("", "k", "M", "G", "T", "P", "E")
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


def column(flavor: str, resource: str) -> str:
    """Return the name under which a resource of a flavor is counted, such as ``spot/cpu``."""
    return f"{flavor}/{resource}"


def resource_of(name: str) -> str:
    """Return the resource of a column."""
    return name.partition("/")[2]


def amount_in(resource: str, quantity: Quantity) -> float:
    """Return a quantity as an amount: CPU in milli-CPU, anything else in its unit.

    More than an API server's 64 bits can hold is as much as they can hold.
    """
    return countable(amount_of(resource, quantity))


def quantity_of(resource: str, amount: float) -> Quantity:
    """Return an amount as the quantity that an API server would write."""
    return Quantity(quantity_text(resource, amount))


def quantity_text(resource: str, amount: float) -> str:
    """Return an amount in the shortest exact spelling: ``1500m``, ``3Gi``, ``4k``."""
    if amount == UNLIMITED:
        return "unlimited"
    number = int(countable(amount))
    if resource == "cpu":
        if number % 1000:
            return f"{number}m"
        return _scaled(number // 1000, 1000, _DECIMAL)
    binary = resource in ("memory", "ephemeral-storage") or resource.startswith("hugepages-")
    if binary and abs(number) >= 1024:
        return _scaled(number, 1024, _BINARY)
    return _scaled(number, 1000, _DECIMAL)


def _scaled(number: int, base: int, suffixes: tuple[str, ...]) -> str:
    step = 0
    while number and number % base == 0 and step < len(suffixes) - 1:
        number //= base
        step += 1
    return f"{number}{suffixes[step]}"


def added(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    """Return the sum of two amounts by name."""
    total = dict(one)
    for name, amount in other.items():
        total[name] = total.get(name, 0) + amount
    return total
