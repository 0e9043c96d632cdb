"""NetworkGather: put a gang into one domain of the network.

The layers that the gang names are tried from the innermost to the outermost; on each, the
domains with room for the whole gang are offered, the one that wastes least first. A required
layer (MustGather) is a border that the gang never crosses; with preferences alone the whole
cluster is the last resort.

Ties break by name (digits as numbers). Inside a domain, nodes are filled in topology order,
the fullest children first where several would do, and members take them by rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from bayplan import (
    Args,
    ClusterEvent,
    DomainTrial,
    NodeView,
    NoPlacement,
    Placement,
    Plugin,
    Unit,
    hookimpl,
)
from bayplan.api import ClusterNetworkTopology
from bayplan.dialects.koordinator import NODE_LAYER, layers_of
from bayplan.hookspecs import IntColumn
from bayplan.topology.network import Domain, NetworkTree, TopologyError, build_tree

__all__ = ["NetworkGather", "NetworkGatherArgs"]


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
    def placement_generate(
        self, unit: Unit, nodes: NodeView
    ) -> Iterable[Placement] | NoPlacement | None:
        """Offer the domains that can hold the unit, the smallest waste first."""
        gather = unit.gang.gather if unit.gang is not None else ()
        if not gather:
            return None
        try:
            tree = self._current_tree(nodes)
            layers = self._layer_order(tree)
        except TopologyError as exc:
            return NoPlacement(f"ClusterNetworkTopology {self.args.topology}: {exc}.")
        for rule in gather:
            if rule.layer not in layers:
                known = ", ".join(layers)
                return NoPlacement(
                    f'gang "{unit.key}": there is no network layer "{rule.layer}" ({known}).'
                )
        named = sorted({rule.layer for rule in gather}, key=layers.index, reverse=True)
        required = [rule.layer for rule in gather if rule.required]
        # Inside the innermost required layer, preferences further out are met by themselves.
        border = max(required, key=layers.index) if required else None
        if border is not None:
            named = [layer for layer in named if layers.index(layer) >= layers.index(border)]
        offers = _Offers(self._slots(unit), len(unit.pods), self._pinned(unit, nodes))
        placements = list(offers.placements(self._domains(tree, named, nodes)))
        if border is None:
            return [*placements, *offers.last_resort(tree, nodes)]
        if placements:
            return placements
        tried = tuple(offers.trials(self._domains(tree, [border], nodes), unit.min_placed))
        return NoPlacement(self._no_domain(unit, tried), tried)

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

    def _domains(
        self, tree: NetworkTree, layers: Sequence[str], nodes: NodeView
    ) -> Iterator[Sequence[Domain]]:
        for layer in layers:
            if layer == NODE_LAYER:
                yield [
                    Domain((nodes.names[row],), NODE_LAYER, rows=np.array([row], dtype=np.intp))
                    for row in tree.root.rows
                ]
            else:
                yield tree.layers[layer]

    def _slots(self, unit: Unit) -> IntColumn:
        """Return how many members each node takes, as many kinds of member as there are.

        With members of different sizes the answer is an estimate: the share of the whole gang
        that a node could hold of each kind, the smallest of them; the cycle then verifies.
        """
        kinds: dict[object, list[int]] = {}
        first = {}
        for pod in unit.pods:
            kinds.setdefault(pod.facts, []).append(1)
            first.setdefault(pod.facts, pod)
        columns = [self.handle.free_slots(first[facts]) for facts in kinds]
        size = len(unit.pods)
        capped = [np.minimum(column, size) for column in columns]
        if len(capped) == 1:
            return capped[0]
        return np.maximum.reduce(capped)

    def _pinned(self, unit: Unit, nodes: NodeView) -> frozenset[int]:
        """Return the rows that hold members already; a domain has to contain them."""
        rows = nodes.table.row_of
        return frozenset(rows[node] for _, node in unit.bound if node in rows)

    def _no_domain(self, unit: Unit, tried: Sequence[DomainTrial]) -> str:
        per_domain = ";".join(f"topology topologyNode {t.name}: {t.offered}" for t in tried)
        return (
            "no candidate topology nodes can accommodate job, desiredOfferSlot: "
            f"{len(unit.pods)}, {per_domain}, {self.handle.fit_message(unit.pods[0])}"
        )


class _Offers:
    """What each domain offers to one unit.

    :param slots: members per node row, at most.
    :param size: how many members need a node.
    :param pinned: rows that a domain has to contain.
    """

    def __init__(self, slots: IntColumn, size: int, pinned: frozenset[int]) -> None:
        self._slots = slots
        self._size = size
        self._pinned = pinned

    def placements(self, layers: Iterable[Sequence[Domain]]) -> Iterator[Placement]:
        """Yield the domains with room for all, layer by layer, the least waste first."""
        for domains in layers:
            fitting = [
                (self._offered(domain), index)
                for index, domain in enumerate(domains)
                if self._offered(domain) >= self._size and self._contains_pinned(domain)
            ]
            for offered, index in sorted(fitting):
                yield self._placement(domains[index], offered)

    def last_resort(self, tree: NetworkTree, nodes: NodeView) -> Iterator[Placement]:
        """Yield the whole cluster, in topology order where there is one."""
        rows = np.concatenate([tree.root.rows, tree.outside])
        yield Placement("cluster", rows, int(self._slots[rows].sum()))

    def trials(
        self, layers: Iterable[Sequence[Domain]], needed: int
    ) -> Iterator[DomainTrial]:
        """Yield the record of each domain, none of which has room for the unit."""
        for domains in layers:
            for domain in domains:
                offered = self._offered(domain)
                refusal = f"offers {offered} of {self._size} slots"
                if offered >= self._size:
                    refusal = "does not contain the members that run already"
                yield DomainTrial(
                    _label(domain), len(domain.rows), offered, needed, refusal
                )

    def _offered(self, domain: Domain) -> int:
        return int(self._slots[domain.rows].sum())

    def _contains_pinned(self, domain: Domain) -> bool:
        return not self._pinned or self._pinned <= frozenset(domain.rows.tolist())

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


def _label(domain: Domain) -> str:
    return f"{domain.layer}/{domain.name}" if domain.path else "cluster"
