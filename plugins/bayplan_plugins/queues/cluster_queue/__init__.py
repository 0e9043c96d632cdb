"""Kueue's admission: quotas by flavor, cohorts that lend, preemption, and fair sharing.

:class:`Admission` takes Kueue's objects and decides cycle by cycle; it writes nothing itself.
"""

from bayplan_plugins.queues.cluster_queue.admission import (
    Admission,
    CycleResult,
    WorkloadEvent,
)
from bayplan_plugins.queues.cluster_queue.flavor_assignment import Assignment, Mode
from bayplan_plugins.queues.cluster_queue.settings import (
    FairRule,
    PodsReady,
    RequeueOrder,
    Settings,
    UsageSharing,
)
from bayplan_plugins.queues.cluster_queue.snapshot import Placement, anywhere
from bayplan_plugins.queues.cluster_queue.workloads import WorkloadInfo

__all__ = [
    "Admission",
    "Assignment",
    "CycleResult",
    "FairRule",
    "Mode",
    "Placement",
    "PodsReady",
    "RequeueOrder",
    "Settings",
    "UsageSharing",
    "WorkloadEvent",
    "WorkloadInfo",
    "anywhere",
]
