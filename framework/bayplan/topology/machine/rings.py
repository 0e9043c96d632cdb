"""Rings: the order in which a collective passes GPUs, and the bandwidth of such a ring.

A ring collective runs at the speed of its slowest edge. GPUs connected by several NVLinks carry
several rings at once: on a DGX-1V, {0, 1, 2, 3} carry two rings of single links in each direction,
which is 100 GB/s; {0, 1, 4, 5} carry only one. Formulas: nccl-tests, doc/PERFORMANCE.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from bayplan.topology.machine.bandwidth import Bandwidth
from bayplan.topology.machine.model import Machine

__all__ = [
    "BUS_FACTORS",
    "RingModel",
    "all_reduce_seconds",
    "bus_factor",
    "ring_edges",
    "ring_model",
    "ring_order",
    "slowest_edge",
]

Matrix = npt.NDArray[np.float64]
_EXACT_ORDER = 8
_EXACT_RING = 16
_MOST_STEPS = 20_000
_STEPS_TO_FIND = 200

BUS_FACTORS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast", "reduce")
"""The collectives that ``bus_factor`` knows."""


def bus_factor(collective: str, ranks: int) -> float:
    """Return the ratio of bus bandwidth to algorithm bandwidth of a collective.

    :raises ValueError: for a collective that is not in ``BUS_FACTORS``.
    """
    if collective == "all-reduce":
        return 2 * (ranks - 1) / ranks
    if collective in ("all-gather", "reduce-scatter", "all-to-all"):
        return (ranks - 1) / ranks
    if collective in BUS_FACTORS:
        return 1.0
    raise ValueError(f"there is no collective {collective!r} (known: {', '.join(BUS_FACTORS)})")


def all_reduce_seconds(size: float, ranks: int, gbps: float) -> float:
    """Return the seconds of a large ring all-reduce of ``size`` bytes at ``gbps`` GB/s."""
    return bus_factor("all-reduce", ranks) * size / (gbps * 1e9) if ranks > 1 else 0.0


# One ring ------------------------------------------------------------------------------------


def ring_edges(order: Sequence[int]) -> list[tuple[int, int]]:
    """Return the edges of a ring: none for one GPU, the edge and its reverse for two."""
    if len(order) < 2:
        return []
    return [*pairwise(order), (order[-1], order[0])]


def slowest_edge(bandwidth: Matrix, order: Sequence[int]) -> float:
    """Return the bandwidth of a ring's slowest edge, infinite for one GPU."""
    return min((float(bandwidth[a, b]) for a, b in ring_edges(order)), default=float("inf"))


def ring_order(bandwidth: Matrix, gpus: Sequence[int]) -> tuple[int, ...]:
    """Return GPUs in the order of their best ring, starting with the lowest index.

    The best ring has the fastest slowest edge, then the lowest sum of 1/bandwidth, then the lowest
    indices. The result is exact for up to 8 GPUs. For up to 16 the slowest edge is exact and the
    sum is a local optimum (2-opt from several rings); above, the slowest edge is the best one found
    in bounded time, too.

    :param bandwidth: a square matrix over all GPUs of the machine, GB/s.
    """
    chosen = sorted(gpus)
    if len(chosen) < 4:
        return tuple(chosen)
    own = bandwidth[np.ix_(chosen, chosen)]
    if _is_uniform(own):
        return tuple(chosen)
    order = _exact_order(own) if len(chosen) <= _EXACT_ORDER else _improved_order(own)
    return tuple(chosen[place] for place in order)


def _is_uniform(own: Matrix) -> bool:
    off = own[~np.eye(len(own), dtype=np.bool_)]
    return bool((off == off[0]).all()) if len(off) else True


def _cost(own: Matrix) -> list[list[float]]:
    with np.errstate(divide="ignore"):
        cost: list[list[float]] = (1.0 / own).tolist()
    return cost


