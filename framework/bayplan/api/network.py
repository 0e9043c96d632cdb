"""Objects that describe a network: Koordinator's, Volcano's, Kueue's and KAI's."""

from __future__ import annotations

from typing import Literal

from bayplan.api.meta import ApiStruct, LabelSelector, ObjectMeta, explicit

__all__ = [
    "ClusterNetworkTopology",
    "ClusterNetworkTopologySpec",
    "ClusterNetworkTopologyStatus",
    "HyperNode",
    "HyperNodeMember",
    "KaiTopology",
    "NetworkTopologyLayer",
    "Topology",
    "TopologyDetail",
    "TopologyInfo",
    "TopologyLevel",
]


class NetworkTopologyLayer(ApiStruct, frozen=True):
    """One layer; the first of its label keys that a node has names the node's domain."""

    topology_layer: str
    parent_topology_layer: str = ""
    label_key: tuple[str, ...] = ()


class ClusterNetworkTopologySpec(ApiStruct, frozen=True):
    """spec of a cluster network topology."""

    network_topology_spec: tuple[NetworkTopologyLayer, ...] = ()


class TopologyInfo(ApiStruct, frozen=True, omit_defaults=False):
    """A domain by layer and name. The root's name is empty, but required by the CRD."""

    topology_layer: str
    topology_name: str = ""


class TopologyDetail(ApiStruct, frozen=True):
    """One domain as found: its parent, the domains below it (nodes are not named), its node count.

    The CRD requires the node count even if it is 0.
    """

    topology_info: TopologyInfo
    parent_topology_info: TopologyInfo | None = None
    child_topology_layer: str = ""
    child_topology_names: tuple[str, ...] = ()
    node_num: int | None = None


class ClusterNetworkTopologyStatus(ApiStruct, frozen=True):
    """status of a cluster network topology, written by the scheduler."""

    detail_status: tuple[TopologyDetail, ...] = ()


class ClusterNetworkTopology(ApiStruct, frozen=True):
    """scheduling.koordinator.sh/v1alpha1 ClusterNetworkTopology."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ClusterNetworkTopologySpec = ClusterNetworkTopologySpec()
    status: ClusterNetworkTopologyStatus = ClusterNetworkTopologyStatus()


class ExactMatch(ApiStruct, frozen=True):
    """members[].selector.exactMatch."""

    name: str = ""


class RegexMatch(ApiStruct, frozen=True):
    """members[].selector.regexMatch."""

    pattern: str = ""


class MemberSelector(ApiStruct, frozen=True):
    """members[].selector: exactly one of a name, a pattern for names, and labels of nodes."""

    exact_match: ExactMatch | None = None
    regex_match: RegexMatch | None = None
    label_match: LabelSelector | None = None


class HyperNodeMember(ApiStruct, frozen=True):
    """spec.members[] of a HyperNode."""

    type: Literal["Node", "HyperNode"]
    selector: MemberSelector = MemberSelector()


class HyperNodeSpec(ApiStruct, frozen=True):
    """spec of a HyperNode; tier 1 is the nearest to the nodes."""

    tier: int = explicit(1)
    tier_name: str = ""
    members: tuple[HyperNodeMember, ...] = ()


class HyperNode(ApiStruct, frozen=True):
    """topology.volcano.sh/v1alpha1 HyperNode."""

    metadata: ObjectMeta = ObjectMeta()
    spec: HyperNodeSpec = explicit(HyperNodeSpec())


class TopologyLevel(ApiStruct, frozen=True):
    """spec.levels[] of a Topology, from the outermost."""

    node_label: str


class TopologySpec(ApiStruct, frozen=True):
    """spec of a Topology."""

    levels: tuple[TopologyLevel, ...] = ()


class Topology(ApiStruct, frozen=True):
    """kueue.x-k8s.io Topology."""

    metadata: ObjectMeta = ObjectMeta()
    spec: TopologySpec = TopologySpec()


class KaiTopology(ApiStruct, frozen=True):
    """kai.scheduler/v1alpha1 Topology."""

    metadata: ObjectMeta = ObjectMeta()
    spec: TopologySpec = TopologySpec()
