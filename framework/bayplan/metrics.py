"""Prometheus metrics. Labels are few and known beforehand, so that no pod makes a new series."""

from __future__ import annotations

from prometheus_client import Counter

__all__ = ["gpus_chosen"]

_SCHEDULES = Counter(
    "gpu_scheduler_topology_schedules",
    "Pods bound whose GPUs were chosen, by whether the constraints that they prefer were kept",
    ["satisfied"],
)
_ALLOCATIONS = Counter(
    "gpu_scheduler_allocations",
    "Pods bound whose GPUs were chosen, by whether these are on one NUMA node",
    ["same_numa"],
)
_SATISFIED = {value: _SCHEDULES.labels(satisfied=str(value).lower()) for value in (False, True)}
_SAME_NUMA = {value: _ALLOCATIONS.labels(same_numa=str(value).lower()) for value in (False, True)}


def gpus_chosen(satisfied: bool, same_numa: bool) -> None:
    """Count a pod whose GPUs were chosen; ``satisfied`` is False where constraints were relaxed."""
    _SATISFIED[satisfied].inc()
    _SAME_NUMA[same_numa].inc()
