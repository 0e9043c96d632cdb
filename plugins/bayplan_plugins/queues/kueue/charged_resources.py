"""What of its requests a workload is charged for: Kueue's ``resources`` of its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from math import ceil

import msgspec

from bayplan_plugins.queues.kueue.amounts import added

__all__ = ["ChargedResources", "Transformation"]

_MILLI = 1000


class Transformation(msgspec.Struct, frozen=True):
    """What a requested resource is charged as.

    :param outputs: amounts of resources, in their units, for each unit that is requested.
    :param multiplied_by: the resource whose request multiplies them; "" for none.
    :param replaces: whether the resource itself is no longer charged.
    """

    outputs: Mapping[str, Fraction] = msgspec.field(default_factory=dict)
    multiplied_by: str = ""
    replaces: bool = False


class ChargedResources(msgspec.Struct, frozen=True):
    """Which requested resources count, and as what.

    :param excluded: prefixes of resources that are not charged.
    :param transformations: by the resource that is requested.
    """

    excluded: tuple[str, ...] = ()
    transformations: Mapping[str, Transformation] = msgspec.field(default_factory=dict)

    def of(self, requests: Mapping[str, float]) -> Mapping[str, float]:
        """Return what is charged for requests; CPU in milli-CPU, anything else in its unit."""
        if self.excluded:
            requests = {n: a for n, a in requests.items() if not n.startswith(self.excluded)}
        if self.transformations.keys().isdisjoint(requests):
            return requests
        kept: dict[str, float] = {}
        made: dict[str, Fraction] = {}
        for name, amount in requests.items():
            rule = self.transformations.get(name)
            if rule is None or not rule.replaces:
                kept[name] = amount
            if rule is None:
                continue
            units = _units(name, amount)
            if rule.multiplied_by in requests:
                units *= _units(rule.multiplied_by, requests[rule.multiplied_by])
            for output, factor in rule.outputs.items():
                made[output] = made.get(output, Fraction(0)) + units * factor
        # Outputs may cancel each other, but nothing that was requested.
        charged = {name: max(0, _amount(name, units)) for name, units in made.items()}
        return added(kept, charged)


def _units(resource: str, amount: float) -> Fraction:
    return Fraction(amount) / _MILLI if resource == "cpu" else Fraction(amount)


def _amount(resource: str, units: Fraction) -> float:
    return ceil(units * _MILLI) if resource == "cpu" else ceil(units)
