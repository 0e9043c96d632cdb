"""Prometheus metrics. Labels are few and known beforehand, so that no pod makes a new series."""

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
_SATISFIED = {value: _SCHEDULES.labels(satisfied=str(value).lower()) for value in (False, True)}
_SAME_NUMA = {value: _ALLOCATIONS.labels(same_numa=str(value).lower()) for value in (False, True)}


def gpus_chosen(satisfied: bool, same_numa: bool) -> None:
    """Count a pod with GPUs that was bound; ``satisfied`` is False where it gave something up."""
    _SATISFIED[satisfied].inc()
    _SAME_NUMA[same_numa].inc()
