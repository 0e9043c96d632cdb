"""Room from the surplus of elastic jobs: the fewest replicas without which a unit really fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bayplan import Handle, PodInfo, Unit
from bayplan_plugins.resizer.jobs import Replica, State

__all__ = ["Shrinking", "shrink_for"]

_MOST_PLACEMENTS = 200
"""Tentative placements of the unit in one search."""


@dataclass(frozen=True)
class Shrinking:
    """How many of the last replicas go, job by job, and the nodes that the unit then gets.

    :param leaving: pods on these nodes that go anyway.
    """

    gone: Sequence[tuple[State, Sequence[Replica]]]
    nodes: Mapping[str, str]
    leaving: Sequence[PodInfo] = ()

    @property
    def pods(self) -> list[PodInfo]:
        """The pods that go now."""
        return [pod for _, replicas in self.gone for one in replicas for pod in one.pods]


def shrink_for(
    handle: Handle, unit: Unit, states: Sequence[State], leaving: Sequence[PodInfo]
) -> Shrinking | None:
    """Return how elastic jobs may shrink so that a unit is placed; None if that does not help.

    :param states: the jobs that may shrink, the first one first.
    :param leaving: pods that go anyway; others may have nominated nodes where they are.
    """
    return _Search(handle, unit, states, leaving).run()


class _Search:
    def __init__(
        self, handle: Handle, unit: Unit, states: Sequence[State], leaving: Sequence[PodInfo]
    ) -> None:
        self._handle = handle
        self._leaving = leaving
        self._unit = unit
        self._states = states
        self._placements = 0

    def run(self) -> Shrinking | None:
        counts = self._enough()
        if counts is None:
            return None
        # The replicas of the jobs that come last are the first to be spared.
        for at in reversed(range(len(counts))):
            low, high = 0, counts[at]
            while low < high and self._placements < _MOST_PLACEMENTS:
                middle = (low + high) // 2
                if self._fits([*counts[:at], middle, *counts[at + 1 :]]) is not None:
                    high = middle
                else:
                    low = middle + 1
            counts[at] = high
        nodes = self._fits(counts)
        if nodes is None:
            return None
        gone = [
            (state, self._last(state, count))
            for state, count in zip(self._states, counts, strict=False)
            if count
        ]
        return Shrinking(gone, nodes, self._in_the_way(nodes))

    def _in_the_way(self, nodes: Mapping[str, str]) -> list[PodInfo]:
        """Return the pods that leave the unit's nodes anyway."""
        placed, used = self._handle.snapshot.placed, set(nodes.values())
        return [pod for pod in self._leaving if placed[pod.key][1] in used]

    def _enough(self) -> list[int] | None:
        """Return how much of the first jobs' surplus is enough."""
        most = [len(state.surplus) for state in self._states]
        if self._fits(most) is None:
            return None
        low, high = 0, len(most)
        while low < high:
            middle = (low + high) // 2
            if self._fits(most[:middle]) is not None:
                high = middle
            else:
                low = middle + 1
        return most[:high]

    def _fits(self, counts: Sequence[int]) -> Mapping[str, str] | None:
        """Return the unit's nodes when each job has so many replicas less."""
        snapshot = self._handle.snapshot
        self._placements += 1
        with snapshot.trial():
            for pod in self._leaving:
                snapshot.remove_pod(pod.key)
            for state, count in zip(self._states, counts, strict=False):
                for replica in self._last(state, count):
                    for pod in replica.pods:
                        snapshot.remove_pod(pod.key)
            for candidate in self._handle.offers(self._unit).candidates:
                with snapshot.trial():
                    nodes = self._handle.place(self._unit, candidate)
                if nodes is not None:
                    return nodes
        return None

    @staticmethod
    def _last(state: State, count: int) -> Sequence[Replica]:
        surplus = state.surplus
        return surplus[len(surplus) - count :]
