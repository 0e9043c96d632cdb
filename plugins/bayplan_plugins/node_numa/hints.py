"""What the kubelet's Topology Manager would decide: hints for each resource, merged by a policy.

A hint is a set of NUMA nodes, as a mask, that together have enough of a resource. It is preferred
when no smaller set could ever have enough. The policies: best-effort takes the best merged hint or
none, restricted refuses what is not preferred, single-numa-node what is not one node (Kubernetes,
pkg/kubelet/cm/topologymanager).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias

__all__ = ["Amounts", "Policy", "affinity", "fill", "masks"]

Policy: TypeAlias = Literal["none", "best-effort", "restricted", "single-numa-node"]
Amounts: TypeAlias = tuple[int, ...]
"""An amount of one resource on each NUMA node; cpu in milli, everything else in its own unit."""
_MOST_NODES = 8
"""The Topology Manager does not start on machines with more NUMA nodes, unless told to."""


@dataclass(frozen=True, slots=True)
class _Hint:
    mask: int
    preferred: bool


@lru_cache(maxsize=64)
def masks(size: int) -> tuple[int, ...]:
    """Return all sets of NUMA nodes, small ones first, then those with the lowest nodes.

    Of more than 8 nodes only single ones, and all together.
    """
    if size > _MOST_NODES:
        return (*(1 << node for node in range(size)), (1 << size) - 1)
    return tuple(sorted(range(1, 1 << size), key=lambda mask: (mask.bit_count(), mask)))


def affinity(
    policy: Policy,
    needs: Mapping[str, int],
    free: Mapping[str, Amounts],
    capacity: Mapping[str, Amounts],
) -> int | None:
    """Return the NUMA nodes, as a mask, that a container or pod would get; None for a refusal.

    Resources that no NUMA node reports give no hint. 0 means that there is no preference.
    """
    if policy == "none":
        return 0
    wanted = {name: need for name, need in needs.items() if need and any(capacity.get(name, ()))}
    if not wanted:
        return 0
    hints = [_hints(need, free[name], capacity[name]) for name, need in wanted.items()]
    if policy == "single-numa-node":
        for mask in masks(len(next(iter(free.values())))):
            if mask.bit_count() > 1:
                return None
            if all(_Hint(mask, True) in own for own in hints):
                return mask
        return None
    best = _merged(hints, len(next(iter(free.values()))))
    if policy == "restricted" and not best.preferred:
        return None
    return best.mask


def _hints(need: int, free: Amounts, capacity: Amounts) -> list[_Hint]:
    """Return the sets with enough that is free."""
    sets = masks(len(free))
    enough = [mask.bit_count() for mask in sets if _sum(capacity, mask) >= need]
    least = min(enough, default=0)
    return [_Hint(m, m.bit_count() == least) for m in sets if _sum(free, m) >= need]


@lru_cache(maxsize=65536)
def _sum(amounts: Amounts, mask: int) -> int:
    return sum(amount for node, amount in enumerate(amounts) if mask >> node & 1)


def _merged(hints: Sequence[Sequence[_Hint]], size: int) -> _Hint:
    """Return the best of all combinations of one hint for each resource: the nodes in all of them.

    Preferred comes before not preferred, then the fewest nodes, then the lowest.
    """
    full = (1 << size) - 1
    found = {(full, True)}
    for own in hints:
        # A resource without any hint fits nowhere: nothing is preferred then.
        options = own or [_Hint(full, False)]
        found = {
            (mask & hint.mask, preferred and hint.preferred)
            for mask, preferred in found
            for hint in options
            if mask & hint.mask
        }
    if not found:
        return _Hint(full, False)
    mask, preferred = min(found, key=lambda one: (not one[1], one[0].bit_count(), one[0]))
    return _Hint(mask, preferred)


def fill(need: int, free: Amounts, mask: int) -> Amounts:
    """Return how much is taken of each NUMA node: of those in the mask first, the lowest first."""
    size = len(free)
    order = [n for n in range(size) if mask >> n & 1] + [
        n for n in range(size) if not mask >> n & 1
    ]
    taken = [0] * size
    for node in order:
        taken[node] = min(need, max(0, free[node]))
        need -= taken[node]
    return tuple(taken)
