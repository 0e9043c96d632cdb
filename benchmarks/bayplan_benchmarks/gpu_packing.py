"""How much of the GPUs of a cluster pods can get at most, whatever a scheduler does.

A linear program over kinds of nodes and of pods. Pods of a kind are divided over the kinds of
nodes; what they need of CPU, memory and GPUs is bounded by what all nodes of the kind have
together. Shares are packed into GPUs by patterns, combinations that fit one GPU (Gilmore and
Gomory, "A Linear Programming Approach to the Cutting-Stock Problem", 1961); patterns are made where
their price says that they help. What is left out, such as that pods and nodes are whole, and that
CPU is a node's own, only makes the answer larger: it is an upper bound.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import gcd

import msgspec
import numpy as np

from bayplan.api.gpu_shares import WHOLE
from bayplan.errors import InputError
from bayplan.plugin.hookspecs import FloatColumn
from bayplan_benchmarks.openb_trace import TraceNode, TracePod

__all__ = ["NodeKind", "most_allocated"]

_TOLERANCE = 1e-6
_PER_POD = 1e-8
_FEW = 1e-3
"""So small a part of a pod does not count."""
_ROUNDS = 1000


class NodeKind(msgspec.Struct, frozen=True):
    """Nodes that are alike: milli-CPU, MiB, GPUs and their model."""

    cpu: int
    memory: int
    gpus: int
    model: str

    @classmethod
    def of(cls, node: TraceNode) -> NodeKind:
        """Return the kind of a node."""
        return cls(node.cpu, node.memory, node.gpus, node.model)

    def takes(self, pod: TracePod) -> bool:
        """Tell whether an empty node takes a pod."""
        models = pod.models.split("|") if pod.models else [self.model]
        fits = pod.cpu <= self.cpu and pod.memory <= self.memory and pod.gpus <= self.gpus
        return fits and self.model in models


def most_allocated(
    nodes: Mapping[NodeKind, int],
    pods: Mapping[TracePod, int],
    placed: Mapping[TracePod, int] | None = None,
) -> float | None:
    """Return an upper bound of the thousandths of GPUs that the pods get, in any placement.

    :param nodes: how many nodes of each kind there are.
    :param pods: how many pods of each kind there are; any of them may be refused.
    :param placed: how many pods of each kind have to get a node; None is returned where the bound
        shows that they do not all fit.
    :raises InputError: when SciPy is not installed.
    """
    return _Program(nodes, pods, placed or {}).bound()


class _Rows(msgspec.Struct):
    """Constraints of a linear program: a sum of variables is at most a limit."""

    limits: list[float] = msgspec.field(default_factory=list)
    rows: list[int] = msgspec.field(default_factory=list)
    columns: list[int] = msgspec.field(default_factory=list)
    factors: list[float] = msgspec.field(default_factory=list)

    def add(self, terms: Iterable[tuple[int, float]], limit: float) -> int:
        """Add a constraint by the factor of each variable; return its row."""
        self.limits.append(limit)
        for column, factor in terms:
            self.put(len(self.limits) - 1, column, factor)
        return len(self.limits) - 1

    def put(self, row: int, column: int, factor: float) -> None:
        """Add a variable to a constraint."""
        self.rows.append(row)
        self.columns.append(column)
        self.factors.append(factor)


class _Program:
    """The linear program, with the patterns made so far."""

    def __init__(
        self,
        nodes: Mapping[NodeKind, int],
        pods: Mapping[TracePod, int],
        placed: Mapping[TracePod, int],
    ) -> None:
        self._nodes = list(nodes.items())
        self._rows = _Rows()
        self._gains: list[float] = []
        self._refused: list[int] = []
        self._sizes = sorted({pod.compute for pod in pods if 0 < pod.compute < WHOLE})
        self._made: set[tuple[int, tuple[tuple[int, int], ...]]] = set()
        by_node: list[list[tuple[int, TracePod]]] = [[] for _ in self._nodes]
        for pod, count in pods.items():
            own = []
            for number, (kind, _) in enumerate(self._nodes):
                if kind.takes(pod):
                    own.append(len(self._gains))
                    by_node[number].append((len(self._gains), pod))
                    self._gains.append(pod.total)
            self._rows.add(((column, 1) for column in own), count)
            if placed.get(pod):
                row = self._rows.add(((column, -1) for column in own), -placed[pod])
                self._rows.put(row, len(self._gains), -1)
                self._refused.append(len(self._gains))
                self._gains.append(0)
        self._gpus: list[int] = []
        self._slots: list[dict[int, int]] = []
        for (kind, count), own_pods in zip(self._nodes, by_node, strict=True):
            self._add_node(kind, count, own_pods)
        for number in range(len(self._nodes)):
            for size in self._sizes:
                self._add_pattern(number, {size: WHOLE // size})

    def _add_node(self, kind: NodeKind, count: int, pods: Sequence[tuple[int, TracePod]]) -> None:
        """Bound what pods use of all nodes of a kind."""
        add = self._rows.add
        add(((column, pod.cpu) for column, pod in pods), count * kind.cpu)
        add(((column, pod.memory) for column, pod in pods), count * kind.memory)
        whole = [(column, pod.gpus) for column, pod in pods if pod.compute >= WHOLE]
        self._gpus.append(add(whole, count * kind.gpus))
        for size in range(2, kind.gpus + 1):
            # A node of 8 GPUs takes one pod of 5, and two of 4.
            add(((column, gpus // size) for column, gpus in whole), count * (kind.gpus // size))
        self._slots.append(
            {
                size: add(((column, 1) for column, pod in pods if pod.compute == size), 0)
                for size in self._sizes
            }
        )

    def _add_pattern(self, number: int, pattern: Mapping[int, int]) -> bool:
        """Add the number of GPUs of a kind of nodes that hold a combination of shares.

        :returns: whether it is new.
        """
        key = (number, tuple(sorted(pattern.items())))
        if key in self._made:
            return False
        self._made.add(key)
        column = len(self._gains)
        self._gains.append(0)
        self._rows.put(self._gpus[number], column, 1)
        for size, count in pattern.items():
            self._rows.put(self._slots[number][size], column, -count)
        return True

    def bound(self) -> float | None:
        """Return the bound, None if the pods that have to be placed do not fit.

        That is tried first: patterns are made until as few of them as possible are refused.
        """
        if self._refused and self._best(refusing=True) < -_FEW:
            return None
        return self._best(refusing=False)

    def _best(self, refusing: bool) -> float:
        """Return a bound of what is gained; with ``refusing`` of how few are refused, negated.

        With the prices of a solution, each GPU of a kind of nodes can be worth no more than the
        best pattern; what that is above its price is added, so the answer is a bound even where
        the solution is a little off.
        """
        value = missing = 0.0
        for _ in range(_ROUNDS):
            gains = np.zeros(len(self._gains)) if refusing else np.array(self._gains, dtype=float)
            most = np.full(len(gains), np.inf)
            if refusing:
                gains[self._refused] = -1.0
            else:
                most[self._refused] = 2 * _FEW
            value, prices = _solved(gains, most, self._rows)
            missing = 0.0
            new = False
            for number, (kind, count) in enumerate(self._nodes):
                worth = {size: prices[row] for size, row in self._slots[number].items()}
                best, pattern = _best_pattern(worth)
                above = best - prices[self._gpus[number]]
                missing += max(0.0, above) * count * kind.gpus
                if above > (_PER_POD if refusing else _TOLERANCE):
                    new |= self._add_pattern(number, pattern)
            if not new:
                break
        return value + missing


def _solved(gains: FloatColumn, most: FloatColumn, rows: _Rows) -> tuple[float, FloatColumn]:
    """Return the largest gain within the limits, and what one more of each limit is worth.

    :param most: the limit of each variable.
    """
    try:
        from scipy.optimize import linprog
        from scipy.sparse import csr_array
    except ModuleNotFoundError as exc:
        raise InputError(f"{exc.name} is not installed: pip install 'bayplan[bench]'") from None
    if not len(gains):
        # No pod fits any node.
        return 0.0, np.zeros(len(rows.limits))
    shape = (len(rows.limits), len(gains))
    matrix = csr_array((rows.factors, (rows.rows, rows.columns)), shape=shape)
    limits = np.array(rows.limits)
    bounds = np.stack([np.zeros(len(most)), most], axis=1)
    found = linprog(-gains, A_ub=matrix, b_ub=limits, bounds=bounds, method="highs")
    if found.x is None:
        raise ArithmeticError(f"the linear program was not solved: {found.message}")
    return -float(found.fun), -np.asarray(found.ineqlin.marginals)


def _best_pattern(worth: Mapping[int, float]) -> tuple[float, Counter[int]]:
    """Return the shares, by size, that are worth most together on one GPU, and their worth."""
    if not worth:
        return 0.0, Counter()
    step = gcd(WHOLE, *worth)
    best = [0.0]
    last = [0]
    for room in range(1, WHOLE // step + 1):
        best.append(best[-1])
        last.append(0)
        for size, value in worth.items():
            if size <= room * step and best[room - size // step] + value > best[room]:
                best[room], last[room] = best[room - size // step] + value, size
    pattern: Counter[int] = Counter()
    room = WHOLE // step
    while room > 0:
        if last[room]:
            pattern[last[room]] += 1
        room -= last[room] // step or 1
    return best[-1], pattern
