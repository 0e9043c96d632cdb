"""The status of network topologies: the domains of a ClusterNetworkTopology."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from bayplan.api import ClusterNetworkTopology
from bayplan.api.network import ClusterNetworkTopologyStatus, TopologyDetail, TopologyInfo
from bayplan.cluster.protocol import Cluster, PatchStatus
from bayplan.snapshot import Snapshot
from bayplan.snapshot.networks import Networks
from bayplan.topology.network.tree import NODE_LAYER, ROOT_LAYER, Domain, NetworkTree

__all__ = ["NetworkStatusWriter", "detail_status"]


class NetworkStatusWriter:
    """Writes the ``detailStatus`` of topologies whose domains have changed."""

    def __init__(self, cluster: Cluster, snapshot: Snapshot) -> None:
        self._cluster = cluster
        self._snapshot = snapshot
        self._networks = Networks.of(snapshot)
        self._tree_of: dict[str, NetworkTree] = {}

    def write(self) -> None:
        """Write what the topologies do not say yet."""
        topologies = self._snapshot.objects(ClusterNetworkTopology)
        trees = self._networks.trees() if topologies else {}
        for key, topology in topologies.items():
            tree = trees.get(key)
            if tree is None or self._tree_of.get(key) is tree:
                continue
            self._tree_of[key] = tree
            status = ClusterNetworkTopologyStatus(tuple(detail_status(tree)))
            if status != topology.status:
                self._cluster.submit(PatchStatus(ClusterNetworkTopology, key, status))


def detail_status(tree: NetworkTree) -> Iterator[TopologyDetail]:
    """Yield a network's domains as Koordinator lists them: pre-order, children by name."""
    layers = [ROOT_LAYER, *tree.layers, NODE_LAYER]
    yield from _details(tree.root, layers, None)


def _details(
    domain: Domain, layers: list[str], parent: TopologyInfo | None
) -> Iterator[TopologyDetail]:
    own = TopologyInfo(domain.layer or ROOT_LAYER, domain.name)
    below = layers[layers.index(own.topology_layer) + 1]
    names: Iterable[str] = (child.name for child in domain.children)
    yield TopologyDetail(
        own,
        parent,
        domain.children[0].layer if domain.children else below,
        tuple(names),
        len(domain.rows),
    )
    for child in domain.children:
        yield from _details(child, layers, own)
