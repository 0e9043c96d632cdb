"""Which reservation a pod takes: that of the lowest order, then the one that it fills most."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from bayplan import PodInfo
from bayplan.api import Reservation
from bayplan.api.resources import amount_of
from bayplan.dialects.koordinator.reservations import (
    ReservationAffinity,
    amounts_left,
    matches_exactly,
    may_use,
    order_of,
    restricted_resources,
)

__all__ = ["Match", "filled", "matches_of"]

_MOST = 100


class Match(msgspec.Struct, frozen=True):
    """A reservation that a pod may use, and the pod, by key, that stands for it in the snapshot."""

    found: Reservation
    stands: str

    @property
    def node(self) -> str:
        """The name of its node."""
        return self.found.status.node_name


def filled(
    allocatable: Mapping[str, int], allocated: Mapping[str, int], requests: Mapping[str, int]
) -> int:
    """Return how full a reservation would be, 0 to 100: the mean of its resources.

    A resource that would not do counts 0 (Koordinator v1.8, plugins/reservation/scoring.go).
    """
    offered = {name: amount for name, amount in allocatable.items() if amount}
    total = 0
    for name, capacity in offered.items():
        requested = allocated.get(name, 0) + requests.get(name, 0)
        if requested <= capacity:
            total += _MOST * requested // capacity
    return total // len(offered) if offered else 0


def matches_of(
    pod: PodInfo,
    available: Iterable[Match],
    affinity: ReservationAffinity | None,
    exact: Sequence[str] = (),
) -> list[Match]:
    """Return the reservations that a pod may use, the best first.

    :param exact: the resources of which a reservation has to have just what the pod requests.
    """
    found = []
    for match in available:
        one = match.found
        if not may_use(pod.pod, one, affinity):
            continue
        left = amounts_left(one.status)
        only = restricted_resources(one)
        if any(pod.requests.get(name, 0) > left.get(name, 0) for name in only):
            continue
        order = order_of(one)
        allocatable, allocated = (
            {name: amount_of(name, quantity) for name, quantity in amounts.items()}
            for amounts in (one.status.allocatable, one.status.allocated)
        )
        if not matches_exactly(pod.requests, allocatable, exact):
            continue
        points = filled(allocatable, allocated, pod.requests)
        found.append(((not order, order, -points, one.key), match))
    return [match for _, match in sorted(found, key=lambda pair: pair[0])]
