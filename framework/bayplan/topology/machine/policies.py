"""Policies of other schedulers for the choice of GPUs.

best-fit, first-fit, pack and spread go by NUMA node and mean bandwidth. ``best-effort`` is the
policy of NVIDIA's go-gpuallocator, ``topology-aware`` that of HAMi. Both add up pair scores and
break ties by the order in which they visit sets; the same order is used here (go-gpuallocator,
besteffort_policy.go; HAMi, pkg/device/nvidia/device.go and calculate_score.go).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import combinations, zip_longest

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from bayplan.topology.machine.levels import UNKNOWN, Level
from bayplan.topology.machine.model import Machine

__all__ = [
    "POLICIES",
    "PolicyRequest",
    "best_effort",
    "by_policy",
    "pair_scores",
    "topology_aware",
]

Scores = npt.NDArray[np.int64]
_PCIE_SCORE = {Level.PIX: 50, Level.PXB: 40, Level.PHB: 30, Level.NODE: 20, Level.SYS: 10}
_NVLINK_SCORE = 100
_MOST_ENUMERATED = 16
"""Above this number of free GPUs, no policy looks at every set; they add one GPU at a time."""


class PolicyRequest(msgspec.Struct, frozen=True):
    """A request to a policy: ``count`` of the free GPUs, including the required ones.

    ``free`` is in the order in which the policy visits them. ``allows`` tells whether a set meets
    the constraints.
    """

    free: Sequence[int]
    count: int
    required: frozenset[int]
    allows: Callable[[Sequence[int]], bool]


@lru_cache(maxsize=256)
def pair_scores(machine: Machine) -> Scores:
    """Return HAMi's pair scores as a matrix: 100 per NVLink, and 10 (SYS) to 50 (PIX) for PCIe.

    An unknown PCIe level counts as NODE on one NUMA node, else as SYS. A pair whose directions
    disagree on NVLinks scores 0.
    """
    size = len(machine)
    scores = machine.nvlinks * _NVLINK_SCORE
    for a in range(size):
        for b in range(a):
            if (b, a) in machine.asymmetric:
                scores[a, b] = scores[b, a] = 0
                continue
            level = int(machine.levels[a, b])
            if level == UNKNOWN:
                same = machine.numa_of[a] is not None and machine.numa_of[a] == machine.numa_of[b]
                level = Level.NODE if same else Level.SYS
            scores[a, b] += _PCIE_SCORE[Level(level)]
            scores[b, a] = scores[a, b]
    scores.flags.writeable = False
    return scores


def by_policy(machine: Machine, policy: str, asked: PolicyRequest) -> tuple[int, ...] | None:
    """Return the set that a policy chooses, None if it finds none.

    :raises KeyError: for a policy that is not in ``POLICIES``.
    """
    chosen = POLICIES[policy].choose(machine, asked)
    return tuple(chosen) if chosen and asked.allows(chosen) else None


# By NUMA node and bandwidth --------------------------------------------------------------------


def _first_fit(machine: Machine, asked: PolicyRequest) -> list[int]:
    need = asked.count - len(asked.required)
    groups = _numa_groups(machine, asked)
    others = [gpu for gpu in asked.free if gpu not in asked.required]
    whole = next((group for group in groups.values() if len(group) >= need), others)
    return [*sorted(asked.required), *whole[:need]]


def _pack(machine: Machine, asked: PolicyRequest) -> list[int]:
    groups = sorted(_numa_groups(machine, asked).values(), key=lambda group: -len(group))
    return [*sorted(asked.required), *(gpu for group in groups for gpu in group)][: asked.count]


def _spread(machine: Machine, asked: PolicyRequest) -> list[int]:
    groups = sorted(_numa_groups(machine, asked).items())
    rounds = zip_longest(*(group for _, group in groups))
    in_turn = [gpu for one in rounds for gpu in one if gpu is not None]
    return [*sorted(asked.required), *in_turn][: asked.count]


def _numa_groups(machine: Machine, asked: PolicyRequest) -> dict[int, list[int]]:
    """Return the free GPUs that are not required, by NUMA node (-1 if unknown)."""
    groups: dict[int, list[int]] = {}
    for gpu in asked.free:
        if gpu not in asked.required:
            node = machine.numa_of[gpu]
            groups.setdefault(-1 if node is None else node, []).append(gpu)
    return groups


def _best_fit(machine: Machine, asked: PolicyRequest) -> list[int]:
    if asked.count == 1:
        return [min(asked.required, default=asked.free[0])]
    bandwidth = machine.bandwidth.copy()
    np.fill_diagonal(bandwidth, 0.0)
    return _highest_sum(bandwidth, asked)


def _highest_sum(values: npt.NDArray[np.float64] | Scores, asked: PolicyRequest) -> list[int]:
    """Return the allowed set whose pairs have the highest sum, the first visited among equals."""
    visited = asked.free
    if len(visited) > _MOST_ENUMERATED:
        return _grown(values, asked)
    order = np.array(visited)
    sets = _combinations(len(visited), asked.count)
    members = np.zeros((len(sets), len(visited)))
    np.put_along_axis(members, sets, 1.0, axis=1)
    own = values[np.ix_(order, order)].astype(np.float64)
    sums = ((members @ own) * members).sum(axis=1)
    for row in np.argsort(-sums, kind="stable"):
        chosen: list[int] = order[sets[row]].tolist()
        if asked.required <= set(chosen) and asked.allows(chosen):
            return chosen
    return []


@lru_cache(maxsize=256)
def _combinations(size: int, count: int) -> npt.NDArray[np.intp]:
    """Return all sets of ``count`` out of ``size`` in lexicographic order, one per row."""
    return np.array(list(combinations(range(size), count)), dtype=np.intp).reshape(-1, count)


def _grown(values: npt.NDArray[np.float64] | Scores, asked: PolicyRequest) -> list[int]:
    chosen = sorted(asked.required) or [asked.free[0]]
    while len(chosen) < asked.count:
        left = [gpu for gpu in asked.free if gpu not in chosen]
        chosen.append(max(left, key=lambda gpu: float(values[gpu, chosen].sum())))
    return chosen


# HAMi ----------------------------------------------------------------------------------------


def _topology_aware(machine: Machine, asked: PolicyRequest) -> list[int]:
    """Choose as HAMi does on idle devices, which visits the highest NUMA node and index first."""
    node_of = machine.numa_of
    order = sorted(asked.free, key=lambda gpu: (-1 if node_of[gpu] is None else node_of[gpu], gpu))
    return topology_aware(pair_scores(machine), replace(asked, free=order[::-1]))


def topology_aware(scores: Scores, asked: PolicyRequest) -> list[int]:
    """Return HAMi's choice among the free GPUs, empty if they are too few.

    If exactly as many are free as requested, these are it. A single GPU is the one with the lowest
    sum of scores to the others; several are the set with the highest sum, the first among equals.
    HAMi knows no required GPUs and no constraints; with these, the result is the set with the
    highest sum that meets them.
    """
    free = asked.free
    if len(free) < asked.count:
        return []
    found: list[int] = []
    if len(free) == asked.count:
        found = list(free)
    elif asked.count == 1 and not asked.required:
        own = scores[np.ix_(free, free)]
        found = [free[int((own.sum(axis=1) - np.diagonal(own)).argmin())]]
    return found if found and asked.allows(found) else _highest_sum(scores, asked)


# go-gpuallocator -------------------------------------------------------------------------------


def best_effort(
    scores: Scores, available: Sequence[int], required: Sequence[int], size: int
) -> list[int]:
    """Return go-gpuallocator's best-effort set, empty if there is none.

    All available GPUs are partitioned into sets of ``size``; one set may be filled up with blanks.
    Of the partitions with a full set that holds all required GPUs, the first with the highest sum
    of pair scores counts; the result is its best set with these GPUs. For ``size`` 1 it is the
    first GPU.
    """
    wanted = set(required)
    if size < 1 or size > len(available) or len(wanted) > size or not wanted <= set(available):
        return []
    if size == 1:
        return list(required) or [available[0]]
    if len(available) > _MOST_ENUMERATED:
        asked = PolicyRequest(available, size, frozenset(required), lambda gpus: True)
        return sorted(_grown(scores, asked))
    partition = _Partitions(scores, sorted(available), wanted, size).best()
    full = [group for group in partition if len(group) == size and wanted <= set(group)]
    return max(full, key=partial(_sum_of, scores)) if full else []


def _best_effort(machine: Machine, asked: PolicyRequest) -> list[int]:
    return best_effort(pair_scores(machine), asked.free, sorted(asked.required), asked.count)


def _sum_of(scores: Scores, group: Sequence[int]) -> int:
    return sum(int(scores[a, b]) for a, b in combinations(group, 2))


class _Partitions:
    """Finds the best partition by dynamic programming over the remaining GPUs.

    Sets are visited in go-gpuallocator's order, each starting with the lowest remaining GPU, and
    the first best wins, so that ties break as they do there.
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
        """Return the best sum for the remaining GPUs and its first set, None if none is allowed."""
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
            # Blanks sort after every GPU, so a set with blanks follows full sets of the same start.
            short = list(combinations(others, part - 1))
            sets = sorted([*sets, *short], key=lambda s: (*s, *([99] * (self._size - 1 - len(s)))))
        for chosen in sets:
            yield sum(1 << i for i in (first, *chosen))

    def _value(self, group: int) -> int:
        if group not in self._values:
            members = [i for i in range(len(self._gpus)) if group >> i & 1]
            self._values[group] = sum(self._own[a][b] for a, b in combinations(members, 2))
        return self._values[group]


# All policies ----------------------------------------------------------------------------------


class _Policy(msgspec.Struct, frozen=True):
    """A policy, in words and as a function."""

    what: str
    choose: Callable[[Machine, PolicyRequest], list[int]]


POLICIES = {
    "best-fit": _Policy("the highest mean bandwidth of pairs", _best_fit),
    "first-fit": _Policy(
        "the first NUMA node with enough free GPUs, else the first free GPUs", _first_fit
    ),
    "pack": _Policy("the NUMA node with the most free GPUs first", _pack),
    "spread": _Policy("NUMA nodes in turn", _spread),
    "best-effort": _Policy(
        "the sets of the best partition of all free GPUs (go-gpuallocator)", _best_effort
    ),
    "topology-aware": _Policy(
        "the highest sum of pair scores, for one GPU the lowest (HAMi)", _topology_aware
    ),
}
"""The policies by name."""
