"""What holds for every allocation, on random devices and claims."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.dra.allocator.worlds import World, device_class, node, random_world, slice_of
from tests.dra.allocator.worlds import claim as claim_of

from bayplan.api import ResourceClaim
from bayplan.api.dra import CLAIM_LIMIT, AllocationResult
from bayplan_dra.allocator import (
    TOPOLOGY,
    AllocatedState,
    AllocationError,
    DeviceId,
    Failure,
    HeldDevice,
    Inventory,
    NodeError,
    PoolDevice,
    SelectorError,
    allocated_ids,
    prepare,
)
from bayplan_dra.allocator.attributes import attribute_values
from bayplan_dra.allocator.cost import group_cost
from bayplan_dra.allocator.requests import AttributeConstraint
from bayplan_dra.allocator.table import Group
from bayplan_dra.allocator.usage import Usage, counter_needs

SEEDS = st.integers(min_value=0, max_value=10**9)


def cost_of(groups: Sequence[Group], used: int) -> int:
    """Return what using these devices, one bit each, costs; smaller is better."""
    return sum(group_cost(group, (used & group.mask).bit_count()) for group in groups)


def allocate(
    world: World, strict: bool = False, ignore: bool = False
) -> list[AllocationResult] | None:
    try:
        found = world.allocate(strict, ignore)
    except (AllocationError, NodeError):
        return None
    return None if isinstance(found, Failure) else found


def selector_error(world: World, strict: bool) -> str:
    """Return what a failing selector says, "" where none fails the allocation."""
    try:
        world.allocate(strict)
    except SelectorError as exc:
        return str(exc)
    except (AllocationError, NodeError):
        return ""
    return ""


def with_allocations(
    claims: Sequence[ResourceClaim], found: Sequence[AllocationResult]
) -> list[ResourceClaim]:
    return [
        replace(claim, status=replace(claim.status, allocation=allocation))
        for claim, allocation in zip(claims, found, strict=True)
    ]


def held_by(claims: Sequence[ResourceClaim]) -> list[HeldDevice]:
    return [held for claim in claims for held in allocated_ids(claim)]


@settings(max_examples=150, deadline=None)
@given(SEEDS)
def test_it_allocates_whenever_the_reference_does(seed: int) -> None:
    world = random_world(seed)
    plain, ours = allocate(world, strict=True), allocate(world)
    assert plain is None or ours is not None
    if ours is not None and plain is None:
        # Only where the reference refuses the claims altogether.
        with pytest.raises(AllocationError):
            world.solve(strict=True)


@settings(max_examples=150, deadline=None)
@given(SEEDS)
def test_a_failing_selector_counts_exactly_where_it_does_in_kubernetes(seed: int) -> None:
    world = random_world(seed, failing=True)
    assert selector_error(world, strict=False) == selector_error(world, strict=True)
    plain = allocate(world, strict=True)
    assert plain is None or allocate(world) is not None


@settings(max_examples=150, deadline=None)
@given(SEEDS)
def test_ignoring_failures_is_having_no_such_devices(seed: int) -> None:
    world = random_world(seed, failing=True)
    for strict in (False, True):
        lenient = allocate(world, strict, ignore=True)
        assert allocate(world, strict) in (None, lenient)
    plain = allocate(world, strict=True, ignore=True)
    assert plain is None or allocate(world, ignore=True) is not None


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.integers(1, 32), min_size=1, max_size=3), min_size=1, max_size=4))
def test_of_alternatives_with_big_counts_the_first_that_fit_together_are_taken(
    counts: list[list[int]],
) -> None:
    requests = [
        {
            "name": f"r{n}",
            "firstAvailable": [
                {"name": f"s{i}", "deviceClassName": "any", "count": count}
                for i, count in enumerate(own)
            ],
        }
        for n, own in enumerate(counts)
    ]
    inventory = Inventory()
    inventory.set_slice(slice_of([{"name": f"d{i}"} for i in range(40)]))
    world = World(
        inventory, {"any": device_class("any", "true")}, node(), [claim_of("c", requests)]
    )
    fitting = (one for one in itertools.product(*counts) if sum(one) <= CLAIM_LIMIT)
    first = next(fitting, None)
    for strict in (False, True):
        found = allocate(world, strict)
        assert (found is None) is (first is None)
        if found is not None and first is not None:
            given_to = Counter(r.request.partition("/")[0] for r in found[0].devices.results)
            assert [given_to[f"r{n}"] for n in range(len(counts))] == list(first)


@settings(max_examples=150, deadline=None)
@given(SEEDS)
def test_an_allocation_does_not_change_its_input(seed: int) -> None:
    world = random_world(seed)
    before = world.state.copy()
    claims = list(world.claims)
    slices = list(world.inventory.slices())
    allocate(world)
    assert world.state == before
    assert world.claims == claims
    assert list(world.inventory.slices()) == slices


@settings(max_examples=150, deadline=None)
@given(SEEDS)
def test_no_device_is_allocated_twice_and_nothing_is_overdrawn(seed: int) -> None:
    world = random_world(seed)
    found = allocate(world)
    if found is None:
        return
    claims = with_allocations(world.claims, found)
    after = world.state.copy()
    for held in held_by(claims):
        if held.consumed is None:
            assert held.id not in after.devices, "a device was given twice"
            assert held.id not in after.shared
        after.take([held])
    pools = world.inventory.pools(world.node)
    before, usage = Usage.of(world.state, pools), Usage.of(after, pools)
    for key, left in usage.counters.items():
        # What others hold may be too much already; nothing is added to that.
        assert left >= 0 or left == before.counters[key]
    for pool in pools:
        for device in pool.devices:
            for name in device.spec.capacity if device.spec.allow_multiple_allocations else ():
                assert usage.share_left(device, name) >= 0


@settings(max_examples=150, deadline=None)
@given(SEEDS)
def test_every_request_and_every_constraint_is_met(seed: int) -> None:
    world = random_world(seed)
    found = allocate(world)
    if found is None:
        return
    devices = {
        device.id: device for pool in world.inventory.pools(world.node) for device in pool.devices
    }
    for claim, allocation in zip(world.claims, found, strict=True):
        ready = prepare(claim, world.classes.get, world.inventory.features)
        results = allocation.devices.results
        for request in ready.requests:
            chosen = [way for way in request.ways if any(r.request == way.name for r in results)]
            assert len(chosen) == 1
            way = chosen[0]
            own = [r for r in results if r.request == way.name]
            assert way.count is None or len(own) == way.count
            assert len({r.device for r in own}) == len(own)
            for result in own:
                device = devices[DeviceId(result.driver, result.pool, result.device)]
                assert way.selects(device, world.inventory.features, "")
                assert way.tolerates(device)
        for constraint in ready.constraints:
            values = [
                attribute_values(
                    devices[DeviceId(r.driver, r.pool, r.device)].attribute(constraint.attribute)
                )
                for r in results
                if constraint.covers(r.request)
            ]
            assert all(values)
            if constraint.distinct:
                assert sum(map(len, values)) == len(frozenset().union(*values))
            elif values:
                assert frozenset.intersection(*values)


@settings(max_examples=150, deadline=None)
@given(SEEDS)
def test_releasing_undoes_taking(seed: int) -> None:
    world = random_world(seed)
    found = allocate(world)
    if found is None:
        return
    state = world.state.copy()
    claims = with_allocations(world.claims, found)
    state.take(held_by(claims))
    state.release(held_by(claims))
    assert state == world.state


# The best choice -----------------------------------------------------------------------------


def every_solution(world: World) -> Iterator[int]:
    """Yield, as sets of table indices in use, all complete allocations there are."""
    table = world.table()
    used = table.in_use(world.state)
    ready = [prepare(c, world.classes.get, world.inventory.features) for c in world.claims]
    wanted = [(claim, request.ways[0]) for claim in ready for request in claim.requests]
    free = [d for i, d in enumerate(table.devices) if not used >> i & 1]
    options = []
    for _, way in wanted:
        matching = [device for device in free if way.selects(device, table.features, "")]
        options.append(list(itertools.combinations(matching, way.count or 0)))
    for chosen in itertools.product(*options):
        flat = [device for part in chosen for device in part]
        if len({device.id for device in flat}) < len(flat):
            continue
        parts = [(claim, way.name, own) for (claim, way), own in zip(wanted, chosen, strict=True)]
        if all(
            meets(constraint, [(name, own) for owner, name, own in parts if owner is claim])
            for claim in ready
            for constraint in claim.constraints
        ):
            yield used | sum(1 << table.index[device.id] for device in flat)


def meets(
    constraint: AttributeConstraint, parts: Sequence[tuple[str, Sequence[PoolDevice]]]
) -> bool:
    values = [
        attribute_values(device.attribute(constraint.attribute))
        for name, part in parts
        if constraint.covers(name)
        for device in part
    ]
    if not all(values):
        return False
    if constraint.distinct:
        return sum(map(len, values)) == len(frozenset().union(*values))
    return not values or bool(frozenset.intersection(*values))


@settings(max_examples=150, deadline=None)
@given(SEEDS)
def test_no_choice_breaks_less(seed: int) -> None:
    world = random_world(seed, rich=False)
    found = allocate(world)
    table = world.table()
    groups = table.groups(TOPOLOGY)
    best = min((cost_of(groups, used) for used in every_solution(world)), default=None)
    if found is None:
        assert best is None
        return
    used = table.in_use(world.state)
    for held in held_by(with_allocations(world.claims, found)):
        used |= 1 << table.index[held.id]
    assert best == cost_of(groups, used)


def test_counters_of_a_device_belong_to_its_own_pool() -> None:
    world = random_world(7)
    device = world.inventory.pools(world.node)[0].devices[0]
    assert all(key[0] == device.id[:2] for key in counter_needs(device))
    assert AllocatedState() == AllocatedState()
