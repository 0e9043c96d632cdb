"""GPUTopology: GPUs of one node that are well connected."""

from bayplan_plugins.gpu_topology.plugin import GPUTopology, GPUTopologyArgs

__all__ = ["GPUTopology", "GPUTopologyArgs"]
