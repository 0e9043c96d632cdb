"""What a request for devices takes of a pool at most, before it has devices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from bayplan.api import DeviceClass, Quantity
from bayplan.api.dra import ExactDeviceRequest
from bayplan.queues.device_selection import DeviceSelector, device_selector
from bayplan.queues.devices import WHOLE, ListedDevice
from bayplan.queues.pools import PoolDevices
from bayplan_dra.allocator.capacity import consumption

__all__ = ["DeviceRequests", "Most", "Wanted", "wanted_of"]

_MANY_KINDS = 256
"""Kinds of requests of which all nodes' devices are kept."""


class Wanted(NamedTuple):
    """Which devices a request is for: those that all expressions select.

    ``capacity`` is what it asks for of devices that are shared; ``all_of_node`` tells that it takes
    all of a node instead of ``number``.
    """

    expressions: tuple[str, ...]
    capacity: tuple[tuple[str, Quantity], ...] = ()
    number: int = 1
    all_of_node: bool = False


def wanted_of(request: ExactDeviceRequest, found: DeviceClass) -> Wanted:
    """Return which devices a request is for.

    :param found: the class that it names.
    """
    selectors = (*found.spec.selectors, *request.selectors)
    capacity = request.capacity.requests if request.capacity is not None else {}
    return Wanted(
        tuple(one.cel.expression for one in selectors if one.cel is not None),
        tuple(sorted(capacity.items())),
        request.count or 1,
        request.allocation_mode == "All",
    )


class Most(msgspec.Struct, frozen=True):
    """The most that a request may get: ``devices``, and of each driver ``amounts`` of them.

    ``in_service`` counts the devices that it could choose from.
    """

    devices: int = 0
    amounts: tuple[tuple[str, float], ...] = ()
    in_service: int = 0


class _OnNode(msgspec.Struct, frozen=True):
    """The devices of a node that a request may get, by driver; amounts in thousandths."""

    listed: Sequence[ListedDevice]
    count: int
    in_service: int
    largest: dict[str, int]
    sums: dict[str, int]


class DeviceRequests:
    """What requests may get at most; what is found on a node is kept until its devices change."""

    def __init__(self, devices: PoolDevices) -> None:
        self._devices = devices
        self._found: dict[tuple[object, ...], dict[str, _OnNode]] = {}

    def most(self, wanted: Wanted, nodes: Iterable[str], pool: DeviceSelector | None) -> Most:
        """Return the most that a request may get on some nodes.

        :param pool: what selects the devices of the pool of these nodes; None for all.
        """
        kind = (wanted.expressions, wanted.capacity, pool)
        if kind not in self._found and len(self._found) >= _MANY_KINDS:
            self._found.clear()
        known = self._found.setdefault(kind, {})
        amounts: dict[str, int] = {}
        devices = in_service = 0
        for node in nodes:
            listed = self._devices.listed(node, pool)
            found = known.get(node)
            if found is None or found.listed is not listed:
                found = known[node] = _on_node(wanted, listed)
            if found.count:
                devices = max(devices, found.count if wanted.all_of_node else wanted.number)
                in_service += found.in_service
            for driver, amount in (found.sums if wanted.all_of_node else found.largest).items():
                amounts[driver] = max(amounts.get(driver, 0), amount)
        times = 1 if wanted.all_of_node else wanted.number
        parts = tuple((name, times * amount / WHOLE) for name, amount in sorted(amounts.items()))
        return Most(devices, parts, in_service)


def _on_node(wanted: Wanted, listed: Sequence[ListedDevice]) -> _OnNode:
    selectors = [device_selector(expression) for expression in wanted.expressions]
    count = in_service = 0
    largest: dict[str, int] = {}
    sums: dict[str, int] = {}
    for one in listed:
        if not all(selector.selects(one.driver, one.device) for selector in selectors):
            continue
        amount = _taken(one, wanted)
        if amount is None:
            continue
        count += 1
        in_service += one.in_service
        largest[one.driver] = max(largest.get(one.driver, 0), amount)
        sums[one.driver] = sums.get(one.driver, 0) + amount
    return _OnNode(listed, count, in_service, largest, sums)


def _taken(one: ListedDevice, wanted: Wanted) -> int | None:
    """Return how much of a device a request takes, in thousandths; None if it cannot have it."""
    if not one.device.allow_multiple_allocations:
        return one.amount
    consumed = consumption(one.device, dict(wanted.capacity))
    if consumed is None:
        return None
    parts = [
        int(WHOLE * amount / offered)
        for name, amount in consumed.items()
        if (offered := one.device.capacity[name].value.number)
    ]
    return min(WHOLE, max(parts, default=WHOLE))
