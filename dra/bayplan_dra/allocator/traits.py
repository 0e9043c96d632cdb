"""What claims can see of a table's devices: tables that agree on it are of one equivalence class.

It is cheaper than the equivalence class, for which every selector is evaluated on every device.
Attributes that nothing reads, such as serial numbers, do not count, and of attributes that only
group devices it counts which devices have equal values.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

from bayplan.api.dra import DeviceAttribute, DeviceCapacity
from bayplan_dra.allocator.requests import ClaimToAllocate
from bayplan_dra.allocator.table import DeviceTable

__all__ = ["TraitReader"]

_READABLE = {"attribute", "capacity", "driver"}
_Value = TypeVar("_Value")


class TraitReader:
    """Reads the traits of tables for some claims.

    :param levels: the attributes that say which devices belong together.
    :raises AllocationError: for an expression that does not compile.
    """

    def __init__(
        self, table: DeviceTable, claims: Sequence[ClaimToAllocate], levels: Sequence[str]
    ) -> None:
        reads: set[tuple[str, str]] = set()
        self._knows = table.features.list_attributes
        """Whether what the claims read is known; without lists, all attributes are read."""
        for claim in claims:
            for way in (way for request in claim.requests for way in request.ways):
                # What a share would take depends on all that a capacity's policy says.
                self._knows &= not way.capacity
                for selector in way.selectors:
                    found = selector.program(table.features, claim.label).reads
                    self._knows &= found is not None
                    reads |= found or set()
        self._knows &= {kind for kind, _ in reads} <= _READABLE
        self._attributes = sorted({name for kind, name in reads if kind == "attribute"})
        self._capacities = sorted({name for kind, name in reads if kind == "capacity"})
        constraints = {one.attribute for claim in claims for one in claim.constraints}
        self._grouping = [*levels, *sorted(constraints)]

    def __call__(self, table: DeviceTable) -> Hashable | None:
        """Return the traits of a table; None where only its equivalence class can tell."""
        simple = table.usable == table.all and table.host is None and table.all_local
        if not self._knows or not simple or table.consumers or table.shareable:
            return None
        devices = table.devices
        specs = [device.spec for device in devices]
        drivers = [device.id.driver for device in devices]
        attributes = [spec.attributes for spec in specs]
        columns: list[Hashable] = [
            tuple([device.id.device for device in devices]),
            tuple(drivers),
            tuple([device.taints for device in devices]),
            tuple([spec.binding_conditions for spec in specs]),
        ]
        columns += [tuple(_named(attributes, drivers, name)) for name in self._attributes]
        if self._capacities:
            offered = [spec.capacity for spec in specs]
            columns += [_amounts(offered, drivers, name) for name in self._capacities]
        present = {key.rpartition("/")[2] for key in set[str]().union(*attributes)}
        for name in self._grouping:
            if name.rpartition("/")[2] not in present:
                columns.append("")
                continue
            groups = _pattern(_named(attributes, drivers, name))
            if groups is None:
                return None
            columns.append(groups)
        return tuple(columns)


def _named(
    given: Sequence[Mapping[str, _Value]], drivers: Sequence[str], name: str
) -> list[_Value | None]:
    """Return a value of each device, by its full name, or by ``*/name`` for any driver.

    :param given: the values of each device by name; those of its driver may lack the domain.
    """
    domain, _, identifier = name.rpartition("/")
    if domain == "*":
        names = {driver: f"{driver}/{identifier}" for driver in drivers}
        return [
            own.get(names[driver]) or own.get(identifier)
            for own, driver in zip(given, drivers, strict=True)
        ]
    found = [own.get(name) for own in given]
    if None in found and domain in drivers:
        return [
            own.get(identifier) if one is None and driver == domain else one
            for one, own, driver in zip(found, given, drivers, strict=True)
        ]
    return found


def _amounts(
    offered: Sequence[Mapping[str, DeviceCapacity]], drivers: Sequence[str], name: str
) -> Hashable:
    """Return what each device offers of a capacity, by its full name and by that in its driver."""
    short = name.rpartition("/")[2]
    columns = _named(offered, drivers, name), [own.get(short) for own in offered]
    return tuple([one.value.text if one is not None else None for own in columns for one in own])


def _pattern(values: Sequence[DeviceAttribute | None]) -> Hashable | None:
    """Return which devices have equal values; None for values that may be more than one."""
    if not any(values):
        return ""
    seen: dict[object, int] = {None: -1}
    pattern = []
    for value in values:
        if value is None:
            pattern.append(-1)
            continue
        plain = value.integer if value.integer is not None else value.string
        if plain is None:
            return None
        pattern.append(seen.setdefault(plain, len(seen)))
    return tuple(pattern)
