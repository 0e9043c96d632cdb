"""How admission works: what Kueue's configuration and feature gates choose."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from pathlib import Path

import msgspec

from bayplan.api.selectors import Selector
from bayplan_plugins.queues.kueue.charged_resources import ChargedResources

__all__ = ["FairRule", "Managed", "PodsReady", "RequeueOrder", "Settings", "UsageSharing"]


class FairRule(Enum):
    """When fair sharing may take a workload of another queue (Kueue's preemptionStrategies)."""

    FINAL_SHARE = "LessThanOrEqualToFinalShare"
    """The preemptor's share afterwards is at most what the target's is afterwards."""
    INITIAL_SHARE = "LessThanInitialShare"
    """The preemptor's share afterwards is below what the target's is now.

    Workloads of several sizes may take turns for ever by it: what one leaves over admits others,
    which raise the share of its side.
    """


class RequeueOrder(Enum):
    """Which time orders a workload that was evicted because its pods did not get ready."""

    EVICTION = "Eviction"
    CREATION = "Creation"


class UsageSharing(msgspec.Struct, frozen=True):
    """Admission fair sharing: the order of LocalQueues by what they have used over time.

    :param half_life: seconds after which usage counts half; 0 turns decay off.
    :param sampling: seconds between two samples.
    :param weights: what an amount of each resource counts; 1 for others.
    :param journal: the file that keeps what was sampled; None for the status of LocalQueues alone.
    """

    half_life: float = 0.0
    sampling: float = 300.0
    weights: Mapping[str, float] = msgspec.field(default_factory=dict)
    journal: Path | None = None


class PodsReady(msgspec.Struct, frozen=True):
    """WaitForPodsReady: workloads whose pods do not get ready give their quota back.

    All times are in seconds. ``backoff_limit`` is the number of requeues after which a workload is
    deactivated, None for no limit.
    """

    timeout: float = 1800.0
    recovery_timeout: float | None = None
    block_admission: bool = False
    backoff_base: float = 60.0
    backoff_most: float = 3600.0
    backoff_limit: int | None = None


class Managed(msgspec.Struct, frozen=True):
    """Which jobs wait for queues, of those that name one, and of the others.

    :param without_queue: whether jobs that name no queue are held until they do.
    :param namespaces: those whose jobs wait at all; None for every one, in which jobs that name no
        queue are left alone in those of the system.
    :param frameworks: which kinds are held without a queue, as Kueue's ``integrations`` name them
        (``batch/job``, ``pod``); None for all that can be suspended.
    :param copied_labels: the labels that a Workload has of its job, of its pods, or of the object
        that it is a part of.
    """

    without_queue: bool = False
    namespaces: Selector | None = None
    frameworks: frozenset[str] | None = None
    copied_labels: frozenset[str] = frozenset()


class Settings(msgspec.Struct, frozen=True):
    """What the administrator chose.

    ``fair_sharing`` divides what is borrowed by share instead of first come first served.
    ``recompute_overlaps`` seeks other victims when an earlier workload of the cycle has taken some
    of a workload's. ``boosted_priorities`` heeds the annotation kueue.x-k8s.io/priority-boost.
    ``preemptors_first`` puts workloads that wait for their victims before all others of a cycle;
    without it a victim may come back first, and be preempted again, without end.
    ``second_look`` asks whether others may go after all once workloads of the preemptor's own queue
    have to, which lowers its share. ``nominal_regardless`` takes back what lies within the nominal
    quota whatever the shares are. ``lenders_first`` puts those of a fair cycle that borrow behind
    all that do not. ``preemption_gates`` heeds the gates that keep workloads from preempting.
    ``ignore_undeclared`` admits resources that no resource group covers.
    """

    fair_sharing: bool = False
    fair_rules: tuple[FairRule, ...] = (FairRule.FINAL_SHARE, FairRule.INITIAL_SHARE)
    usage_sharing: UsageSharing | None = None
    managed: Managed = Managed()
    charged: ChargedResources = msgspec.field(default_factory=ChargedResources)
    pods_ready: PodsReady | None = None
    requeue_order: RequeueOrder = RequeueOrder.EVICTION
    priority_across_queues: bool = True
    partial_admission: bool = True
    elastic_slices: bool = True
    concurrent_admission: bool = False
    nominal_regardless: bool = True
    lenders_first: bool = True
    preemption_gates: bool = False
    recompute_overlaps: bool = True
    boosted_priorities: bool = False
    preemptors_first: bool = True
    second_look: bool = False
    equivalence_hashing: bool = True
    ignore_undeclared: bool = False
