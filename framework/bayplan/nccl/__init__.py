"""What a placement means for NCCL: environment, topology file, rings, and how long they take."""

from __future__ import annotations

from bayplan.nccl.environment import Variable, environment
from bayplan.nccl.job import JobPlan, Member, plan_job
from bayplan.nccl.topofile import TopologyFileError, topology_file

__all__ = [
    "JobPlan",
    "Member",
    "TopologyFileError",
    "Variable",
    "environment",
    "plan_job",
    "topology_file",
]
