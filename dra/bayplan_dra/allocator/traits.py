"""What claims can see of a table's devices: tables that agree on it are of one equivalence class.

It is cheaper than the equivalence class, for which every selector is evaluated on every device.
Attributes that nothing reads, such as serial numbers, do not count, and of attributes that only
group devices it counts which devices have equal values.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence, Set
from typing import TypeVar

from bayplan.api.dra import DeviceAttribute, DeviceCapacity
from bayplan_dra.allocator.requests import ClaimToAllocate
from bayplan_dra.allocator.table import DeviceTable

__all__ = ["TraitReader"]

_READABLE = {"attribute", "capacity", "driver"}
_MOST_KNOWN = 1024
"""So many values of a node's devices are remembered."""
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
        self._grouping = list(dict.fromkeys((*levels, *sorted(constraints))))
        self._patterns: dict[Sequence[int | str | None], Hashable] = {}
        """Which devices have equal values, by these values: most nodes have equal ones."""

    def __call__(self, table: DeviceTable) -> Hashable | None:
        """Return the traits of a table; None where only its equivalence class can tell."""
        simple = table.usable == table.all and table.host is None and table.all_local
        if not self._knows or not simple or table.consumers or table.shareable:
            return None
        devices = table.devices
        specs = [device.spec for device in devices]
        drivers = tuple([device.id.driver for device in devices])
        attributes = [spec.attributes for spec in specs]
        columns: list[Hashable] = [
            tuple([device.id.device for device in devices]),
            drivers,
            tuple([device.taints for device in devices]),
            tuple([spec.binding_conditions for spec in specs]),
        ]
        names = set[str]().union(*attributes)
        columns += [tuple(_named(attributes, drivers, names, one)) for one in self._attributes]
        if self._capacities:
            offered = [spec.capacity for spec in specs]
            columns += [_amounts(offered, drivers, name) for name in self._capacities]
        present = {key.rpartition("/")[2] for key in names}
        for name in self._grouping:
            if name.rpartition("/")[2] not in present:
                columns.append("")
                continue
            groups = self._pattern(_named(attributes, drivers, names, name))
            if groups is None:
                return None
            columns.append(groups)
        return tuple(columns)

    def _pattern(self, values: Sequence[DeviceAttribute | None]) -> Hashable | None:
        """Return which devices have equal values; None for values that may be more than one."""
        plain = tuple(
            [
                None
                if value is None
                else value.string
                if value.string is not None
                else value.integer
                for value in values
            ]
        )
        if None in plain and any(
            one is None and value is not None for one, value in zip(plain, values, strict=True)
        ):
            return None
        pattern = self._patterns.get(plain)
        if pattern is None:
            if len(self._patterns) >= _MOST_KNOWN:
                self._patterns.clear()
            seen: dict[object, int] = {None: -1}
            found = tuple([seen.setdefault(one, len(seen)) for one in plain])
            pattern = self._patterns[plain] = found if max(found, default=-1) >= 0 else ""
        return pattern


def _named(
    given: Sequence[Mapping[str, _Value]], drivers: Sequence[str], names: Set[str], name: str
) -> Sequence[_Value | None]:
    """Return a value of each device, by its full name, or by ``*/name`` for any driver.

    :param given: the values of each device by name; those of its driver may lack the domain.
    :param names: all names of these values.
    """
    domain, _, identifier = name.rpartition("/")
    if domain == "*":
        own_names = {driver: f"{driver}/{identifier}" for driver in drivers}
        return [
            own.get(own_names[driver]) or own.get(identifier)
            for own, driver in zip(given, drivers, strict=True)
        ]
    found: Sequence[_Value | None] = (None,) * len(given)
    if name in names:
        found = [own.get(name) for own in given]
    if domain in drivers and identifier in names:
        found = [
            own.get(identifier) if one is None and driver == domain else one
            for one, own, driver in zip(found, given, drivers, strict=True)
        ]
    return found


def _amounts(
    offered: Sequence[Mapping[str, DeviceCapacity]], drivers: Sequence[str], name: str
) -> Hashable:
    """Return what each device offers of a capacity, by its full name and by that in its driver."""
    short = name.rpartition("/")[2]
    names = set[str]().union(*offered)
    columns = _named(offered, drivers, names, name), [own.get(short) for own in offered]
    return tuple([one.value.text if one is not None else None for own in columns for one in own])
