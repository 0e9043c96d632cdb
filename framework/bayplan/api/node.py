"""Node: the fields that scheduling reads."""

from __future__ import annotations

from typing import Literal

from bayplan.api.meta import ApiStruct, ObjectMeta
from bayplan.api.quantity import Quantity

__all__ = ["ContainerImage", "Node", "NodeCondition", "NodeSpec", "NodeStatus", "Taint"]


class Taint(ApiStruct, frozen=True):
    """spec.taints[]; ``time_added`` is known of NoExecute taints."""

    key: str
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]
    value: str = ""
    time_added: str | None = None


class NodeSpec(ApiStruct, frozen=True):
    """spec of a node."""

    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()


class NodeCondition(ApiStruct, frozen=True):
    """status.conditions[]."""

    type: str
    status: str = ""


class ContainerImage(ApiStruct, frozen=True):
    """An image on the node; its size in bytes."""

    names: tuple[str, ...] = ()
    size_bytes: int = 0


class NodeStatus(ApiStruct, frozen=True):
    """status of a node. ``allocatable`` falls back to ``capacity``, as the kubelet sets it."""

    capacity: dict[str, Quantity] = {}
    allocatable: dict[str, Quantity] = {}
    conditions: tuple[NodeCondition, ...] = ()
    images: tuple[ContainerImage, ...] = ()


class Node(ApiStruct, frozen=True):
    """v1 Node."""

    metadata: ObjectMeta = ObjectMeta()
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()

    @property
    def key(self) -> str:
        """The node's name."""
        return self.metadata.name
