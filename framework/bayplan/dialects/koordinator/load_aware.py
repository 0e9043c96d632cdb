"""Koordinator: what annotations say of the load of nodes, and of what pods will use.

Names as in koordinator-sh/koordinator v1.8 (apis/extension/load_aware.go,
node_resource_amplification.go).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from bayplan.api.meta import ApiStruct
from bayplan.api.quantity import Quantity
from bayplan.api.resources import amount_of
from bayplan.dialects.koordinator.annotations import mapping_in, part_of
from bayplan.inputs.durations import parse_duration

__all__ = [
    "THRESHOLDS",
    "CustomEstimate",
    "CustomThresholds",
    "custom_estimate_of",
    "custom_thresholds",
    "raw_allocatable",
]

_SCHEDULING = "scheduling.koordinator.sh/"
THRESHOLDS = f"{_SCHEDULING}usage-thresholds"
_FACTORS = f"{_SCHEDULING}load-estimated-scaling-factors"
_AFTER_SCHEDULED = f"{_SCHEDULING}load-estimated-seconds-after-pod-scheduled"
_AFTER_INITIALIZED = f"{_SCHEDULING}load-estimated-seconds-after-initialized"
_RAW = "node.koordinator.sh/raw-allocatable"


class _Aggregated(ApiStruct, frozen=True):
    usage_thresholds: dict[str, int] = msgspec.field(default_factory=dict)
    usage_aggregation_type: str = ""
    usage_aggregated_duration: str = ""


class _Thresholds(ApiStruct, frozen=True):
    usage_thresholds: dict[str, int] = msgspec.field(default_factory=dict)
    prod_usage_thresholds: dict[str, int] = msgspec.field(default_factory=dict)
    aggregated_usage: _Aggregated | None = None


class _Raw(ApiStruct, frozen=True):
    allocatable: dict[str, Quantity] = msgspec.field(default_factory=dict)


class CustomThresholds(msgspec.Struct, frozen=True):
    """A node's own thresholds in percent by resource; empty ones leave the profile's."""

    usage: Mapping[str, int]
    prod: Mapping[str, int]
    aggregated: Mapping[str, int]
    statistic: str
    duration: float


class CustomEstimate(msgspec.Struct, frozen=True):
    """How a pod wants to be estimated; what it does not say is None, or empty."""

    factors: tuple[tuple[str, int], ...] = ()
    after_scheduled: int | None = None
    after_initialized: int | None = None


def custom_thresholds(annotations: Mapping[str, str]) -> CustomThresholds | None:
    """Return a node's own thresholds; None without any.

    :raises ValueError: for an annotation that cannot be read, naming it.
    """
    if THRESHOLDS not in annotations:
        return None
    own = part_of(_Thresholds, THRESHOLDS, "$", mapping_in(annotations, THRESHOLDS))
    of_all = own.aggregated_usage or _Aggregated()
    for name, amounts in (
        ("usageThresholds", own.usage_thresholds),
        ("prodUsageThresholds", own.prod_usage_thresholds),
        ("aggregatedUsage.usageThresholds", of_all.usage_thresholds),
    ):
        if any(not 0 <= percent <= 1000 for percent in amounts.values()):
            raise ValueError(f"annotation {THRESHOLDS}: $.{name}: expected percent from 0 to 1000")
    text = of_all.usage_aggregated_duration
    try:
        duration = parse_duration(text) if text else 0.0
    except ValueError as exc:
        where = "$.aggregatedUsage.usageAggregatedDuration"
        raise ValueError(f"annotation {THRESHOLDS}: {where}: {exc}") from None
    statistic = of_all.usage_aggregation_type if of_all.usage_thresholds else ""
    return CustomThresholds(
        own.usage_thresholds,
        own.prod_usage_thresholds,
        of_all.usage_thresholds if statistic else {},
        statistic,
        duration,
    )


def raw_allocatable(annotations: Mapping[str, str]) -> Mapping[str, int]:
    """Return what a node has before its agent amplified it; empty where it says nothing.

    :raises ValueError: for an annotation that cannot be read, naming it.
    """
    if _RAW not in annotations:
        return {}
    content = {"allocatable": mapping_in(annotations, _RAW)}
    found = part_of(_Raw, _RAW, "$", content).allocatable
    return {name: amount_of(name, quantity) for name, quantity in found.items()}


def custom_estimate_of(annotations: Mapping[str, str]) -> CustomEstimate:
    """Return how a pod wants to be estimated; what cannot be read counts as not said."""
    if _FACTORS in annotations:
        try:
            content = mapping_in(annotations, _FACTORS)
        except ValueError:
            content = {}
    else:
        content = {}
    factors = tuple(
        (name, factor)
        for name, factor in sorted(content.items())
        if type(factor) is int and 0 <= factor <= 1000
    )
    return CustomEstimate(
        factors,
        _seconds(annotations.get(_AFTER_SCHEDULED)),
        _seconds(annotations.get(_AFTER_INITIALIZED)),
    )


def _seconds(text: str | None) -> int | None:
    usable = text is not None and text.isascii() and text.isdigit() and len(text) < 10
    return int(text) if usable and text is not None else None
