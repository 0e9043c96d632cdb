"""A device as an expression sees it: the variable ``device``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bayplan.api.dra import DeviceAttribute, DeviceCapacity
from bayplan.api.quantity import Quantity
from bayplan_dra.cel.errors import EvaluationError
from bayplan_dra.cel.values import DomainMap, Semver

__all__ = ["CelDevice", "attribute_value", "is_list"]


def is_list(attribute: DeviceAttribute) -> bool:
    """Tell whether an attribute has a list of values."""
    return any(
        values is not None
        for values in (
            attribute.integers,
            attribute.booleans,
            attribute.strings,
            attribute.versions,
        )
    )


def attribute_value(attribute: DeviceAttribute) -> Any:
    """Return an attribute's value as CEL sees it.

    :raises ValueError: for an attribute without any value, or a version that is none.
    """
    for plain in (attribute.boolean, attribute.integer, attribute.string):
        if plain is not None:
            return plain
    if attribute.version is not None:
        return Semver(attribute.version)
    for plain_list in (attribute.booleans, attribute.integers, attribute.strings):
        if plain_list is not None:
            return tuple(plain_list)
    if attribute.versions is not None:
        return tuple(Semver(text) for text in attribute.versions)
    raise ValueError("unsupported attribute value")


class CelDevice:
    """One device's facts, by domain and identifier; names without a domain are the driver's.

    ``flat`` holds the attributes and ``flat_capacity`` the capacities by qualified name;
    ``marks`` the attributes with their types, to compare devices by.

    :param lists: whether list attributes are allowed (the gate DRAListTypeAttributes).
    :raises EvaluationError: for an attribute whose value has no meaning here.
    """

    __slots__ = (
        "allow_multiple_allocations",
        "attributes",
        "capacity",
        "driver",
        "flat",
        "flat_capacity",
        "marks",
    )

    def __init__(
        self,
        driver: str,
        attributes: Mapping[str, DeviceAttribute],
        capacity: Mapping[str, DeviceCapacity],
        allow_multiple_allocations: bool = False,
        lists: bool = True,
    ) -> None:
        self.driver = driver
        self.allow_multiple_allocations = allow_multiple_allocations
        self.flat: dict[str, Any] = {}
        self.marks: dict[str, tuple[type, Any]] = {}
        self.attributes = DomainMap()
        for name, attribute in attributes.items():
            domain, identifier = _split(name, driver)
            try:
                value = attribute_value(attribute)
                if not lists and isinstance(value, tuple):
                    raise ValueError("unsupported attribute value")
            except ValueError as exc:
                raise EvaluationError(f"attribute {name}: {exc}") from None
            self.attributes.setdefault(domain, {})[identifier] = value  # type: ignore[index]
            key = f"{domain}/{identifier}"
            self.flat[key] = value
            kind = type(value[0]) if isinstance(value, tuple) and value else type(value)
            self.marks[key] = (kind, value)
        self.flat_capacity: dict[str, Quantity] = {}
        self.capacity = DomainMap()
        for name, offered in capacity.items():
            domain, identifier = _split(name, driver)
            self.capacity.setdefault(domain, {})[identifier] = offered.value  # type: ignore[index]
            self.flat_capacity[f"{domain}/{identifier}"] = offered.value


def _split(name: str, driver: str) -> tuple[str, str]:
    domain, slash, identifier = name.rpartition("/")
    return (domain, identifier) if slash else (driver, name)
