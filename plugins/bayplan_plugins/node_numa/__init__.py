"""NodeNUMA: what a pod asks for comes from NUMA nodes that belong together."""

from bayplan_plugins.node_numa.plugin import NodeNUMA, NodeNUMAArgs

__all__ = ["NodeNUMA", "NodeNUMAArgs"]
