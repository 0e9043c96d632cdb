"""The arguments of LoadAwareScheduling, as Koordinator names them."""

from __future__ import annotations

from typing import Annotated, Literal

import pydantic

from bayplan import Args
from bayplan.inputs.durations import parse_duration

__all__ = ["AggregatedArgs", "LoadAwareArgs"]

Percent = Annotated[int, pydantic.Field(ge=0, le=1000)]
Weight = Annotated[int, pydantic.Field(ge=0, le=10_000)]
Statistic = Literal["", "avg", "p50", "p90", "p95", "p99"]
_FACTORS = {"cpu": 85, "memory": 70}
_THRESHOLDS = {"cpu": 65, "memory": 95}


class AggregatedArgs(Args):
    """By which statistic of the last minutes nodes are filtered and scored.

    Without a duration that of the longest reported one.
    """

    usage_thresholds: dict[str, Percent] = pydantic.Field(default_factory=dict)
    usage_aggregation_type: Statistic = ""
    usage_aggregated_duration: str = ""
    score_aggregation_type: Statistic = ""
    score_aggregated_duration: str = ""

    @pydantic.field_validator("usage_aggregated_duration", "score_aggregated_duration")
    @classmethod
    def _durations(cls, text: str) -> str:
        if text:
            parse_duration(text)
        return text


class LoadAwareArgs(Args):
    """Arguments of LoadAwareScheduling, as of Koordinator's plugin.

    Thresholds are percent of what a node offers, 0 for none; factors percent of what pods state.
    ``prod_usage_thresholds`` concern pods of ``koord-prod``, whose usage alone then counts.
    """

    filter_expired_node_metrics: bool = True
    node_metric_expiration_seconds: int = pydantic.Field(default=180, ge=0)
    enable_schedule_when_node_metrics_expired: bool = False
    resource_weights: dict[str, Weight] = pydantic.Field(default_factory=dict)
    dominant_resource_weight: Weight = 0
    usage_thresholds: dict[str, Percent] = pydantic.Field(default_factory=dict)
    prod_usage_thresholds: dict[str, Percent] = pydantic.Field(default_factory=dict)
    prod_usage_include_sys: bool = False
    score_according_prod_usage: bool = False
    estimator: Literal["", "defaultEstimator"] = ""
    estimated_scaling_factors: dict[str, Percent] = pydantic.Field(default_factory=dict)
    estimated_seconds_after_pod_scheduled: int = pydantic.Field(default=0, ge=0)
    estimated_seconds_after_initialized: int = pydantic.Field(default=0, ge=0)
    allow_customize_estimation: bool = False
    aggregated: AggregatedArgs | None = None
    supported_resources: tuple[str, ...] = ()

    @property
    def weights(self) -> dict[str, int]:
        """The weights of the score; CPU and memory count alike where nothing is said."""
        if self.resource_weights or self.dominant_resource_weight:
            return dict(self.resource_weights)
        return {"cpu": 1, "memory": 1}

    @property
    def thresholds(self) -> dict[str, int]:
        """The thresholds of usage; 65 of CPU and 95 of memory where nothing is said."""
        return dict(self.usage_thresholds) or dict(_THRESHOLDS)

    @property
    def factors(self) -> dict[str, int]:
        """The factors of estimates; 85 of CPU and 70 of memory where nothing is said."""
        return {**_FACTORS, **self.estimated_scaling_factors}

    @property
    def resources(self) -> tuple[str, ...]:
        """All resources that count, in order."""
        of_all = self.aggregated.usage_thresholds if self.aggregated is not None else {}
        named = {"cpu", "memory", *self.thresholds, *self.prod_usage_thresholds, *of_all}
        return tuple(sorted({*named, *self.weights, *self.factors, *self.supported_resources}))
