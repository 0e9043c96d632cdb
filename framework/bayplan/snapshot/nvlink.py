"""The NVLink domain of each node: what its devices publish, or its label.

A driver publishes ``nvlinkDomain`` in its own attribute domain, with the value of NVIDIA's
``<clusterUUID>.<cliqueID>``; nodes whose devices share it are connected by NVLink (NVL72: 18 nodes
of 4 GPUs). Nodes without such devices fall back to their label ``nvidia.com/gpu.clique``.
"""

from __future__ import annotations

from collections.abc import Mapping

from bayplan.api import Node, ResourceSlice
from bayplan.snapshot import Snapshot

__all__ = ["CLIQUE_LABEL", "NVLINK_LAYER", "NvlinkDomains"]

NVLINK_LAYER = "nvlinkDomain"
"""The attribute's name, and that of the layer and label that gangs and topologies may name."""
CLIQUE_LABEL = "nvidia.com/gpu.clique"


class NvlinkDomains:
    """NVLink domains by node; ``version`` grows with each change. Shared by all profiles."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.version = 0
        self._values: dict[str, dict[str, frozenset[str]]] = {}
        snapshot.on_object(ResourceSlice, self._changed)
        for obj in snapshot.objects(ResourceSlice).values():
            self._changed(None, obj)

    def _changed(self, old: ResourceSlice | None, new: ResourceSlice | None) -> None:
        before, after = _domains(old), _domains(new)
        if old is not None and new is not None and before == after:
            if old.spec.node_name == new.spec.node_name:
                return
        if old is not None:
            self._values.get(old.spec.node_name, {}).pop(old.metadata.name, None)
        if new is not None and after:
            self._values.setdefault(new.spec.node_name, {})[new.metadata.name] = after
        if before or after:
            self.version += 1

    def of(self, node: Node) -> str | None:
        """Return a node's domain; None without one, or when its devices are in several."""
        published = self._values.get(node.metadata.name)
        if published:
            values = frozenset().union(*published.values())
            return next(iter(values)) if len(values) == 1 else None
        return node.metadata.labels.get(CLIQUE_LABEL)

    def labels_of(self, node: Node) -> Mapping[str, str]:
        """Return a node's labels, with its NVLink domain as one more label."""
        labels = node.metadata.labels
        domain = self.of(node)
        if domain is None or NVLINK_LAYER in labels:
            return labels
        return {**labels, NVLINK_LAYER: domain}


def _domains(obj: ResourceSlice | None) -> frozenset[str]:
    if obj is None or not obj.spec.node_name:
        return frozenset()
    names = (NVLINK_LAYER, f"{obj.spec.driver}/{NVLINK_LAYER}")
    return frozenset(
        device.attributes[name].string or ""
        for device in obj.spec.devices
        for name in names
        if name in device.attributes
    ) - {""}
