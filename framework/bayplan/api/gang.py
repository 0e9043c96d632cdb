"""Gangs in bayplan's own words; every ecosystem's spelling is turned into these."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Gang", "Gather", "Membership"]


@dataclass(frozen=True)
class Gather:
    """Put the members into one domain of a network layer: a must, or a preference."""

    layer: str
    required: bool


@dataclass(frozen=True)
class Gang:
    """Pods that run together or not at all.

    ``min_member`` counts the members that have to be placed at once; ``problem`` says what is
    wrong with the gang's definition, and keeps it pending.
    """

    key: str
    min_member: int
    gather: tuple[Gather, ...] = ()
    problem: str | None = None


@dataclass(frozen=True)
class Membership:
    """A pod's place in a gang: the gang's key and, where given, the pod's rank in it."""

    gang: str | None
    rank: int | None = None
    problem: str | None = None
