"""GPUFragmentation: place shares of cards so that the least of the cards becomes useless."""

from bayplan_plugins.gpu_fragmentation.plugin import GPUFragmentation

__all__ = ["GPUFragmentation"]
