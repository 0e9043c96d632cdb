"""The arguments of the policy ``fair-share``."""

from __future__ import annotations

from typing import Literal

from pydantic import AliasChoices, Field, field_validator

from bayplan import Args
from bayplan.inputs.durations import parse_duration

__all__ = ["Action", "FairShareArgs"]

Action = Literal["allocate", "consolidation", "reclaim", "preempt", "stalegangeviction"]


class FairShareArgs(Args):
    """Arguments of ``fair-share``, those of KAI's scheduler and its plugins.

    ``kValue`` says how much past usage counts against a queue. The saturation multiplier, at least
    1, says how much fuller than a reclaiming queue its siblings have to stay. Times are durations
    such as "5m". Consolidation looks at ``maxConsolidationPreemptees`` jobs, at all of them with
    -1, and is off with 0.
    """

    actions: tuple[Action, ...] = (
        "allocate",
        "consolidation",
        "reclaim",
        "preempt",
        "stalegangeviction",
    )
    k_value: float = 1.0
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
