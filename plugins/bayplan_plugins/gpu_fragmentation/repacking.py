"""Repacking: now and then move pods so that GPUs become of use again.

The measure is that of :mod:`.stranded`: a move is worth the thousandths of GPUs that are stranded
no more. Columns estimate that for every pod, and for all shares of one GPU together; the best are
then tried: in a trial the pods are taken off their node and placed again by the whole profile, as
they will be once they are made again. Each move makes less stranded, so no pod goes back and forth.

Where an autoscaler removes empty nodes, whole nodes are emptied instead; see :mod:`.emptying`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Literal

import msgspec
import numpy as np
from pydantic import Field, field_validator

from bayplan import Args, Handle, Overdue, PodInfo
from bayplan.api.gpu_shares import WHOLE
from bayplan.dialects import may_be_evicted
from bayplan.inputs.durations import parse_duration
from bayplan.plugin.hookspecs import FloatColumn, IntColumn
from bayplan_plugins.gpu_fragmentation.emptying import nodes_to_empty
from bayplan_plugins.gpu_fragmentation.pod_classes import PodClass
from bayplan_plugins.gpu_fragmentation.policy import Rated
from bayplan_plugins.gpu_fragmentation.states import NodeStates, StateSource
from bayplan_plugins.gpu_fragmentation.stranded import LeastStranded
from bayplan_plugins.shared.moved_pods import MovedPods, ToCome
from bayplan_plugins.shared.moving import maker_of, placed_again, started_at, still_fit
from bayplan_plugins.shared.victims import Evictable

__all__ = ["Move", "RepackArgs", "Repacking"]

_ACTION = "repack"
_HOUR = 3600.0
_TRIED = 8
"""So many of the best moves are tried before the best of them is made."""
_MOST_TOGETHER = 4


class RepackArgs(Args):
    """How often pods may be moved, and for what.

    ``movesPerHour`` is how many pods at most, 0 for none. A pod that has run for less than
    ``minRuntime`` stays. ``frees`` is what moves are for: GPUs that would stay idle, or whole
    Nodes, which an autoscaler then removes. ``leastGain`` is what each move has to free at least,
    in GPUs.
    """

    moves_per_hour: float = Field(default=0.0, ge=0.0, le=_HOUR)
    min_runtime: str = "1h"
    frees: Literal["GPUs", "Nodes"] = "GPUs"
    least_gain: float = Field(default=0.25, gt=0.0, allow_inf_nan=False)

    @field_validator("min_runtime")
    @classmethod
    def _is_duration(cls, text: str) -> str:
        parse_duration(text)
        return text


class Move(msgspec.Struct, frozen=True):
    """Pods that are moved together, their new nodes by key, and the GPUs that this frees.

    ``emptied`` is the node that they leave empty, "" where that is not the purpose.
    """

    pods: Sequence[PodInfo]
    nodes: dict[str, str]
    gain: float
    emptied: str = ""

    @property
    def each(self) -> float:
        """The GPUs that one pod's move frees."""
        return self.gain / len(self.pods)


class _Held(msgspec.Struct, frozen=True):
    """A pod with GPUs on a node: the row of the node, and the places of its GPUs."""

    pod: PodInfo
    row: int
    pod_class: PodClass
    places: tuple[int, ...]


