"""NetworkGather: a gang, and each of its sub-groups, goes into one domain of the network."""

from bayplan_plugins.network_gather.plugin import NetworkGather, NetworkGatherArgs

__all__ = ["NetworkGather", "NetworkGatherArgs"]
