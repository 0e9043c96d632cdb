"""How other schedulers choose GPUs, for who wants just that.

best-fit, first-fit, pack and spread follow NUMA nodes and mean bandwidth. ``best-effort`` is that
of NVIDIA's go-gpuallocator, ``topology-aware`` that of HAMi; both add up pair scores, and which of
equal sets they take depends on the order of visit, which is kept (go-gpuallocator,
besteffort_policy.go; HAMi, pkg/device/nvidia/device.go and calculate_score.go).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import combinations

import numpy as np
import numpy.typing as npt

from bayplan.topology.levels import UNKNOWN, Level
from bayplan.topology.machine import Machine

__all__ = [
    "POLICIES",
    "best_combination",
    "best_effort",
    "by_policy",
    "least_destruction",
    "pair_scores",
    "topology_aware",
]

Scores = npt.NDArray[np.int64]
Allows = Callable[[Sequence[int]], bool]

POLICIES = {
    "best-fit": "the highest mean bandwidth of pairs",
    "first-fit": "the first NUMA node with enough free GPUs, else the first free GPUs",
    "pack": "the NUMA node with the most free GPUs first",
    "spread": "NUMA nodes in turn",
    "best-effort": "the sets that share all free GPUs out best (go-gpuallocator)",
    "topology-aware": "the highest sum of pair scores, for one GPU the lowest (HAMi)",
}
"""The policies by name, and what each goes by."""

_PCIE_SCORE = {Level.PIX: 50, Level.PXB: 40, Level.PHB: 30, Level.NODE: 20, Level.SYS: 10}
_NVLINK_SCORE = 100
_MOST_ENUMERATED = 16
"""Above so many free GPUs no policy looks at every set: one GPU after the other is added."""


def pair_scores(machine: Machine) -> Scores:
    """Return HAMi's score of every pair: 100 for each NVLink, and 10 (SYS) to 50 (PIX) for PCIe.

    A PCIe level that is not known is taken for NODE on one NUMA node and for SYS else.
    """
    size = len(machine)
    scores = machine.nvlinks * _NVLINK_SCORE
    for a in range(size):
        for b in range(a):
            level = int(machine.levels[a, b])
            if level == UNKNOWN:
                same = machine.numa_of[a] is not None and machine.numa_of[a] == machine.numa_of[b]
                level = Level.NODE if same else Level.SYS
            scores[a, b] += _PCIE_SCORE[Level(level)]
            scores[b, a] = scores[a, b]
    return scores


def by_policy(
    machine: Machine,
    free: Sequence[int],
    count: int,
    required: frozenset[int],
    policy: str,
    allows: Allows,
) -> tuple[int, ...] | None:
    """Return the set that a policy takes of the free GPUs, None where it finds none.

    :param allows: tells whether a set fulfils the constraints.
    """
    if policy == "best-effort":
        chosen = best_effort(pair_scores(machine), free, sorted(required), count)
    elif policy == "topology-aware":
        chosen = _topology_aware(machine, free, count, required, allows)
    elif policy == "best-fit":
        chosen = _best_fit(machine, free, count, required, allows)
    else:
        chosen = _by_numa(machine, free, count, required, policy)
    return tuple(chosen) if chosen and allows(chosen) else None


# By NUMA node and bandwidth --------------------------------------------------------------------


def _by_numa(
    machine: Machine, free: Sequence[int], count: int, required: frozenset[int], policy: str
) -> list[int]:
    groups: dict[int, list[int]] = {}
    for gpu in free:
        if gpu not in required:
            node = machine.numa_of[gpu]
            groups.setdefault(-1 if node is None else node, []).append(gpu)
    need = count - len(required)
    given = sorted(required)
    if policy == "first-fit":
        whole = next((group for group in groups.values() if len(group) >= need), None)
        others = whole if whole is not None else [g for g in free if g not in required]
        return [*given, *others[:need]]
    if policy == "pack":
        order = sorted(groups.values(), key=lambda group: -len(group))
        return [*given, *[gpu for group in order for gpu in group][:need]]
    chosen: list[int] = []
    queues = [list(groups[node]) for node in sorted(groups)]
    while len(chosen) < need:
        for queue in queues:
            if queue and len(chosen) < need:
                chosen.append(queue.pop(0))
    return [*given, *chosen]


def _best_fit(
    machine: Machine,
    free: Sequence[int],
    count: int,
    required: frozenset[int],
    allows: Allows,
) -> list[int]:
    if count == 1:
        return [min(required, default=free[0])]
    bandwidth = machine.bandwidth.copy()
    np.fill_diagonal(bandwidth, 0.0)
    return _highest_sum(bandwidth, free, count, required, allows)


def _highest_sum(
    values: npt.NDArray[np.float64] | Scores,
    visited: Sequence[int],
    count: int,
    required: frozenset[int],
    allows: Allows,
) -> list[int]:
    """Return the first set in the order of visit whose pairs have the highest sum."""
    if len(visited) > _MOST_ENUMERATED:
        return _grown(values, visited, count, required)
    order = np.array(visited)
    sets = _combinations(len(visited), count)
    members = np.zeros((len(sets), len(visited)))
    np.put_along_axis(members, sets, 1.0, axis=1)
    own = values[np.ix_(order, order)].astype(np.float64)
    sums = ((members @ own) * members).sum(axis=1)
    for row in np.argsort(-sums, kind="stable"):
        chosen = order[sets[row]].tolist()
        if required <= set(chosen) and allows(chosen):
            return [int(gpu) for gpu in chosen]
    return []


@lru_cache(maxsize=256)
def _combinations(size: int, count: int) -> npt.NDArray[np.intp]:
    """Return all sets of ``count`` of ``size`` in lexicographic order, one a row."""
    return np.array(list(combinations(range(size), count)), dtype=np.intp).reshape(-1, count)


def _grown(
    values: npt.NDArray[np.float64] | Scores,
    visited: Sequence[int],
    count: int,
    required: frozenset[int],
) -> list[int]:
    chosen = sorted(required) or [visited[0]]
    while len(chosen) < count:
        left = [gpu for gpu in visited if gpu not in chosen]
        chosen.append(max(left, key=lambda gpu: float(values[gpu, chosen].sum())))
    return chosen


# HAMi ----------------------------------------------------------------------------------------


def _topology_aware(
    machine: Machine,
    free: Sequence[int],
    count: int,
    required: frozenset[int],
    allows: Allows,
) -> list[int]:
    """Choose as HAMi does on idle devices: the highest NUMA node and index are visited first."""
    node_of = machine.numa_of
    order = sorted(free, key=lambda gpu: (-1 if node_of[gpu] is None else node_of[gpu], gpu))
    visited = order[::-1]
    if required or len(free) == count:
        scores = pair_scores(machine)
        return _highest_sum(scores, visited, count, required, allows)
    found = topology_aware(pair_scores(machine), visited, count)
    if found and not allows(found):
        return _highest_sum(pair_scores(machine), visited, count, required, allows)
    return found


def topology_aware(scores: Scores, visited: Sequence[int], count: int) -> list[int]:
    """Return HAMi's choice among candidates in the order of visit; none for too few.

    As many candidates as asked for are taken as they are.
    """
    if len(visited) < count:
        return []
    if len(visited) == count:
        return list(visited)
    if count == 1:
        return [least_destruction(scores, visited)]
    return best_combination(scores, visited, count)


def least_destruction(scores: Scores, visited: Sequence[int]) -> int:
    """Return the candidate with the lowest sum of scores to the others, the first among equals."""
    own = scores[np.ix_(visited, visited)]
    sums = own.sum(axis=1) - np.diagonal(own)
    return visited[int(sums.argmin())]


def best_combination(scores: Scores, visited: Sequence[int], count: int) -> list[int]:
    """Return the set with the highest sum of pair scores, the first visited among equals."""
    return _highest_sum(scores, visited, count, frozenset(), lambda chosen: True)


# go-gpuallocator -------------------------------------------------------------------------------


def best_effort(
    scores: Scores, available: Sequence[int], required: Sequence[int], size: int
) -> list[int]:
    """Return go-gpuallocator's best-effort set; empty where there is none.

    All available GPUs are partitioned into sets of ``size``, one of which may be filled up with
    blanks; the first partition with the highest sum of pair scores that has a full set with all
    required GPUs counts, and of its sets the best that has them. For one GPU the first is taken.
    """
    wanted = set(required)
    if size < 1 or size > len(available) or len(wanted) > size or not wanted <= set(available):
        return []
    if size == 1:
        return list(required) or [available[0]]
    if len(available) > _MOST_ENUMERATED:
        return sorted(_grown(scores, available, size, frozenset(required)))
    partition = _Partitions(scores, sorted(available), wanted, size).best()
    full = [group for group in partition if len(group) == size and wanted <= set(group)]
    return max(full, key=partial(_sum_of, scores)) if full else []


def _sum_of(scores: Scores, group: Sequence[int]) -> int:
    return sum(int(scores[a, b]) for a, b in combinations(group, 2))


class _Partitions:
    """The best partition, by dynamic programming over what is left.

    Sets are visited in the order of the original, each starting with the lowest GPU that is left;
    the first best is kept, so that equal partitions resolve as they do there.
    """

    def __init__(
        self, scores: Scores, available: Sequence[int], wanted: set[int], size: int
    ) -> None:
        self._gpus = list(available)
        self._size = size
        own = scores[np.ix_(self._gpus, self._gpus)].tolist()
        self._own: list[list[int]] = own
        self._wanted = sum(1 << i for i, gpu in enumerate(self._gpus) if gpu in wanted)
        self._known: dict[tuple[int, bool], tuple[int, int] | None] = {}
        self._values: dict[int, int] = {}

    def best(self) -> list[list[int]]:
        """Return the sets of the best partition."""
        left = (1 << len(self._gpus)) - 1
        blanks = len(self._gpus) % self._size != 0
        groups = []
        while left:
            found = self._first(left, blanks)
            if found is None:
                return []
            _, group = found
            groups.append([gpu for i, gpu in enumerate(self._gpus) if group >> i & 1])
            blanks = blanks and group.bit_count() == self._size
            left &= ~group
        return groups

    def _first(self, left: int, blanks: bool) -> tuple[int, int] | None:
        """Return the best sum of what is left and its first set; None where none is allowed."""
        key = (left, blanks)
        if key not in self._known:
            best: tuple[int, int] | None = None
            for group in self._groups(left, blanks):
                rest = left & ~group
                full = group.bit_count() == self._size
                if self._wanted & group and not (full and self._wanted & ~group == 0):
                    continue
                after = (0, 0) if not rest else self._first(rest, blanks and full)
                if after is not None:
                    total = self._value(group) + after[0]
                    if best is None or total > best[0]:
                        best = (total, group)
            self._known[key] = best
        return self._known[key]

    def _groups(self, left: int, blanks: bool) -> Iterator[int]:
        members = [i for i in range(len(self._gpus)) if left >> i & 1]
        first, others = members[0], members[1:]
        part = len(self._gpus) % self._size
        sets = list(combinations(others, self._size - 1))
        if blanks:
            # Blanks come after every GPU, so a filled-up set follows the full ones it starts like.
            short = list(combinations(others, part - 1))
            sets = sorted([*sets, *short], key=lambda s: (*s, *([99] * (self._size - 1 - len(s)))))
        for chosen in sets:
            yield sum(1 << i for i in (first, *chosen))

    def _value(self, group: int) -> int:
        if group not in self._values:
            members = [i for i in range(len(self._gpus)) if group >> i & 1]
            self._values[group] = sum(self._own[a][b] for a, b in combinations(members, 2))
        return self._values[group]
