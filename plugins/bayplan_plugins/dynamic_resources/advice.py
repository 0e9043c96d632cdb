"""What would let a node serve a pod's claims, found by trial."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from bayplan import NodeRow, Remedy
from bayplan.naming import counted
from bayplan_dra.allocator import ClaimToAllocate, SelectorError
from bayplan_plugins.dynamic_resources.ledger import DeviceLedger
from bayplan_plugins.dynamic_resources.node_allocator import NodeAllocator

__all__ = ["advice", "guarded_selectors"]

_MOST_CLAIMS = 16


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
    """Yield remedies for one node: a constraint or selectors to drop, a claim to free."""
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
