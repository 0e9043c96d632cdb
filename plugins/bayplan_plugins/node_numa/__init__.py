"""NodeNUMA: predicts whether a node's kubelet can align what a pod requests."""

from bayplan_plugins.node_numa.plugin import NodeNUMA, NodeNUMAArgs

__all__ = ["NodeNUMA", "NodeNUMAArgs"]
