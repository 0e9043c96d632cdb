"""What a placement means for NCCL: environment, topology file, rings, and all-reduce times."""

from __future__ import annotations

from bayplan.nccl.environment import TOPOLOGY_PATH, Variable, environment
from bayplan.nccl.job import JobPlan, Member, RingPart, plan_job
from bayplan.nccl.topofile import TopologyFileError, needed_topology_file, topology_file

__all__ = [
    "TOPOLOGY_PATH",
    "JobPlan",
    "Member",
    "RingPart",
    "TopologyFileError",
    "Variable",
    "environment",
    "needed_topology_file",
    "plan_job",
    "topology_file",
]
