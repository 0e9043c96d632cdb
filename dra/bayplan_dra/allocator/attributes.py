"""matchAttribute and distinctAttribute over the devices chosen so far.

A scalar attribute counts as a list with one value. Devices match when they have a value in common,
and are distinct when no two share a value. Values of different types are never equal, and a device
without the attribute is refused in both cases.
"""

from __future__ import annotations

from bayplan.api.dra import DeviceAttribute
from bayplan_dra.allocator.model import PoolDevice
from bayplan_dra.allocator.requests import AttributeConstraint

__all__ = ["AttributeTracker", "Value", "attribute_values"]

Value = tuple[str, object]
"""The type and value of an attribute."""


def attribute_values(attribute: DeviceAttribute | None) -> frozenset[Value]:
    """Return an attribute's values with their types, empty for None; versions are text."""
    if attribute is None:
        return frozenset()
    typed: list[tuple[str, object]] = [
        ("int", attribute.integer),
        ("bool", attribute.boolean),
        ("string", attribute.string),
        ("version", attribute.version),
    ]
    found = [(kind, value) for kind, value in typed if value is not None]
    found += [("int", value) for value in attribute.integers or ()]
    found += [("bool", value) for value in attribute.booleans or ()]
    found += [("string", value) for value in attribute.strings or ()]
    found += [("version", value) for value in attribute.versions or ()]
    return frozenset(found)


class AttributeTracker:
    """One constraint of a claim during a search; devices are added and removed like a stack."""

    __slots__ = ("_constraint", "_states")

    def __init__(self, constraint: AttributeConstraint) -> None:
        self._constraint = constraint
        self._states: list[frozenset[Value]] = []

    def covers(self, wanted: str) -> bool:
        """Tell whether the constraint applies to a request."""
        return self._constraint.covers(wanted)

    def add(self, wanted: str, device: PoolDevice) -> bool:
        """Add a device; return False, and change nothing, if that breaks the constraint."""
        values = attribute_values(device.attribute(self._constraint.attribute))
        if not values:
            return False
        if not self._states:
            self._states.append(values)
            return True
        current = self._states[-1]
        if self._constraint.distinct:
            if current & values:
                return False
            self._states.append(current | values)
            return True
        common = current & values
        if not common:
            return False
        self._states.append(common)
        return True

    def remove(self) -> None:
        """Remove the device that was added last."""
        self._states.pop()
