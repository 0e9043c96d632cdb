"""bayplan's own policy: place a pod where the fewest GPUs are stranded.

A node's *stranded* GPUs are those that stay idle when a few pods of the workload are offered to
it (:mod:`.rollouts`). A node is rated by how many more would be stranded with the pod on it, and by
the room for pods of several GPUs that it would use up (:mod:`.slots`).
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import ge
from typing import NamedTuple

import numpy as np

from bayplan.plugin.hookspecs import FloatColumn, IntColumn
from bayplan_plugins.gpu_fragmentation.known_states import KnownStates, StateTable, kinds_of
from bayplan_plugins.gpu_fragmentation.pod_classes import NodeChoice, PodClass, WeightedClass
from bayplan_plugins.gpu_fragmentation.policy import (
    Rated,
    best_of_each,
    different_gpus,
    several_taken,
    with_room,
)
from bayplan_plugins.gpu_fragmentation.rollouts import Rollouts
from bayplan_plugins.gpu_fragmentation.slots import SlotLosses, Slots, SlotTable
from bayplan_plugins.gpu_fragmentation.states import NodeStates, Rows, StateSource

__all__ = ["LeastStranded"]

_SEQUENCES = 16
_LENGTH = 16
_ALIKE = 100.0
_FEW_CHANGES = 4
_FEW = 64
"""For up to so many nodes, looking up what is known of each is faster than columns."""
_MOST_TRIED = 20_000
_MOST_CLASSES = 512
_NO_NODES = np.zeros(0)


class _Tried(NamedTuple):
    """What a share would do on a GPU of a node with so much left.

    ``lost`` are the slots of each size that it would use up, ``number`` is that of this loss.
    """

    left: int
    gain: float
    lost: tuple[float, ...]
    number: int


class LeastStranded:
    """Choose the node and GPU where the fewest thousandths of GPUs are stranded."""

    def __init__(self, source: StateSource) -> None:
        self._source = source
        self.forget([])

    def forget(self, workload: list[WeightedClass]) -> None:
        """Take over the workload and forget what was computed for another."""
        self._choices: list[NodeChoice] = list(
            dict.fromkeys(one.pod_class.choice for one in workload)
        )
        self._rollouts = Rollouts(workload, self._places(workload), _SEQUENCES, _LENGTH)
        self._slots = Slots(workload, self._places(workload))
        self._forget_states()
        self._stranded: FloatColumn = _NO_NODES
        self._slots_of: SlotTable = np.zeros((0, 0))
        self._slots_in_all: FloatColumn | None = None
        self._forget_losses()

    def _forget_losses(self) -> None:
        self._losses = SlotLosses(len(self._slots.gpus))
        self._known_prices: FloatColumn | None = None
        self._known_costs: FloatColumn | None = None

    def _forget_states(self) -> None:
        self._states = KnownStates()
        self._idle_after = StateTable(self._count_idle)
        self._slot_table = StateTable(self._count_slots, len(self._slots.gpus))
        self._tried: dict[PodClass, dict[int, tuple[_Tried, ...]]] = {}

    def learn(self, workload: list[WeightedClass]) -> None:
        """Take over how many slots will be needed; what nodes strand still holds."""
        known = [one for one in workload if one.pod_class.choice in self._choices]
        self._slots = Slots(known, self._places(known))
        self._slot_table = StateTable(self._count_slots, len(self._slots.gpus))
        self._slots_in_all = None
        self._forget_losses()
        self._tried.clear()
        if len(self._stranded):
            states = self._source.of(np.arange(len(self._stranded)))
            self._slots_of = self._slot_table.of(self._numbers(states), states).T.copy()

    def _places(self, workload: list[WeightedClass]) -> list[int]:
        return [self._choices.index(one.pod_class.choice) for one in workload]

    # Nodes -----------------------------------------------------------------------------------

    def _build(self, size: int) -> None:
        """Compute everything about the nodes of the cluster."""
        columns = [self._source.allowed(choice) for choice in self._choices]
        allowed = np.stack(columns, axis=1) if columns else np.ones((size, 1), dtype=np.bool_)
        self._allowed, self._kind = kinds_of(allowed)
        states = self._source.of(np.arange(size))
        numbers = self._number = self._numbers(states)
        self._stranded = self._idle_after.of(numbers, states)[:, 0]
        self._slots_of = self._slot_table.of(numbers, states).T.copy()
        self._slots_in_all = None
        self._idle: IntColumn = states.left.sum(axis=1)
        self._all_idle = int(self._idle.sum())

    def changed(self, rows: Sequence[int]) -> None:
        """Compute again what changed nodes strand."""
        if self._states.full:
            self._forget_states()
            if len(self._stranded):
                self._number = self._numbers(self._source.of(np.arange(len(self._stranded))))
        self._known_prices = self._known_costs = None
        if not len(self._stranded):
            return
        if len(rows) <= _FEW_CHANGES:
            rows = [row for row in rows if not self._looked_up(row)]
        if rows:
            states = self._source.of(np.array(rows, dtype=np.intp))
            numbers = self._number[rows] = self._numbers(states)
            self._stranded[rows] = self._idle_after.of(numbers, states)[:, 0]
            self._slots_of[:, rows] = self._slot_table.of(numbers, states).T
            self._slots_in_all = None
            self._idle[rows] = states.left.sum(axis=1)
            self._all_idle = int(self._idle.sum())

    def _looked_up(self, row: int) -> bool:
        """Take over what is known of a node's state; False if that is not known."""
        cpu, left = self._source.of_one(row)
        number = self._states.of_one(cpu, self._kind.item(row), left)
        stranded, slots = self._idle_after.of_one(number), self._slot_table.of_one(number)
        if stranded is None or slots is None:
            return False
        self._number[row], self._stranded[row] = number, stranded[0]
        for size, count in enumerate(slots):
            if count != self._slots_of.item(size, row):
                self._slots_of[size, row] = count
                self._slots_in_all = None
        idle = sum(left)
        self._all_idle += idle - self._idle.item(row)
        self._idle[row] = idle
        return True

    def _numbers(self, states: NodeStates) -> Rows:
        return self._states.of(states, states.cpu, self._kind[states.rows])

    def stranded(self, states: NodeStates) -> FloatColumn:
        """Return what nodes strand in some state, in thousandths of a GPU."""
        if not len(self._stranded):
            self._build(len(self._source.allowed(NodeChoice())))
        return self._idle_after.of(self._numbers(states), states)[:, 0]

    def _count_slots(self, states: NodeStates) -> SlotTable:
        return self._slots.of(states, self._allowed[self._kind[states.rows]]).T

    def _count_idle(self, states: NodeStates) -> SlotTable:
        allowed = self._allowed[self._kind[states.rows]]
        return self._rollouts.idle(states.cpu, states.left, allowed)[:, None]

    # Pods ------------------------------------------------------------------------------------

    def rate(self, pod_class: PodClass, states: NodeStates) -> Rated:
        """Rate nodes by what the pod would strand, and say which slots it would use up."""
        if not len(self._stranded):
            self._build(len(self._source.allowed(pod_class.choice)))
        size = len(states)
        result = Rated.nowhere(size)
        result.lost = np.zeros(size, dtype=np.int64)
        places = with_room(pod_class, states)
        if not len(places):
            return result
        own = states.part(places)
        if pod_class.gpus != 1:
            after = own.without(pod_class.cpu, several_taken(pod_class, own.left))
            gain, lost = self._effect(own, after)
            result.scores[places], result.lost[places] = gain, self._losses.of(lost)
        else:
            self._rate_one_gpu(pod_class, own, places, result)
        return result

    def _effect(self, before: NodeStates, after: NodeStates) -> tuple[FloatColumn, SlotTable]:
        """Return how much less nodes strand afterwards, and how many slots they lose."""
        rows = before.rows
        numbers = self._numbers(after)
        gain: FloatColumn = self._stranded[rows] - self._idle_after.of(numbers, after)[:, 0]
        return gain, self._slots_of[:, rows] - self._slot_table.of(numbers, after).T

    def _rate_one_gpu(
        self, pod_class: PodClass, own: NodeStates, places: Rows, result: Rated
    ) -> None:
        """Rate nodes for one GPU or a share; of the different ones, the first best counts."""
        nodes, gpus = different_gpus(own.left, pod_class.compute)
        gain, slots = self._share_effect(pod_class, own, nodes, gpus)
        lost = self._losses.of(slots)
        total = gain - self._costs()[lost]
        chosen = best_of_each(nodes, gpus, total)
        into = places[nodes[chosen]]
        result.scores[into] = gain[chosen]
        result.gpus[into] = gpus[chosen]
        result.lost[into] = lost[chosen]

    def renew(self, pod_class: PodClass, rows: Rows, rated: Rated) -> bool:
        """Rate a few nodes again, each by what is known of nodes that are alike."""
        if len(rows) > _FEW or pod_class.gpus != 1 or not len(self._stranded):
            return False
        known = self._tried.setdefault(pod_class, {})
        if len(known) > _MOST_TRIED or len(self._tried) > _MOST_CLASSES:
            self._tried.clear()
            known = self._tried[pod_class] = {}
        numbers = self._number[rows].tolist()
        missing = [place for place, number in enumerate(numbers) if number not in known]
        if missing:
            self._try(pod_class, self._source.of(rows[missing]), known)
        costs = self._costs().tolist()
        scores, gpus, losses = rated.scores, rated.gpus, rated.lost
        lefts = self._source.left(rows).tolist()
        for row, number, left in zip(rows.tolist(), numbers, lefts, strict=True):
            tried = known[number]
            if not tried:
                rated.forget(row)
                continue
            best = tried[0] if len(tried) == 1 else _cheapest(tried, costs, left)
            scores[row], gpus[row] = best.gain, left.index(best.left)
            losses[row] = best.number
        return True

    def _try(
        self, pod_class: PodClass, states: NodeStates, known: dict[int, tuple[_Tried, ...]]
    ) -> None:
        """Find out what a share would do on the different GPUs of nodes."""
        numbers = self._number[states.rows].tolist()
        found: dict[int, list[_Tried]] = {number: [] for number in numbers}
        places = with_room(pod_class, states)
        if len(places):
            own = states.part(places)
            nodes, gpus = different_gpus(own.left, pod_class.compute)
            gain, lost = self._share_effect(pod_class, own, nodes, gpus)
            left = own.left[nodes, gpus].tolist()
            owners = places[nodes].tolist()
            losses = [tuple(one) for one in lost.T.tolist()]
            for owner, rest, own_gain, own_loss in zip(
                owners, left, gain.tolist(), losses, strict=True
            ):
                number = self._losses.number(own_loss)
                found[numbers[owner]].append(_Tried(rest, own_gain, own_loss, number))
        known.update((number, _worth_a_look(tried)) for number, tried in found.items())

    def _share_effect(
        self, pod_class: PodClass, own: NodeStates, nodes: Rows, gpus: IntColumn
    ) -> tuple[FloatColumn, SlotTable]:
        """Return the effect of a share on pairs of a node and a GPU, by their places."""
        tried = own.part(nodes)
        left = tried.left.copy()
        left[np.arange(len(nodes)), gpus] -= pod_class.compute
        return self._effect(tried, tried.without(pod_class.cpu, left))

    def _prices(self) -> FloatColumn:
        if self._known_prices is None:
            if self._slots_in_all is None:
                self._slots_in_all = np.add.reduce(self._slots_of, axis=1)
            self._known_prices = self._slots.prices(self._slots_in_all, float(self._all_idle))
        return self._known_prices

    def _costs(self) -> FloatColumn:
        """Return what each loss of slots costs now, by its number."""
        costs = self._known_costs
        if costs is None or len(costs) < len(self._losses):
            costs = self._known_costs = self._losses.costs(self._prices())
        return costs

    def scores(self, pod_class: PodClass, rated: Rated) -> FloatColumn:
        """Return what each node gains, in thousandths of a GPU: less stranded, less dear room."""
        if pod_class.gpus > 1:
            # The slots of its own size are there for a pod of several GPUs.
            costs = self._losses.costs(self._prices() * (self._slots.gpus > pod_class.gpus))
        else:
            costs = self._costs()
        dear: FloatColumn = costs.take(rated.lost)
        return np.subtract(rated.scores, dear, out=dear)

    def normalized(self, scores: FloatColumn) -> FloatColumn:
        """Spread the scores over 0 to 100; less where all nodes are nearly alike."""
        # One column for every step: all nodes are looked at for every pod.
        low, high = scores.item(scores.argmin()), scores.item(scores.argmax())
        part = 100.0 / max(high - low, _ALIKE)
        spread: FloatColumn = high - scores
        spread *= part
        if (high - low) * part > 100.0:
            # By rounding.
            np.minimum(spread, 100.0, out=spread)
        return np.subtract(100.0, spread, out=spread)


def _cheapest(tried: Sequence[_Tried], costs: Sequence[float], left: Sequence[int]) -> _Tried:
    """Return the GPU that costs least; of equal ones, the first of the node.

    :param costs: of losses of slots, by their numbers.
    :param left: the thousandths that the node's GPUs have left.
    """
    own = [costs[one.number] - one.gain for one in tried]
    least = min(own)
    if own.count(least) == 1:
        return tried[own.index(least)]
    equal = (one for one, cost in zip(tried, own, strict=True) if cost == least)
    return min(equal, key=lambda one: left.index(one.left))


def _worth_a_look(tried: Sequence[_Tried]) -> tuple[_Tried, ...]:
    """Leave out GPUs that are worse than another one whatever slots cost."""
    found = tuple(dict.fromkeys(tried))
    if len(found) == 1:
        return found
    return tuple(one for one in found if not any(_is_worse(one, other) for other in found))


def _is_worse(one: _Tried, other: _Tried) -> bool:
    return one.gain < other.gain and all(map(ge, one.lost, other.lost))
