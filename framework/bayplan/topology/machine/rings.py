"""Rings: in which order a collective passes GPUs, and what such a ring carries.

A ring collective runs at the speed of its slowest edge. GPUs that are connected by several NVLinks
carry several rings at once: on a DGX-1V, {0, 1, 2, 3} carry two rings of single links in either
direction, which is 100 GB/s; {0, 1, 4, 5} only one. Formulas: nccl-tests, doc/PERFORMANCE.md.
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
    """Return bus bandwidth over algorithm bandwidth of a collective over so many ranks."""
    if collective == "all-reduce":
        return 2 * (ranks - 1) / ranks
    if collective in ("all-gather", "reduce-scatter", "all-to-all"):
        return (ranks - 1) / ranks
    if collective in BUS_FACTORS:
        return 1.0
    raise ValueError(f"there is no collective {collective!r} (there is {', '.join(BUS_FACTORS)})")


def all_reduce_seconds(size: float, ranks: int, gbps: float) -> float:
    """Return how long a large ring all-reduce of ``size`` bytes takes at ``gbps`` GB/s."""
    return bus_factor("all-reduce", ranks) * size / (gbps * 1e9) if ranks > 1 else 0.0


# One ring ------------------------------------------------------------------------------------


def ring_edges(order: Sequence[int]) -> list[tuple[int, int]]:
    """Return the edges of a ring; none for one GPU, one edge there and back for two."""
    if len(order) < 2:
        return []
    return [*pairwise(order), (order[-1], order[0])]


def slowest_edge(bandwidth: Matrix, order: Sequence[int]) -> float:
    """Return the bandwidth of a ring's slowest edge; infinite for one GPU."""
    return min((float(bandwidth[a, b]) for a, b in ring_edges(order)), default=float("inf"))


