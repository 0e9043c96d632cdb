"""A day of GPU jobs, packed and spread: the same work, and what becomes of it."""

from __future__ import annotations

from bayplan.profiles.loading import default_profiles
from bayplan_benchmarks.day import day_of_jobs, outcome, spread


def test_a_seed_is_a_day() -> None:
    assert day_of_jobs(1, 20) == day_of_jobs(1, 20) != day_of_jobs(2, 20)


def test_packed_gpus_are_used_more_than_spread_ones() -> None:
    jobs = day_of_jobs(1, 30)
    packed, apart = outcome(default_profiles(), 4, jobs), outcome(spread(), 4, jobs)
    gpu = "nvidia.com/gpu"
    assert packed.utilisation[gpu] > apart.utilisation[gpu]
    assert packed.idle[gpu] < apart.idle[gpu]
