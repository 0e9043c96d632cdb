"""Partitions of a GPU never overlap, and stand where the large ones stay possible."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.api.gpu_shares import Partition, PartitionProfile
from bayplan.topology.machine.mig import mig_gpus
from bayplan.topology.machine.partitions import Geometry, geometry_of
from bayplan_benchmarks.mig import demand, first_fit, most_room, optimum, place_online

GPUS = {gpu.name: gpu for gpu in mig_gpus()}
H100 = geometry_of(GPUS["H100-80"].partitions)
A30 = geometry_of(GPUS["A30"].partitions)


def of(geometry: Geometry, kind: str) -> PartitionProfile:
    """Return the profile whose name begins so, such as "3g"."""
    return next(one for one in geometry.profiles if one.name.startswith(kind))


def placed(geometry: Geometry, *kinds: str) -> list[int | None]:
    """Place partitions one after the other on one GPU; return where each begins."""
    held: list[Partition] = []
    starts: list[int | None] = []
    for kind in kinds:
        found = geometry.best(held, of(geometry, kind))
        starts.append(found.start if found is not None else None)
        held += [found] if found is not None else []
    assert geometry.problem(held) == ""
    return starts


def test_a_gpu_holds_as_many_of_each_profile_as_nvidia_lists() -> None:
    names = [one.name for one in H100.profiles]
    assert dict(zip(names, H100.room(()), strict=True)) == {
        "1g.10gb": 7,
        "1g.10gb+me": 1,
        "1g.20gb": 4,
        "2g.20gb": 3,
        "3g.40gb": 2,
        "4g.40gb": 1,
        "7g.80gb": 1,
    }
    assert A30.room(()) == (4, 1, 2, 1, 1)


def test_small_partitions_stay_in_one_half_so_that_a_large_one_fits() -> None:
    assert placed(H100, "1g", "1g", "1g", "4g") == [6, 5, 4, 0]
    assert placed(H100, "3g", "4g") == [4, 0]
    assert None not in placed(H100, "2g", "1g", "3g")


def test_three_slices_twice_leave_compute_but_no_memory() -> None:
    held = [Partition("3g.40gb", 0, 4), Partition("3g.40gb", 4, 4)]
    assert H100.problem(held) == ""
    assert not any(H100.room(held))


def test_seven_small_ones_leave_memory_but_no_compute() -> None:
    assert None not in placed(H100, *["1g"] * 7)
    assert placed(H100, *["1g"] * 8)[-1] is None


def test_only_one_partition_has_the_media_engines() -> None:
    assert placed(H100, "1g.10gb+me", "1g.10gb+me") == [6, None]
    assert placed(A30, "1g.6gb+me", "2g.12gb+me")[-1] is None


@pytest.mark.parametrize(
    ("held", "problem"),
    [
        ([Partition("5g.50gb", 0, 4)], "the GPU has no profile 5g.50gb"),
        ([Partition("3g.40gb", 2, 4)], "3g.40gb cannot be at 2:4"),
        (
            [Partition("4g.40gb", 0, 4), Partition("2g.20gb", 2, 2)],
            "2g.20gb at 2:2 overlaps another partition",
        ),
    ],
)
def test_partitions_that_cannot_be_together_are_named(held: list[Partition], problem: str) -> None:
    assert H100.problem(held) == problem


def test_the_gpu_that_loses_least_is_chosen() -> None:
    half = [Partition("3g.40gb", 4, 4)]
    small = [Partition("1g.10gb", 6, 1)]
    assert H100.best_gpu([(), half, small], of(H100, "1g")) == (2, Partition("1g.10gb", 5, 1))
    assert H100.best_gpu([(), half], of(H100, "4g")) == (1, Partition("4g.40gb", 0, 4))
    assert H100.best_gpu([half], of(H100, "7g")) is None


def test_a_gpu_of_unknown_layout_has_the_slices_that_its_profiles_reach() -> None:
    small = PartitionProfile("1g.5gb", 5 << 30, 142, 1, (0, 1, 2, 3, 4, 5, 6), 1)
    assert geometry_of((small,)).compute_slices == 7
    assert geometry_of((of(A30, "1g"),)).compute_slices == 4


@given(st.sampled_from(sorted(GPUS)), st.data())
def test_partitions_overlap_on_no_axis_as_they_come_and_go(name: str, data: st.DataObject) -> None:
    gpu = GPUS[name]
    geometry = geometry_of(gpu.partitions)
    gpus: list[tuple[Partition, ...]] = [(), ()]
    for _ in range(data.draw(st.integers(1, 30))):
        number = data.draw(st.integers(0, 1))
        if gpus[number] and data.draw(st.booleans()):
            gone = data.draw(st.integers(0, len(gpus[number]) - 1))
            gpus[number] = gpus[number][:gone] + gpus[number][gone + 1 :]
            continue
        profile = data.draw(st.sampled_from(geometry.profiles))
        found = geometry.best_gpu(gpus, profile)
        possible = any(geometry.starts(held, profile) for held in gpus)
        assert (found is not None) == possible
        if found is not None:
            gpus[found[0]] = (*gpus[found[0]], found[1])
        for held in gpus:
            taken = [at for one in held for at in range(one.start, one.start + one.size)]
            assert len(taken) == len(set(taken))
            assert max(taken, default=0) < gpu.memory_slices
            own = [geometry.profile(one.profile) for one in held]
            assert sum(one.slices for one in own if one is not None) <= gpu.compute_slices
            media = [one for one in held if one.profile.endswith("+me")]
            assert len(media) <= 1


@given(st.data())
def test_what_still_fits_is_what_can_be_added_one_by_one(data: st.DataObject) -> None:
    held: list[Partition] = []
    for profile in data.draw(st.lists(st.sampled_from(H100.profiles), max_size=5)):
        starts = H100.starts(held, profile)
        if starts:
            held.append(Partition(profile.name, data.draw(st.sampled_from(starts)), profile.size))
    for profile, count in zip(H100.profiles, H100.room(held), strict=True):
        assert count == most_added(H100, held, profile)


def most_added(geometry: Geometry, held: list[Partition], profile: PartitionProfile) -> int:
    """Return how many partitions of one profile fit, by trying all placements."""
    return max(
        (
            1 + most_added(geometry, [*held, Partition(profile.name, at, profile.size)], profile)
            for at in geometry.starts(held, profile)
        ),
        default=0,
    )


@pytest.mark.parametrize("name", ["H100-80", "A100-40", "A30"])
def test_random_demand_is_accepted_nearly_as_with_hindsight(name: str) -> None:
    geometry = geometry_of(GPUS[name].partitions)
    rng = random.Random(5)
    best = ours = first = 0
    for gpus, count, stay in [(1, 8, 2.0), (1, 5, 0.0), (2, 4, 0.0)] * 12:
        requests = demand(geometry, count, stay, rng)
        possible = optimum(geometry, gpus, requests)
        accepted = place_online(geometry, gpus, requests, most_room)[1]
        assert accepted <= possible
        best += possible
        ours += accepted
        first += place_online(geometry, gpus, requests, first_fit)[1]
    assert ours >= first
    assert ours / best > 0.8
