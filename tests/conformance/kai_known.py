"""KAI's scenarios that end differently here, each with the reason."""

from __future__ import annotations

__all__ = ["KNOWN_DIFFERENCES"]

_TOPOLOGY = "the gang gets as good a domain, another one or other nodes of it"
_NUMA = "the scenario's NUMA zones are not loaded"
_DRA = "the scenario's slices and claims are not loaded"
_SUB_GROUPS = "sub-groups may not be left out"

KNOWN_DIFFERENCES: dict[str, str] = {
    "actions/allocate/allocateElastic#TestHandleElasticAllocation-8": _SUB_GROUPS,
    "actions/allocate/allocateTopology#TestHandleTopologyAllocation-5": _TOPOLOGY,
    "actions/allocate/allocateTopology#TestHandleTopologyAllocation-8": _TOPOLOGY,
    "actions/allocate/allocateTopology#TestHandleTopologyAllocation-9": _TOPOLOGY,
    "actions/allocate/allocateTopology#TestHandleTopologyAllocation-16": _TOPOLOGY,
    "actions/allocate/allocateTopology#TestHandleTopologyAllocation-18": _TOPOLOGY,
    "actions/allocate/allocateTopology#TestHandleTopologyAllocation-19": _TOPOLOGY,
    "actions/allocate/allocateTopology#TestHandleTopologyAllocation-21": _TOPOLOGY,
    "actions/allocate/allocate_numa#TestHandleAllocationNuma-2": _NUMA,
    "actions/allocate/allocate_subgroups#TestHandleSubGroupsAllocation-10": _SUB_GROUPS,
    "actions/integration_tests/allocate/allocate_dra#TestDRAAllocation-3": _DRA,
    "actions/integration_tests/allocate/allocate_dra#TestDRAAllocation-4": _DRA,
    "actions/integration_tests/allocate/allocate_dra#TestDRAAllocation-5": _DRA,
    "actions/integration_tests/allocate/allocate_dra#TestDRAAllocation-8": _DRA,
    "actions/integration_tests/allocate/allocate_dra#TestDRAAllocation-10": _DRA,
    "actions/integration_tests/numa/numa#TestNumaBookkeepingThroughFullPipeline-1": _NUMA,
    "actions/integration_tests/numa/numa#TestNumaBookkeepingThroughFullPipeline-2": _NUMA,
    "actions/integration_tests/reclaim/reclaim_gpu_dra#TestReclaimGpuDRAIntegrationTest-1": _DRA,
    "actions/integration_tests/reclaim/reclaim_gpu_dra#TestReclaimGpuDRAIntegrationTest-3": _DRA,
    "actions/preempt/preempt_numa#TestHandlePreemptNuma-2": _NUMA,
    "actions/reclaim/reclaim_numa#TestHandleReclaimNuma-1": _NUMA,
}
