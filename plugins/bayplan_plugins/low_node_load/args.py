"""The arguments of LowNodeLoad, as Koordinator's descheduler names them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Literal, Self

import pydantic
from pydantic import Field

from bayplan import Args
from bayplan.api.selectors import EVERYTHING, Selector
from bayplan.inputs.durations import parse_duration
from bayplan_plugins.shared.selector_args import SelectorArgs

__all__ = ["LowNodeLoadArgs", "PoolArgs"]

Percent = Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)]
Thresholds = dict[str, Percent]
Weight = Annotated[int, Field(ge=0, le=10_000)]
Limit = Annotated[int, Field(ge=0)]


def _is_duration(text: str) -> str:
    parse_duration(text)
    return text


Duration = Annotated[str, pydantic.AfterValidator(_is_duration)]


class PodSelectorArgs(Args):
    """A selector of pods with a name."""

    name: str = ""
    selector: SelectorArgs | None = None


class NamespacesArgs(Args):
    """Namespaces: only those, or all but those."""

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    @pydantic.model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if self.include and self.exclude:
            raise ValueError("only one of include and exclude can be set")
        return self

    def allow(self, namespace: str) -> bool:
        """Tell whether a namespace is meant."""
        return namespace not in self.exclude and (not self.include or namespace in self.include)


class AnomalyArgs(Args):
    """How often in a row a node has to be too busy, and for how long it then counts as such."""

    timeout: Duration = "1m"
    consecutive_abnormalities: int = Field(default=5, ge=1)
    consecutive_normalities: int = Field(default=3, ge=1)


class PriorityThresholdArgs(Args):
    """Only pods of a lower priority may go."""

    value: int
    name: Literal[""] = ""


class ObjectLimiterArgs(Args):
    """How many pods of one controller, or of one namespace, may be evicted in a duration.

    Without a number it is that of ``maxMigratingPerWorkload``. ``burst`` is how many at once.
    """

    duration: Duration = "0s"
    max_migrating: int | str | None = None
    burst: Limit = 0


_USUAL_LIMITERS: Mapping[Literal["workload", "namespace"], ObjectLimiterArgs] = {
    "workload": ObjectLimiterArgs(duration="5m")
}


class _LoadArgs(Args):
    """When a node is too busy, and when it takes more; in percent of what it offers."""

    use_deviation_thresholds: bool = False
    high_thresholds: Thresholds | None = None
    low_thresholds: Thresholds | None = None
    prod_high_thresholds: Thresholds | None = None
    prod_low_thresholds: Thresholds | None = None
    resource_weights: dict[str, Weight] | None = None
    anomaly_condition: AnomalyArgs | None = None

    @pydantic.model_validator(mode="after")
    def _low_is_below_high(self) -> Self:
        if self.use_deviation_thresholds:
            return self
        for low, high, names in (
            (self.low_thresholds, self.high_thresholds, ("low", "high")),
            (self.prod_low_thresholds, self.prod_high_thresholds, ("prodLow", "prodHigh")),
            (self.prod_high_thresholds, self.high_thresholds, ("prodHigh", "high")),
        ):
            low, high = low or {}, high or {}
            for name in sorted(low.keys() & high.keys()):
                if low[name] > high[name]:
                    first, second = (f"{one}Thresholds.{name}" for one in names)
                    raise ValueError(f"expected {first} to be at most {second}")
        return self


class PoolArgs(_LoadArgs):
    """Some nodes with thresholds of their own; what a pool leaves out is as for all nodes."""

    name: str = ""
    node_selector: SelectorArgs | None = None

    @property
    def nodes(self) -> Selector:
        """Which nodes are in the pool."""
        return self.node_selector.compiled if self.node_selector is not None else EVERYTHING


class LowNodeLoadArgs(_LoadArgs):
    """Arguments of LowNodeLoad: those of Koordinator's plugin of this name, and what surrounds it.

    From its DeschedulerConfiguration are ``descheduling_interval`` and the most pods to evict at a
    time. From its MigrationControllerArgs are the most that may be on their way at once, and which
    pods may go. 0 stands for no limit.
    """

    paused: bool = False
    dry_run: bool = False
    number_of_nodes: Limit = 0
    node_metric_expiration_seconds: int = Field(default=180, ge=1)
    evictable_namespaces: NamespacesArgs = NamespacesArgs()
    node_selector: SelectorArgs | None = None
    pod_selectors: tuple[PodSelectorArgs, ...] = ()
    node_fit: Literal[True] = True
    detector_cache_timeout: Duration = "5m"
    node_pools: tuple[PoolArgs, ...] = ()

    descheduling_interval: Duration = "2m"
    max_no_of_pods_to_evict_per_node: Limit = 0
    max_no_of_pods_to_evict_per_namespace: Limit = 0
    max_no_of_pods_to_evict_total: Limit = 0

    max_migrating_globally: Limit = 0
    max_migrating_per_node: Limit = 2
    max_migrating_per_namespace: Limit = 0
    max_migrating_per_workload: int | str | None = None
    max_unavailable_per_workload: int | str | None = None
    object_limiters: Mapping[Literal["workload", "namespace"], ObjectLimiterArgs] = {}
    skip_check_expected_replicas: bool = False
    evict_local_storage_pods: bool = False
    evict_system_critical_pods: bool = False
    ignore_pvc_pods: bool = False
    priority_threshold: PriorityThresholdArgs | None = None
    label_selector: SelectorArgs | None = None
    namespaces: NamespacesArgs = NamespacesArgs()

    @pydantic.field_validator("max_migrating_per_workload", "max_unavailable_per_workload")
    @classmethod
    def _is_number_or_percent(cls, value: int | str | None) -> int | str | None:
        text = value.removesuffix("%") if isinstance(value, str) else value
        is_percent = isinstance(value, str) and value.endswith("%") and str(text).isdecimal()
        if value is not None and not is_percent and (isinstance(value, str) or value < 0):
            raise ValueError(f'expected a number or percent such as "10%", got {value!r}')
        return value

    @property
    def limiters(self) -> Mapping[Literal["workload", "namespace"], ObjectLimiterArgs]:
        """How often pods of one controller or namespace may go; 5 minutes where nothing is said."""
        return self.object_limiters or _USUAL_LIMITERS

    @cached_property
    def pools(self) -> tuple[PoolArgs, ...]:
        """The pools, each with all that it says or all nodes have; without any, all nodes."""
        pools = self.node_pools or (PoolArgs(node_selector=self.node_selector),)
        return tuple(self._completed(one) for one in pools)

    def _completed(self, pool: PoolArgs) -> PoolArgs:
        found: dict[str, Any] = {}
        for field in _LoadArgs.model_fields:
            own = getattr(pool, field)
            found[field] = getattr(self, field) if own in (None, False) else own
        if found["anomaly_condition"] is None:
            found["anomaly_condition"] = AnomalyArgs()
        weights = dict.fromkeys(
            ("cpu", "memory", *(self.low_thresholds or ()), *(self.high_thresholds or ())), 1
        )
        weights |= {name: own for name, own in (found["resource_weights"] or {}).items() if own}
        return pool.model_copy(update={**found, "resource_weights": weights})
