"""The arguments of the policy ``cluster-queue``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator, Field

from bayplan import Args
from bayplan.inputs.durations import parse_duration
from bayplan_plugins.queues.cluster_queue.settings import (
    FairRule,
    RequeueOrder,
    Settings,
    UsageSharing,
)

__all__ = ["ClusterQueueArgs", "UsageSharingArgs"]


def _checked(text: str) -> str:
    parse_duration(text)
    return text


_Duration = Annotated[str, AfterValidator(_checked)]


class UsageSharingArgs(Args):
    """Kueue's admissionFairSharing: LocalQueues come by what they have used over time.

    With a half-life of "0s" usage does not decay.
    """

    usage_half_life_time: _Duration = "0s"
    usage_sampling_interval: _Duration = "5m"
    resource_weights: Mapping[str, float] = Field(default_factory=dict)

    def settings(self) -> UsageSharing:
        """Return the same as the engine reads it, in seconds."""
        return UsageSharing(
            parse_duration(self.usage_half_life_time),
            parse_duration(self.usage_sampling_interval),
            self.resource_weights,
        )


class ClusterQueueArgs(Args):
    """Arguments of ``cluster-queue``: what Kueue's configuration and feature gates choose.

    With ``fairSharing`` what is borrowed is divided by share, and ``preemptionStrategies`` say when
    it may be taken back.
    """

    fair_sharing: bool = False
    preemption_strategies: tuple[FairRule, ...] = (FairRule.FINAL_SHARE, FairRule.INITIAL_SHARE)
    admission_fair_sharing: UsageSharingArgs | None = None
    priority_sorting_within_cohort: bool = True
    requeuing_timestamp: RequeueOrder = RequeueOrder.EVICTION

    def settings(self) -> Settings:
        """Return the same as the engine reads it."""
        usage = self.admission_fair_sharing
        return Settings(
            fair_sharing=self.fair_sharing,
            fair_rules=self.preemption_strategies,
            usage_sharing=usage.settings() if usage is not None else None,
            requeue_order=self.requeuing_timestamp,
            priority_across_queues=self.priority_sorting_within_cohort,
        )
