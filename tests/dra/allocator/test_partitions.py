"""Of the partitions that a claim could get, it gets the one that leaves the most possible."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.dra.allocator.worlds import World, claim, device_class, node, slice_of

from bayplan.api.gpu_shares import Partition
from bayplan.topology.machine.mig import MigGpu, MigProfile, mig_gpus
from bayplan.topology.machine.partitions import geometry_of
from bayplan_dra.allocator import DeviceId, Failure, Inventory, allocated_ids

H100 = next(gpu for gpu in mig_gpus() if gpu.name == "H100-80")
GEOMETRY = geometry_of(H100.partitions)
DRIVER = "gpu.example.com"


def counters_of(gpu: MigGpu, profile: MigProfile, start: int) -> dict[str, dict[str, str]]:
    slices = {
        f"memory-slice-{at}": {"value": "1"} for at in range(start, start + profile.partition.size)
    }
    return {
        "memory": {"value": str(profile.partition.memory)},
        "multiprocessors": {"value": str(profile.multiprocessors)},
        "copy-engines": {"value": str(profile.partition.slices)},
        "ofa-engines": {"value": str(int(profile.media or profile is gpu.whole))},
        **slices,
    }


def gpus(count: int, shuffled: random.Random | None = None) -> Inventory:
    """Return GPUs of a node, with all placements in the order of their profiles, or shuffled."""
    found = []
    for number in range(count):
        for profile in H100.profiles:
            for start in profile.partition.starts:
                counters = counters_of(H100, profile, start)
                found.append(
                    {
                        "name": f"gpu-{number}-mig-{profile.id}-{start}-{profile.partition.size}",
                        "attributes": {"profile": {"string": profile.name}},
                        "consumesCounters": [
                            {"counterSet": f"gpu-{number}-counter-set", "counters": counters}
                        ],
                    }
                )
    if shuffled is not None:
        shuffled.shuffle(found)
    sets = [
        {
            "name": f"gpu-{number}-counter-set",
            "counters": counters_of(H100, H100.whole, 0),
        }
        for number in range(count)
    ]
    inventory = Inventory()
    inventory.set_slice(slice_of([], name="counters", count=2, sharedCounters=sets))
    inventory.set_slice(slice_of(found, name="devices", count=2))
    return inventory


class GpuMatrix:
    """GPUs of a node that get one claim after the other."""

    def __init__(self, count: int, shuffled: random.Random | None = None) -> None:
        self.inventory = gpus(count, shuffled)
        self.world = World(self.inventory, {}, node(), [])
        self.count = count

    def place(self, name: str, count: int = 1) -> list[str]:
        """Allocate partitions of a profile; return the names of the devices."""
        selector = f'device.attributes["{DRIVER}"].profile == "{name}"'
        self.world.classes["mig"] = device_class("mig", selector)
        exact = [{"name": "r", "exactly": {"deviceClassName": "mig", "count": count}}]
        wanted = claim("c", exact)
        self.world.claims = [wanted]
        found = self.world.allocate()
        if isinstance(found, Failure):
            return []
        status = replace(wanted.status, allocation=found[0])
        self.world.state.take(allocated_ids(replace(wanted, status=status)))
        return [one.device for one in found[0].devices.results]

    def held(self, number: int) -> list[Partition]:
        """Return the partitions of a GPU."""
        own = [d.device for d in self.world.state.devices if d.device.startswith(f"gpu-{number}-")]
        return [partition_of(name) for name in own]


def partition_of(device: str) -> Partition:
    identity, start, size = (int(part) for part in device.split("-")[3:])
    profile = next(one for one in H100.profiles if one.id == identity)
    return Partition(profile.name, start, size)


def test_small_partitions_share_a_half_so_that_a_large_one_still_fits() -> None:
    one = GpuMatrix(1)
    for _ in range(3):
        assert one.place("1g.10gb")
    assert one.place("4g.40gb") == ["gpu-0-mig-5-0-4"]
    assert GEOMETRY.problem(one.held(0)) == ""


def test_the_first_partitions_in_the_list_are_not_simply_taken() -> None:
    one = GpuMatrix(1)
    assert one.place("3g.40gb") == ["gpu-0-mig-9-4-4"]
    assert one.place("4g.40gb") == ["gpu-0-mig-5-0-4"]


def test_a_divided_gpu_is_used_before_a_whole_one_is_divided() -> None:
    two = GpuMatrix(2)
    two.world.state.devices.add(DeviceId(DRIVER, "n0", "gpu-1-mig-19-6-1"))
    assert two.place("1g.10gb")[0] in ("gpu-1-mig-19-4-1", "gpu-1-mig-19-5-1")
    assert two.place("7g.80gb") == ["gpu-0-mig-0-0-8"]


def test_of_two_divided_gpus_the_one_that_loses_least_is_used() -> None:
    two = GpuMatrix(2)
    taken = ("gpu-0-mig-9-4-4", "gpu-1-mig-5-0-4", "gpu-1-mig-19-6-1")
    two.world.state.devices |= {DeviceId(DRIVER, "n0", name) for name in taken}
    assert two.place("1g.10gb")[0] in ("gpu-1-mig-19-4-1", "gpu-1-mig-19-5-1")
    assert two.place("4g.40gb") == ["gpu-0-mig-5-0-4"]


def test_several_partitions_of_one_claim_leave_room_together() -> None:
    two = GpuMatrix(2)
    assert len(two.place("1g.10gb", 4)) == 4
    assert two.place("7g.80gb")
    assert two.place("3g.40gb")


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6))
def test_partitions_overlap_on_no_axis_and_leave_the_most_room(seed: int) -> None:
    chance = random.Random(seed)
    world = GpuMatrix(2, chance)
    for _ in range(chance.randint(2, 8)):
        profile = chance.choice(H100.profiles).partition
        before = [world.held(number) for number in range(2)]
        possible = [bool(GEOMETRY.starts(held, profile)) for held in before]
        found = world.place(profile.name)
        assert bool(found) == any(possible)
        for number in range(2):
            assert GEOMETRY.problem(world.held(number)) == ""
        if not found:
            continue
        number = int(found[0].split("-")[1])
        best = GEOMETRY.best(before[number], profile)
        assert best is not None
        assert GEOMETRY.value(world.held(number)) == GEOMETRY.value([*before[number], best])
        assert before[number] or not any(
            fits and held for fits, held in zip(possible, before, strict=True)
        )


@pytest.mark.parametrize("count", [1, 8])
def test_as_many_are_accepted_as_by_the_geometry(count: int) -> None:
    chance = random.Random(4)
    world = GpuMatrix(count)
    alone: list[tuple[Partition, ...]] = [()] * count
    ours = theirs = 0
    for _ in range(5 * count):
        profile = chance.choice(H100.profiles).partition
        ours += profile.slices * len(world.place(profile.name))
        found = GEOMETRY.best_gpu(alone, profile)
        if found is not None:
            theirs += profile.slices
            alone[found[0]] = (*alone[found[0]], found[1])
    assert ours >= 0.95 * theirs
