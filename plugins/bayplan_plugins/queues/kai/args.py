"""The arguments of the policy ``fair-share``."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import AliasChoices, Field, field_validator

from bayplan import Args
from bayplan.inputs.durations import parse_duration
from bayplan.queues.usage import UsageJournal

__all__ = ["Action", "KaiQueueArgs", "UsageArgs"]

Action = Literal["allocate", "consolidation", "reclaim", "preempt", "stalegangeviction"]


class UsageArgs(Args):
    """How past usage is kept: samples in a file, if one is named, over a sliding window.

    Times are durations such as "7d"; without a half life all samples of the window count alike.
    """

    journal: Path | None = None
    window: str = "7d"
    half_life: str = ""
    resolution: str = "1m"

    @field_validator("window", "half_life", "resolution")
    @classmethod
    def _durations(cls, text: str) -> str:
        if text and parse_duration(text) <= 0:
            raise ValueError("expected a time above 0")
        return text

    def opened(self) -> UsageJournal:
        """Return the journal.

        :raises InputError: when its file cannot be read.
        """
        half_life = parse_duration(self.half_life) if self.half_life else None
        window, every = parse_duration(self.window), parse_duration(self.resolution)
        return UsageJournal(self.journal, window, every, half_life)


class KaiQueueArgs(Args):
    """Arguments of ``fair-share``, those of KAI's scheduler and its plugins.

    ``kValue`` says how much past usage counts against a queue, where ``usage`` keeps it. The
    saturation multiplier, at least 1, says how much fuller than a reclaiming queue its siblings
    have to stay. Times are durations such as "5m". Consolidation looks at
    ``maxConsolidationPreemptees`` jobs, at all of them with -1, and is off with 0.
    """

    actions: tuple[Action, ...] = (
        "allocate",
        "consolidation",
        "reclaim",
        "preempt",
        "stalegangeviction",
    )
    k_value: float = 1.0
    usage: UsageArgs | None = None
    reclaimer_saturation_multiplier: float = Field(
        default=1.0,
        ge=1.0,
        validation_alias=AliasChoices(
            "reclaimerSaturationMultiplier", "relcaimerSaturationMultiplier"
        ),
    )
    default_reclaim_min_runtime: str = "0s"
    default_preempt_min_runtime: str = "0s"
    reclaim_resolve_method: Literal["lca", "queue"] = "lca"
    max_consolidation_preemptees: int = Field(default=16, ge=-1)
    allow_consolidating_reclaim: bool = True
    default_staleness_grace_period: str = "60s"

    @field_validator(
        "default_reclaim_min_runtime",
        "default_preempt_min_runtime",
        "default_staleness_grace_period",
    )
    @classmethod
    def _durations(cls, text: str) -> str:
        parse_duration(text)
        return text
