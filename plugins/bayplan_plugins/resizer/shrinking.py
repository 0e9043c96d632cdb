"""Room from the surplus of elastic jobs: the fewest replicas without which a unit really fits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from bayplan import Handle, PodInfo, Unit
from bayplan_plugins.resizer.jobs import Replica, State

__all__ = ["Shrinking", "shrink_for", "shrink_for_quota"]

_MOST_TRIALS = 200
"""Trials in which replicas are reprieved, in one search."""


class Shrinking(msgspec.Struct, frozen=True):
    """How many of the last replicas go, job by job, and the nodes that the unit then gets.

    :param leaving: pods on these nodes that go anyway.
    """

    gone: Sequence[tuple[State, Sequence[Replica]]]
    nodes: Mapping[str, str]
    leaving: Sequence[PodInfo] = ()

    @property
    def pods(self) -> list[PodInfo]:
        """The pods that go now."""
        return _pods(self.gone)


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

    def run(self) -> Shrinking | None:
        counts = _fewest(self._states, lambda tried: self._fits(tried) is not None)
        nodes = self._fits(counts) if counts is not None else None
        if counts is None or nodes is None:
            return None
        return Shrinking(_gone(self._states, counts), nodes, self._in_the_way(nodes))

    def _in_the_way(self, nodes: Mapping[str, str]) -> list[PodInfo]:
        """Return the pods that leave the unit's nodes anyway."""
        placed, used = self._handle.snapshot.placed, set(nodes.values())
        return [pod for pod in self._leaving if placed[pod.key][1] in used]

    def _fits(self, counts: Sequence[int]) -> Mapping[str, str] | None:
        """Return the unit's nodes when each job has so many replicas less."""
        snapshot = self._handle.snapshot
        with snapshot.trial():
            for pod in (*self._leaving, *_pods(_gone(self._states, counts))):
                snapshot.remove_pod(pod.key)
            for candidate in self._handle.offers(self._unit).candidates:
                with snapshot.trial():
                    nodes = self._handle.place(self._unit, candidate)
                if nodes is not None:
                    return nodes
        return None


# How much is enough ------------------------------------------------------------------------


def _fewest(states: Sequence[State], enough: Callable[[Sequence[int]], bool]) -> list[int] | None:
    """Return how many replicas of each job go, the first job first; None if all are too few."""
    counts = _first_jobs(states, enough)
    if counts is None:
        return None
    left = _MOST_TRIALS
    # The replicas of the jobs that come last are the first to be reprieved.
    for at in reversed(range(len(counts))):
        low, high = 0, counts[at]
        while low < high and left > 0:
            left -= 1
            middle = (low + high) // 2
            if enough([*counts[:at], middle, *counts[at + 1 :]]):
                high = middle
            else:
                low = middle + 1
        counts[at] = high
    return counts


def _first_jobs(
    states: Sequence[State], enough: Callable[[Sequence[int]], bool]
) -> list[int] | None:
    """Return the surplus of as many of the first jobs as are enough."""
    most = [len(state.surplus) for state in states]
    if not enough(most):
        return None
    low, high = 0, len(most)
    while low < high:
        middle = (low + high) // 2
        if enough(most[:middle]):
            high = middle
        else:
            low = middle + 1
    return most[:high]


def _gone(states: Sequence[State], counts: Sequence[int]) -> list[tuple[State, Sequence[Replica]]]:
    """Return the last replicas of each job, as many as go."""
    return [
        (state, state.surplus[len(state.surplus) - count :])
        for state, count in zip(states, counts, strict=False)
        if count
    ]


def _pods(gone: Sequence[tuple[State, Sequence[Replica]]]) -> list[PodInfo]:
    return [pod for _, replicas in gone for one in replicas for pod in one.pods]


# Jobs that wait for quota ------------------------------------------------------------------


def shrink_for_quota(
    handle: Handle, states: Sequence[State], leaving: Sequence[PodInfo]
) -> tuple[str, Sequence[tuple[State, Sequence[Replica]]]] | None:
    """Return the job that waits for quota and would get it, and the replicas that go for that.

    None if none would, or if one gets it without, once others have left.

    :param states: the jobs that may shrink, the first one first.
    :param leaving: pods whose quota is free already, but not their nodes.
    """

    queueing = handle.queueing
    if queueing is None:
        return None

    def admitted(counts: Sequence[int], job: str) -> str | None:
        pods = _pods(_gone(states, counts))
        with handle.snapshot.trial():
            for pod in (*leaving, *pods):
                handle.snapshot.remove_pod(pod.key)
            return queueing.admitted_without(pods, job)

    job = admitted([len(state.surplus) for state in states], "")
    if job is None:
        return None
    counts = _fewest(states, lambda tried: admitted(tried, job) is not None)
    return (job, _gone(states, counts)) if counts is not None and any(counts) else None
