"""What would let a node serve a pod's claims: found by trying it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from bayplan import NodeRow, Remedy
from bayplan_dra.allocator import ClaimToAllocate
from bayplan_plugins.dynamic_resources.ledger import DeviceLedger
from bayplan_plugins.dynamic_resources.solver import NodeSolver

__all__ = ["advice"]

_MOST_CLAIMS = 16


def advice(
    solver: NodeSolver, ledger: DeviceLedger, claims: Sequence[ClaimToAllocate], node: NodeRow
) -> Iterator[Remedy]:
    """Yield remedies for one node: a claim to be freed, a constraint or a taint to be lifted."""
    for index, claim in enumerate(claims):
        for constraint in claim.constraints:
            rest = tuple(other for other in claim.constraints if other is not constraint)
            weaker = [*claims[:index], replace(claim, constraints=rest), *claims[index + 1 :]]
            if solver.with_state(weaker, node.node, ledger.state).choices is not None:
                kind = "distinctAttribute" if constraint.distinct else "matchAttribute"
                text = (
                    f"would fit on {node.name} without {kind} {constraint.attribute} in claim "
                    f"{claim.label}"
                )
                yield Remedy(text, node.row, 0.5)
    table = ledger.table(node.node)
    holders = [
        (holder, held)
        for holder, held in ledger.holders()
        if any(one.id in table.index for one in held)
    ]
    for holder, held in holders[:_MOST_CLAIMS]:
        state = ledger.state.copy()
        state.release(held)
        if solver.with_state(claims, node.node, state).choices is not None:
            count = len(held)
            devices = f"{count} device{'s'[: count > 1]}"
            text = f"would fit on {node.name} if the {devices} of claim {holder} were freed"
            yield Remedy(text, node.row, float(count), frees=False)
            return
