"""The search for room in ``fair-share``: scenarios of victims, each simulated on the snapshot.

A scenario takes victims off their nodes and then places the job and the victims again, in the
order of the queues. So a job that comes before the victims' queues has its place first, victims
that fit elsewhere are moved, and those that end up where they were stay. The rules are those of
KAI's solvers; what fits where is decided by all plugins of the profile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from bayplan import Handle, Placement, PodInfo, Unit
from bayplan.queues.ledger import Ledger
from bayplan_plugins.gpus.vendors.kai.groups import GpuGroups
from bayplan_plugins.queues.kai.estimate import Estimate, kinds_of, slots
from bayplan_plugins.queues.kai.jobs import Job, Jobs
from bayplan_plugins.queues.kai.movers import Movers, arrive
from bayplan_plugins.queues.kai.shares import FairShares
from bayplan_plugins.queues.kai.standings import Head, Standings
from bayplan_plugins.queues.kai.turns import next_pods
from bayplan_plugins.queues.leaving import LeavingPods
from bayplan_plugins.queues.policy import EvictionPlan

__all__ = ["Scenario", "ScenarioSearch", "Way"]

_MOST_SIMULATED = 100
"""Scenarios that are simulated for one job."""


class Scenario(msgspec.Struct, frozen=True):
    """Victims as they go, step by step: each with its job as it was before."""

    steps: tuple[tuple[Job, tuple[PodInfo, ...]], ...] = ()

    @property
    def victims(self) -> list[PodInfo]:
        """All pods that go."""
        return [pod for _, step in self.steps for pod in step]

    @property
    def mark(self) -> frozenset[str]:
        """What tells scenarios apart."""
        return frozenset(pod.key for pod in self.victims)


class Way(msgspec.Struct, frozen=True):
    """One way to preempt: who goes in what order, and what may be lost in the end.

    ``line`` begins the order of victims again. ``accepts`` gets the unit and the victims that
    are lost, by job: those that are placed again do not count.
    """

    line: Callable[[], Iterator[tuple[Job, list[PodInfo]]]]
    accepts: Callable[[Unit, Sequence[tuple[Job, Sequence[PodInfo]]]], bool]
    moves_all: bool = False


class ScenarioSearch:
    """The search for one unit.

    :param movers: the pods that are about to leave their nodes, whose room counts as free, and
        those that are about to come.
    """

    def __init__(
        self,
        handle: Handle,
        ledger: Ledger,
        jobs: Jobs,
        shares: Callable[[], FairShares],
        movers: Movers,
    ) -> None:
        self._handle = handle
        self._ledger = ledger
        self._jobs = jobs
        self._shares = shares
        self._groups = handle.snapshot.shared(GpuGroups, GpuGroups)
        self._coming = movers.coming()
        leaving = movers.leaving()
        self._estimate = Estimate(handle, leaving, self._coming)
        self._leaving = LeavingPods(handle, leaving, self._estimate.later)
        self._simulated = 0

    def run(self, unit: Unit, queue: str, way: Way) -> EvictionPlan | None:
        """Return the first room found, for more and more pods of the unit until it has all."""
        recorded = Scenario()
        plan = None
        held = 0
        for part in _parts(unit):
            found = self._solve(part, queue, way, recorded, held)
            if found is None:
                return None
            recorded, plan = found
            held = len(part.pods)
        return plan

    def without_victims(self, unit: Unit) -> Mapping[str, str] | None:
        """Return the unit's nodes once pods that are about to leave have left; None for none."""
        snapshot = self._handle.snapshot
        with snapshot.trial():
            arrive(snapshot, self._leaving.helping(unit.pods), self._coming)
            return self._place(unit)

    # Scenarios ---------------------------------------------------------------------------

    def _solve(
        self, unit: Unit, queue: str, way: Way, recorded: Scenario, held: int
    ) -> tuple[Scenario, EvictionPlan] | None:
        """Return the first scenario in which the unit fits.

        :param held: how many pods of the unit fit without the recorded victims.
        """
        failed: set[frozenset[str]] = set()
        one_node = len(unit.pods) - held <= self._most_on_a_node(unit)
        for scenarios in (_on_nodes, _growing) if one_node else (_growing,):
            for scenario in scenarios(self._handle, way, recorded):
                if not scenario.steps or not self._may_do(unit, scenario):
                    continue
                mark = scenario.mark
                if mark in failed:
                    continue
                if self._simulated >= _MOST_SIMULATED:
                    return None
                self._simulated += 1
                plan = self._simulate(unit, queue, way, scenario)
                if plan is not None:
                    return _kept(scenario, plan), plan
                failed.add(mark)
        return None

    def _most_on_a_node(self, unit: Unit) -> int:
        """Return how many pods of a unit an empty node takes at most."""
        table = self._handle.snapshot.nodes
        least: dict[str, int] = {}
        for pod in unit.pods:
            for name, amount in pod.requests.items():
                least[name] = min(amount, least.get(name, amount))
        everywhere = [n for n in least if all(n in pod.requests for pod in unit.pods)]
        bounds = [int(table.allocatable(n).max(initial=0)) // least[n] for n in everywhere]
        return min(bounds, default=len(unit.pods))

    def _may_do(self, unit: Unit, scenario: Scenario) -> bool:
        """Tell whether the amounts that would be free are enough."""
        placed = self._handle.snapshot.placed
        return self._estimate.may_hold(unit.pods, scenario.steps, placed)

    def _simulate(
        self, unit: Unit, queue: str, way: Way, scenario: Scenario
    ) -> EvictionPlan | None:
        snapshot = self._handle.snapshot
        victims = scenario.victims
        where = {pod.key: self._place_of(pod) for pod in victims}
        leaving = self._leaving.helping((*unit.pods, *victims))
        leaving += self._leaving.on(snapshot.placed[pod.key][1] for pod in victims)
        with snapshot.trial():
            arrive(snapshot, leaving, self._coming)
            for pod in victims:
                snapshot.remove_pod(pod.key)
            placed = self._place_all(unit, queue, scenario)
            if placed is None:
                return None
            nodes, again = placed
            stay = {pod.key for pod in victims if self._place_of(pod) == where[pod.key]}
        if way.moves_all and len(again) < len(victims):
            return None
        lost = [
            (job, [pod for pod in step if pod.key not in again]) for job, step in scenario.steps
        ]
        if not way.accepts(unit, [pair for pair in lost if pair[1]]):
            return None
        left = [tuple(pod for pod in step if pod.key not in stay) for _, step in scenario.steps]
        moves = {key: node for key, node in again.items() if key not in stay}
        return EvictionPlan(tuple(step for step in left if step), nodes, moves)

    def _place_of(self, pod: PodInfo) -> tuple[str, tuple[str, ...]] | None:
        """Return where a pod is: its node, and the groups that share GPUs with it."""
        placed = self._handle.snapshot.placed.get(pod.key)
        return None if placed is None else (placed[1], self._groups.of_pod(pod.key))

    # Placing -----------------------------------------------------------------------------

    def _place_all(
        self, unit: Unit, queue: str, scenario: Scenario
    ) -> tuple[Mapping[str, str], dict[str, str]] | None:
        """Place the unit and the victims in the order of the queues; None if the unit does not fit.

        :returns: the nodes of the unit's pods, and of the victims that have a place.
        """
        gone = frozenset(pod.key for pod in scenario.victims)
        lines = self._lines(unit, queue, scenario, gone)
        nodes: Mapping[str, str] | None = None
        again: dict[str, str] = {}
        standings = Standings(self._shares())
        while lines:
            heads = {row: Head(self._ledger.sum_of(line[0].pods)) for row, line in lines.items()}
            row = standings.first(heads)
            chosen = lines[row].pop(0)
            if not lines[row]:
                del lines[row]
            found = self._place(chosen)
            if chosen is unit:
                if found is None:
                    return None
                nodes = found
            else:
                again |= found or {}
        return None if nodes is None else (nodes, again)

    def _lines(
        self, unit: Unit, queue: str, scenario: Scenario, gone: frozenset[str]
    ) -> dict[int, list[Unit]]:
        """Return the units of each queue's line, by the queue's row."""
        row_of = self._ledger.tree.row_of
        lines: dict[int, list[tuple[tuple[object, ...], Unit]]] = {}
        own = self._jobs.of_unit(unit, queue)
        lines.setdefault(row_of[queue], []).append((own.order(), unit))
        seen: set[str] = set()
        for job, pods in scenario.steps:
            if job.key in seen or not pods:
                continue
            seen.add(job.key)
            left = self._jobs.job(pods, job.queue, gone)
            again = [pod for pod in next_pods(left.whole) if pod.key in gone]
            if again:
                made = self._handle.unit(again)
                made = replace(made, bound=[pair for pair in made.bound if pair[0].key not in gone])
                lines.setdefault(row_of[job.queue], []).append((left.order(), made))
        return {
            row: [one for _, one in sorted(line, key=lambda pair: pair[0])]
            for row, line in lines.items()
        }

    def _place(self, unit: Unit) -> Mapping[str, str] | None:
        """Place a unit in the running trial; pods that share no network prefer nodes free now."""
        gang = unit.gang
        offered = self._handle.offers(unit).candidates
        if offered and not unit.parts and (gang is None or not (gang.gather or gang.slices)):
            return self._place_each(unit)
        for candidate in offered:
            nodes = self._handle.place(unit, candidate)
            if nodes is not None:
                return nodes
        return None

    def _place_each(self, unit: Unit) -> Mapping[str, str] | None:
        """Place pods on nodes that were free before the trial, or else on any that is free now."""
        nodes: dict[str, str] = {}
        with self._handle.snapshot.trial() as trial:
            for kind in kinds_of(unit.pods):
                found = self._place_kind(kind)
                if found is None:
                    return None
                nodes |= found
            trial.keep()
        return nodes

    def _place_kind(self, pods: Sequence[PodInfo]) -> dict[str, str] | None:
        """Place equal pods: as many as nodes that were free before take, the others anywhere."""
        table = self._handle.snapshot.nodes
        first, count = pods[0], len(pods)
        free = {name: table.allocatable(name) - table.used(name) for name in self._estimate.now}
        here = slots(free, first, count)
        if here.sum() < count:
            return None
        early = np.where(slots(self._estimate.now, first, 1) > 0, here, 0)
        rows, most = np.flatnonzero(early), min(count, int(early.sum()))
        nodes: dict[str, str] = {}
        for part, where in ((pods[:most], rows), (pods[most:], None)):
            found = self._handle.place(Unit(first.key, part), Placement("", where)) if part else {}
            if found is None:
                return self._place_singly(pods)
            nodes |= found
        return nodes

    def _place_singly(self, pods: Sequence[PodInfo]) -> dict[str, str] | None:
        """Place equal pods one by one, where amounts do not tell what fits."""
        nodes: dict[str, str] = {}
        for pod in pods:
            if pod.key in self._handle.snapshot.placed:
                self._handle.snapshot.remove_pod(pod.key)
        for pod in pods:
            alone = Unit(pod.key, (pod,))
            rows = np.flatnonzero(slots(self._estimate.now, pod, 1))
            found = self._handle.place(alone, Placement("", rows)) if len(rows) else None
            found = found or self._handle.place(alone, Placement("", None))
            if found is None:
                return None
            nodes |= found
        return nodes


def _parts(unit: Unit) -> Iterator[Unit]:
    """Yield the first pod of a unit, then the first two, four, ..., then all of it."""
    count = 1
    while count < len(unit.pods):
        pods = unit.pods[:count]
        gang = unit.gang
        if gang is not None:
            gang = replace(gang, min_member=len(unit.bound) + count, sub_groups=(), roles=())
        yield replace(unit, pods=pods, gang=gang, parts=(), nominated={})
        count *= 2
    yield unit


def _on_nodes(handle: Handle, way: Way, recorded: Scenario) -> Iterator[Scenario]:
    """Yield victims that share a node: after each step those on the nodes of the last job."""
    if recorded.steps:
        yield recorded
    placed = handle.snapshot.placed
    steps: list[tuple[Job, tuple[PodInfo, ...]]] = []
    steps_of: dict[str, list[int]] = {}
    jobs_on: dict[str, dict[str, None]] = {}
    for job, pods in _more(way, recorded):
        steps_of.setdefault(job.key, []).append(len(steps))
        steps.append((job, pods))
        nodes = {placed[pod.key][1] for pod in pods}
        for node in nodes:
            jobs_on.setdefault(node, {})[job.key] = None
        for node in sorted(nodes):
            here = sorted(index for key in jobs_on[node] for index in steps_of[key])
            yield Scenario((*recorded.steps, *(steps[index] for index in here)))


def _growing(handle: Handle, way: Way, recorded: Scenario) -> Iterator[Scenario]:
    """Yield one step more each time."""
    steps = recorded.steps
    yield Scenario(steps)
    for step in _more(way, recorded):
        steps = (*steps, step)
        yield Scenario(steps)


def _more(way: Way, recorded: Scenario) -> Iterator[tuple[Job, tuple[PodInfo, ...]]]:
    """Yield the steps of the line without those that are recorded already."""
    known = recorded.mark
    for job, pods in way.line():
        fresh = tuple(pod for pod in pods if pod.key not in known)
        if fresh:
            yield job, fresh


def _kept(scenario: Scenario, plan: EvictionPlan) -> Scenario:
    """Return a scenario without the victims that stay where they are."""
    going = {pod.key for step in plan.steps for pod in step}
    steps = [(job, tuple(pod for pod in step if pod.key in going)) for job, step in scenario.steps]
    return Scenario(tuple(pair for pair in steps if pair[1]))
