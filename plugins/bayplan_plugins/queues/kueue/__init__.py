"""Kueue's admission: quotas by flavor, cohorts that lend, preemption, and fair sharing.

:class:`Admission` takes Kueue's objects and decides cycle by cycle; it writes nothing itself.
"""

from bayplan_plugins.queues.kueue.admission import (
    Admission,
    CycleResult,
    WorkloadEvent,
)
from bayplan_plugins.queues.kueue.flavor_assignment import Assignment, Mode
from bayplan_plugins.queues.kueue.settings import (
    FairRule,
    PodsReady,
    RequeueOrder,
    Settings,
    UsageSharing,
)
from bayplan_plugins.queues.kueue.snapshot import Placement, anywhere
from bayplan_plugins.queues.kueue.status import (
    cluster_queue_status,
    cohort_status,
    local_queue_status,
)
from bayplan_plugins.queues.kueue.workloads import WorkloadInfo

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
    "cluster_queue_status",
    "cohort_status",
    "local_queue_status",
]
