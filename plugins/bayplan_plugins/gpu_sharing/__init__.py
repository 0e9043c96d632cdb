"""GPUSharing: shares of GPUs in KAI's words."""

from bayplan_plugins.gpu_sharing.plugin import GPUSharing, GPUSharingArgs

__all__ = ["GPUSharing", "GPUSharingArgs"]
