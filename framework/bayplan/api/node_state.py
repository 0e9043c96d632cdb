"""Whether a node and its kubelet can be used, and which model its devices are."""

from __future__ import annotations

from enum import Enum

from bayplan.api.node import Node

__all__ = [
    "DEVICE_VENDORS",
    "FAILED_TAINTS",
    "NodeState",
    "is_out_of_service",
    "is_silent",
    "model_of",
    "state_of",
]

_SILENT = "node.kubernetes.io/unreachable"
FAILED_TAINTS = ("node.kubernetes.io/not-ready", _SILENT)
"""On nodes whose kubelet is not ready, or says nothing."""
_OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
_MODELS = {
    "nvidia.com": "nvidia.com/gpu.product",
    "amd.com": "amd.com/gpu.product-name",
    "gpu.intel.com": "gpu.intel.com/product",
    "huawei.com": "accelerator-type",
    "hami.io": "nvidia.com/gpu.product",
}
"""The node label that names the model of a vendor's devices, as its feature discovery sets it."""
DEVICE_VENDORS = frozenset(_MODELS)
"""The vendors whose extended resources count accelerators."""
_OWN = "bayplan.dev/model"
"""The label that names it where no feature discovery runs."""


class NodeState(Enum):
    """Whether a node can be used."""

    IN_SERVICE = "in-service"
    MAINTENANCE = "maintenance"
    FAILED = "failed"


def state_of(node: Node) -> NodeState:
    """Return a node's state: failed where its kubelet is not ready, maintenance while cordoned."""
    if _ready(node) != "True":
        return NodeState.FAILED
    if any(taint.key in FAILED_TAINTS for taint in node.spec.taints):
        return NodeState.FAILED
    return NodeState.MAINTENANCE if node.spec.unschedulable else NodeState.IN_SERVICE


def is_silent(node: Node) -> bool:
    """Tell whether a node's kubelet says nothing, so that its pods neither start nor end.

    A kubelet that itself says that its node is not ready does both.
    """
    return _ready(node) == "Unknown" or any(taint.key == _SILENT for taint in node.spec.taints)


def is_out_of_service(node: Node) -> bool:
    """Tell whether somebody vouches that nothing runs any more on a node that is not ready."""
    tainted = any(taint.key == _OUT_OF_SERVICE for taint in node.spec.taints)
    return tainted and _ready(node) != "True"


def _ready(node: Node) -> str:
    """Return the status of the condition Ready; a node without it counts as ready."""
    return next((one.status for one in node.status.conditions if one.type == "Ready"), "True")


def model_of(node: Node, resource: str) -> str:
    """Return the model of a node's devices of a resource, "" for what is no device or has none."""
    vendor, _, kind = resource.partition("/")
    if not kind:
        return ""
    labels = node.metadata.labels
    return labels.get(_MODELS.get(vendor, ""), "") or labels.get(_OWN, "")
