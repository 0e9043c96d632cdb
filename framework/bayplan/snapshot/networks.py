"""The network trees of a cluster, built from its objects and kept until these change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from bayplan.api import ClusterNetworkTopology, HyperNode, KaiTopology, Topology
from bayplan.dialects import kai, koordinator, kueue, volcano
from bayplan.errors import did_you_mean
from bayplan.snapshot import Snapshot
from bayplan.snapshot.nvlink import NVLINK_LAYER, NvlinkDomains
from bayplan.topology.network.tree import (
    Layer,
    NetworkTree,
    TopologyError,
    build_tree,
    tree_of_sets,
)

__all__ = ["Networks"]

HYPERNODES = "hypernodes"
"""The name of the tree that Volcano's HyperNodes describe."""
PROFILE = "profile"
"""The name of the tree whose layers the profile gives."""


class Networks:
    """The trees by name; those of Kueue and KAI have the prefix ``kueue/`` or ``kai/``.

    Layers given in a profile come first, then ClusterNetworkTopology objects (the one named
    ``default`` first), HyperNodes, and the Topology objects of Kueue and KAI.
    """

    @classmethod
    def of(cls, snapshot: Snapshot, layers: Sequence[Layer] = ()) -> Networks:
        """Return the networks of a snapshot; callers without ``layers`` of their own share one."""
        return Networks(snapshot, layers) if layers else snapshot.shared(Networks, Networks)

    def __init__(self, snapshot: Snapshot, layers: Sequence[Layer] = ()) -> None:
        self._snapshot = snapshot
        self._layers = tuple(layers)
        self._version: object = None
        self._trees: dict[str, NetworkTree] = {}
        self._by_label: dict[str, NetworkTree] = {}
        self._layered: dict[str, Sequence[Layer]] = {}
        self._nvlink = snapshot.shared(NvlinkDomains, NvlinkDomains)
        self.problems: dict[str, str] = {}

    def trees(self) -> Mapping[str, NetworkTree]:
        """Return the trees that can be built; ``problems`` say why others cannot."""
        table = self._snapshot.nodes
        kinds = (ClusterNetworkTopology, HyperNode, Topology, KaiTopology)
        objects = [tuple(self._snapshot.objects(kind).values()) for kind in kinds]
        version = (table.epoch, table.label_version, self._nvlink.version, objects)
        if version != self._version:
            self._version = version
            self._build()
        return self._trees

    def _build(self) -> None:
        objects = self._snapshot.objects
        sources: dict[str, Callable[[], NetworkTree]] = {}
        if self._layers:
            sources[PROFILE] = partial(self._layered_tree, PROFILE, self._layers)
        known = objects(ClusterNetworkTopology)
        for name in sorted(known, key=lambda name: (name != "default", name)):
            sources[name] = partial(self._of_topology, name, known[name])
        if objects(HyperNode):
            sources[HYPERNODES] = self._of_hypernodes
        for name, kueue_topology in sorted(objects(Topology).items()):
            key = f"kueue/{name}"
            sources[key] = partial(self._layered_tree, key, kueue.layers_of(kueue_topology))
        for name, kai_topology in sorted(objects(KaiTopology).items()):
            key = f"kai/{name}"
            sources[key] = partial(self._layered_tree, key, kai.layers_of(kai_topology))
        self._trees, self._by_label, self._layered, self.problems = {}, {}, {}, {}
        for name, build in sources.items():
            try:
                self._trees[name] = build()
            except TopologyError as exc:
                self.problems[name] = str(exc)

    def _of_topology(self, name: str, topology: ClusterNetworkTopology) -> NetworkTree:
        return self._layered_tree(name, koordinator.layers_of(topology))

    def _layered_tree(self, name: str, layers: Sequence[Layer]) -> NetworkTree:
        self._layered[name] = layers
        return self._labelled(layers)

    def _labelled(self, layers: Sequence[Layer]) -> NetworkTree:
        table = self._snapshot.nodes
        labels = [self._nvlink.labels_of(node) for node in table.nodes]
        return build_tree(layers, labels, table.names)

    def _of_hypernodes(self) -> NetworkTree:
        table = self._snapshot.nodes
        labels = {node.metadata.name: node.metadata.labels for node in table.nodes}
        hypernodes = self._snapshot.objects(HyperNode).values()
        return tree_of_sets(volcano.sets_of(hypernodes, labels), table.names)

    def find(self, layers: Sequence[str], name: str = "") -> NetworkTree:
        """Return the tree of this name, or the first that has all of these layers.

        A layer that no tree has may be a node label; its values are domains then.

        :raises TopologyError: when there is no such tree.
        """
        trees = self.trees()
        if name:
            name = next((key for key in (f"kai/{name}", f"kueue/{name}") if key in trees), name)
            if name in self.problems:
                raise TopologyError(f'network "{name}": {self.problems[name]}')
            if name in trees:
                return trees[name]
            known = ", ".join(trees) or "none"
            raise TopologyError(f'there is no network "{name}" (there is {known})')
        for tree in trees.values():
            if all(tree.find_layer(layer) is not None for layer in layers):
                return tree
        if NVLINK_LAYER in layers and len(layers) > 1:
            found = self._with_nvlink([layer for layer in layers if layer != NVLINK_LAYER])
            if found is not None:
                return found
        labels = [layer for layer in layers if self._is_label(layer)]
        if len(labels) == 1:
            return self._tree_of_label(labels[0])
        for network, problem in self.problems.items():
            raise TopologyError(f'network "{network}": {problem}')
        if not trees:
            raise TopologyError(
                "no object describes the network: expected a ClusterNetworkTopology, HyperNodes, "
                "a Topology, or layers in the profile"
            )
        unknown = {
            layer: sum(tree.find_layer(layer) is None for tree in trees.values())
            for layer in layers
        }
        worst = max(unknown, key=lambda layer: unknown[layer])
        known = ", ".join(layer for tree in trees.values() for layer in tree.layer_order()[1:])
        near = did_you_mean(worst, known.split(", "))
        raise TopologyError(f'there is no network layer "{worst}" ({known}){near}')

    def labels_of(self, layers: Sequence[str], name: str = "") -> dict[str, str]:
        """Return the node label that names the domains of each of some layers.

        Layers that no label names, such as those of HyperNodes, are left out.

        :param name: the network, as for :meth:`find`.
        :raises TopologyError: when there is no such network.
        """
        tree = self.find(layers, name)
        named = {key: of for key, of in self._layered.items() if self._trees.get(key) is tree}
        keys = {layer.name: layer.label_keys[0] for of in named.values() for layer in of}
        found = {layer: tree.find_layer(layer) for layer in layers}
        return {
            layer: keys.get(of or "", layer)
            for layer, of in found.items()
            if (of or "") in keys or (not named and self._by_label.get(layer) is tree)
        }

    def _with_nvlink(self, layers: Sequence[str]) -> NetworkTree | None:
        """Return the first tree with all of these layers, with NVLink domains inside them."""
        for name, tree in self._trees.items():
            if name in self._layered and all(tree.find_layer(one) is not None for one in layers):
                key = f"{name}+{NVLINK_LAYER}"
                if key not in self._by_label:
                    inner = Layer(NVLINK_LAYER, (NVLINK_LAYER,))
                    self._by_label[key] = self._labelled((*self._layered[name], inner))
                return self._by_label[key]
        return None

    def _is_label(self, key: str) -> bool:
        if key == NVLINK_LAYER and any(
            self._nvlink.of(node) is not None for node in self._snapshot.nodes.nodes
        ):
            return True
        return bool((self._snapshot.nodes.label(key).codes >= 0).any())

    def _tree_of_label(self, key: str) -> NetworkTree:
        if key not in self._by_label:
            self._by_label[key] = self._labelled((Layer(key, (key,)),))
        return self._by_label[key]
