"""Arithmetic of exact amounts by resource; a missing resource counts as 0 unless said otherwise."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from bayplan.dialects.koordinator.elastic_quota import ResourceList, quantity_of

__all__ = [
    "added",
    "at_least",
    "at_most",
    "exceeding",
    "masked",
    "printed",
    "subtracted",
    "within",
    "without_negatives",
]

Amounts = Mapping[str, int]


def added(one: Amounts, other: Amounts) -> ResourceList:
    """Return the sums, of the resources of both."""
    total = dict(one)
    for name, amount in other.items():
        total[name] = total.get(name, 0) + amount
    return total


def subtracted(one: Amounts, other: Amounts) -> ResourceList:
    """Return the differences, of the resources of both."""
    rest = dict(one)
    for name, amount in other.items():
        rest[name] = rest.get(name, 0) - amount
    return rest


def without_negatives(amounts: Amounts) -> ResourceList:
    """Return the amounts with 0 for those below."""
    return {name: max(amount, 0) for name, amount in amounts.items()}


def masked(amounts: Amounts, names: Collection[str]) -> ResourceList:
    """Return the amounts of the named resources only."""
    return {name: amount for name, amount in amounts.items() if name in names}


def at_least(amounts: Amounts, floor: Amounts) -> ResourceList:
    """Return the larger amounts, of the resources of both."""
    raised = dict(amounts)
    for name, amount in floor.items():
        raised[name] = max(raised.get(name, amount), amount)
    return raised


def at_most(amounts: Amounts, limit: Amounts) -> ResourceList:
    """Return the smaller amounts; a resource without a limit is not bounded."""
    return {name: min(amount, limit.get(name, amount)) for name, amount in amounts.items()}


def exceeding(amounts: Amounts, limit: Amounts) -> list[str]:
    """Return the resources above their limits, sorted; one without a limit is not bounded."""
    return sorted(name for name, most in limit.items() if amounts.get(name, most) > most)


def within(amounts: Amounts, limit: Amounts) -> bool:
    """Tell whether no amount is above its limit; here a missing limit is 0."""
    return all(amount <= limit.get(name, 0) for name, amount in amounts.items())


def printed(amounts: Amounts) -> str:
    """Return the amounts as Koordinator prints them: "cpu:1500m,memory:2Gi"."""
    if not amounts:
        return "<empty>"
    return ",".join(sorted(f"{name}:{quantity_of(name, amounts[name])}" for name in amounts))
