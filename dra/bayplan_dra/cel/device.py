"""A device as an expression sees it: the variable ``device``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bayplan.api.dra import DeviceAttribute, DeviceCapacity
from bayplan_dra.cel.errors import EvaluationError
from bayplan_dra.cel.values import DomainMap, Semver

__all__ = ["CelDevice", "attribute_value"]


def attribute_value(attribute: DeviceAttribute) -> Any:
    """Return an attribute's value in CEL.

    :raises ValueError: for an attribute without a value, or an invalid version.
    """
    if attribute.string is not None:
        return attribute.string
    if attribute.integer is not None:
        return attribute.integer
    if attribute.boolean is not None:
        return attribute.boolean
    if attribute.version is not None:
        return _version(attribute.version)
    for plain_list in (attribute.booleans, attribute.integers, attribute.strings):
        if plain_list is not None:
            return tuple(plain_list)
    if attribute.versions is not None:
        return tuple(_version(text) for text in attribute.versions)
    raise ValueError("unsupported attribute value")


def _version(text: str) -> Semver:
    try:
        return Semver(text)
    except ValueError as exc:
        raise ValueError(f"parse semantic version: {exc}") from None


class _Attributes(dict[str, Any]):
    """Values by qualified name, converted on first access."""

    __slots__ = ("_driver", "_given", "_lists")

    def __init__(self, driver: str, given: Mapping[str, DeviceAttribute], lists: bool) -> None:
        super().__init__()
        self._driver = driver
        self._given = given
        self._lists = lists

    def __missing__(self, key: str) -> Any:
        given, driver = self._given, self._driver
        found = given.get(key)
        if found is None:
            domain, _, identifier = key.rpartition("/")
            # A name with a domain of its own is in that domain alone.
            found = given.get(identifier) if domain == driver else None
            if found is None:
                raise KeyError(key)
        if found.string is not None:
            # Nothing to convert or cache.
            return found.string
        try:
            value = attribute_value(found)
            if not self._lists and isinstance(value, tuple):
                raise ValueError("unsupported attribute value")
        except ValueError as exc:
            name = key if key in self._given else key.rpartition("/")[2]
            raise EvaluationError(f"attribute {name}: {exc}") from None
        self[key] = value
        return value


class CelDevice:
    """A device's attributes and capacities; names without a domain are in the driver's.

    Values are converted on first access; without ``lists`` all at once, as the reference does.

    :param lists: whether list attributes are allowed (the gate DRAListTypeAttributes).
    :ivar flat: the attributes by qualified name.
    :ivar flat_capacity: the capacities by qualified name.
    :raises EvaluationError: without ``lists``, for an attribute without a valid value.
    """

    __slots__ = (
        "_attributes",
        "_capacity",
        "_given",
        "allow_multiple_allocations",
        "driver",
        "flat",
        "flat_capacity",
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
        self._given = attributes
        self.flat = _Attributes(driver, attributes, lists)
        self.flat_capacity = {
            name if "/" in name else f"{driver}/{name}": offered.value
            for name, offered in capacity.items()
        }
        self._attributes: DomainMap | None = None
        self._capacity: DomainMap | None = None
        if not lists:
            _ = self.attributes

    @property
    def attributes(self) -> DomainMap:
        """All attributes by domain."""
        if self._attributes is None:
            names = {name if "/" in name else f"{self.driver}/{name}" for name in self._given}
            self._attributes = _by_domain({name: self.flat[name] for name in sorted(names)})
        return self._attributes

    @property
    def capacity(self) -> DomainMap:
        """All capacities by domain."""
        if self._capacity is None:
            self._capacity = _by_domain(self.flat_capacity)
        return self._capacity

    def has(self, name: str) -> bool:
        """Tell whether an attribute exists, by its qualified name."""
        if name in self._given:
            return True
        domain, _, identifier = name.rpartition("/")
        return domain == self.driver and identifier in self._given

    def has_domain(self, domain: str) -> bool:
        """Tell whether a domain has any attribute."""
        return domain in self.attributes

    def mark(self, name: str) -> object:
        """Return an attribute as published, to compare devices; None if it does not exist."""
        found = self._given.get(name)
        if found is None:
            domain, _, identifier = name.rpartition("/")
            found = self._given.get(identifier) if domain == self.driver else None
        return found


def _by_domain(flat: Mapping[str, Any]) -> DomainMap:
    found: dict[str, dict[str, Any]] = {}
    for name, value in flat.items():
        domain, _, identifier = name.rpartition("/")
        found.setdefault(domain, {})[identifier] = value
    return DomainMap(found)
