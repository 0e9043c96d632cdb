"""A day of GPU jobs of all sizes, more than the cluster can run, packed and spread.

Each seed is another day. The jobs arrive at any time of it; by their number 39 % have one GPU,
14 % two, 18 % four, 15 % eight, and 14 % are gangs of two to eight pods with eight GPUs each. They
run for half an hour to twelve hours. At 64 nodes of 8 GPUs, 400 jobs ask for 1.4 times what there
is. All days are simulated with the default profile, which packs pods with GPUs, and as
kube-scheduler would place them, each up to its end. The figures are means of the days: when the
median and the slowest twentieth of the jobs began, in hours after they came, with those that still
wait counted up to now; the percent of the GPUs in use; and how many GPUs were idle while jobs
waited.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from msgspec.structs import replace

from bayplan.api import ApiObject, Node, ObjectMeta, Quantity
from bayplan.api.node import NodeStatus
from bayplan.benchmark import Benchmark, BenchmarkResult
from bayplan.metering.journal import Journal
from bayplan.profiles.loading import ProfileSet, default_profiles
from bayplan.simulation.comparison import IdleHistory, Outcome, Run, compare
from bayplan.simulation.simulation import Simulation
from bayplan.simulation.trace import TraceJob
from bayplan.simulation.trace_objects import arrivals_of_trace

__all__ = ["day", "day_of_jobs", "outcome", "spread"]

_GPU = "nvidia.com/gpu"
_GPUS = 8
_DAYS = 10
_HOUR = 3600.0
_DAY = 24 * _HOUR
_HOURS = (0.5, 1.0, 3.0, 8.0, 12.0)
_SIZES: Mapping[tuple[int, int], int] = {
    (1, 1): 156,
    (1, 2): 54,
    (1, 4): 72,
    (1, 8): 60,
    (2, 8): 17,
    (4, 8): 22,
    (8, 8): 19,
}
"""How often jobs come with so many pods and GPUs of each, of 400."""
_CPU_PER_GPU = 8
_MEMORY_PER_GPU = 64


def day_of_jobs(seed: int, count: int) -> list[TraceJob]:
    """Return the jobs of a day, by the seed of its chance."""
    chance = random.Random(seed)  # noqa: S311 - no secret
    sizes = chance.choices(list(_SIZES), list(_SIZES.values()), k=count)
    return [
        TraceJob(
            name=f"job-{number}",
            arrival=chance.uniform(0, _DAY),
            duration=chance.choice(_HOURS) * _HOUR,
            pods=pods,
            requests={
                "cpu": str(gpus * _CPU_PER_GPU),
                "memory": f"{gpus * _MEMORY_PER_GPU}Gi",
                _GPU: str(gpus),
            },
        )
        for number, (pods, gpus) in enumerate(sizes)
    ]


def spread() -> ProfileSet:
    """Return the default profile without packing: pods with GPUs go where kube-scheduler says."""
    profiles = default_profiles()
    first = profiles.profiles[0]
    args = {name: one for name, one in first.args.items() if name != "GPUFragmentation"}
    args["GPUFragmentation"] = type(first.args["GPUFragmentation"])()
    return replace(profiles, profiles=(replace(first, args=args),))


def outcome(profiles: ProfileSet, nodes: int, jobs: Sequence[TraceJob]) -> Outcome:
    """Simulate a day; return what becomes of its jobs."""
    cluster = [_node(index) for index in range(nodes)]
    journal, idle = Journal(), IdleHistory()
    simulation = Simulation(profiles, until=_DAY, journal=journal)
    simulation.on_settled(idle.look)
    simulation.create(cluster)
    simulation.arrive(arrivals_of_trace(jobs, cluster, profiles.usual_name))
    simulation.run()
    return compare([Run("", simulation, journal, idle)]).outcomes[0]


def _node(index: int) -> ApiObject:
    name = f"node-{index}"
    amounts = {"cpu": "190", "memory": "1950Gi", "pods": "110", _GPU: str(_GPUS)}
    quantities = {key: Quantity(value) for key, value in amounts.items()}
    meta = ObjectMeta(name=name, labels={"kubernetes.io/hostname": name})
    return Node(meta, status=NodeStatus(quantities, quantities))


def _run(nodes: int, jobs: int) -> BenchmarkResult:
    found: dict[str, list[Outcome]] = {"packed": [], "spread": []}
    for seed in range(1, _DAYS + 1):
        work = day_of_jobs(seed, jobs)
        found["packed"].append(outcome(default_profiles(), nodes, work))
        found["spread"].append(outcome(spread(), nodes, work))
    return BenchmarkResult(
        {"nodes": nodes, "jobs": jobs, "days": _DAYS},
        {
            "medianWaitHours": _means(found, lambda one: (one.waits.p50 or 0.0) / _HOUR),
            "p95WaitHours": _means(found, lambda one: (one.waits.p95 or 0.0) / _HOUR),
            "gpusInUsePercent": _means(found, lambda one: 100 * one.utilisation[_GPU]),
            "gpusIdleWhileJobsWait": _means(found, lambda one: one.idle.get(_GPU, 0.0) / _DAY),
        },
    )


def _means(
    found: Mapping[str, Sequence[Outcome]], figure: Callable[[Outcome], float]
) -> dict[str, float]:
    return {name: round(fmean(map(figure, outcomes)), 2) for name, outcomes in found.items()}


day = Benchmark("a day of GPU jobs of all sizes, packed and spread", (64,), 400, _run)
