"""What claims can see of a table's devices: tables that agree on it are of one equivalence class.

It is cheaper than the equivalence class, for which every selector is evaluated on every device.
Attributes that nothing reads, such as serial numbers, do not count, and of attributes that only
group devices it counts which devices have equal values.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from bayplan.api.dra import DeviceAttribute
from bayplan_dra.allocator.model import PoolDevice
from bayplan_dra.allocator.requests import ClaimToAllocate
from bayplan_dra.allocator.table import DeviceTable

__all__ = ["TraitReader"]

_READABLE = {"attribute", "capacity", "driver"}


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
        columns: list[Hashable] = [
            tuple([device.id.device for device in devices]),
            tuple([device.id.driver for device in devices]),
            tuple([device.taints for device in devices]),
            tuple([device.spec.binding_conditions for device in devices]),
        ]
        full = set[str]().union(*[device.spec.attributes for device in devices])
        present = {name.rpartition("/")[2] for name in full}
        columns += [tuple(_named(devices, name)) for name in self._attributes]
        columns += [_capacities(devices, name) for name in self._capacities]
        for name in self._grouping:
            if name.rpartition("/")[2] not in present:
                columns.append("")
                continue
            groups = _pattern(_named(devices, name))
            if groups is None:
                return None
            columns.append(groups)
        return tuple(columns)


def _named(devices: Iterable[PoolDevice], name: str) -> list[DeviceAttribute | None]:
    """Return an attribute of each device, by its full name, or by ``*/name`` for any driver."""
    domain, _, identifier = name.rpartition("/")
    if domain == "*":
        return [
            own.get(f"{device.id.driver}/{identifier}") or own.get(identifier)
            for device in devices
            for own in (device.spec.attributes,)
        ]
    return [
        own.get(name) or (own.get(identifier) if device.id.driver == domain else None)
        for device in devices
        for own in (device.spec.attributes,)
    ]


def _capacities(devices: Iterable[PoolDevice], name: str) -> Hashable:
    return tuple(
        [
            found.text if (found := device.view.flat_capacity.get(name)) is not None else None
            for device in devices
        ]
    )


def _pattern(values: Iterable[DeviceAttribute | None]) -> Hashable | None:
    """Return which devices have equal values; None for values that may be more than one."""
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
