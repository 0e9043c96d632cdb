"""NetworkGather: put a gang into one domain of the network.

The layers that the gang names are tried from the innermost to the outermost; on each, the
domains with room for the whole gang are offered, the one that wastes least first. A required
layer (MustGather) is a border that the gang never crosses; with preferences alone the whole
cluster is the last resort.

Ties break by name (digits as numbers). Inside a domain, nodes are filled in topology order,
the fullest children first where several would do, and members take them by rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from bayplan import (
    Args,
    ClusterEvent,
    DomainTrial,
    NodeView,
    Placement,
    Placements,
    Plugin,
    Unit,
    hookimpl,
)
from bayplan.api import ClusterNetworkTopology
from bayplan.dialects.koordinator import NODE_LAYER, layers_of
from bayplan.hookspecs import IntColumn
from bayplan.topology.network import Domain, NetworkTree, TopologyError, build_tree

__all__ = ["NetworkGather", "NetworkGatherArgs"]


_MOST_RECORDED = 64
"""Domains that a decision remembers, those with most room."""
_MOST_TOLD = 20
"""Domains that a message names; conditions have a limited length."""


class NetworkGatherArgs(Args):
    """Arguments of NetworkGather: which ClusterNetworkTopology describes the network."""

    topology: str = "default"


class NetworkGather(Plugin[NetworkGatherArgs]):
    """Offer network domains to gangs that ask to be gathered."""

    Args = NetworkGatherArgs
    requeue_on = (
        ClusterEvent.NODE
        | ClusterEvent.POD_REMOVED
        | ClusterEvent.GANG_CHANGED
        | ClusterEvent.OBJECT_CHANGED
    )
    _tree: tuple[object, NetworkTree] | None = None

    @hookimpl
    def placement_generate(self, unit: Unit, nodes: NodeView) -> Placements | None:
        """Offer the domains that can hold the unit, the smallest waste first."""
        gather = unit.gang.gather if unit.gang is not None else ()
        if not gather:
            return None
        try:
            tree = self._current_tree(nodes)
            layers = self._layer_order(tree)
        except TopologyError as exc:
            return Placements(reason=f"ClusterNetworkTopology {self.args.topology}: {exc}.")
        for rule in gather:
            if rule.layer not in layers:
                known = ", ".join(layers)
                reason = f'gang "{unit.key}": there is no network layer "{rule.layer}" ({known}).'
                return Placements(reason=reason)
        named = sorted({rule.layer for rule in gather}, key=layers.index, reverse=True)
        required = [rule.layer for rule in gather if rule.required]
        # Inside the innermost required layer, preferences further out are met by themselves.
        border = max(required, key=layers.index) if required else None
        if border is not None:
            named = [layer for layer in named if layers.index(layer) >= layers.index(border)]
        offers = _Offers(self._slots(unit), unit, self._pinned(unit, nodes))
        candidates: list[Placement] = []
        refused: list[DomainTrial] = []
        for layer in named:
            fitting, unfit = offers.of_layer(self._domains(tree, layer, nodes))
            candidates += fitting
            refused += unfit
        if border is None:
            candidates.append(offers.last_resort(tree))
        reason = "" if candidates else self._no_domain(unit, border, refused)
        return Placements(candidates, _most_promising(refused, _MOST_RECORDED), reason)

    @hookimpl
    def relax(self, unit: Unit) -> Iterator[tuple[str, Unit]]:
        """Offer the unit without one required layer, then without gathering at all."""
        if unit.gang is None:
            return
        required = [rule for rule in unit.gang.gather if rule.required]
        for rule in required:
            weaker = tuple(
                replace(other, required=False) if other is rule else other
                for other in unit.gang.gather
            )
            gang = replace(unit.gang, gather=weaker)
            yield f"without MustGather at {rule.layer}", replace(unit, gang=gang)
        if len(required) > 1:
            yield "without MustGather", replace(unit, gang=replace(unit.gang, gather=()))

    def _current_tree(self, nodes: NodeView) -> NetworkTree:
        topology = self.handle.snapshot.objects(ClusterNetworkTopology).get(self.args.topology)
        if topology is None:
            raise TopologyError("does not exist")
        table = nodes.table
        version = (topology.metadata.resource_version, table.epoch, table.node_version)
        if self._tree is None or self._tree[0] != version:
            labels = [node.metadata.labels for node in table.nodes]
            self._tree = (version, build_tree(layers_of(topology), labels))
        return self._tree[1]

    def _layer_order(self, tree: NetworkTree) -> list[str]:
        return [*tree.layers, NODE_LAYER]

    def _domains(self, tree: NetworkTree, layer: str, nodes: NodeView) -> Sequence[Domain]:
        if layer != NODE_LAYER:
            return tree.layers[layer]
        return [
            Domain((nodes.names[row],), NODE_LAYER, rows=np.array([row], dtype=np.intp))
            for row in tree.root.rows
        ]

    def _slots(self, unit: Unit) -> IntColumn:
        """Return how many members each node takes at most.

        With members of different sizes that is the number of the smallest: an upper bound, which
        the cycle verifies member by member.
        """
        kinds = {pod.facts: pod for pod in unit.pods}
        columns = [self.handle.free_slots(pod) for pod in kinds.values()]
        most: IntColumn = columns[0]
        for column in columns[1:]:
            most = np.maximum(most, column)
        return np.minimum(most, len(unit.pods))

    def _pinned(self, unit: Unit, nodes: NodeView) -> frozenset[int]:
        """Return the rows that hold members already; a domain has to contain them."""
        rows = nodes.table.row_of
        return frozenset(rows[node] for _, node in unit.bound if node in rows)

    def _no_domain(self, unit: Unit, border: str | None, refused: Sequence[DomainTrial]) -> str:
        trials = [trial for trial in refused if trial.name.startswith(f"{border}/")]
        shown = _most_promising(trials, _MOST_TOLD)
        per_domain = ";".join(f"topology topologyNode {t.name}: {t.offered}" for t in shown)
        if len(trials) > len(shown):
            per_domain += f";{len(trials) - len(shown)} more"
        return (
            "no candidate topology nodes can accommodate job, desiredOfferSlot: "
            f"{len(unit.pods)}, {per_domain}, {self.handle.fit_message(unit.pods[0])}"
        )


class _Offers:
    """What each domain offers to one unit.

    :param slots: members per node row, at most.
    :param pinned: rows that a domain has to contain.
    """

    def __init__(self, slots: IntColumn, unit: Unit, pinned: frozenset[int]) -> None:
        self._slots = slots
        self._size = len(unit.pods)
        self._needed = unit.min_placed
        self._pinned = pinned

    def of_layer(self, domains: Sequence[Domain]) -> tuple[list[Placement], list[DomainTrial]]:
        """Return the domains with room for all, least waste first, and those without."""
        fitting: list[tuple[int, int]] = []
        refused: list[DomainTrial] = []
        for index, domain in enumerate(domains):
            offered = self._offered(domain)
            refusal = None
            if offered < self._size:
                refusal = f"offers {offered} of {self._size} slots"
            elif self._pinned and not self._pinned <= frozenset(domain.rows.tolist()):
                refusal = "does not contain the members that run already"
            if refusal is None:
                fitting.append((offered, index))
            else:
                size, rows = len(domain.rows), domain.rows
                name = _label(domain)
                refused.append(DomainTrial(name, size, offered, self._needed, refusal, rows))
        placements = [self._placement(domains[index], n) for n, index in sorted(fitting)]
        return placements, refused

    def last_resort(self, tree: NetworkTree) -> Placement:
        """Return the whole cluster, in topology order, nodes outside of the tree at the end."""
        rows = np.concatenate([tree.root.rows, tree.outside])
        return Placement("cluster", rows, int(self._slots[rows].sum()))

    def _offered(self, domain: Domain) -> int:
        return int(self._slots[domain.rows].sum())

    def _placement(self, domain: Domain, offered: int) -> Placement:
        taken: dict[int, int] = {}
        self._pour(domain, self._size, taken)
        slots = [taken.get(int(row), 0) for row in domain.rows]
        return Placement(_label(domain), domain.rows, offered, slots)

    def _pour(self, domain: Domain, wanted: int, taken: dict[int, int]) -> int:
        """Give slots to ``wanted`` members, as few children as possible; return what is left."""
        if domain.children:
            for child in self._fewest(domain.children, wanted):
                wanted = self._pour(child, wanted, taken)
            return wanted
        for row in domain.rows.tolist():
            here = min(wanted, int(self._slots[row]))
            if here > 0:
                taken[row] = here
                wanted -= here
        return wanted

    def _fewest(self, children: Sequence[Domain], wanted: int) -> list[Domain]:
        """Choose the children to fill: the largest first, the last one as tight as possible."""
        left = [(self._offered(child), child) for child in children]
        chosen: list[Domain] = []
        while wanted > 0 and left:
            enough = [item for item in left if item[0] >= wanted]
            if enough:
                best = min(enough, key=lambda item: item[0])
            else:
                best = max(left, key=lambda item: item[0])
            left.remove(best)
            if best[0] > 0:
                chosen.append(best[1])
                wanted -= best[0]
        return sorted(chosen, key=children.index)


def _most_promising(trials: Sequence[DomainTrial], most: int) -> Sequence[DomainTrial]:
    """Return the domains that offer most, in the order given."""
    if len(trials) <= most:
        return trials
    ranked = sorted(range(len(trials)), key=lambda i: (-(trials[i].offered or 0), i))
    return [trials[i] for i in sorted(ranked[:most])]


def _label(domain: Domain) -> str:
    return f"{domain.layer}/{domain.name}" if domain.path else "cluster"