def _exact_order(own: Matrix) -> list[int]:
    """Return the best ring from 0 by branch and bound."""
    size = len(own)
    speed: list[list[float]] = own.tolist()
    cost = _cost(own)
    best: list[int] = []
    best_key = (float("-inf"), float("-inf"))

    def extend(path: list[int], left: list[int], slowest: float, length: float) -> None:
        nonlocal best, best_key
        if (slowest, -length) <= best_key:
            return
        last = path[-1]
        if not left:
            key = (min(slowest, speed[last][0]), -(length + cost[last][0]))
            if path[1] < last and key > best_key:
                best, best_key = path, key
            return
        for index, other in enumerate(left):
            rest = left[:index] + left[index + 1 :]
            extend(
                [*path, other], rest, min(slowest, speed[last][other]), length + cost[last][other]
            )

    extend([0], list(range(1, size)), float("inf"), 0.0)
    return best


def _improved_order(own: Matrix) -> list[int]:
    """Return the best of several rings with the fastest known slowest edge, improved by 2-opt."""
    size = len(own)
    speed: list[list[float]] = own.tolist()
    floor = _best_floor(speed)
    cost = np.where(own > 0, _cost(own), 0.0)
    # Costs more than any ring, so that an edge that is too slow never pays off.
    cost[(own < floor) | (own == 0)] += cost.sum() + 1.0
    costs: list[list[float]] = cost.tolist()
    starts = [list(range(size)), _by_nearest(costs)]
    # If the search finds no ring, the order of the indices is one.
    starts.append(_find_ring(_edges(speed, floor)) or starts[0])
    rings = [_improved(start, costs) for start in starts]
    order = min(rings, key=lambda ring: sum(costs[a][b] for a, b in ring_edges(ring)))
    return order if order[1] < order[-1] else [order[0], *order[:0:-1]]


def _by_nearest(cost: Sequence[Sequence[float]]) -> list[int]:
    """Return the ring from 0 that always goes to the nearest remaining GPU."""
    order = [0]
    left = list(range(1, len(cost)))
    while left:
        nearest = min(left, key=lambda other: (cost[order[-1]][other], other))
        left.remove(nearest)
        order.append(nearest)
    return order


def _improved(order: list[int], cost: Sequence[Sequence[float]]) -> list[int]:
    """Reverse stretches of a ring in place while that makes it shorter (2-opt)."""
    size = len(order)
    improved = True
    while improved:
        improved = False
        for i in range(1, size - 1):
            for j in range(i + 1, size):
                before, after = order[i - 1], order[(j + 1) % size]
                old = cost[before][order[i]] + cost[order[j]][after]
                new = cost[before][order[j]] + cost[order[i]][after]
                if new < old - 1e-12:
                    order[i : j + 1] = order[i : j + 1][::-1]
                    improved = True
    return order


# Rings in parallel ---------------------------------------------------------------------------


