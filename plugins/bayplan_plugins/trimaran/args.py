"""The arguments of Trimaran's plugins, as scheduler-plugins names them."""

from __future__ import annotations

from collections.abc import Mapping

import pydantic
from pydantic import Field

from bayplan.api.quantity import Quantity
from bayplan.api.resources import amount_of
from bayplan_plugins.loads.sources import LoadSourceArgs

__all__ = [
    "LoadVariationRiskBalancingArgs",
    "LowRiskOverCommitmentArgs",
    "TargetLoadPackingArgs",
]


class TargetLoadPackingArgs(LoadSourceArgs):
    """Arguments of TargetLoadPacking.

    ``targetUtilization`` is percent of a node's CPUs. A container is taken to use its limit, else
    its request times ``defaultRequestsMultiplier``, else ``defaultRequests``.
    """

    default_requests: Mapping[str, str | int | float] = {"cpu": "1"}
    default_requests_multiplier: str = "1.5"
    target_utilization: int = Field(default=40, le=99)

    @pydantic.field_validator("default_requests")
    @classmethod
    def _amounts(cls, value: Mapping[str, str | int | float]) -> Mapping[str, str | int | float]:
        for amount in value.values():
            Quantity(amount)
        return value

    @pydantic.field_validator("default_requests_multiplier")
    @classmethod
    def _number(cls, value: str) -> str:
        try:
            fine = 0 <= float(value) <= 1000
        except ValueError:
            fine = False
        if not fine:
            raise ValueError(f'expected a number from 0 to 1000 as text, got "{value[:40]}"')
        return value

    @property
    def unstated(self) -> int:
        """What a container without requests and limits is taken to use, in milli-CPU."""
        return amount_of("cpu", Quantity(self.default_requests.get("cpu", 0)))

    @property
    def multiplier(self) -> float:
        """By how much a container exceeds its request."""
        return float(self.default_requests_multiplier)

    @property
    def target(self) -> int:
        """The percentage at which a node scores best; 40 for none that makes sense."""
        return self.target_utilization if self.target_utilization > 0 else 40


class LoadVariationRiskBalancingArgs(LoadSourceArgs):
    """Arguments of LoadVariationRiskBalancing; negative numbers stand for 1."""

    safe_variance_margin: float = 1.0
    safe_variance_sensitivity: float = 1.0


class LowRiskOverCommitmentArgs(LoadSourceArgs):
    """Arguments of LowRiskOverCommitment.

    ``smoothingWindowSize`` is over how many windows usage was smoothed before it was reported.
    ``riskLimitWeights`` are the weights, 0 to 1, of the risk of stated limits, by resource; the
    rest is that of measured usage. Numbers without sense stand for the defaults, 5 and 0.5.
    """

    smoothing_window_size: int = 5
    risk_limit_weights: Mapping[str, float] = {}

    @property
    def windows(self) -> int:
        """Over how many windows usage was smoothed."""
        return self.smoothing_window_size if self.smoothing_window_size > 0 else 5

    def limit_weight(self, resource: str) -> float:
        """Return the weight of the risk of limits of a resource."""
        weight = self.risk_limit_weights.get(resource, 0.5)
        return weight if 0 <= weight <= 1 else 0.5
