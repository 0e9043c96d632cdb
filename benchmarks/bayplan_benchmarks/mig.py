"""Partitions of GPUs: what online placement accepts of random demand, and what was possible.

The optimum of a small instance knows the whole demand before it places anything, and may refuse
what fits.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence

import msgspec

from bayplan.api.gpu_shares import Partition, PartitionProfile
from bayplan.benchmark import Benchmark, BenchmarkResult
from bayplan.topology.machine.mig import mig_gpus
from bayplan.topology.machine.partitions import Geometry, geometry_of

__all__ = ["Demand", "demand", "first_fit", "mig", "most_room", "optimum", "place_online"]

_GPUS = ("H100-80", "A100-40", "A30")
_SMALL = ((1, 9, 3.0), (2, 6, 0.0))
"""Small instances: GPUs, requests, and how long one stays (0: for ever)."""
_ROUNDS = 12
_STAY_PER_SLICE = 0.36

GpuMatrix = list[tuple[Partition, ...]]
Place = Callable[[Geometry, GpuMatrix, PartitionProfile], tuple[int, Partition] | None]


class Demand(msgspec.Struct, frozen=True):
    """A request for a partition; it ends before request number ``until`` comes, None for never."""

    profile: PartitionProfile
    until: int | None


def demand(geometry: Geometry, count: int, stay: float, rng: random.Random) -> list[Demand]:
    """Return random requests: small profiles are as much more frequent as they are smaller.

    :param stay: the mean number of later requests for which one stays; 0 for ever.
    """
    weights = [1 / one.slices for one in geometry.profiles]
    chosen = rng.choices(geometry.profiles, weights, k=count)
    return [
        Demand(one, number + 1 + int(rng.expovariate(1 / stay)) if stay else None)
        for number, one in enumerate(chosen)
    ]


def most_room(
    geometry: Geometry, gpus: GpuMatrix, profile: PartitionProfile
) -> tuple[int, Partition] | None:
    """Place a partition as bayplan does."""
    return geometry.best_gpu(gpus, profile)


def first_fit(
    geometry: Geometry, gpus: GpuMatrix, profile: PartitionProfile
) -> tuple[int, Partition] | None:
    """Place a partition at the first start of the first GPU where it fits."""
    for number, held in enumerate(gpus):
        for start in geometry.starts(held, profile):
            return number, Partition(profile.name, start, profile.size)
    return None


def place_online(
    geometry: Geometry, gpus: int, requests: Sequence[Demand], place: Place
) -> tuple[int, int]:
    """Place requests one after the other; return how many are accepted, and their slices."""
    held: GpuMatrix = [()] * gpus
    ending: dict[int, list[tuple[int, Partition]]] = {}
    accepted = slices = 0
    for number, one in enumerate(requests):
        for gpu, gone in ending.pop(number, []):
            left = list(held[gpu])
            left.remove(gone)
            held[gpu] = tuple(left)
        found = place(geometry, held, one.profile)
        if found is None:
            continue
        gpu, partition = found
        held[gpu] = (*held[gpu], partition)
        accepted += 1
        slices += one.profile.slices
        if one.until is not None:
            ending.setdefault(one.until, []).append(found)
    return accepted, slices


_Held = tuple[tuple[int, Partition], ...]
"""What a GPU holds: each partition after the request at which it ends."""


def optimum(geometry: Geometry, gpus: int, requests: Sequence[Demand]) -> int:
    """Return the most compute slices that any way to place or refuse the requests accepts.

    It goes through all states that the GPUs can be in, so instances have to be small.
    """
    best: dict[tuple[_Held, ...], int] = {((),) * gpus: 0}
    never = len(requests)
    for number, one in enumerate(requests):
        after: dict[tuple[_Held, ...], int] = {}
        for before, slices in best.items():
            state = tuple(sorted(tuple(h for h in own if h[0] > number) for own in before))
            ends = never if one.until is None else min(one.until, never)
            for reached in (state, *_with(geometry, state, one.profile, ends)):
                gain = 0 if reached is state else one.profile.slices
                after[reached] = max(after.get(reached, 0), slices + gain)
        best = after
    return max(best.values())


def _with(
    geometry: Geometry, state: tuple[_Held, ...], profile: PartitionProfile, ends: int
) -> Iterator[tuple[_Held, ...]]:
    """Yield the states with one more partition; equal GPUs count once."""
    for own in dict.fromkeys(state):
        others = list(state)
        others.remove(own)
        for start in geometry.starts([partition for _, partition in own], profile):
            made = (ends, Partition(profile.name, start, profile.size))
            yield tuple(sorted([*others, tuple(sorted((*own, made)))]))


def _small_instances(geometry: Geometry, rng: random.Random) -> dict[str, float]:
    """Return the parts of the optimum that are accepted, in slices."""
    best = ours = first = 0
    for gpus, count, stay in _SMALL:
        for _ in range(_ROUNDS):
            requests = demand(geometry, count, stay, rng)
            best += optimum(geometry, gpus, requests)
            ours += place_online(geometry, gpus, requests, most_room)[1]
            first += place_online(geometry, gpus, requests, first_fit)[1]
    return {"OfOptimum": ours / best, "FirstFitOfOptimum": first / best}


def _run(gpus: int, count: int) -> BenchmarkResult:
    found: dict[str, float] = {}
    for name in _GPUS:
        geometry = geometry_of(next(one for one in mig_gpus() if one.name == name).partitions)
        rng = random.Random(name)  # noqa: S311 - test data
        key = name.partition("-")[0].lower()
        found |= {key + what: share for what, share in _small_instances(geometry, rng).items()}
        requests = demand(geometry, count, _STAY_PER_SLICE * gpus * geometry.compute_slices, rng)
        wanted = sum(one.profile.slices for one in requests)
        begun = time.perf_counter()
        ours = place_online(geometry, gpus, requests, most_room)
        seconds = time.perf_counter() - begun
        first = place_online(geometry, gpus, requests, first_fit)
        found[f"{key}Accepted"] = ours[1] / wanted
        found[f"{key}FirstFitAccepted"] = first[1] / wanted
        found[f"{key}PlacementsPerSecond"] = count / seconds
    rounded = {key: round(value, 4) for key, value in found.items()}
    return BenchmarkResult({"nodes": gpus, "pods": count}, rounded)


mig = Benchmark(
    "MIG partitions of random sizes on GPUs, against the optimum and the first fit",
    (16, 128),
    5_000,
    _run,
)
