"""The search for the best set of GPUs.

GPUs that no fact distinguishes are interchangeable: sixteen GPUs on NVSwitches, two to a NIC, have
about a thousand different sets of eight, not 12,870. The search is exhaustive over different sets
up to that number, the eights of 16 GPUs that all differ; beyond it, it is a local search.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import product

import msgspec
import numpy as np
import numpy.typing as npt

from bayplan.naming import counted
from bayplan.topology.machine.criteria import Criteria, Criterion, Rows, as_rows
from bayplan.topology.machine.levels import Level
from bayplan.topology.machine.model import Machine
from bayplan.topology.machine.rings import ring_model

__all__ = ["NO_CONSTRAINTS", "Constraints", "GpuSetSearch", "SetRequest", "search_of"]

_MOST_SETS = 12_870
_MOST_ANSWERS = 20_000
_MOST_ROUNDS = 64


class Constraints(msgspec.Struct, frozen=True):
    """Conditions that a set has to meet.

    ``nvlink`` requires a ring over NVLink alone. ``min_bandwidth`` is in GB/s, for all rings
    together. ``worst_level`` is the farthest level allowed between two of the GPUs.
    """

    same_numa: bool = False
    nvlink: bool = False
    min_bandwidth: float = 0.0
    worst_level: Level = Level.SYS

    def __str__(self) -> str:
        parts = []
        if self.nvlink:
            parts.append("NVLink alone")
        if self.same_numa:
            parts.append("one NUMA node")
        if self.min_bandwidth:
            parts.append(f"at least {self.min_bandwidth:g} GB/s")
        if self.worst_level < Level.SYS:
            parts.append(f"no farther than {self.worst_level.name}")
        return ", ".join(parts) or "no constraint"


NO_CONSTRAINTS = Constraints()


class SetRequest(msgspec.Struct, frozen=True):
    """What to search for: a ``select.SelectionRequest`` without its policy. It is a cache key."""

    count: int
    required: frozenset[int] = frozenset()
    constraints: Constraints = NO_CONSTRAINTS
    rails: frozenset[int] = frozenset()
    multi_node: bool = False


@lru_cache(maxsize=256)
def search_of(machine: Machine) -> GpuSetSearch:
    """Return the search of a machine; cached, as each search caches its answers."""
    return GpuSetSearch(machine)


class GpuSetSearch:
    """Finds the best set of one machine's GPUs, and caches the answers."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._rings = ring_model(machine)
        self._criteria = Criteria(machine)
        off = machine.bandwidth[~np.eye(len(machine), dtype=np.bool_)]
        self._values = np.unique(off)
        pairs = (machine.direct > 0).sum(axis=1).max(initial=0) <= 1
        self._nested = bool(pairs) and _is_nested(machine.bandwidth)
        self._equal: dict[tuple[int, int], bool] = {}
        self._answers: dict[tuple[tuple[int, ...], SetRequest], tuple[int, ...] | None] = {}

    def best(self, free: tuple[int, ...], request: SetRequest) -> tuple[int, ...] | None:
        """Return the best set of the free GPUs in rising order, None if none meets the constraints.

        :param free: the indices of the free GPUs, in rising order.
        """
        key = (free, request)
        if key not in self._answers:
            if len(self._answers) >= _MOST_ANSWERS:
                self._answers.clear()
            self._answers[key] = self._best(free, request)
        return self._answers[key]

    def meets(self, gpus: Sequence[int], constraints: Constraints) -> bool:
        """Tell whether a set meets constraints."""
        return len(self._allowed(as_rows([gpus], len(self._machine)), constraints)) == 1

    def key(
        self, free: tuple[int, ...], gpus: Sequence[int], request: SetRequest
    ) -> tuple[float, ...]:
        """Return all values by which a set is compared, the bandwidth of its rings first."""
        row = as_rows([gpus], len(self._machine))
        rest = [make(row)[0] for make in self._order(free, request)]
        return (self._rings.bandwidth(gpus), *np.concatenate(rest).tolist())

    def _best(self, free: tuple[int, ...], request: SetRequest) -> tuple[int, ...] | None:
        classes = self._alike(free, request)
        need = request.count - len(request.required)
        sets = _different_sets(classes, need)
        exact = sets is not None
        if sets is None:
            sets = np.array(self._seeds(classes, need, request.required), dtype=np.intp)
        given = np.tile(sorted(request.required), (len(sets), 1)).astype(np.intp)
        whole = np.sort(np.concatenate([given, sets], axis=1), axis=1)
        # Sorted by index, so that the first among equals has the lowest indices.
        whole = whole[np.lexsort(whole.T[::-1])]
        rows = self._allowed(as_rows(whole, len(self._machine)), request.constraints)
        if not len(rows):
            return None
        found = self._first(rows, free, request)
        if not exact:
            found = self._improved(found, free, request)
        return tuple(np.flatnonzero(found).tolist())

    # The order ---------------------------------------------------------------------------

    def _order(self, free: Sequence[int], request: SetRequest) -> Iterator[Criterion]:
        """Yield the criteria that come after the bandwidth, the most important first."""
        criteria = self._criteria
        if self._machine.nics:
            yield criteria.nics
            if request.rails:
                yield criteria.rails(request.rails)
            if request.multi_node:
                yield criteria.nic_bandwidth
        yield criteria.numa_nodes
        if self._machine.nics:
            yield criteria.nic_distances
        yield criteria.left(as_rows([free], len(self._machine))[0])
        yield criteria.locality

    def _first(
        self, rows: Rows, free: Sequence[int], request: SetRequest
    ) -> npt.NDArray[np.float64]:
        """Return the best row, the first among equals."""
        rows = self._fastest(rows)
        for make in self._order(free, request):
            if len(rows) == 1:
                break
            block = make(rows)
            for column in range(block.shape[1]):
                keep = block[:, column] == block[:, column].max()
                if not keep.all():
                    rows, block = rows[keep], block[keep]
        best: npt.NDArray[np.float64] = rows[0]
        return best

    def _fastest(self, rows: Rows) -> Rows:
        """Keep the rows whose rings carry the most."""
        if len(rows) == 1 or rows[0].sum() < 2:
            return rows
        if self._nested:
            speeds = self._narrowest_pairs(rows)
            nearest: Rows = rows[speeds == speeds.max()]
            return nearest
        bounds = self._rings.bounds(rows)
        speeds = np.zeros(len(rows))
        best = 0.0
        for row in np.argsort(-bounds, kind="stable").tolist():
            if bounds[row] < best:
                break
            speeds[row] = self._rings.bandwidth(np.flatnonzero(rows[row]).tolist())
            best = max(best, speeds[row])
        fastest: Rows = rows[speeds == best]
        return fastest

    def _narrowest_pairs(self, rows: Rows) -> npt.NDArray[np.float64]:
        """Return the lowest bandwidth of any pair in each row, GB/s.

        It is the bandwidth of a ring if bandwidths are nested: of any three GPUs, the two slowest
        pairs are equally fast.
        """
        speeds: npt.NDArray[np.float64] = np.full(len(rows), self._values[-1])
        if len(self._values) > 1:
            for value in self._values[::-1]:
                slow = (self._machine.bandwidth <= value).astype(np.float64)
                speeds[((rows @ slow) * rows).sum(axis=1) > 0] = value
        return speeds

    # Constraints -------------------------------------------------------------------------

    def _allowed(self, rows: Rows, constraints: Constraints) -> Rows:
        if constraints.same_numa:
            rows = rows[self._criteria.on_one_numa(rows)]
        if constraints.worst_level < Level.SYS:
            rows = rows[self._criteria.within(rows, constraints.worst_level)]
        if constraints.min_bandwidth and len(rows):
            rows = rows[self._rings.bounds(rows) >= constraints.min_bandwidth]
        if not constraints.nvlink and not constraints.min_bandwidth:
            return rows
        keep = [self._is_fast(np.flatnonzero(row).tolist(), constraints) for row in rows]
        return rows[np.array(keep, dtype=np.bool_)]

    def _is_fast(self, gpus: Sequence[int], constraints: Constraints) -> bool:
        if constraints.nvlink and not self._rings.over_nvlink(gpus):
            return False
        return self._rings.bandwidth(gpus) >= constraints.min_bandwidth

    # Interchangeable GPUs ----------------------------------------------------------------

    def _alike(self, free: Sequence[int], request: SetRequest) -> list[list[int]]:
        """Return the free GPUs that are not required, in groups of interchangeable ones."""
        criteria = self._criteria
        now = set(free)
        states = [
            (
                gpu in now,
                gpu in request.required,
                criteria.numa[gpu],
                criteria.nic_distance[gpu],
                bool(criteria.rails_of(gpu) & request.rails),
            )
            for gpu in range(len(self._machine))
        ]
        classes: list[list[int]] = []
        for gpu in free:
            if gpu in request.required:
                continue
            for group in classes:
                if states[gpu] == states[group[0]] and self._exchangeable(gpu, group[0]):
                    group.append(gpu)
                    break
            else:
                classes.append([gpu])
        return classes

    def _exchangeable(self, a: int, b: int) -> bool:
        """Tell whether swapping two GPUs, and NICs accordingly, leaves the machine the same."""
        if (a, b) not in self._equal:
            self._equal[a, b] = self._compare(a, b)
        return self._equal[a, b]

    def _compare(self, a: int, b: int) -> bool:
        machine = self._machine
        size = len(machine)
        others = np.ones(size, dtype=np.bool_)
        others[[a, b]] = False
        for matrix in (machine.bandwidth, machine.direct, machine.levels[:size, :size]):
            if (matrix[a][others] != matrix[b][others]).any():
                return False
        order = list(range(size))
        order[a], order[b] = b, a
        return self._nic_users(order) == self._nic_users(range(size))

    def _nic_users(self, names: Sequence[int]) -> list[tuple[float, tuple[int, ...]]]:
        """Return, sorted, the rate of each NIC near any GPU and the given names of these GPUs."""
        users: dict[int, list[int]] = {}
        for gpu, nics in enumerate(self._criteria.near_nics):
            for nic in nics:
                users.setdefault(nic, []).append(names[gpu])
        rates = self._machine.nics
        return sorted((rates[nic].rate, tuple(sorted(gpus))) for nic, gpus in users.items())

    # Local search ------------------------------------------------------------------------

    def _seeds(
        self, classes: Sequence[Sequence[int]], need: int, required: frozenset[int]
    ) -> list[list[int]]:
        """Return one set to start from for each class: the GPUs nearest to one of its members."""
        free = [gpu for group in classes for gpu in group]
        seeds = []
        for group in classes:
            center = min(required, default=group[0])
            order = sorted(free, key=lambda gpu: (gpu != group[0], *self._distance(gpu, center)))
            seeds.append(order[:need])
        return seeds

    def _distance(self, gpu: int, center: int) -> tuple[float, bool, int]:
        numa = self._criteria.numa
        speed = float(self._machine.bandwidth[gpu, center])
        return (-speed, numa[gpu] != numa[center], gpu)

    def _improved(
        self, start: npt.NDArray[np.float64], free: Sequence[int], request: SetRequest
    ) -> npt.NDArray[np.float64]:
        """Swap one GPU at a time while that improves the set."""
        best = start
        for _ in range(_MOST_ROUNDS):
            inside = [g for g in np.flatnonzero(best).tolist() if g not in request.required]
            outside = [gpu for gpu in free if not best[gpu]]
            swaps = np.repeat(best[None, :], len(inside) * len(outside) + 1, axis=0)
            for row, (out, into) in enumerate(product(inside, outside), start=1):
                swaps[row, out], swaps[row, into] = 0.0, 1.0
            found = self._first(self._allowed(swaps, request.constraints), free, request)
            if (found == best).all():
                break
            best = found
        return best

    # Reasons -------------------------------------------------------------------------------

    def reasons(
        self, free: Sequence[int], gpus: Sequence[int], request: SetRequest
    ) -> Iterator[str]:
        """Yield what speaks for a set in words, one text for each criterion."""
        machine, criteria = self._machine, self._criteria
        if len(gpus) > 1:
            yield self._about_rings(gpus)
        if machine.nics:
            yield self._about_nics(gpus)
        nodes = sorted({criteria.numa[gpu] for gpu in gpus})
        if nodes == [-1]:
            yield "NUMA not known"
        else:
            yield f"NUMA {', '.join('?' if node < 0 else str(node) for node in nodes)}"
        rest = [gpu for gpu in free if gpu not in gpus]
        if rest:
            groups = criteria.left(as_rows([free], len(machine))[0])
            largest = int(groups(as_rows([gpus], len(machine)))[0][0])
            if criteria.linked.any() and largest > 1:
                yield f"leaves {largest} of {len(rest)} free GPUs connected by NVLink"
            elif criteria.linked.any():
                yield "leaves no two free GPUs connected by NVLink"

    def _about_nics(self, gpus: Sequence[int]) -> str:
        machine, near_nics = self._machine, self._criteria.near_nics
        if not machine.compute_nics:
            return "no NIC for traffic between GPUs"
        near = [gpu for gpu in gpus if near_nics[gpu]]
        distances = [machine.nic_distance(gpu) for gpu in gpus]
        unknown = distances.count(Level.NET)
        if near:
            names = dict.fromkeys(machine.nics[nic].name for gpu in near for nic in near_nics[gpu])
            text = f"{len(near)} of {counted(len(gpus), 'GPU')} near a NIC: {', '.join(names)}"
        elif unknown < len(gpus):
            text = f"no NIC nearer than {min(distances).name}"
        else:
            return "the nearest NIC is not known"
        return text + (f"; of {counted(unknown, 'GPU')} the nearest is not known" * bool(unknown))

    def _about_rings(self, gpus: Sequence[int]) -> str:
        rings = self._rings
        text = f"{rings.bandwidth(gpus):g} GB/s in rings"
        if rings.over_nvlink(gpus):
            text += " over NVLink"
        parallel = rings.parallel(gpus)
        if parallel * self._machine.link.wire > rings.slowest(gpus):
            text += f" ({parallel} of {self._machine.link.wire:g} GB/s at once)"
        return text