class RingModel:
    """The bandwidth of rings over sets of a machine's GPUs; answers are cached.

    The slowest edge is exact for up to 16 GPUs; above, it is that of the best ring found in bounded
    time.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._wire: list[list[float]] = machine.bandwidth.tolist()
        self._nvlink: list[list[float]] = (machine.nvlinks * machine.link.wire).tolist()
        self._direct: list[list[int]] = machine.direct.tolist()
        self._any_direct = bool(machine.direct.any())
        self._known: dict[int, float] = {}
        self._over_nvlink: dict[int, bool] = {}
        self._counts: dict[int, int] = {}

    def slowest(self, gpus: Sequence[int]) -> float:
        """Return the bandwidth of the slowest edge of the best single ring, GB/s on the wire."""
        mask = _mask(gpus)
        found = self._known.get(mask)
        if found is None:
            found = self._known[mask] = _slowest(self._wire, sorted(gpus))
        return found

    def over_nvlink(self, gpus: Sequence[int]) -> bool:
        """Tell whether the GPUs have a ring over NVLink alone; a single GPU has."""
        if len(gpus) < 2:
            return True
        mask = _mask(gpus)
        found = self._over_nvlink.get(mask)
        if found is None:
            found = self._over_nvlink[mask] = _slowest(self._nvlink, sorted(gpus)) > 0
        return found

    def parallel(self, gpus: Sequence[int]) -> int:
        """Return the number of rings of single NVLinks that the GPUs carry at once.

        Both directions count. It is 0 for GPUs that are connected through switches: there one ring
        uses all links. Exact for up to 8 GPUs; above, at most one ring in both directions counts.
        """
        if len(gpus) < 3 or not self._any_direct:
            return 0
        mask = _mask(gpus)
        found = self._counts.get(mask)
        if found is None:
            own = [[self._direct[a][b] for b in gpus] for a in gpus]
            found = self._counts[mask] = 2 * _disjoint_rings(own)
        return found

    def bandwidth(self, gpus: Sequence[int]) -> float:
        """Return the bandwidth of all rings together, GB/s on the wire, infinite for one GPU."""
        return max(self.slowest(gpus), self.parallel(gpus) * self._machine.link.wire)

    def bounds(self, members: Matrix) -> Matrix:
        """Return upper bounds of ``bandwidth`` for many sets at once.

        :param members: sets of one size as rows of 0 and 1, shape (sets, GPUs).
        :returns: GB/s on the wire, shape (sets,).
        """
        machine = self._machine
        size = int(members[0].sum())
        if size < 2:
            return np.full(len(members), np.inf)
        outside = np.where(members == 1, 0.0, np.inf)
        need = min(2, size - 1)
        off = machine.bandwidth.copy()
        np.fill_diagonal(off, 0.0)
        bound = np.zeros(len(members))
        for value in np.unique(off[off > 0]):
            edges = members @ (off >= value).astype(np.float64) + outside
            bound[(edges >= need).all(axis=1)] = value
        if self._any_direct and size > 2:
            links = (members @ machine.direct.astype(np.float64) + outside).min(axis=1)
            bound = np.maximum(bound, links // 2 * 2 * machine.link.wire)
        return bound

    def both(self, gpus: Sequence[int]) -> Bandwidth:
        """Return the bandwidth of all rings together, on the wire and as NCCL reckons."""
        wire = self.bandwidth(gpus)
        if len(gpus) < 2:
            return Bandwidth(wire, wire)
        single = _slowest(self._machine.effective.tolist(), sorted(gpus))
        parallel = self.parallel(gpus) * self._machine.link.effective
        return Bandwidth(wire, max(single, parallel))


@lru_cache(maxsize=256)
def ring_model(machine: Machine) -> RingModel:
    """Return the ring model of a machine; cached."""
    return RingModel(machine)


def _mask(gpus: Sequence[int]) -> int:
    mask = 0
    for gpu in gpus:
        mask |= 1 << gpu
    return mask


def _slowest(speed: Sequence[Sequence[float]], gpus: Sequence[int]) -> float:
    """Return the bandwidth of the slowest edge of the best ring over some GPUs."""
    size = len(gpus)
    if size < 2:
        return float("inf")
    own = [[speed[a][b] for b in gpus] for a in gpus]
    if size == 2:
        return own[0][1]
    if size > _EXACT_RING:
        matrix = np.array(own)
        return slowest_edge(matrix, _improved_order(matrix))
    return _best_floor(own)


def _best_floor(own: Sequence[Sequence[float]]) -> float:
    """Return the highest bandwidth such that edges of at least this bandwidth contain a ring."""
    size = len(own)
    values = sorted({own[a][b] for a in range(size) for b in range(a)}, reverse=True)
    if len(values) == 1:
        return values[0]
    return next((value for value in values if _has_ring(_edges(own, value))), 0.0)


def _edges(own: Sequence[Sequence[float]], least: float) -> list[int]:
    """Return the neighbours of each GPU over edges of at least ``least``, as bit masks."""
    size = len(own)
    return [sum(1 << b for b in range(size) if b != a and own[a][b] >= least) for a in range(size)]


def _has_ring(edges: Sequence[int]) -> bool:
    """Tell whether a graph has a Hamiltonian cycle.

    A vertex with fewer than two edges rules it out, and many edges at every vertex guarantee it
    (Dirac); otherwise dynamic programming over sets of visited vertices decides. For more than 16
    vertices, a search in bounded time decides.

    :param edges: the neighbours of each vertex, as bit masks.
    """
    size = len(edges)
    if size > _EXACT_RING:
        return bool(_find_ring(edges))
    degrees = [mask.bit_count() for mask in edges]
    if min(degrees) < 2:
        return False
    if 2 * min(degrees) >= size:
        return True
    full = (1 << size) - 1
    layer = {1: 1}
    for _ in range(size - 1):
        after: dict[int, int] = {}
        for passed, ends in layer.items():
            reach = 0
            left = ends
            while left:
                low = left & -left
                reach |= edges[low.bit_length() - 1]
                left ^= low
            reach &= ~passed
            while reach:
                low = reach & -reach
                grown = passed | low
                after[grown] = after.get(grown, 0) | low
                reach ^= low
        layer = after
    return bool(layer.get(full, 0) & edges[0])


def _find_ring(edges: Sequence[int]) -> list[int]:
    """Return a Hamiltonian cycle of a graph from vertex 0, [] if none is found.

    The search starts at each vertex in turn, because a start that leads nowhere is often next to an
    easy one. For up to 16 vertices, further rounds with more steps follow until the search is
    exhaustive.
    """
    size = len(edges)
    most = _STEPS_TO_FIND
    while True:
        for start in range(size):
            path, through = _search_ring(edges, start, most)
            if path:
                at = path.index(0)
                return path[at:] + path[:at]
            if through:
                return []
        if size > _EXACT_RING:
            return []
        most *= 4


def _search_ring(edges: Sequence[int], start: int, most: int) -> tuple[list[int], bool]:
    """Search for a Hamiltonian cycle in at most ``most`` steps.

    :returns: the cycle ([] if none was found), and whether the search is complete.
    """
    path = [start]
    left = ((1 << len(edges)) - 1) & ~(1 << start)
    options = [_next(edges, left, path)]
    for _ in range(most):
        while not options[-1]:
            options.pop()
            left |= 1 << path.pop()
            if not options:
                return [], True
        path.append(options[-1].pop())
        left &= ~(1 << path[-1])
        if not left and edges[path[-1]] >> start & 1:
            return path, True
        options.append(_next(edges, left, path))
    return [], False


def _next(edges: Sequence[int], left: int, path: Sequence[int]) -> list[int]:
    """Return the next vertices of a path, the one with the fewest ways on last.

    There are none if the path has cut off a vertex, which then cannot be both entered and left.
    """
    reach = left | 1 << path[-1] | 1 << path[0]
    ways = {v: (edges[v] & reach).bit_count() for v in range(len(edges)) if left >> v & 1}
    if min(ways.values(), default=0) < 2:
        return []
    return sorted((v for v in ways if edges[path[-1]] >> v & 1), key=lambda v: (-ways[v], -v))


def _disjoint_rings(links: list[list[int]]) -> int:
    """Return the highest number of rings over a multigraph that have no link in common."""
    size = len(links)
    most = min(sum(row) for row in links) // 2
    if not most:
        return 0
    if size > _EXACT_ORDER:
        return int(_has_ring([sum(1 << b for b in range(size) if row[b]) for row in links]))
    rings = _all_rings(links)
    best = 0
    steps = 0

    def pack(start: int, count: int) -> None:
        nonlocal best, steps
        best = max(best, count)
        steps += 1
        if best == most or steps > _MOST_STEPS:
            return
        if count + min(sum(row) for row in links) // 2 <= best:
            return
        for index in range(start, len(rings)):
            ring = rings[index]
            if all(links[a][b] for a, b in ring):
                for a, b in ring:
                    links[a][b] -= 1
                    links[b][a] -= 1
                pack(index, count + 1)
                for a, b in ring:
                    links[a][b] += 1
                    links[b][a] += 1
                if best == most:
                    return

    pack(0, 0)
    return best


def _all_rings(links: Sequence[Sequence[int]]) -> list[list[tuple[int, int]]]:
    """Return the edges of every ring over all vertices, the widest thinnest edge first.

    Each direction of a ring counts once.
    """
    size = len(links)
    found: list[list[int]] = []

    def extend(path: list[int], left: int) -> None:
        last = path[-1]
        if not left:
            if links[last][0] and path[1] < last:
                found.append(path)
            return
        for other in range(1, size):
            if left >> other & 1 and links[last][other]:
                extend([*path, other], left & ~(1 << other))

    extend([0], (1 << size) - 2)
    rings = [ring_edges(path) for path in found]
    return sorted(rings, key=lambda ring: -min(links[a][b] for a, b in ring))
