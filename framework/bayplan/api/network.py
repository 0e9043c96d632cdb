"""ClusterNetworkTopology of scheduling.koordinator.sh: layers of the network by node label."""

from __future__ import annotations

from bayplan.api.meta import ApiStruct, ObjectMeta

__all__ = ["ClusterNetworkTopology", "ClusterNetworkTopologySpec", "NetworkTopologyLayer"]


class NetworkTopologyLayer(ApiStruct, frozen=True):
    """One layer; the first of its label keys that a node carries names the node's domain."""

    topology_layer: str
    parent_topology_layer: str = ""
    label_key: tuple[str, ...] = ()


class ClusterNetworkTopologySpec(ApiStruct, frozen=True):
    """spec of a cluster network topology."""

    network_topology_spec: tuple[NetworkTopologyLayer, ...] = ()


class ClusterNetworkTopology(ApiStruct, frozen=True):
    """scheduling.koordinator.sh/v1alpha1 ClusterNetworkTopology."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ClusterNetworkTopologySpec = ClusterNetworkTopologySpec()