def _is_nested(bandwidth: npt.NDArray[np.float64]) -> bool:
    for middle in range(len(bandwidth)):
        if (bandwidth < np.minimum(bandwidth[:, [middle]], bandwidth[[middle], :])).any():
            return False
    return True


def _different_sets(classes: Sequence[Sequence[int]], need: int) -> npt.NDArray[np.intp] | None:
    """Return all different sets of ``need`` GPUs, one per row, or None if they are too many.

    A set takes the first GPUs of each class.
    """
    places = _ways(tuple(len(group) for group in classes), need)
    if places is None:
        return None
    flat = np.array([gpu for group in classes for gpu in group], dtype=np.intp)
    found: npt.NDArray[np.intp] = flat[places]
    return found


@lru_cache(maxsize=512)
def _ways(sizes: tuple[int, ...], need: int) -> npt.NDArray[np.intp] | None:
    """Return all ways to take ``need`` members of classes of these sizes, None if too many.

    Members are numbered through all classes; each row is one way.
    """
    found: list[list[int]] = [[]]
    start = 0
    for place, size in enumerate(sizes):
        left = sum(sizes[place + 1 :])
        grown = []
        for chosen in found:
            missing = need - len(chosen)
            for count in range(max(0, missing - left), min(missing, size) + 1):
                grown.append([*chosen, *range(start, start + count)])
            if len(grown) > _MOST_SETS:
                return None
        found = grown
        start += size
    return np.array(found, dtype=np.intp).reshape(len(found), need)
