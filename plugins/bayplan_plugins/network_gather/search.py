"""Which domains can hold a unit, in which order they are offered, and how they are filled.

On each layer, the domains that can hold the whole unit come first, the fullest first
(:data:`~bayplan.api.gang.DomainOrder` says what that is); then those that can hold its minimum, by
decreasing capacity. Ties break by the domains around, then by what is free, then by name (digits as
numbers).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from operator import itemgetter

import numpy as np

from bayplan import DomainTrial, Handle, NodeView, Placement, Placements, PodInfo, Supposed, Unit
from bayplan.api.gang import DomainOrder, Fill, Gang
from bayplan.plugin.hookspecs import BoolColumn, IntColumn
from bayplan.plugin.lazy_sequence import LazySequence
from bayplan.topology.network.packing import Capacity, balance, distribute
from bayplan.topology.network.tree import NODE_LAYER, ROOT_LAYER, Domain, NetworkTree
from bayplan_plugins.network_gather.layers import layer_named
from bayplan_plugins.network_gather.messages import no_domain_message, slices_message

__all__ = ["DomainSearch"]

_MOST_RECORDED = 64
"""Domains that a decision records: those that hold the most members."""
_MOST_CANDIDATES = 256
"""Domains of one layer that are offered; more would not be tried."""
_MOST_ON_A_NODE = 1 << 20
"""Members that a node takes which nothing limits."""


_Offer = tuple[int, str, int, int]
"""A domain that is offered: what sorts it, its layer, its place there, and what it offers."""
_MILLIONTHS = 1_000_000
_EVERYWHERE = ""
"""Instead of a layer: the whole cluster."""


_FIRST = itemgetter(0)


class DomainSearch:
    """The search for one unit.

    :param fill: in which order the parts of a domain are filled, unless the gang says so.
    :param parent: the placement of the whole, for a sub-group.
    :param supposed: what is free by supposition, instead of now.
    """

    def __init__(
        self,
        handle: Handle,
        fill: Fill,
        unit: Unit,
        gang: Gang,
        tree: NetworkTree,
        nodes: NodeView,
        parent: Placement,
        supposed: Supposed | None = None,
    ) -> None:
        self._handle = handle
        self._slots_offered = handle.free_slots if supposed is None else supposed.slots
        self._unit, self._gang, self._tree, self._nodes = unit, gang, tree, nodes
        self._fill: Fill = gang.fill or fill
        self._allowed: BoolColumn | None = None
        if parent.rows is not None:
            self._allowed = np.zeros(len(nodes), dtype=np.bool_)
            self._allowed[parent.rows] = True
        self._multiples = {layer_named(tree, one.layer): one.size for one in gang.slices}
        self._size, self._least = len(unit.pods), unit.min_placed
        by_spec: dict[object, list[PodInfo]] = {}
        for pod in unit.pods:
            by_spec.setdefault(pod.facts, []).append(pod)
        self._kinds = [pods[0] for pods in by_spec.values()]
        self._counts = [len(pods) for pods in by_spec.values()]
        # Incomplete slices may be completed member by member.
        multiples = self._multiples if len(self._kinds) == 1 and not unit.bound else {}
        self._capacities = [
            Capacity(tree, self._offered_slots(pod, self._size), multiples) for pod in self._kinds
        ]
        self._free = [Capacity(tree, self._offered_slots(pod), multiples) for pod in self._kinds]
        order = tree.layer_order()
        required = [layer_named(tree, r.layer) for r in gang.gather if r.required]
        self._border = max(required, key=order.index) if required else None
        self._existing = self._sums([node for _, node in unit.bound])
        self._former = None if unit.bound else self._sums(self._former_nodes())

    def _offered_slots(self, pod: PodInfo, most: int = _MOST_ON_A_NODE) -> IntColumn:
        """Return how many such members each row offers, up to a number."""
        return self._allowed_slots(np.minimum(self._slots_offered(pod), most))

    def _slots(self, pod: PodInfo, most: int) -> IntColumn:
        """Return how many such members each row takes now, up to a number."""
        return self._allowed_slots(np.minimum(self._handle.free_slots(pod), most))

    def _allowed_slots(self, slots: IntColumn) -> IntColumn:
        if self._allowed is not None:
            slots[~self._allowed] = 0
        return slots

    def _former_nodes(self) -> list[str]:
        """Return the nodes that members held before they were made again.

        Those under the same names count most; a gang that never ran takes the place of another one.
        """
        pods = self._unit.pods
        key = pods[0].gang if pods else None
        former = self._handle.gang(key).former if key else {}
        if former:
            same = [former[pod.key] for pod in pods if pod.key in former]
            return same or list(former.values())
        before = (
            self._gang.predecessors if self._unit.gang is None else self._unit.gang.predecessors
        )
        found = (list(self._handle.former_nodes(one).values()) for one in reversed(before))
        return next((nodes for nodes in found if nodes), [])

    def _sums(self, names: Sequence[str]) -> IntColumn | None:
        """Return running sums, in the tree's order, of members per row; None for none.

        :param names: the node of each member.
        """
        rows = self._nodes.table.row_of
        held = [rows[node] for node in names if node in rows]
        if not held:
            return None
        counts = np.bincount(held, minlength=len(self._nodes))
        return np.concatenate([[0], np.cumsum(counts[self._tree.order])])

    # Candidates --------------------------------------------------------------------------

    def run(self) -> Placements:
        """Return the candidates, the domains ruled out, and the reason if no candidate is left."""
        found: list[_Offer] = []
        smaller: list[_Offer] = []
        refused: list[DomainTrial] = []
        for layer in self._layers():
            self._offer(layer, found, smaller, refused)
        last = self._last_resort() if self._border is None else None
        if last is not None:
            room = last.offered or 0
            if room >= self._size or room < self._least:
                found.append((int(self._bound_in(ROOT_LAYER)[0]), _EVERYWHERE, 0, room))
            else:
                smaller.append((room, _EVERYWHERE, 0, room))
        # Domains with bound members first, the innermost first; then the others.
        found.sort(key=_FIRST, reverse=True)
        # Placing all members somewhere beats placing most of them near each other.
        smaller.sort(key=_FIRST, reverse=True)
        offers = found + smaller
        reason = "" if offers else self._no_domain(refused)

        def made(place: int) -> Placement:
            _, layer, index, room = offers[place]
            return last if last and not layer else self._placement(layer, index, room)

        # Mostly the first will do.
        return Placements(LazySequence(len(offers), made), refused, reason)

    def _layers(self) -> list[str]:
        """Return the layers to try, the innermost first, none outside the border."""
        order = self._tree.layer_order()
        named: set[str] = set()
        for rule in self._gang.gather:
            layer = layer_named(self._tree, rule.layer)
            named.add(layer)
            if rule.climb:
                named |= set(order[: order.index(layer)])
        limit = order.index(self._border) if self._border is not None else 1
        kept = {layer for layer in named if order.index(layer) >= limit} - {ROOT_LAYER}
        if self._border == ROOT_LAYER:
            kept.add(ROOT_LAYER)
        return sorted(kept, key=order.index, reverse=True)

    def _offer(
        self,
        layer: str,
        found: list[_Offer],
        smaller: list[_Offer],
        refused: list[DomainTrial],
    ) -> None:
        """Add the domains of one layer to the candidates, or to those that are ruled out."""
        offered, existing = self._offered(layer), self._bound_in(layer)
        total = int(self._existing[-1]) if self._existing is not None else 0
        outside = len(self._unit.bound) > total
        holds = np.ones(len(offered), dtype=np.bool_)
        if self._unit.bound and self._border is not None:
            holds = (existing == total) & (not outside)
        enough = np.flatnonzero((offered >= self._size) & holds)
        least = np.flatnonzero((offered >= self._least) & (offered < self._size) & holds)
        around, free = self._around(layer, self._capacities), self._around(layer, self._free)
        orders: Mapping[DomainOrder, list[IntColumn]] = {
            "LeastOffered": around + free,
            "LeastFree": free,
            "OutermostFirst": free[::-1],
            "MostUsed": [around[0], self._unused(layer), *around[1:], *free],
        }
        ranked = self._ranked(layer, enough, existing, orders[self._gang.domain_order])
        rooms = offered[ranked].tolist()
        found += zip(existing[ranked].tolist(), repeat(layer), ranked, rooms, strict=False)
        largest = [-offered, *around, *free]
        ranked = self._ranked(layer, least, existing, largest)[:_MOST_RECORDED]
        rooms = offered[ranked].tolist()
        smaller += zip(rooms, repeat(layer), ranked, rooms, strict=False)
        short = np.flatnonzero(~holds | (offered < self._least))
        for index in _most_promising(short, offered, _MOST_RECORDED):
            domain = self._domain(layer, index)
            if holds[index]:
                refusal = f"offers {offered[index]} of {self._size} slots"
            else:
                refusal = "does not contain the members that run already"
            refused.append(
                DomainTrial(
                    domain.label,
                    len(domain.rows),
                    int(offered[index]),
                    self._least,
                    refusal,
                    domain.rows,
                )
            )

    def _offered(self, layer: str) -> IntColumn:
        """Return, per domain of a layer, an upper bound of the members that it takes."""
        columns = [self._of_layer(capacity, layer) for capacity in self._capacities]
        if len(columns) == 1:
            return columns[0]
        bounded = [np.minimum(c, n) for c, n in zip(columns, self._counts, strict=True)]
        offered: IntColumn = np.sum(bounded, axis=0)
        return offered

    def _around(self, layer: str, capacities: Sequence[Capacity]) -> list[IntColumn]:
        """Return what each domain of a layer takes, then what those around it take, outwards."""
        return self._outwards(layer, lambda one: self._taken(capacities, one))

    def _outwards(self, layer: str, of_layer: Callable[[str], IntColumn]) -> list[IntColumn]:
        """Return a column of the domains of a layer, then those of the domains around them.

        :param of_layer: returns the column of a layer's own domains.
        """
        tree, names = self._tree, self._tree.layer_order()
        found: list[IntColumn] = [of_layer(layer)]
        if layer == ROOT_LAYER:
            return found
        starts = np.arange(len(tree.order)) if layer == NODE_LAYER else tree.bounds(layer)[0]
        for outer in reversed(names[1 : names.index(layer)]):
            begins, ends = tree.bounds(outer)
            if len(begins):
                at = np.maximum(np.searchsorted(begins, starts, side="right") - 1, 0)
                inside = (begins[at] <= starts) & (starts < ends[at])
                found.append(np.where(inside, of_layer(outer)[at], 0))
        return found

    def _taken(self, capacities: Sequence[Capacity], layer: str) -> IntColumn:
        taken: IntColumn = np.sum([self._of_layer(one, layer) for one in capacities], axis=0)
        return taken

    def _of_layer(self, capacity: Capacity, layer: str) -> IntColumn:
        if layer == NODE_LAYER:
            return capacity.in_order
        if layer == ROOT_LAYER:
            return np.array([capacity.of(self._tree.root)], dtype=np.int64)
        return capacity.of_layer(layer)

    def _unused(self, layer: str) -> IntColumn:
        """Return, per domain of a layer, how little is used of what members request, in millionths.

        The mean over their resources, only where the order of domains asks for it.
        """
        found = self._of_domains(layer, None)
        if self._gang.domain_order != "MostUsed":
            return found
        table, order = self._nodes.table, self._tree.order
        names = [name for name, amount in self._kinds[0].requests.items() if amount]
        for name in names:
            used, most = (
                self._of_domains(layer, np.concatenate([[0], np.cumsum(column[order])]))
                for column in (table.used(name), table.allocatable(name))
            )
            part = np.divide(used, most, out=np.ones(len(used)), where=most > 0)
            found = found - (part * _MILLIONTHS / len(names)).astype(np.int64)
        return found

    def _bound_in(self, layer: str) -> IntColumn:
        """Return, per domain of a layer, how many members are bound there."""
        return self._of_domains(layer, self._existing)

    def _of_domains(self, layer: str, sums: IntColumn | None) -> IntColumn:
        """Return, per domain of a layer, how many members running sums count there."""
        if layer == NODE_LAYER:
            size = len(self._tree.order)
            return np.zeros(size, dtype=np.int64) if sums is None else np.diff(sums)
        if layer == ROOT_LAYER:
            return np.array([0 if sums is None else int(sums[-1])], dtype=np.int64)
        starts, ends = self._tree.bounds(layer)
        if sums is None:
            return np.zeros(len(starts), dtype=np.int64)
        found: IntColumn = sums[ends] - sums[starts]
        return found

    def _ranked(
        self, layer: str, indices: IntColumn, existing: IntColumn, keys: Sequence[IntColumn]
    ) -> list[int]:
        """Order domains: by bound members, evenness if asked for, the keys, the first first, name.

        Where none is bound, those come first in which the members were before, or near them.

        :param keys: a column for each key, over all domains of the layer.
        """
        homes = [existing]
        if self._former is not None:
            homes = self._outwards(layer, lambda one: self._of_domains(one, self._former))
        home = homes[0]
        columns = [indices, *(key[indices] for key in reversed(keys))]
        columns += [-one[indices] for one in reversed(homes)]
        chosen: list[int] = indices[np.lexsort(columns)][:_MOST_CANDIDATES].tolist()
        if len(chosen) < 2 or self._fill != "Balanced" or layer == NODE_LAYER:
            return chosen

        def evenness(index: int) -> tuple[float, ...]:
            own = self._domain(layer, index)
            slots = self._capacities[0].in_order[own.start : own.end]
            even = balance(slots, self._size)
            spread = (0.0,) if even is None else (1.0, -float(even[0]), -even[1])
            return (-float(home[index]), *spread)

        return sorted(chosen, key=evenness)

    def _domain(self, layer: str, index: int) -> Domain:
        if layer == ROOT_LAYER:
            return self._tree.root
        if layer != NODE_LAYER:
            return self._tree.layers[layer][index]
        row = int(self._tree.order[index])
        rows = np.array([row], dtype=np.intp)
        return Domain(
            (self._nodes.names[row],), NODE_LAYER, rows=rows, start=index, end=index + 1, own=1
        )

    def _placement(self, layer: str, index: int, offered: int) -> Placement:
        return self._of_domain(self._domain(layer, index), offered)

    def _last_resort(self) -> Placement:
        """Return the whole cluster in topology order, nodes outside the tree last."""
        root, outside = self._tree.root, self._tree.outside
        inside = [capacity.of(root) for capacity in self._capacities]
        beyond = [0] * len(inside)
        if not self._multiples:
            beyond = [
                int(self._offered_slots(pod, self._size)[outside].sum()) for pod in self._kinds
            ]
        rooms = [a + b for a, b in zip(inside, beyond, strict=True)]
        if len(rooms) > 1:
            rooms = [min(room, n) for room, n in zip(rooms, self._counts, strict=True)]
        return self._of_domain(root, sum(rooms), outside=not self._multiples)

    # Plans -------------------------------------------------------------------------------

    def _of_domain(self, domain: Domain, offered: int, outside: bool = False) -> Placement:
        """Return a domain as a placement whose plan gives members their rows."""
        rows = domain.rows
        if outside:
            rows = np.concatenate([rows, self._tree.outside])
        allowed = rows if self._allowed is None else rows[self._allowed[rows]]

        def plan(pods: Sequence[PodInfo], limits: Mapping[int, int]) -> list[int]:
            slots = self._slots(pods[0], self._most_on_a_node(len(pods)))
            for row, most in limits.items():
                slots[row] = min(int(slots[row]), most)
            taken = self._begun(domain, slots, len(pods))
            left = len(pods) - int(taken.sum())
            slots[domain.rows] -= taken
            capacity = Capacity(self._tree, slots, self._multiples)
            wanted = min(left, capacity.of(domain))
            wanted -= wanted % max(self._multiples.values(), default=1)
            taken = taken + distribute(capacity, domain, wanted, self._fill)
            found = np.repeat(domain.rows, taken).tolist()
            for row in self._tree.outside.tolist() if outside else ():
                found += [row] * min(int(slots[row]), len(pods) - len(found))
            return found

        if self._fill == "ByScore" and not self._multiples:
            return Placement(domain.label, allowed, offered)
        return Placement(domain.label, allowed, offered, plan, exact=bool(self._multiples))

    def _most_on_a_node(self, members: int) -> int:
        """Return for how many members a node counts at most.

        Those that it takes beyond the gang's tell how free it is; Koordinator does not count them.
        """
        return members if self._fill == "LargestFirst" else _MOST_ON_A_NODE

    def _begun(self, domain: Domain, slots: IntColumn, most: int) -> IntColumn:
        """Return how many members each of the domain's rows takes to complete begun slices."""
        taken = np.zeros(len(domain.rows), dtype=np.int64)
        if self._existing is None or not self._multiples:
            return taken
        layer = max(self._multiples, key=self._tree.layer_order().index)
        size = self._multiples[layer]
        plain = Capacity(self._tree, slots)
        for index, count in enumerate(self._bound_in(layer).tolist()):
            part = self._domain(layer, index)
            missing = min(-count % size, most - int(taken.sum()))
            inside = domain.start <= part.start and part.end <= domain.end
            if missing and inside and plain.of(part) >= missing:
                here = distribute(plain, part, missing, self._fill)
                taken[part.start - domain.start : part.end - domain.start] += here
        return taken

    # Why not -----------------------------------------------------------------------------

    def _no_domain(self, refused: Sequence[DomainTrial]) -> str:
        fit_message = self._handle.fit_message(self._unit.pods[0])
        text = no_domain_message(self._border, self._size, refused, fit_message)
        if self._unit.parts or not self._multiples:
            return text
        names = {layer_named(self._tree, one.layer): one.layer for one in self._gang.slices}
        slices = [
            (names[layer], size, int((self._of_layer(self._capacities[0], layer) // size).sum()))
            for layer, size in self._multiples.items()
        ]
        return f"{text.rstrip('.')}; {slices_message(self._size, slices)}"


def _most_promising(indices: IntColumn, offered: IntColumn, most: int) -> list[int]:
    """Return the indices of the domains that offer most, in the given order."""
    if len(indices) > most:
        best = np.argsort(-offered[indices], kind="stable")[:most]
        indices = np.sort(indices[best])
    kept: list[int] = indices.tolist()
    return kept