class Repacking:
    """Finds the next pods to move.

    :param pod_class: returns the pod class of a pod.
    :param rated: returns what the policy knows of a pod class on all nodes.
    """

    def __init__(
        self,
        args: RepackArgs,
        handle: Handle,
        source: StateSource,
        policy: LeastStranded,
        pod_class: Callable[[PodInfo], PodClass],
        rated: Callable[[PodClass], Rated],
    ) -> None:
        self._handle = handle
        self._source = source
        self._policy = policy
        self._class_of = pod_class
        self._rated = rated
        self._interval = _HOUR / args.moves_per_hour
        self._window = max(_HOUR, self._interval)
        self._most = max(1, int(args.moves_per_hour))
        self._made: list[float] = []
        self._least = args.least_gain
        self._empties = args.frees == "Nodes"
        self._min_runtime = parse_duration(args.min_runtime)
        self._next = 0.0
        self._young_until: list[float] = []
        self._is_limited = False
        """Whether pods that could be moved were not, as enough were in the last hour."""
        self._pods = MovedPods(handle)
        self.moved: Callable[[Move], None] = lambda move: None
        """Called with every move."""

    def overdue(self) -> Overdue | None:
        """Return the pods to move now, and when to look again."""
        now = self._handle.now
        self._made = [at for at in self._made if at > now - self._window]
        if len(self._made) == self._most:
            self._next = max(self._next, self._made[0] + self._window)
        if now < self._next:
            return Overdue(again=self._next)
        if self._under_way():
            times = (one.until for one in self._pods.under_way())
            return Overdue(again=min(times, default=None))
        self._next = now + self._interval
        move = self.best()
        if move is None:
            # Nothing changes by itself but the age of pods, and of moves.
            later = [at - self._handle.unix_time + now for at in self._young_until]
            if self._is_limited and self._made:
                later.append(self._made[0] + self._window)
            return Overdue(again=max(min(later), self._next)) if later else None
        self._made += [now] * len(move.pods)
        for pod in move.pods:
            from_node = self._handle.snapshot.placed[pod.key][1]
            reported = f"{_ACTION}: moved here from {from_node}; that frees {_gain_of(move)}"
            self._pods.expect(pod, move.nodes[pod.key], reported)
        self.moved(move)
        victims = [(pod, _reported(pod, move)) for pod in move.pods]
        still = partial(still_fit, self._handle, move.pods)
        return Overdue(victims, self._next, moves=move.nodes, action=_ACTION, is_wanted=still)

    def best(self) -> Move | None:
        """Return the move to make next, None for none."""
        self._young_until.clear()
        self._is_limited = False
        return self._emptied() if self._empties else self._freeing()

    def _emptied(self) -> Move | None:
        """Return the first node that can be emptied, of the few that come first."""
        tried = 0
        for one in nodes_to_empty(self._handle, self._source, self._class_of, self._is_alone):
            count = len(one.pods)
            if one.gpus < self._least * count or self._are_too_many(count):
                continue
            if not self._may_move(one.pods):
                continue
            if tried >= _TRIED:
                break
            tried += 1
            for rows in one.targets:
                with self._handle.snapshot.trial():
                    for pod in one.pods:
                        self._handle.snapshot.remove_pod(pod.key)
                    nodes = placed_again(self._handle, one.pods, rows)
                if len(nodes) == count:
                    return Move(one.pods, nodes, one.gpus, one.node)
        return None

    def _freeing(self) -> Move | None:
        """Return the move that frees most for each pod, of the few that look best."""
        found: Move | None = None
        tried = 0
        for estimate, pods in self._candidates():
            if estimate < self._least * WHOLE or tried >= _TRIED:
                break
            if self._are_too_many(len(pods)) or not self._may_move(pods):
                continue
            tried += 1
            move = self._tried(pods)
            if move is not None and move.each >= self._least:
                if found is None or move.each > found.each:
                    found = move
        return found

    def _are_too_many(self, count: int) -> bool:
        """Tell whether so many pods more are too many for an hour."""
        if len(self._made) + count <= self._most:
            return False
        self._is_limited |= count <= self._most
        return True

    # On their way ----------------------------------------------------------------------------

    def _under_way(self) -> bool:
        """Tell whether moved pods still leave, or are still to be placed again."""
        return bool(self._pods.under_way()) or self._pods.leave

    def to_come(self, pod: PodInfo) -> ToCome | None:
        """Return what is known of a pod that was moved and made again; None for any other."""
        return next(iter(self._pods.expected(pod)), None)

    def arrived(self, pod: PodInfo, node: str) -> None:
        """Forget the node that was kept in mind for a pod, now that it has one."""
        self._pods.arrived(pod, node)

    # Who may be moved ------------------------------------------------------------------------

    def _may_move(self, pods: Sequence[PodInfo]) -> bool:
        """Tell whether somebody makes these pods again, and nothing keeps any of them."""
        handle, queueing = self._handle, self._handle.queueing
        for pod in pods:
            if not maker_of(pod) or not handle.schedules(pod) or not may_be_evicted(pod.pod):
                return False
            if handle.in_eviction_cooldown(pod):
                return False
            old = started_at(pod) + self._min_runtime
            if old > handle.unix_time:
                self._young_until.append(old)
                return False
            if queueing is not None and queueing.keep_in_place(pod):
                return False
        return not Evictable.by(handle.unit(pods[:1]), handle).violations(pods)

    # What it would be worth ------------------------------------------------------------------

    def _held(self) -> list[_Held]:
        """Return the pods with GPUs that run for themselves."""
        rows = self._handle.snapshot.nodes.row_of
        found = []
        for pod, node in self._handle.snapshot.placed.values():
            if pod.terminating or not self._source.shared.requests(pod) or not self._is_alone(pod):
                continue
            if self._handle.is_nominated(pod):
                continue
            places = self._source.shared.places(pod, node)
            if places:
                found.append(_Held(pod, rows[node], self._class_of(pod), places))
        return found

    def _is_alone(self, pod: PodInfo) -> bool:
        """Tell whether no other pod needs this one."""
        if pod.gang is None:
            return True
        members = self._handle.gang(pod.gang)
        return len(members.bound) == 1 and not members.pending

    def _candidates(self) -> Iterator[tuple[float, list[PodInfo]]]:
        """Yield pods to move with what each move seems to be worth, the best first."""
        held = self._held()
        if not held:
            return
        groups = [[place] for place in range(len(held))] + _on_one_gpu(held)
        worth = np.zeros(len(groups))
        first = np.array([held[group[0]].row for group in groups], dtype=np.intp)
        before = self._source.of(first)
        without = self._without(held, groups, before)
        freed = self._policy.stranded(before) - self._policy.stranded(without)
        gained = self._elsewhere(held)
        for number, group in enumerate(groups):
            worth[number] = (freed[number] + gained[group].sum()) / len(group)
        for number in np.argsort(-worth, kind="stable"):
            yield float(worth[number]), [held[place].pod for place in groups[number]]

    def _without(
        self, held: Sequence[_Held], groups: Sequence[Sequence[int]], before: NodeStates
    ) -> NodeStates:
        """Return the states of nodes without the pods of each group."""
        cpu, left = before.cpu.copy(), before.left.copy()
        for number, group in enumerate(groups):
            for place in group:
                one = held[place]
                cpu[number] += one.pod_class.cpu
                left[number, list(one.places)] += one.pod_class.compute
        left = np.minimum(left, self._source.all_gpus(before.rows))
        return NodeStates(before.rows, cpu, left)

    def _elsewhere(self, held: Sequence[_Held]) -> FloatColumn:
        """Return what each pod's best other node gains by it, minus infinity without any."""
        by_class: dict[PodClass, list[int]] = {}
        for place, one in enumerate(held):
            by_class.setdefault(one.pod_class, []).append(place)
        everywhere = self._source.of(np.arange(len(self._handle.snapshot.nodes)))
        gained = np.full(len(held), -np.inf)
        for pod_class, members in by_class.items():
            rated = self._rated(pod_class)
            fits = everywhere.cpu >= pod_class.cpu
            fits &= (everywhere.left >= pod_class.compute).sum(axis=1) >= pod_class.gpus
            fits &= self._source.allowed(pod_class.choice)
            scores = np.where(fits, self._policy.scores(pod_class, rated), -np.inf)
            rows = np.array([held[place].row for place in members])
            best = int(scores.argmax())
            second = scores.copy()
            second[best] = -np.inf
            target: IntColumn = np.where(rows == best, int(second.argmax()), best)
            gained[members] = np.where(scores[target] > -np.inf, rated.scores[target], -np.inf)
        return gained

    def _tried(self, pods: Sequence[PodInfo]) -> Move | None:
        """Place pods again in a trial; return the move, None unless all get other nodes."""
        snapshot = self._handle.snapshot
        rows = snapshot.nodes.row_of
        source = {snapshot.placed[pod.key][1] for pod in pods}
        everywhere = np.arange(len(snapshot.nodes))
        before = self._policy.stranded(self._source.of(everywhere))
        with snapshot.trial():
            for pod in pods:
                snapshot.remove_pod(pod.key)
            nodes = placed_again(self._handle, pods)
            if len(nodes) < len(pods) or source & set(nodes.values()):
                return None
            changed = np.array(sorted({rows[node] for node in (*source, *nodes.values())}))
            after = self._policy.stranded(self._source.of(changed))
        return Move(pods, nodes, float((before[changed] - after).sum()) / WHOLE)


def _on_one_gpu(held: Sequence[_Held]) -> list[list[int]]:
    """Return the groups of a few shares that are alone on a GPU together."""
    gpus: dict[tuple[int, int], list[int]] = {}
    for number, one in enumerate(held):
        for place in one.places:
            gpus.setdefault((one.row, place), []).append(number)
    few = (own for own in gpus.values() if 1 < len(own) <= _MOST_TOGETHER)
    return [own for own in few if all(len(held[number].places) == 1 for number in own)]


def _reported(pod: PodInfo, move: Move) -> str:
    together = f" together with {len(move.pods) - 1} more" if len(move.pods) > 1 else ""
    return (
        f"{_ACTION}: it fits on {move.nodes[pod.key]}; moved{together}, it frees {_gain_of(move)}"
    )


def _gain_of(move: Move) -> str:
    if move.emptied:
        return f"{move.emptied}, so that an autoscaler can remove it"
    return f"{move.each:.2f} GPUs that would stay idle"
