"""Prometheus metrics. All label values are known beforehand, so that no pod adds a series."""

from __future__ import annotations

from prometheus_client import Counter

__all__ = ["gpus_chosen"]

_SCHEDULES = Counter(
    "gpu_scheduler_topology_schedules",
    "Pods with GPUs that were bound, by whether the constraints that they prefer were kept",
    ["satisfied"],
)
_ALLOCATIONS = Counter(
    "gpu_scheduler_allocations",
    "Pods with GPUs that were bound, by whether these are known to be on one NUMA node",
    ["same_numa"],
)
_FALLBACKS = Counter(
    "gpu_scheduler_topology_fallbacks",
    "Pods with GPUs that were bound without the constraints that they prefer, by why: no free GPUs "
    "kept them (unmet), or the node's GPU topology is not known (unknown)",
    ["reason"],
)
_SATISFIED = {value: _SCHEDULES.labels(satisfied=str(value).lower()) for value in (False, True)}
_SAME_NUMA = {value: _ALLOCATIONS.labels(same_numa=str(value).lower()) for value in (False, True)}
_REASON = {
    value: _FALLBACKS.labels(reason=reason)
    for value, reason in ((True, "unmet"), (False, "unknown"))
}


def gpus_chosen(satisfied: bool, same_numa: bool, known: bool) -> None:
    """Count a pod with GPUs that was bound.

    :param satisfied: whether all of its preferences were met.
    :param same_numa: whether its GPUs are known to be on one NUMA node.
    :param known: whether its node's GPU topology is known.
    """
    _SATISFIED[satisfied].inc()
    if not satisfied:
        _REASON[known].inc()
    _SAME_NUMA[same_numa].inc()
