"""What the kubelet's Topology Manager would decide: hints for each resource, merged by a policy.

A hint is a set of NUMA nodes, as a bit mask, that together have enough of a resource. It is
preferred if no smaller set could ever have enough. A merged hint is preferred only if all resources
have the same preferred set. Policies: best-effort takes the best merged hint, restricted refuses
pods without a preferred one, single-numa-node those without a single node (Kubernetes,
pkg/kubelet/cm/topologymanager).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Literal, TypeAlias

import msgspec

__all__ = ["Amounts", "Hints", "Policy", "affinity", "fill", "masks", "sum_of"]

Policy: TypeAlias = Literal["none", "best-effort", "restricted", "single-numa-node"]
Amounts: TypeAlias = tuple[int, ...]
"""The amount of one resource on each NUMA node; milli-CPU, everything else in its own unit."""
_MOST_NODES = 8
"""The Topology Manager does not start on machines with more NUMA nodes by default."""


class Hints(msgspec.Struct, frozen=True):
    """The sets with enough of a resource, smallest first; those of size ``width`` are preferred."""

    masks: tuple[int, ...]
    width: int


@lru_cache(maxsize=64)
def masks(size: int) -> tuple[int, ...]:
    """Return all sets of NUMA nodes as bit masks, by size, then lowest nodes first.

    With more than 8 nodes: only single nodes, and all of them.
    """
    if size > _MOST_NODES:
        return (*(1 << node for node in range(size)), (1 << size) - 1)
    return tuple(sorted(range(1, 1 << size), key=lambda mask: (mask.bit_count(), mask)))


def affinity(
    policy: Policy,
    needs: Mapping[str, int],
    free: Mapping[str, Amounts],
    capacity: Mapping[str, Amounts],
    reused: Mapping[str, Amounts] = MappingProxyType({}),
    memory: Hints | None = None,
) -> int | None:
    """Return the NUMA nodes, as a bit mask, that a container or pod would get; None: refused.

    Resources that no NUMA node reports give no hint. 0 means that there is no preference.

    :param capacity: everything there is, even what is reserved for the system or unhealthy.
    :param reused: the part of ``free`` that init containers leave behind; the result includes
        every NUMA node with some of it.
    :param memory: the hints of the memory manager; without any set they say nothing.
    """
    if policy == "none":
        return 0
    wanted = {name: need for name, need in needs.items() if need and any(capacity.get(name, ()))}
    hints = [
        _hints(need, free[name], capacity[name], reused.get(name, ()))
        for name, need in wanted.items()
    ]
    if memory is not None and memory.masks:
        hints.append(memory)
    if not hints:
        return 0
    agreed = _agreed(hints)
    if agreed is not None and (policy != "single-numa-node" or agreed.bit_count() == 1):
        return agreed
    return _compromise(hints, len(next(iter(free.values())))) if policy == "best-effort" else None


def _hints(need: int, free: Amounts, capacity: Amounts, reused: Amounts) -> Hints:
    sets = masks(len(free))
    least = sum(1 << node for node, amount in enumerate(reused) if amount)
    widths = (mask.bit_count() for mask in sets if sum_of(capacity, mask) >= need)
    enough = (mask for mask in sets if mask & least == least and sum_of(free, mask) >= need)
    return Hints(tuple(enough), min(widths, default=0))


@lru_cache(maxsize=65536)
def sum_of(amounts: Amounts, mask: int) -> int:
    """Return what the NUMA nodes of a set have together."""
    return sum(amount for node, amount in enumerate(amounts) if mask >> node & 1)


def _agreed(hints: Sequence[Hints]) -> int | None:
    """Return the lowest set that all resources prefer, None if there is none."""
    first, *others = hints
    if any(other.width != first.width for other in others):
        return None
    for mask in first.masks:
        if mask.bit_count() == first.width and all(mask in other.masks for other in others):
            return mask
    return None


def _compromise(hints: Sequence[Hints], size: int) -> int:
    """Return the best intersection of one set per resource, where no set is preferred by all.

    Its size is that of the largest minimum over the resources, else the next smaller one; then the
    lowest nodes win. Resources without any hint are ignored.
    """
    with_any = [own.masks for own in hints if own.masks]
    common = {(1 << size) - 1}
    for own in with_any:
        common = {mask & other for mask in common for other in own}
    most = max((own[0].bit_count() for own in with_any), default=0)

    def rank(mask: int) -> tuple[bool, int, int]:
        width = mask.bit_count()
        return (width > most, width if width > most else -width, mask)

    return min(common - {0}, key=rank, default=(1 << size) - 1)


def fill(need: int, free: Amounts, mask: int, reused: Amounts = ()) -> Amounts:
    """Return how much of a need is taken from each NUMA node.

    ``reused`` amounts are taken first, then those in the mask, the lowest NUMA node first.
    """
    taken = [0] * len(free)
    order = sorted(range(len(free)), key=lambda node: (not mask >> node & 1, node))
    for limits in (reused, free) if reused else (free,):
        for node in order:
            more = min(need, max(0, limits[node] - taken[node]))
            taken[node] += more
            need -= more
    return tuple(taken)
