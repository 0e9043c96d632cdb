"""What would let a node serve a pod's claims, found by trial."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from bayplan import NodeRow, Remedy
from bayplan.naming import counted
from bayplan_dra.allocator import (
    Amount,
    Choice,
    ClaimToAllocate,
    PoolDevice,
    SelectorError,
    as_quantity,
)
from bayplan_plugins.device_ledger.ledger import DeviceLedger
from bayplan_plugins.dynamic_resources.node_allocator import NodeAllocator

__all__ = ["advice", "guarded_selectors"]

_MOST_CLAIMS = 16
_MOST_DEVICES = 16
_MOST_LISTED = 8


class _Short(msgspec.Struct, frozen=True):
    """A shared device that has too little left: by capacity, what is wanted of it and left."""

    device: PoolDevice
    wanted: Mapping[str, Amount]
    left: Mapping[str, Amount]

    @property
    def missing(self) -> dict[str, Amount]:
        """How much more would have to be left."""
        more = {name: amount - self.left[name] for name, amount in self.wanted.items()}
        return {name: amount for name, amount in more.items() if amount > 0}

    @property
    def cost(self) -> float:
        """The missing parts of the whole device."""
        offered = self.device.spec.capacity
        return sum(
            float(amount / offered[name].value.number) for name, amount in self.missing.items()
        )


def _without_selectors(claim: ClaimToAllocate) -> Iterator[tuple[str, ClaimToAllocate]]:
    """Yield, for each request with selectors of its own, its name and the claim without them."""
    for index, request in enumerate(claim.requests):
        if any(not one.device_class for way in request.ways for one in way.selectors):
            ways = tuple(
                replace(way, selectors=tuple(s for s in way.selectors if s.device_class))
                for way in request.ways
            )
            weaker = replace(request, ways=ways)
            requests = (*claim.requests[:index], weaker, *claim.requests[index + 1 :])
            yield request.name, replace(claim, requests=requests)


def guarded_selectors(failing: Sequence[tuple[str, SelectorError]]) -> Iterator[Remedy]:
    """Yield a remedy for each way in which selectors fail.

    :param failing: nodes, by name, and what fails there.
    """
    alike: dict[tuple[str, str], list[tuple[str, SelectorError]]] = {}
    for node, error in failing:
        alike.setdefault((error.owner, error.error), []).append((node, error))
    for nodes in alike.values():
        node, error = nodes[0]
        more = f" and of {counted(len(nodes) - 1, 'more node')}" if len(nodes) > 1 else ""
        yield Remedy(
            f"would be tried again if {error.owner} did not fail on device {error.device} of "
            f"{node}{more} ({error.error}{_safe_form(error.error)})",
            None,
            0.3,
        )


def _safe_form(error: str) -> str:
    """Return how to read what a device may lack, "" where that is not what is wrong."""
    _, missing, name = error.partition("no such key: ")
    return f"; .?{name}.orValue(...) is safe to read" if missing and name.isidentifier() else ""


def advice(
    allocator: NodeAllocator, ledger: DeviceLedger, claims: Sequence[ClaimToAllocate], node: NodeRow
) -> Iterator[Remedy]:
    """Yield remedies for one node: a constraint or selectors to drop, something to free."""
    for index, claim in enumerate(claims):
        for constraint in claim.constraints:
            rest = tuple(other for other in claim.constraints if other is not constraint)
            weaker = [*claims[:index], replace(claim, constraints=rest), *claims[index + 1 :]]
            if allocator.with_state(weaker, node.node, ledger.state).choices is not None:
                kind = "distinctAttribute" if constraint.distinct else "matchAttribute"
                text = (
                    f"would fit on {node.name} without {kind} {constraint.attribute} in claim "
                    f"{claim.label}"
                )
                yield Remedy(text, node.row, 0.5)
    for index, claim in enumerate(claims):
        for name, weaker_claim in _without_selectors(claim):
            weaker = [*claims[:index], weaker_claim, *claims[index + 1 :]]
            if allocator.with_state(weaker, node.node, ledger.state).choices is not None:
                text = (
                    f"would fit on {node.name} if the selectors of request {name} in claim "
                    f"{claim.label} chose one of its devices"
                )
                yield Remedy(text, node.row, 0.8)
    capacity = _capacity_to_free(allocator, ledger, claims, node)
    if capacity is not None:
        yield capacity
        return
    table = ledger.devices.table(node.node)
    holders = [
        (holder, held)
        for holder, held in ledger.holders()
        if any(one.id in table.index for one in held)
    ]
    for holder, held in holders[:_MOST_CLAIMS]:
        state = ledger.state.copy()
        state.release(held)
        if allocator.with_state(claims, node.node, state).choices is not None:
            count = len(held)
            devices = f"the {count} devices" if count > 1 else "the device"
            verb = "were" if count > 1 else "was"
            text = f"would fit on {node.name} if {devices} of claim {holder} {verb} freed"
            yield Remedy(text, node.row, float(count), frees=False)
            return
    state = ledger.state.copy()
    for _, held in holders:
        state.release(held)
    if len(holders) > 1 and allocator.with_state(claims, node.node, state).choices is not None:
        text = f"would fit on {node.name} if devices of several claims were freed"
        yield Remedy(text, node.row, float(len(holders)), frees=True)


def _capacity_to_free(
    allocator: NodeAllocator, ledger: DeviceLedger, claims: Sequence[ClaimToAllocate], node: NodeRow
) -> Remedy | None:
    """Return what the shared device of a node that lacks the least would have to have free."""
    table = ledger.devices.table(node.node)
    shared = [device for device in table.devices if device.id in ledger.state.capacity]
    found = []
    for device in shared[:_MOST_DEVICES]:
        unused = {**ledger.state.capacity, device.id: {}}
        state = dataclasses.replace(ledger.state, capacity=unused)
        choices = allocator.with_state(claims, node.node, state).choices
        if choices is not None:
            short = _short(device, [one for own in choices for one in own], ledger)
            if short.missing:
                found.append(short)
    if not found:
        return None
    best = min(found, key=lambda one: one.cost)
    amounts = " and ".join(
        f"{_text(best.device, name, amount)} of {name}" for name, amount in best.missing.items()
    )
    text = f"would fit on {node.name} if {amounts} of device {best.device.id.device} was freed"
    return Remedy(text + _fragmented(found, best), node.row, best.cost, frees=True)


def _short(device: PoolDevice, choices: Sequence[Choice], ledger: DeviceLedger) -> _Short:
    """Return what a device lacks for the shares that it would have to serve."""
    wanted: dict[str, Amount] = {}
    for one in choices:
        if one.device.id == device.id:
            for name, amount in (one.consumed or {}).items():
                wanted[name] = wanted.get(name, 0) + amount
    used = ledger.state.capacity[device.id]
    left = {name: device.spec.capacity[name].value.number - used.get(name, 0) for name in wanted}
    return _Short(device, wanted, left)


def _fragmented(found: Sequence[_Short], best: _Short) -> str:
    """Say what is left of each of several devices if that were enough on one of them."""
    name = next(iter(best.missing))
    left = sorted((one.left.get(name, 0) for one in found), reverse=True)
    if len(left) < 2 or sum(left) < best.wanted[name]:
        return ""
    reported = ", ".join(_text(best.device, name, amount) for amount in left[:_MOST_LISTED])
    return f"; its devices have {reported} left: fragmented"


def _text(device: PoolDevice, name: str, amount: Amount) -> str:
    return as_quantity(amount, device.spec.capacity[name].value).text
