"""LowNodeLoad: jobs leave nodes that are too busy for nodes that are not."""

from bayplan_plugins.low_node_load.plugin import LowNodeLoad, LowNodeLoadArgs

__all__ = ["LowNodeLoad", "LowNodeLoadArgs"]
