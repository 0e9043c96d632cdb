"""When claims get the same answer on two nodes: equal keys mean equal answers."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from bayplan_dra.allocator.model import AllocatedState, Interrupt
from bayplan_dra.allocator.requests import ClaimToAllocate
from bayplan_dra.allocator.table import DeviceTable, bits
from bayplan_dra.allocator.traits import TraitReader

__all__ = ["EquivalenceClasses"]

_MOST_KNOWN = 10_000
"""So many traits, and readers of them, are remembered."""


class EquivalenceClasses:
    """Keys under which an answer for some claims can be cached for all nodes alike.

    Tables remember the numbers that an object of this class assigns, so all users of the tables
    have to share one object.
    """

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._by_traits: dict[Hashable, int] = {}
        self._readers: dict[Hashable, TraitReader] = {}

    def key(
        self,
        table: DeviceTable,
        claims: Sequence[ClaimToAllocate],
        state: AllocatedState,
        levels: tuple[str, ...],
        interrupt: Interrupt | None = None,
    ) -> Hashable:
        """Return a key that is equal for equal tables with the same devices in use.

        :param levels: the attributes that say which devices belong together.
        :raises AllocationError: for an expression that does not compile.
        :raises TimedOut: when the interrupt says so.
        """
        wanted = tuple(request for claim in claims for request in claim.requests)
        constraints = tuple(constraint for claim in claims for constraint in claim.constraints)
        number = table.classes.get((levels, wanted, constraints))
        if number is None:
            number = self._number(table, claims, levels, interrupt, (levels, wanted, constraints))
            table.classes[levels, wanted, constraints] = number
        titles = tuple(claim.label for claim in claims)
        in_use, shared = table.in_use(state), table.shared_in_use(state)
        turns = table.turns(state)
        order: Hashable = table.blocked(state)
        if turns:
            # Which device comes next counts, not when it became free.
            places = {freed: place for place, freed in enumerate(sorted({t.freed for t in turns}))}
            order = order, tuple((*turn[:2], places[turn.freed]) for turn in turns)
        if not table.consumers and not table.shareable:
            return number, wanted, titles, in_use, order
        usage = table.usage(state)
        counters = tuple(usage.counters.get(key) for key in table.consumers)
        shares = tuple(
            usage.share_left(table.devices[device], name)
            for device in bits(table.shareable)
            for name in table.devices[device].spec.capacity
        )
        return number, wanted, titles, in_use, order, shared, counters, shares

    def _number(
        self,
        table: DeviceTable,
        claims: Sequence[ClaimToAllocate],
        levels: tuple[str, ...],
        interrupt: Interrupt | None,
        asked: Hashable,
    ) -> int:
        """Return the number of the equivalence class, without evaluating selectors if possible."""
        reader = self._readers.get(asked)
        if reader is None:
            if len(self._readers) >= _MOST_KNOWN:
                self._readers.clear()
            reader = self._readers[asked] = TraitReader(table, claims, levels)
        traits = reader(table)
        known = self._by_traits.get((asked, traits)) if traits is not None else None
        if known is not None:
            return known
        made = self._make(table, claims, levels, interrupt)
        number = self._numbers.setdefault(made, len(self._numbers))
        # What is said of a selector that fails may name what the others do not have.
        if traits is not None and not self._fails(table, claims):
            if len(self._by_traits) >= _MOST_KNOWN:
                self._by_traits.clear()
            self._by_traits[asked, traits] = number
        return number

    def _fails(self, table: DeviceTable, claims: Sequence[ClaimToAllocate]) -> bool:
        ways = (way for one in claims for request in one.requests for way in request.ways)
        return any(table.filtered(way).failures for way in ways)

    def _make(
        self,
        table: DeviceTable,
        claims: Sequence[ClaimToAllocate],
        levels: tuple[str, ...],
        interrupt: Interrupt | None,
    ) -> Hashable:
        filtered = []
        for claim in claims:
            for request in claim.requests:
                for way in request.ways:
                    one = table.filtered(way, claim.label, interrupt)
                    consumed = tuple(
                        (device, tuple(amounts.items())) for device, amounts in one.consumed.items()
                    )
                    filtered.append(
                        (
                            one.usable,
                            one.of_class,
                            one.matching,
                            one.tolerated,
                            one.capable,
                            consumed,
                            tuple(one.failures.items()),
                        )
                    )
        attributes = []
        for claim in claims:
            for constraint in claim.constraints:
                index = table.attribute(constraint.attribute)
                attributes.append((constraint, index.present, tuple(index.masks.values())))
        counters = {key: number for number, key in enumerate(table.consumers)}
        needs = tuple(
            tuple((counters[key], amount) for key, amount in own.items()) for own in table.needs
        )
        sound = table.usable == table.all
        names = tuple(device.id.device if sound else str(device.id) for device in table.devices)
        pools = () if sound else tuple((str(p.key), p.incomplete, p.invalid) for p in table.pools)
        groups = table.groups(levels)
        return (
            names,
            pools,
            tuple(filtered),
            tuple(attributes),
            needs,
            tuple(counter[1:] for counter in counters),
            groups,
            tuple(divided.division.totals for divided in table.divided),
            table.shareable,
            table.host.shape if table.host is not None else None,
        )
