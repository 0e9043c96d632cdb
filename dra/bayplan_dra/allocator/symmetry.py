"""Which devices are alike: a search that has tried one of them need not try the others.

Two devices are alike when a symmetry of what is left exchanges them. Colour refinement finds these
symmetries; it is exact because topology groups are nested. Where they are not, only devices that
belong to the same groups are alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

from bayplan_dra.allocator.problem import AllocationProblem, DeviceDemand, PartialSolution
from bayplan_dra.allocator.table import bits

__all__ = ["Symmetry"]


class Symmetry:
    """The symmetries of one problem."""

    def __init__(self, problem: AllocationProblem, demands: Sequence[DeviceDemand]) -> None:
        self._problem = problem
        self._demands = demands
        candidates = 0
        for demand in demands:
            candidates |= demand.candidates
        self._sets = self._sets_that_matter()
        # A device that takes from two counter sets takes a part of its own from each.
        single = all(
            len({key[:2] for key in problem.table.needs[device]}) < 2 for device in bits(candidates)
        )
        self._nested = single and _are_nested([mask & candidates for _, mask in self._sets])

    def colours(self, state: PartialSolution) -> Mapping[int, object]:
        """Return a colour for each candidate; devices of equal colour are alike."""
        relevant = 0
        for mask in state.masks:
            relevant |= mask
        used = state.used(self._problem.used)
        colours = self._first_colours(state, relevant)
        rooms = self._rooms(state, used)
        groups = [
            ((kind, rooms.get(mask)), mask, (used & mask).bit_count(), mask.bit_count())
            for kind, mask in self._sets
            if mask & relevant
        ]
        if not self._nested:
            return {
                device: (colour, tuple(bool(mask >> device & 1) for _, mask, _, _ in groups))
                for device, colour in colours.items()
            }
        return _refined(colours, groups, relevant)

    def _rooms(self, state: PartialSolution, used: int) -> dict[int, object]:
        """Return what tells divided hardware apart: how it is divided, and what is left of it."""
        divided = self._problem.table.divided
        left = dict(state.counters) if divided else {}
        return {one.mask: one.state(left, used) for one in divided}

    def _sets_that_matter(self) -> list[tuple[object, int]]:
        """Return all sets of devices that belong together, each with its kind."""
        found: dict[tuple[object, int], None] = {}
        for group in self._problem.groups:
            found[(("level", group.level, group.partition, group.reach), group.mask)] = None
        for index, (_, constraint) in enumerate(self._problem.constraints):
            for mask in self._problem.table.attribute(constraint.attribute).masks.values():
                found[(("constraint", index), mask)] = None
        return list(found)

    def _first_colours(self, state: PartialSolution, relevant: int) -> dict[int, int]:
        """Colour devices by what they are on their own: who may have them, what they cost."""
        table = self._problem.table
        masks = list(dict.fromkeys(state.masks))
        plain = not table.consumers and not table.shareable
        counters = {} if plain else dict(state.counters)
        shares = {} if plain else dict(state.shares)
        admin = any(demand.admin for demand in self._demands)
        palette: dict[object, int] = {}
        colours: dict[int, int] = {}
        for device in bits(relevant):
            own: list[object] = [mask >> device & 1 for mask in masks]
            if not plain or admin:
                own += [chosen >> device & 1 for chosen in state.chosen]
            if not plain:
                needs = table.needs[device].items()
                own.append(
                    tuple(
                        sorted(
                            (key[2:] if self._nested else key, n, counters[key]) for key, n in needs
                        )
                    )
                )
                capacity = table.devices[device].spec.capacity
                own.append(tuple((name, shares.get((device, name))) for name in capacity))
                consumed = (demand.consumed.get(device, {}) for demand in self._demands)
                own.append(tuple(tuple(sorted(one.items())) for one in consumed))
                own.append(state.counted >> device & 1)
            colours[device] = palette.setdefault(tuple(own), len(palette))
        return colours


def _refined(
    colours: dict[int, int], groups: Sequence[tuple[object, int, int, int]], relevant: int
) -> Mapping[int, object]:
    """Split colours by the groups around each device until nothing changes.

    :param groups: kind, devices, number in use and size of each.
    """
    members = [list(bits(mask & relevant)) for _, mask, _, _ in groups]
    for _ in range(len(groups) + 1):
        palette: dict[object, int] = {}
        of_group = [
            palette.setdefault(
                (kind, used, size, tuple(sorted(colours[device] for device in own))),
                len(palette),
            )
            for (kind, _, used, size), own in zip(groups, members, strict=True)
        ]
        around: dict[int, list[int]] = {device: [] for device in colours}
        for colour, own in zip(of_group, members, strict=True):
            for device in own:
                around[device].append(colour)
        fresh: dict[object, int] = {}
        refined = {
            device: fresh.setdefault((colour, tuple(sorted(around[device]))), len(fresh))
            for device, colour in colours.items()
        }
        if len(fresh) == len(set(colours.values())):
            return refined
        colours = refined
    return colours


def _are_nested(masks: Sequence[int]) -> bool:
    """Tell whether any two sets are disjoint, or one contains the other."""
    distinct = {mask for mask in masks if mask & (mask - 1)}
    return all(a & b in (0, a, b) for a, b in combinations(distinct, 2))
