"""KAI's scenarios that end differently here, each with the reason."""

from __future__ import annotations

__all__ = ["KNOWN_DIFFERENCES"]

_TOPOLOGY = "the gang gets as good a domain, another one or other nodes of it"
_CLAIMS = "asks the pre-filter alone; no node has the devices of both claims"
_DRA = "nobody is evicted for a claim that a user made: it keeps its devices"
_WAITS = "starts at once on a free GPU instead of waiting for a share that becomes free"
_PIPELINED = "begins with a pod that has a node and waits for nobody; it starts there"

KNOWN_DIFFERENCES: dict[str, str] = {
    "actions/allocate/allocateFractionalGpu#TestHandleFractionalGPUAllocation-12": _WAITS,
    "actions/allocate/allocateFractionalGpu#TestHandleFractionalGPUAllocation-15": _PIPELINED,
    "actions/allocate/allocateTopology#TestHandleTopologyAllocation-16": _TOPOLOGY,
    "actions/allocate/allocateTopology#TestHandleTopologyAllocation-18": _TOPOLOGY,
    "actions/allocate/allocateTopology#TestHandleTopologyAllocation-19": _TOPOLOGY,
    "actions/allocate/allocateTopology#TestHandleTopologyAllocation-21": _TOPOLOGY,
    "actions/integration_tests/reclaim/reclaim_gpu_dra#TestReclaimGpuDRAIntegrationTest-1": _DRA,
    "plugins/dynamicresources/dynamicresources#TestDynamicResourceAllocationPreFilter-2": _CLAIMS,
}
