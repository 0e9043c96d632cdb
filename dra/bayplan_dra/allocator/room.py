"""What is left of hardware that is divided: how many devices of each kind could still be had.

The devices that consume one counter set are the ways to divide one piece of hardware, such as the
placements of MIG partitions on a GPU. Devices are of one kind when they need as much of as many
counters, whichever counters these are: ``memory-slice-0`` is as good as ``memory-slice-4``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from bayplan_dra.allocator.model import Amount
from bayplan_dra.allocator.usage import CounterKey

__all__ = ["DividedDevices", "Division", "division_of"]

_WHOLE = 1000
"""The value of a device that takes everything."""
_MOST_EXACT = 12
"""Devices of a kind up to which the most that fit together are counted exactly."""
_MOST_KNOWN = 4096

_Amounts = tuple[Amount, ...]


class Division:
    """The ways to divide one piece of hardware; equal hardware shares one object.

    :param needs: what each device takes of each counter.
    :param totals: how much there is of each counter.
    """

    def __init__(self, needs: Mapping[int, _Amounts], totals: _Amounts) -> None:
        self.totals = totals
        kinds: dict[object, list[tuple[int, _Amounts]]] = {}
        for device, own in needs.items():
            kind = tuple(sorted((total, need) for total, need in zip(totals, own, strict=True)))
            kinds.setdefault(kind, []).append((1 << device, own))
        self._kinds = [(_weight(own[0][1], totals), own) for own in kinds.values()]
        self._known: dict[tuple[_Amounts, int], int] = {}

    def value(self, left: _Amounts, free: int) -> int:
        """Return what could still be had: the most devices of each kind, by the part they take.

        :param left: what is left of each counter.
        :param free: the devices that are not in use, one bit each.
        """
        key = (left, free)
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            known = self._known[key] = sum(
                weight * _most([need for bit, need in kind if free & bit], left)
                for weight, kind in self._kinds
            )
        return known


@lru_cache(1024)
def _shared(needs: tuple[tuple[int, _Amounts], ...], totals: _Amounts) -> Division:
    return Division(dict(needs), totals)


class DividedDevices(NamedTuple):
    """The devices of a table that divide one piece of hardware, one bit each in ``mask``."""

    mask: int
    counters: tuple[CounterKey, ...]
    division: Division

    def value(self, left: Mapping[CounterKey, Amount], used: int) -> int:
        """Return what could still be had, see ``Division.value``.

        :param used: the devices of the table that are in use.
        """
        division, amounts, free = self.state(left, used)
        return division.value(amounts, free)

    def state(self, left: Mapping[CounterKey, Amount], used: int) -> tuple[Division, _Amounts, int]:
        """Return the state of the hardware; equal states have equal value."""
        low = (self.mask & -self.mask).bit_length() - 1
        free = (self.mask & ~used) >> low
        return self.division, tuple([left[key] for key in self.counters]), free


def division_of(
    devices: Iterable[int],
    needs: Sequence[Mapping[CounterKey, Amount]],
    totals: Mapping[CounterKey, Amount],
) -> DividedDevices:
    """Return how devices of a table divide what they share.

    :param devices: the numbers of the devices.
    :param needs: what each device of the table takes from counters.
    :param totals: how much there is of each counter of the set.
    """
    numbers = sorted(devices)
    keys = tuple(sorted(totals))
    first = numbers[0]
    own = tuple(
        (number - first, tuple(needs[number].get(key, 0) for key in keys)) for number in numbers
    )
    mask = sum(1 << number for number in numbers)
    return DividedDevices(mask, keys, _shared(own, tuple(totals[key] for key in keys)))


def _weight(need: _Amounts, totals: _Amounts) -> int:
    """Return the part of all counters that a device takes, in thousandths."""
    parts = [amount / total for amount, total in zip(need, totals, strict=True) if total]
    return round(_WHOLE * float(sum(parts)) / len(parts)) if parts else 0


def _most(needs: Sequence[_Amounts], left: _Amounts) -> int:
    """Return how many devices fit together into what is left."""
    fitting = [need for need in needs if _fits(need, left)]
    if len(fitting) > _MOST_EXACT:
        return _one_by_one(fitting, left)
    best = 0

    def visit(at: int, taken: int, left: _Amounts) -> None:
        nonlocal best
        best = max(best, taken)
        for number in range(at, len(fitting)):
            if taken + len(fitting) - number <= best:
                return
            if _fits(fitting[number], left):
                visit(number + 1, taken + 1, _without(fitting[number], left))

    visit(0, 0, left)
    return best


def _one_by_one(needs: Sequence[_Amounts], left: _Amounts) -> int:
    count = 0
    for need in needs:
        if _fits(need, left):
            left = _without(need, left)
            count += 1
    return count


def _fits(need: _Amounts, left: _Amounts) -> bool:
    return all(amount <= there for amount, there in zip(need, left, strict=True))


def _without(need: _Amounts, left: _Amounts) -> _Amounts:
    return tuple([there - amount for amount, there in zip(need, left, strict=True)])
