"""One try to put a unit into one placement, and what it may cost."""

from __future__ import annotations

from collections.abc import Sequence, Set

import msgspec

from bayplan.cycle.reservations import Reserved
from bayplan.gangs.completeness import missing_role, needs_no_minimum
from bayplan.plugin.base import DomainTrial, Placement, Unit
from bayplan.plugin.decision import PodDecision
from bayplan.snapshot import Snapshot

__all__ = ["STEPS", "WORK", "Attempt", "SearchBudget", "lacking", "node_count"]

STEPS = 4_000
"""Tentative placements beyond the plans in one cycle; 0.05 to 0.1 ms each."""
WORK = 50_000
"""The most pods that one cycle places tentatively, including those of plans."""


class SearchBudget(msgspec.Struct):
    """What is left of one cycle's search.

    ``steps`` counts down the tentative placements of the search, ``placed`` counts up all tentative
    placements, including those of plans.
    """

    steps: int = STEPS
    placed: int = 0


class Attempt(msgspec.Struct):
    """One try to put a unit into one placement: who has a node, who has none, and why.

    ``budget`` is shared by the attempts of a cycle. ``closest`` is the way that came furthest: how
    many pods it placed, all decisions, and the decisions of those that failed. ``without``
    are the plugins that are not asked at Reserve and Permit.
    """

    placement: Placement
    budget: SearchBudget
    reserved: list[Reserved] = msgspec.field(default_factory=list)
    pods: dict[str, PodDecision] = msgspec.field(default_factory=dict)
    failed: list[PodDecision] = msgspec.field(default_factory=list)
    domains: list[DomainTrial] = msgspec.field(default_factory=list)
    waits: dict[str, dict[str, float]] = msgspec.field(default_factory=dict)
    refusal: tuple[str, str] | None = None
    lack: str | None = None
    score: float = 0.0
    closest: tuple[int, dict[str, PodDecision], list[PodDecision]] | None = None
    without: Set[str] = frozenset()


def lacking(unit: Unit, reserved: Sequence[Reserved]) -> str | None:
    """Return what a gang still lacks when only these members are placed; None for nothing."""
    gang = unit.gang
    if gang is None:
        return None
    if len(reserved) < unit.min_placed:
        return f"{len(reserved)} of {unit.min_placed} members have a node"
    if needs_no_minimum(gang, unit.satisfied):
        return None
    placed = [*(one.pod for one in reserved), *(pod for pod, _ in unit.bound), *unit.succeeded]
    missing = missing_role(gang, placed)
    if missing is not None:
        role, have, least = missing
        return f'{have} of {least} members of role "{role}" have a node'
    return None


def node_count(placement: Placement, snapshot: Snapshot) -> int:
    """Return how many nodes a placement has."""
    return len(snapshot.nodes) if placement.rows is None else len(placement.rows)
