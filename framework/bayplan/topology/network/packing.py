"""Distribute the members of a job over the nodes of a domain.

Slots are counted bottom-up: what each node can take, summed up the tree, rounded down to multiples
where slices require it. Members are then distributed top-down, part by part:

``BestFit`` takes the part with the most slots first, and for the rest the tightest part that holds
it: the fewest parts, the smallest remainder (Kueue's rule for required and preferred topologies).
``LargestFirst`` always takes the largest part next (Koordinator's rule). ``LeastFree`` takes the
smallest part that holds everything, or else the smallest first (Kueue's rule for unconstrained
topologies). ``Balanced`` shares the members evenly among the fewest nodes (after Kueue's balanced
placement).

Equal parts are taken in topology order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from bayplan.api.gang import Fill
from bayplan.topology.network.tree import NODE_LAYER, Domain, NetworkTree

__all__ = ["Capacity", "balance", "distribute"]

IntColumn = npt.NDArray[np.int64]


class Capacity:
    """The number of members that each domain of a tree can take.

    :param slots: the most members that each node can take, by node row.
    :param multiples: the layers whose domains take members only in multiples of a number. The
        multiple of an inner layer has to divide that of an outer one.
    """

    def __init__(
        self, tree: NetworkTree, slots: IntColumn, multiples: Mapping[str, int] | None = None
    ) -> None:
        self.tree = tree
        self.multiples = {layer: n for layer, n in (multiples or {}).items() if n > 1}
        self.raw = slots[tree.order]
        self.in_order = _floored(self.raw, self.multiples.get(NODE_LAYER, 1))
        self._sums = _running_sums(self.in_order)
        self._floored: dict[int, int] = {}
        if any(layer != NODE_LAYER for layer in self.multiples):
            self._round_down(tree.root)

    def _round_down(self, domain: Domain) -> int:
        own = int(self._sums[domain.end] - self._sums[domain.end - domain.own])
        total = own + sum(self._round_down(child) for child in domain.children)
        multiple = self.multiples.get(domain.layer, 1)
        self._floored[id(domain)] = total = total // multiple * multiple
        return total

    def of(self, domain: Domain) -> int:
        """Return the number of members that a domain can take."""
        if self._floored:
            return self._floored[id(domain)]
        return int(self._sums[domain.end] - self._sums[domain.start])

    def of_layer(self, layer: str) -> IntColumn:
        """Return the number of members that each domain of a layer can take, in tree order."""
        if self._floored:
            domains = self.tree.layers[layer]
            return np.array([self._floored[id(domain)] for domain in domains], dtype=np.int64)
        starts, ends = self.tree.bounds(layer)
        found: IntColumn = self._sums[ends] - self._sums[starts]
        return found

    def without_multiples(self, domain: Domain) -> int:
        """Return the number of members that a domain could take without multiples."""
        return int(self.raw[domain.start : domain.end].sum())


def _running_sums(column: IntColumn) -> IntColumn:
    """Return the sums of the first 0, 1, 2, ... numbers."""
    sums = np.zeros(len(column) + 1, dtype=np.int64)
    np.cumsum(column, out=sums[1:])
    return sums


def _floored(slots: IntColumn, multiple: int) -> IntColumn:
    return slots if multiple == 1 else slots // multiple * multiple


def distribute(capacity: Capacity, domain: Domain, wanted: int, fill: Fill) -> IntColumn:
    """Return the number of members for each row of ``domain.rows``.

    They add up to ``wanted`` if the domain can take that many, else to as many as fit.
    """
    taken = np.zeros(len(domain.rows), dtype=np.int64)
    if fill == "Balanced":
        even = balance(capacity.in_order[domain.start : domain.end], wanted, _step(capacity))
        if even is not None:
            return even[2]
        fill = "BestFit"
    _pour(capacity, domain, wanted, fill, taken, domain.start)
    return taken


def _step(capacity: Capacity) -> int:
    return math.lcm(1, *capacity.multiples.values()) if capacity.multiples else 1


def _pour(
    capacity: Capacity, domain: Domain, wanted: int, fill: Fill, taken: IntColumn, base: int
) -> None:
    own = domain.end - domain.own
    slots = [capacity.of(child) for child in domain.children]
    raw = [capacity.without_multiples(child) for child in domain.children]
    if domain.own:
        slots += capacity.in_order[own : domain.end].tolist()
        raw += capacity.raw[own : domain.end].tolist()
    multiple = 1
    if domain.children:
        multiple = capacity.multiples.get(domain.children[0].layer, 1)
    if not domain.children:
        multiple = capacity.multiples.get(NODE_LAYER, 1)
    for part, here in _choose(slots, raw, wanted, multiple, fill):
        if part < len(domain.children):
            _pour(capacity, domain.children[part], here, fill, taken, base)
        else:
            taken[own - base + part - len(domain.children)] = here


def _choose(
    slots: Sequence[int], raw: Sequence[int], wanted: int, multiple: int, fill: Fill
) -> list[tuple[int, int]]:
    """Return (part, members) for each part to use.

    :param slots: the slots of each part; ``raw`` are the same without multiples.
    """
    parts = [part for part in range(len(slots)) if slots[part] > 0]
    if fill == "LargestFirst":
        parts.sort(key=lambda part: (-slots[part], part))
    elif fill == "LeastFree":
        parts.sort(key=lambda part: (slots[part], raw[part], part))
        parts = [part for part in parts if slots[part] >= wanted][:1] or parts
    else:
        parts.sort(key=lambda part: (-slots[part], raw[part], part))
    chosen: list[tuple[int, int]] = []
    for index, part in enumerate(parts):
        if wanted <= 0:
            break
        if fill == "BestFit" and slots[part] >= wanted:
            tight = [(slots[p], raw[p], p) for p in parts[index:] if slots[p] >= wanted]
            part = min(tight)[2]
        here = min(wanted, slots[part]) // multiple * multiple
        if here:
            chosen.append((part, here))
        wanted -= here
    return chosen


def balance(slots: IntColumn, wanted: int, step: int = 1) -> tuple[int, float, IntColumn] | None:
    """Share ``wanted`` members as evenly as possible, in portions of ``step``.

    :param slots: the most members that each node can take.
    :returns: the lowest share of a used node, the entropy of the used nodes' slots, and the share
        of each node; None if one node can take all members, or all nodes together cannot.
    """
    portions = slots // step
    need = -(-wanted // step)
    if not len(portions) or portions.max() >= need or portions.sum() < need:
        return None
    falling = np.sort(portions)[::-1]
    least, count = 0, 0
    for used in range(1, len(falling) + 1):
        if falling[:used].sum() >= need:
            floor = min(need // used, int(falling[used - 1]))
            if floor > least:
                least, count = floor, used
    if not count:
        return None
    able = [int(row) for row in np.flatnonzero(portions >= least)]
    # The smallest nodes that can still take everything together.
    able.sort(key=lambda row: (portions[row], row))
    for first in range(len(able) - count + 1):
        window = able[first : first + count]
        if portions[window].sum() >= need:
            break
    shares = np.zeros(len(slots), dtype=np.int64)
    shares[window] = least
    rest = need - least * count
    for row in sorted(window):
        more = min(rest, int(portions[row] - shares[row]))
        shares[row] += more
        rest -= more
    used_slots = portions[window].astype(np.float64)
    share = used_slots / used_slots.sum()
    return least * step, float(-(share * np.log(share)).sum()), shares * step
