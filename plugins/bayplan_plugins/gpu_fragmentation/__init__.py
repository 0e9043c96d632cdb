"""GPUFragmentation: place shares of GPUs so that the least of the GPUs becomes useless."""

from bayplan_plugins.gpu_fragmentation.plugin import GPUFragmentation

__all__ = ["GPUFragmentation"]
