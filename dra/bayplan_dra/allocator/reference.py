"""The plain allocator: depth-first search in Kubernetes' order; the first solution wins.

``strict_reference`` runs it, and the tests use it as an oracle. It tries claims, requests and
devices one after the other and scores nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from bayplan.api.dra import CLAIM_LIMIT
from bayplan_dra.allocator.attributes import AttributeTracker
from bayplan_dra.allocator.capacity import consumption
from bayplan_dra.allocator.model import (
    AllocatedState,
    AllocationError,
    Amount,
    DeviceId,
    Features,
    NodeError,
    PoolDevice,
    TimedOut,
)
from bayplan_dra.allocator.pools import Pool
from bayplan_dra.allocator.requests import ClaimRequest, ClaimToAllocate, SelectorError, Wanted
from bayplan_dra.allocator.results import Choice
from bayplan_dra.allocator.usage import CounterKey, Usage, counter_needs

__all__ = ["Reference"]

Undo = Callable[[], None]
_OFTEN = 64
"""Pieces of work, such as devices looked at, after which the interrupt is asked."""


class _TooMany(Exception):
    """A claim would get more devices than it may have, whichever devices these are."""


@dataclass
class Reference:
    """One allocation for one node, to be run once.

    :param interrupt: called every 64 steps or devices; the search stops when it returns True.
    :param most: the number of steps after which to give up; None for no limit.
    :param ignore_selector_errors: do not select a device on which a selector fails.
    :ivar calls: the steps taken, counted as Kubernetes does.
    """

    claims: Sequence[ClaimToAllocate]
    pools: Sequence[Pool]
    state: AllocatedState
    features: Features
    interrupt: Callable[[], bool] | None = None
    most: int | None = None
    ignore_selector_errors: bool = False
    calls: int = 0
    _work: int = 0
    _usage: Usage = field(init=False)
    _chosen: list[list[Choice]] = field(init=False)
    _taken: dict[DeviceId, set[int]] = field(default_factory=dict)
    _shares: dict[tuple[DeviceId, str], Amount] = field(default_factory=dict)
    _selected: dict[tuple[int, DeviceId], bool] = field(default_factory=dict)
    _everything: dict[int, list[PoolDevice]] = field(default_factory=dict)
    _trackers: list[list[AttributeTracker]] = field(init=False)
    _met_invalid: bool = False

    def __post_init__(self) -> None:
        self._usage = Usage.of(self.state, self.pools)
        self._chosen = [[] for _ in self.claims]
        self._trackers = [[AttributeTracker(c) for c in claim.constraints] for claim in self.claims]

    def run(self) -> list[list[Choice]] | None:
        """Return the choices for each claim, or None when there are none.

        :raises AllocationError: when the claims cannot be allocated on any node.
        :raises SelectorError: when a selector fails on a device that it comes across.
        :raises NodeError: when the node's pools are invalid.
        :raises TimedOut: when the search was interrupted or took too many steps.
        """
        for index in range(len(self.claims)):
            self._find_all_devices(index)
        if self._one(0, 0, None, 0, 0):
            return self._chosen
        if self._met_invalid:
            raise NodeError("invalid resource pools were encountered")
        return None

    # All devices -----------------------------------------------------------------------------

    def _find_all_devices(self, index: int) -> None:
        claim = self.claims[index]
        least = 0
        for request in claim.requests:
            sizes = []
            for wanted in request.ways:
                if wanted.count is not None:
                    sizes.append(wanted.count)
                    continue
                found = self._all_devices(index, wanted)
                self._everything[id(wanted)] = found
                sizes.append(len(found))
            least += min(sizes)
        if least > CLAIM_LIMIT:
            raise AllocationError(
                f"{claim.title}: number of requested devices {least} exceeds the claim limit of "
                f"{CLAIM_LIMIT}"
            )

    def _all_devices(self, claim: int, wanted: Wanted) -> list[PoolDevice]:
        found = []
        for pool in self.pools:
            title = self.claims[claim].title
            where = f"{title}, request {wanted.name}: asks for all devices, but resource pool"
            if pool.incomplete:
                raise AllocationError(f"{where} {pool.key} is currently being updated")
            if pool.invalid:
                raise AllocationError(f"{where} {pool.key} is currently invalid: {pool.invalid}")
            for device in pool.devices:
                self._check()
                if not self._selects(claim, wanted, device):
                    continue
                fits, consumed = self._consumption(wanted, device)
                if fits and self._share_fits(device, consumed):
                    found.append(device)
        return found

    def _share_fits(self, device: PoolDevice, consumed: Mapping[str, Amount] | None) -> bool:
        return all(
            self._usage.share_left(device, name) - self._shares.get((device.id, name), 0) >= amount
            for name, amount in (consumed or {}).items()
        )

    # The search ------------------------------------------------------------------------------

    def _one(self, claim: int, request: int, wanted: Wanted | None, count: int, start: int) -> bool:
        """Allocate everything from here on; ``count`` devices of ``wanted`` are chosen already."""
        self.calls += 1
        if self.most is not None and self.calls > self.most:
            raise TimedOut.after(self.calls)
        self._check()
        if claim == len(self.claims):
            return True
        requests = self.claims[claim].requests
        if request == len(requests):
            return self._next_claim(claim + 1)
        if wanted is None:
            if requests[request].prioritized:
                return self._any_way(claim, request, requests[request])
            wanted = requests[request].ways[0]
        size = wanted.count
        if size is None:
            size = len(self._everything[id(wanted)])
        if count == size and (size or wanted.count is not None):
            return self._one(claim, request + 1, None, 0, 0)
        if len(self._chosen[claim]) + size - count > CLAIM_LIMIT:
            raise _TooMany
        if wanted.count is None:
            return self._all(claim, request, wanted, count)
        for index, device in self._candidates(start):
            self._check()
            if not self._may_use(claim, wanted, device) or not self._selects(claim, wanted, device):
                continue
            undo = self._take(claim, wanted, device)
            if undo is None:
                continue
            if self._go_on(undo, claim, request, wanted, count + 1, index + 1):
                return True
        return False

    def _go_on(
        self, undo: Undo, claim: int, request: int, wanted: Wanted, count: int, start: int
    ) -> bool:
        done = False
        try:
            done = self._one(claim, request, wanted, count, start)
        finally:
            if not done:
                undo()
        return done

    def _check(self) -> None:
        """Count a piece of work.

        :raises TimedOut: when the interrupt says so.
        """
        self._work += 1
        if self._work % _OFTEN == 0 and self.interrupt is not None and self.interrupt():
            raise TimedOut.interrupted(self.calls)

    def _next_claim(self, claim: int) -> bool:
        try:
            return self._one(claim, 0, None, 0, 0)
        except _TooMany:
            # Claims are counted apart: other devices for the claims before may help.
            return False

    def _any_way(self, claim: int, request: int, options: ClaimRequest) -> bool:
        """Try the alternatives in order.

        :raises _TooMany: when each takes too many devices. Other devices for the requests before
            cannot change that, so these are not tried.
        """
        too_many = True
        for way in options.ways:
            try:
                if self._one(claim, request, way, 0, 0):
                    return True
                too_many = False
            except _TooMany:
                continue
        if too_many:
            raise _TooMany
        return False

    def _all(self, claim: int, request: int, wanted: Wanted, count: int) -> bool:
        devices = self._everything[id(wanted)]
        if not devices:
            return False
        device = devices[count]
        if not self._may_use(claim, wanted, device):
            return False
        undo = self._take(claim, wanted, device, must=True)
        if undo is None:
            return False
        return self._go_on(undo, claim, request, wanted, count + 1, 0)

    def _candidates(self, start: int) -> Iterator[tuple[int, PoolDevice]]:
        index = 0
        for pool in self.pools:
            if pool.invalid and pool.devices:
                self._met_invalid = True
            if pool.incomplete or pool.invalid:
                index += len(pool.devices)
                continue
            for device in pool.devices:
                if index >= start:
                    yield index, device
                index += 1

    def _may_use(self, claim: int, wanted: Wanted, device: PoolDevice) -> bool:
        taken = self._taken.get(device.id, set())
        if claim in taken and not self._shareable(device):
            return False
        if not wanted.admin and self._usage.in_use(device):
            return False
        return wanted.admin or not taken or self._shareable(device)

    def _shareable(self, device: PoolDevice) -> bool:
        return device.spec.allow_multiple_allocations and self.features.consumable_capacity

    def _selects(self, claim: int, wanted: Wanted, device: PoolDevice) -> bool:
        key = (id(wanted), device.id)
        if key not in self._selected:
            label = self.claims[claim].label
            try:
                found = wanted.selects(device, self.features, label, self.interrupt)
            except SelectorError:
                if not self.ignore_selector_errors:
                    raise
                found = False
            self._selected[key] = found
        return self._selected[key]

    def _consumption(
        self, wanted: Wanted, device: PoolDevice
    ) -> tuple[bool, Mapping[str, Amount] | None]:
        """Tell whether the device offers the requested capacity, and what a share consumes."""
        if not self.features.consumable_capacity:
            return True, None
        consumed = consumption(device.spec, wanted.capacity)
        if consumed is None:
            return False, None
        return True, consumed if device.spec.allow_multiple_allocations else None

    def _take(
        self, claim: int, wanted: Wanted, device: PoolDevice, must: bool = False
    ) -> Undo | None:
        """Give a device to a request; return how to undo that, or None if it cannot have it.

        :param must: the request needs this very device.
        :raises AllocationError: with ``must``, when a constraint forbids it.
        """
        fits, consumed = self._consumption(wanted, device)
        if not fits or not self._share_fits(device, consumed):
            return None
        needs = self._counter_needs(device)
        if any(self._usage.counters[key] < need for key, need in needs.items()):
            return None
        if self.features.device_taints and not wanted.tolerates(device):
            return None
        if self._unbound_feature(device):
            return None
        added: list[AttributeTracker] = []
        for tracker in self._trackers[claim]:
            if not tracker.covers(wanted.name):
                continue
            if not tracker.add(wanted.name, device):
                for other in reversed(added):
                    other.remove()
                if must:
                    raise AllocationError(
                        f"{self.claims[claim].title}, request {wanted.name}: cannot add device "
                        f"{device.id} because a claim constraint would not be satisfied"
                    )
                return None
            added.append(tracker)
        self._count(claim, wanted, device, consumed, needs)

        def undo() -> None:
            self._uncount(claim, device, consumed, needs)
            for tracker in reversed(added):
                tracker.remove()

        return undo

    def _unbound_feature(self, device: PoolDevice) -> bool:
        return bool(device.spec.binding_conditions) and not self.features.binding_conditions

    def _counter_needs(self, device: PoolDevice) -> Mapping[CounterKey, Amount]:
        # The counters of a shared device are taken once, by the first share.
        if device.id in self.state.shared or self._taken.get(device.id):
            return {}
        return counter_needs(device)

    def _count(
        self,
        claim: int,
        wanted: Wanted,
        device: PoolDevice,
        consumed: Mapping[str, Amount] | None,
        needs: Mapping[CounterKey, Amount],
    ) -> None:
        self._chosen[claim].append(Choice(wanted, device, consumed))
        self._taken.setdefault(device.id, set()).add(claim)
        for key, need in needs.items():
            self._usage.counters[key] -= need
        for name, amount in (consumed or {}).items():
            share = (device.id, name)
            self._shares[share] = self._shares.get(share, 0) + amount

    def _uncount(
        self,
        claim: int,
        device: PoolDevice,
        consumed: Mapping[str, Amount] | None,
        needs: Mapping[CounterKey, Amount],
    ) -> None:
        self._chosen[claim].pop()
        if all(choice.device is not device for choice in self._chosen[claim]):
            self._taken[device.id].discard(claim)
        for key, need in needs.items():
            self._usage.counters[key] += need
        for name, amount in (consumed or {}).items():
            self._shares[device.id, name] -= amount
