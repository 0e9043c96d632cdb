"""RemoteGPUs: pods that use GPUs over the network, near the workers that serve them."""

from bayplan_plugins.remote_gpus.plugin import RemoteGPUs

__all__ = ["RemoteGPUs"]
