"""NodeResourceTopology: the NUMA nodes of a node, as its agent publishes them."""

from __future__ import annotations

from bayplan.api.meta import ApiStruct, ObjectMeta, explicit
from bayplan.api.quantity import Quantity

__all__ = ["NodeResourceTopology", "Zone", "ZoneAttribute", "ZoneCost", "ZoneResource"]


class ZoneResource(ApiStruct, frozen=True):
    """zones[].resources[]; ``available`` is the amount that was free in the last report."""

    name: str
    capacity: Quantity = Quantity(0)
    allocatable: Quantity = Quantity(0)
    available: Quantity = Quantity(0)


class ZoneAttribute(ApiStruct, frozen=True):
    """A name and a value, such as topologyManagerPolicy."""

    name: str
    value: str = ""


class ZoneCost(ApiStruct, frozen=True):
    """zones[].costs[]: the distance to another zone; 10 is the zone itself."""

    name: str
    value: int = 0


class Zone(ApiStruct, frozen=True):
    """zones[]. A NUMA node is a zone of type Node, named node-0 and so on."""

    name: str
    type: str = explicit("Node")
    parent: str = ""
    resources: tuple[ZoneResource, ...] = ()
    costs: tuple[ZoneCost, ...] = ()
    attributes: tuple[ZoneAttribute, ...] = ()


class NodeResourceTopology(ApiStruct, frozen=True):
    """topology.node.k8s.io NodeResourceTopology, named like its node."""

    metadata: ObjectMeta = ObjectMeta()
    topology_policies: tuple[str, ...] = ()
    attributes: tuple[ZoneAttribute, ...] = ()
    zones: tuple[Zone, ...] = ()

    @property
    def key(self) -> str:
        """The node's name."""
        return self.metadata.name