def ring_order(bandwidth: Matrix, gpus: Sequence[int]) -> tuple[int, ...]:
    """Return GPUs in the order of their best ring, the lowest index first.

    Best is the fastest slowest edge, then the least sum of 1/bandwidth, then the lowest indices.
    Exact for up to 8 GPUs; for up to 16 in the slowest edge, while the sum is that of 2-opt from
    several rings; above, the slowest edge is that of the best ring found in bounded time, too.
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
    """Try every ring from 0, cutting what is slower or longer than the best."""
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
    """Return the best of several rings whose slowest edge is the fastest known, each improved."""
    size = len(own)
    speed: list[list[float]] = own.tolist()
    floor = _best_floor(speed)
    cost = np.where(own > 0, _cost(own), 0.0)
    # More than any ring, so that an edge that is too slow is never worth what it saves.
    cost[(own < floor) | (own == 0)] += cost.sum() + 1.0
    costs: list[list[float]] = cost.tolist()
    starts = [list(range(size)), _by_nearest(costs)]
    # There is such a ring, be it that of the indices.
    starts.append(_find_ring(_edges(speed, floor)) or starts[0])
    rings = [_improved(start, costs) for start in starts]
    order = min(rings, key=lambda ring: sum(costs[a][b] for a, b in ring_edges(ring)))
    return order if order[1] < order[-1] else [order[0], *order[:0:-1]]


def _by_nearest(cost: Sequence[Sequence[float]]) -> list[int]:
    """Return a ring that goes to the nearest GPU left, from 0."""
    order = [0]
    left = list(range(1, len(cost)))
    while left:
        nearest = min(left, key=lambda other: (cost[order[-1]][other], other))
        left.remove(nearest)
        order.append(nearest)
    return order


def _improved(order: list[int], cost: Sequence[Sequence[float]]) -> list[int]:
    """Turn stretches of a ring as long as that makes it shorter (2-opt)."""
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
    """What rings over any set of a machine's GPUs carry; answers are kept.

    Slowest edges are exact for up to 16 GPUs; above, those of the best ring found in bounded time.
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
        """Return the slowest edge of the best single ring, GB/s on the wire."""
        mask = _mask(gpus)
        found = self._known.get(mask)
        if found is None:
            found = self._known[mask] = _slowest(self._wire, sorted(gpus))
        return found

    def over_nvlink(self, gpus: Sequence[int]) -> bool:
        """Tell whether a ring passes these GPUs over NVLink alone; one GPU needs none."""
        if len(gpus) < 2:
            return True
        mask = _mask(gpus)
        found = self._over_nvlink.get(mask)
        if found is None:
            found = self._over_nvlink[mask] = _slowest(self._nvlink, sorted(gpus)) > 0
        return found

    def parallel(self, gpus: Sequence[int]) -> int:
        """Return how many rings of single NVLinks the GPUs carry at once, in both directions.

        0 where GPUs are connected through switches, whose ports one ring fills. Exact for up to 8
        GPUs; above, one ring in both directions is counted.
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
        """Return what all rings together carry, GB/s on the wire; infinite for one GPU."""
        return max(self.slowest(gpus), self.parallel(gpus) * self._machine.link.wire)

    def bounds(self, members: Matrix) -> Matrix:
        """Return upper bounds of ``bandwidth`` for sets given as rows of 0 and 1."""
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
        """Return the wire's and NCCL's bandwidth of all rings together."""
        wire = self.bandwidth(gpus)
        if len(gpus) < 2:
            return Bandwidth(wire, wire)
        single = _slowest(self._machine.effective.tolist(), sorted(gpus))
        parallel = self.parallel(gpus) * self._machine.link.effective
        return Bandwidth(wire, max(single, parallel))


@lru_cache(maxsize=256)
def ring_model(machine: Machine) -> RingModel:
    """Return the model of a machine; one for each."""
    return RingModel(machine)


def _mask(gpus: Sequence[int]) -> int:
    mask = 0
    for gpu in gpus:
        mask |= 1 << gpu
    return mask


def _slowest(speed: Sequence[Sequence[float]], gpus: Sequence[int]) -> float:
    """Return the fastest slowest edge of a ring: the largest value whose edges still hold one."""
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
    """Return the largest value whose edges, with all that are faster, hold a ring."""
    size = len(own)
    values = sorted({own[a][b] for a in range(size) for b in range(a)}, reverse=True)
    if len(values) == 1:
        return values[0]
    return next((value for value in values if _has_ring(_edges(own, value))), 0.0)


def _edges(own: Sequence[Sequence[float]], least: float) -> list[int]:
    """Return the graph of the edges with a bandwidth or more, as a mask of neighbours each."""
    size = len(own)
    return [sum(1 << b for b in range(size) if b != a and own[a][b] >= least) for a in range(size)]


def _has_ring(edges: Sequence[int]) -> bool:
    """Tell whether a graph, given as a mask of neighbours each, has a Hamiltonian cycle.

    Few edges at a vertex say no, many at all of them yes (Dirac); else by dynamic programming over
    the sets of vertices passed. Of more than 16 vertices, whether one is found in bounded time.
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
    """Return a Hamiltonian cycle of a graph, from vertex 0; [] where none is found.

    The search is taken up at each vertex, with more steps from turn to turn: what is hopeless from
    one is often easy from another. Up to 16 vertices it goes on until it is through.
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
    """Search a Hamiltonian cycle in so many steps; tell, too, whether all paths were tried."""
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
    """Return where a path may go on, the vertex with the fewest ways on at the end.

    Nowhere, if a vertex is left that cannot be both entered and left any more.
    """
    reach = left | 1 << path[-1] | 1 << path[0]
    ways = {v: (edges[v] & reach).bit_count() for v in range(len(edges)) if left >> v & 1}
    if min(ways.values(), default=0) < 2:
        return []
    return sorted((v for v in ways if edges[path[-1]] >> v & 1), key=lambda v: (-ways[v], -v))


def _disjoint_rings(links: list[list[int]]) -> int:
    """Return how many rings share a multigraph so that no link is in two of them."""
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
    """Return every ring over all vertices, those with the most links on their thinnest edge first.

    In a ring of three an edge is passed once, as in any larger one.
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
