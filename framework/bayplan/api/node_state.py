"""Whether a node can be used, and which model its devices are."""

from __future__ import annotations

from enum import Enum

from bayplan.api.node import Node

__all__ = ["NodeState", "model_of", "state_of"]

_UNREACHABLE = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_MODELS = {
    "nvidia.com": "nvidia.com/gpu.product",
    "amd.com": "amd.com/gpu.product-name",
    "gpu.intel.com": "gpu.intel.com/product",
    "huawei.com": "accelerator-type",
    "hami.io": "nvidia.com/gpu.product",
}
"""The node label that names the model of a vendor's devices, as its feature discovery sets it."""
_OWN = "bayplan.dev/model"
"""The label that names it where no feature discovery runs."""


class NodeState(Enum):
    """Whether a node can be used."""

    IN_SERVICE = "in-service"
    MAINTENANCE = "maintenance"
    FAILED = "failed"


def state_of(node: Node) -> NodeState:
    """Return a node's state: failed where its kubelet is not ready, maintenance while cordoned."""
    ready = next((one for one in node.status.conditions if one.type == "Ready"), None)
    if ready is not None and ready.status != "True":
        return NodeState.FAILED
    if any(taint.key in _UNREACHABLE for taint in node.spec.taints):
        return NodeState.FAILED
    return NodeState.MAINTENANCE if node.spec.unschedulable else NodeState.IN_SERVICE


def model_of(node: Node, resource: str) -> str:
    """Return the model of a node's devices of a resource, "" for what is no device or has none."""
    vendor, _, kind = resource.partition("/")
    if not kind:
        return ""
    labels = node.metadata.labels
    return labels.get(_MODELS.get(vendor, ""), "") or labels.get(_OWN, "")
