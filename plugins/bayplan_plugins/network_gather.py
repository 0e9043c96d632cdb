"""NetworkGather: put a gang, and each of its sub-groups, into one domain of the network.

The layers that the gang names are tried from the innermost to the outermost; on each, the domains
with room for the whole gang are offered, the one that wastes least first. A required layer is a
border that the gang never crosses; with preferences alone the whole cluster is the last resort.
Where no domain holds all members, those that hold the minimum are offered, the roomiest first.

Ties break by the waste of the domains around, then by name (digits as numbers). Inside a domain,
``fill`` says which nodes are used; members take them in topology order by rank.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pydantic
from pydantic import Field

from bayplan import (
    Args,
    ClusterEvent,
    DomainTrial,
    NodeView,
    Placement,
    Placements,
    Plugin,
    PodInfo,
    Unit,
    hookimpl,
)
from bayplan.api.gang import Fill, Gang
from bayplan.errors import did_you_mean
from bayplan.plugin.hookspecs import BoolColumn, IntColumn
from bayplan.snapshot.networks import Networks
from bayplan.topology.network.packing import Capacity, balance, distribute
from bayplan.topology.network.tree import (
    NODE_LAYER,
    ROOT_LAYER,
    Domain,
    Layer,
    NetworkTree,
    TopologyError,
)

__all__ = ["NetworkGather", "NetworkGatherArgs"]

_MOST_RECORDED = 64
"""Domains that a decision remembers, those with most room."""
_MOST_TOLD = 20
"""Domains that a message names; conditions have a limited length."""
_MOST_CANDIDATES = 256
"""Domains of one layer that are offered; more would not be tried."""


class LayerArgs(Args):
    """A network layer by node labels; the first one that a node carries counts."""

    name: str = Field(min_length=1)
    label_keys: tuple[str, ...] = Field(min_length=1)


class NetworkGatherArgs(Args):
    """Arguments of NetworkGather.

    ``topology`` is the network that is asked first, ``layers`` (from the outermost) describe one
    where no object does, ``fill`` is in which order the parts of a domain are filled.
    """

    topology: str = ""
    layers: tuple[LayerArgs, ...] = ()
    fill: Fill = "BestFit"

    @pydantic.field_validator("layers")
    @classmethod
    def _once(cls, layers: tuple[LayerArgs, ...]) -> tuple[LayerArgs, ...]:
        names = [layer.name for layer in layers]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f'layer "{name}" is defined twice')
            if name in (NODE_LAYER, ROOT_LAYER):
                raise ValueError(f'layer "{name}" is always there')
        return layers


class NetworkGather(Plugin[NetworkGatherArgs]):
    """Offer network domains to gangs that ask to be gathered."""

    Args = NetworkGatherArgs
    requeue_on = (
        ClusterEvent.NODE
        | ClusterEvent.POD_REMOVED
        | ClusterEvent.GANG_CHANGED
        | ClusterEvent.OBJECT_CHANGED
    )
    _networks: Networks | None = None

    @hookimpl
    def placement_generate(
        self, unit: Unit, nodes: NodeView, parent: Placement
    ) -> Placements | None:
        """Offer the domains that can hold the unit, the smallest waste first."""
        gang = unit.gang
        if gang is None or not (gang.gather or gang.slices):
            return None
        layers = [rule.layer for rule in gang.gather] + [one.layer for one in gang.slices]
        try:
            tree = self._tree(layers, gang)
            _check_slices(gang, tree)
        except TopologyError as exc:
            end = "" if str(exc).endswith("?") else "."
            return Placements(reason=f'gang "{unit.key}": {exc}{end}')
        return _Search(self, unit, gang, tree, nodes, parent).run()

    @hookimpl
    def relax(self, unit: Unit) -> Iterator[tuple[str, Unit]]:
        """Offer the unit with a wider border, then without one, then without its slices."""
        gang = unit.gang
        if gang is None:
            return
        required = [rule for rule in gang.gather if rule.required]
        for rule in required:
            for wider in self._wider(rule.layer, gang):
                rules = tuple(
                    replace(other, layer=wider) if other is rule else other for other in gang.gather
                )
                text = f"with {wider} instead of {rule.layer} as the required layer"
                yield text, replace(unit, gang=replace(gang, gather=rules))
            rules = tuple(
                replace(other, required=False) if other is rule else other for other in gang.gather
            )
            text = f"without MustGather at {rule.layer}"
            yield text, replace(unit, gang=replace(gang, gather=rules))
        if len(required) > 1:
            yield "without MustGather", replace(unit, gang=replace(gang, gather=()))
        for one in gang.slices:
            others = tuple(other for other in gang.slices if other is not one)
            text = f"without its slices of {one.size} at {one.layer}"
            yield text, replace(unit, gang=replace(gang, slices=others))
        for part in unit.parts:
            for text, weaker in self.relax(part):
                parts = [weaker if other is part else other for other in unit.parts]
                yield f"with {part.key} {text}", replace(unit, parts=parts)

    def _wider(self, layer: str, gang: Gang) -> list[str]:
        try:
            tree = self._tree([layer], gang)
        except TopologyError:
            return []
        order = tree.layer_order()
        found = tree.find_layer(layer)
        inner = order.index(found) if found in order else 0
        return order[1:inner][::-1]

    def networks(self) -> Networks:
        """Return the networks of the cluster and of the profile."""
        if self._networks is None:
            layers = [Layer(one.name, one.label_keys) for one in self.args.layers]
            self._networks = Networks.of(self.handle.snapshot, layers)
        return self._networks

    def _tree(self, layers: Sequence[str], gang: Gang) -> NetworkTree:
        networks = self.networks()
        if gang.topology:
            return networks.find(layers, gang.topology)
        first = networks.trees().get(self.args.topology)
        if first is not None and all(first.find_layer(layer) is not None for layer in layers):
            return first
        return networks.find(layers)


def _check_slices(gang: Gang, tree: NetworkTree) -> None:
    """Refuse multiples that cannot be met together: the inner one has to divide the outer one."""
    order = tree.layer_order()
    sizes = sorted((order.index(_layer(tree, one.layer)), one.size) for one in gang.slices)
    for (_, outer), (_, inner) in itertools.pairwise(sizes):
        if outer % inner:
            raise TopologyError(f"slices of {inner} do not divide the slices of {outer} around")


def _layer(tree: NetworkTree, name: str) -> str:
    layer = tree.find_layer(name)
    if layer is None:
        known = ", ".join(tree.layer_order()[1:])
        near = did_you_mean(name, known.split(", "))
        raise TopologyError(f'there is no network layer "{name}" ({known}){near}')
    return layer


class _Search:
    """The offers to one unit: what each domain has room for, and in which order."""

    def __init__(
        self,
        plugin: NetworkGather,
        unit: Unit,
        gang: Gang,
        tree: NetworkTree,
        nodes: NodeView,
        parent: Placement,
    ) -> None:
        self._handle = plugin.handle
        self._unit, self._gang, self._tree, self._nodes = unit, gang, tree, nodes
        self._fill: Fill = gang.fill or plugin.args.fill
        self._allowed: BoolColumn | None = None
        if parent.rows is not None:
            self._allowed = np.zeros(len(nodes), dtype=np.bool_)
            self._allowed[parent.rows] = True
        self._multiples = {_layer(tree, one.layer): one.size for one in gang.slices}
        self._size, self._least = len(unit.pods), unit.min_placed
        kinds: dict[object, list[PodInfo]] = {}
        for pod in unit.pods:
            kinds.setdefault(pod.facts, []).append(pod)
        # Slices that were begun may be completed one by one.
        multiples = self._multiples if len(kinds) == 1 and not unit.bound else {}
        self._counts = [len(pods) for pods in kinds.values()]
        self._capacities = [
            Capacity(tree, self._slots(pods[0], self._size), multiples) for pods in kinds.values()
        ]
        order = tree.layer_order()
        self._required = [_layer(tree, r.layer) for r in gang.gather if r.required]
        self.border = max(self._required, key=order.index) if self._required else None
        self._existing = self._count_bound()

    def _slots(self, pod: PodInfo, most: int) -> IntColumn:
        slots = np.minimum(self._handle.free_slots(pod), most)
        if self._allowed is not None:
            slots[~self._allowed] = 0
        return slots

    def _count_bound(self) -> IntColumn | None:
        """Return, summed up along the tree's order, how many members each row holds already."""
        rows = self._nodes.table.row_of
        bound = [rows[node] for _, node in self._unit.bound if node in rows]
        if not bound:
            return None
        counts = np.bincount(bound, minlength=len(self._nodes))
        return np.concatenate([[0], np.cumsum(counts[self._tree.order])])

    # Candidates --------------------------------------------------------------------------

    def run(self) -> Placements:
        """Return candidates, domains that were ruled out, and why there is none."""
        found: list[tuple[int, Placement]] = []
        smaller: list[tuple[int, Placement]] = []
        refused: list[DomainTrial] = []
        for layer in self._layers():
            self._offer(layer, found, smaller, refused)
        if self.border is None:
            last = self._last_resort()
            room = last.offered or 0
            if room >= self._size or room < self._least:
                found.append((int(self._bound_in(ROOT_LAYER)[0]), last))
            else:
                smaller.append((room, last))
        # Around the members that run, the innermost first; then elsewhere.
        found.sort(key=lambda item: -item[0])
        candidates = [placement for _, placement in found]
        # Everybody somewhere comes before most of them near each other.
        smaller.sort(key=lambda item: -item[0])
        candidates += [placement for _, placement in smaller]
        reason = "" if candidates else self._no_domain(refused)
        return Placements(candidates, refused, reason)

    def _layers(self) -> list[str]:
        """Return the layers to try, the innermost first, none outside of the border."""
        order = self._tree.layer_order()
        named: set[str] = set()
        for rule in self._gang.gather:
            layer = _layer(self._tree, rule.layer)
            named.add(layer)
            if rule.climb:
                named |= set(order[: order.index(layer)])
        limit = order.index(self.border) if self.border is not None else 1
        kept = {layer for layer in named if order.index(layer) >= limit} - {ROOT_LAYER}
        if self.border == ROOT_LAYER:
            kept.add(ROOT_LAYER)
        return sorted(kept, key=order.index, reverse=True)

    def _offer(
        self,
        layer: str,
        found: list[tuple[int, Placement]],
        smaller: list[tuple[int, Placement]],
        refused: list[DomainTrial],
    ) -> None:
        offered, existing = self._offered(layer), self._bound_in(layer)
        total = int(self._existing[-1]) if self._existing is not None else 0
        outside = len(self._unit.bound) > total
        holds = np.ones(len(offered), dtype=np.bool_)
        if self._unit.bound and self.border is not None:
            holds = (existing == total) & (not outside)
        enough = np.flatnonzero((offered >= self._size) & holds)
        least = np.flatnonzero((offered >= self._least) & (offered < self._size) & holds)
        for index in self._ranked(layer, enough, offered, existing):
            placement = self._placement(layer, index, int(offered[index]))
            found.append((int(existing[index]), placement))
        for index in self._ranked(layer, least, -offered, existing)[:_MOST_RECORDED]:
            room = int(offered[index])
            smaller.append((room, self._placement(layer, index, room)))
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
        """Return an upper bound of the members that each domain of a layer takes."""
        columns = [self._of_layer(capacity, layer) for capacity in self._capacities]
        if len(columns) == 1:
            return columns[0]
        bounded = [np.minimum(c, n) for c, n in zip(columns, self._counts, strict=True)]
        offered: IntColumn = np.sum(bounded, axis=0)
        return offered

    def _of_layer(self, capacity: Capacity, layer: str) -> IntColumn:
        if layer == NODE_LAYER:
            return capacity.in_order
        if layer == ROOT_LAYER:
            return np.array([capacity.of(self._tree.root)], dtype=np.int64)
        return capacity.of_layer(layer)

    def _bound_in(self, layer: str) -> IntColumn:
        sums = self._existing
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
        self, layer: str, indices: IntColumn, waste: IntColumn, existing: IntColumn
    ) -> list[int]:
        """Order domains: near the members that run, least waste here and around, name."""
        first = np.lexsort((indices, waste[indices], -existing[indices]))[:_MOST_CANDIDATES]
        chosen: list[int] = indices[first].tolist()
        if len(chosen) < 2:
            return chosen

        def key(index: int) -> tuple[object, ...]:
            around = []
            domain = self._domain(layer, index).parent
            while domain is not None:
                around.append(self._capacities[0].of(domain))
                domain = domain.parent
            spread: tuple[float, ...] = ()
            if self._fill == "Balanced" and layer != NODE_LAYER:
                own = self._domain(layer, index)
                slots = self._capacities[0].in_order[own.start : own.end]
                even = balance(slots, self._size)
                spread = (0.0,) if even is None else (1.0, -float(even[0]), -even[1])
            return (-int(existing[index]), spread, int(waste[index]), around, index)

        return sorted(chosen, key=key)

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
        """Return the whole cluster, in topology order, nodes outside of the tree at the end."""
        root, outside = self._tree.root, self._tree.outside
        inside = [capacity.of(root) for capacity in self._capacities]
        beyond = [0] * len(inside)
        if not self._multiples:
            beyond = [
                int(self._slots(pods, self._size)[outside].sum()) for pods in self._kinds_first()
            ]
        rooms = [a + b for a, b in zip(inside, beyond, strict=True)]
        if len(rooms) > 1:
            rooms = [min(room, n) for room, n in zip(rooms, self._counts, strict=True)]
        return self._of_domain(root, sum(rooms), outside=not self._multiples)

    def _kinds_first(self) -> list[PodInfo]:
        firsts: dict[object, PodInfo] = {}
        for pod in self._unit.pods:
            firsts.setdefault(pod.facts, pod)
        return list(firsts.values())

    # Plans -------------------------------------------------------------------------------

    def _of_domain(self, domain: Domain, offered: int, outside: bool = False) -> Placement:
        rows = domain.rows
        if outside:
            rows = np.concatenate([rows, self._tree.outside])
        allowed = rows if self._allowed is None else rows[self._allowed[rows]]

        def plan(pods: Sequence[PodInfo], limits: Mapping[int, int]) -> list[int]:
            slots = self._slots(pods[0], len(pods))
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

        return Placement(domain.label, allowed, offered, plan, exact=bool(self._multiples))

    def _begun(self, domain: Domain, slots: IntColumn, most: int) -> IntColumn:
        """Return how many members each of the domain's rows takes to complete slices."""
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

    # Words -------------------------------------------------------------------------------

    def _refusals(self) -> str:
        """Say which nodes refuse a member, where any does."""
        text = self._handle.fit_message(self._unit.pods[0])
        return "." if text.endswith("nodes are available.") else f", {text}"

    def _no_domain(self, refused: Sequence[DomainTrial]) -> str:
        border = "cluster" if self.border == ROOT_LAYER else f"{self.border}/"
        trials = [trial for trial in refused if trial.name.startswith(border)]
        shown = _roomiest(trials, _MOST_TOLD)
        per_domain = ";".join(f"topology topologyNode {t.name}: {t.offered}" for t in shown)
        if len(trials) > len(shown):
            per_domain += f";{len(trials) - len(shown)} more"
        if not per_domain:
            per_domain = f"no node is in any {self.border}"
        text = (
            "no candidate topology nodes can accommodate job, desiredOfferSlot: "
            f"{self._size}, {per_domain}{self._refusals()}"
        )
        if len(self._unit.parts) or not self._multiples:
            return text
        named = {_layer(self._tree, one.layer): one.layer for one in self._gang.slices}
        constraints = ", ".join(
            sorted(f"{named[layer]}={n}" for layer, n in self._multiples.items())
        )
        fits = "; ".join(
            f"{int((self._of_layer(self._capacities[0], layer) // size).sum())}/"
            f"{self._size // size} slice(s) fit on level {named[layer]}"
            for layer, size in self._multiples.items()
        )
        return f"{text.rstrip('.')}; podCountMultiple constraints: {constraints}; {fits}."


def _most_promising(indices: IntColumn, offered: IntColumn, most: int) -> list[int]:
    """Return the domains that offer most, in the order given."""
    if len(indices) > most:
        best = np.argsort(-offered[indices], kind="stable")[:most]
        indices = np.sort(indices[best])
    kept: list[int] = indices.tolist()
    return kept


def _roomiest(trials: Sequence[DomainTrial], most: int) -> Sequence[DomainTrial]:
    if len(trials) <= most:
        return trials
    ranked = sorted(range(len(trials)), key=lambda i: (-(trials[i].offered or 0), i))
    return [trials[i] for i in sorted(ranked[:most])]
