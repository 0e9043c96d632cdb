"""NetworkGather: put a gang, and each of its sub-groups, into one domain of the network.

The layers that the gang names are tried from the innermost to the outermost (:mod:`.search`). The
gang never crosses the border of a required layer; with preferences alone the whole cluster is the
last resort. Inside a domain, ``fill`` says which nodes are used; members take them in topology
order by rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pydantic
from msgspec.structs import replace
from pydantic import Field

from bayplan import (
    SUPPOSED,
    Args,
    ClusterEvent,
    CycleState,
    NodeView,
    Placement,
    Placements,
    Plugin,
    Unit,
    hookimpl,
)
from bayplan.api.gang import Fill, Gang
from bayplan.snapshot.networks import Networks
from bayplan.topology.network.tree import (
    NODE_LAYER,
    ROOT_LAYER,
    Layer,
    NetworkTree,
    TopologyError,
)
from bayplan_plugins.network_gather.layers import check_slices
from bayplan_plugins.network_gather.search import DomainSearch

__all__ = ["NetworkGather", "NetworkGatherArgs"]


class LayerArgs(Args):
    """A network layer by node labels; the first label that a node has counts."""

    name: str = Field(min_length=1)
    label_keys: tuple[str, ...] = Field(min_length=1)


class NetworkGatherArgs(Args):
    """Arguments of NetworkGather.

    ``topology`` is the network that is tried first, ``layers`` (the outermost first) describe one
    where no object does, ``fill`` is the order in which the parts of a domain are filled.
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
                raise ValueError(f'layer "{name}" always exists')
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
    by_spec = True
    _networks: Networks | None = None

    @hookimpl
    def placement_generate(
        self, unit: Unit, nodes: NodeView, parent: Placement, state: CycleState
    ) -> Placements | None:
        """Offer the domains that can hold the unit, the one that wastes least first."""
        gang = unit.gang
        if gang is None or not (gang.gather or gang.slices):
            return None
        layers = [rule.layer for rule in gang.gather] + [one.layer for one in gang.slices]
        try:
            tree = self._tree(layers, gang)
            check_slices(gang, tree)
        except TopologyError as exc:
            end = "" if str(exc).endswith("?") else "."
            return Placements(reason=f'gang "{unit.key}": {exc}{end}')
        supposed = state.get(SUPPOSED)
        search = DomainSearch(
            self.handle, self.args.fill, unit, gang, tree, nodes, parent, supposed
        )
        return search.run()

    @hookimpl
    def relax(self, unit: Unit) -> Iterator[tuple[str, Unit]]:
        """Yield the unit with a wider border, without one, and without its slices."""
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
        """Return the layers around a layer, the innermost first."""
        try:
            tree = self._tree([layer], gang)
        except TopologyError:
            return []
        order = tree.layer_order()
        found = tree.find_layer(layer)
        inner = order.index(found) if found in order else 0
        return order[1:inner][::-1]

    @hookimpl
    def network_tree(self) -> NetworkTree | None:
        """Tell the profile's network, or the first that an object describes."""
        trees = self.networks().trees()
        return trees.get(self.args.topology) or next(iter(trees.values()), None)

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
