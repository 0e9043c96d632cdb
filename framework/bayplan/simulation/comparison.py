"""What several policies make of the same work: what moves, what waits longer, what is wasted.

A policy is a profile, or the same profile with more manifests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from bayplan.api.node_state import NodeState, state_of
from bayplan.queues.workload_waits import waiting_workloads
from bayplan.simulation.job_histories import JobHistory
from bayplan.simulation.queue_statistics import Waits
from bayplan.simulation.simulation import Simulation
from bayplan.snapshot import NodeTable

if TYPE_CHECKING:
    from bayplan.billing.earnings import Earnings
    from bayplan.billing.prices import PriceList
    from bayplan.metering.journal import Journal
    from bayplan.simulation.goodput import GoodputReport

__all__ = ["Comparison", "Difference", "IdleHistory", "JobChange", "Outcome", "Run", "compare"]

_SAME = 0.5
"""Seconds by which waits may differ and count as equal."""


class IdleHistory(msgspec.Struct):
    """What was free while jobs waited, by resource, in amounts times seconds (CPU in milli-CPU)."""

    total: dict[str, float] = msgspec.field(default_factory=dict)
    _free: dict[str, float] = msgspec.field(default_factory=dict)
    _since: float = 0.0
    _looked_at: int = -1
    _mask: npt.NDArray[np.bool_] = msgspec.field(
        default_factory=lambda: np.zeros(0, dtype=np.bool_)
    )

    def look(self, simulation: Simulation) -> None:
        """Take in an instant; what is free then stays so until the next one."""
        self._pass_time(simulation.scheduler.now)
        scheduler = simulation.scheduler
        snapshot = scheduler.snapshot
        self._free = {}
        if not scheduler.queue.units and not any(waiting_workloads(snapshot, scheduler.unix_time)):
            return
        table = snapshot.nodes
        in_service = self._in_service(table)
        for name, offered in table.allocatable_columns.items():
            if name == "pods":
                continue
            free = float((offered - table.used(name)).clip(min=0)[in_service].sum())
            if free:
                self._free[name] = free

    def _in_service(self, table: NodeTable) -> npt.NDArray[np.bool_]:
        """Return which nodes can take pods: not those that failed or are cordoned."""
        if self._looked_at != table.node_version:
            self._looked_at = table.node_version
            states = [state_of(node) is NodeState.IN_SERVICE for node in table.nodes]
            self._mask = np.array(states, dtype=np.bool_)
        return self._mask

    def ends(self, at: float) -> None:
        """Count up to the end of the run."""
        self._pass_time(at)

    def _pass_time(self, until: float) -> None:
        for name, free in self._free.items():
            self.total[name] = self.total.get(name, 0.0) + free * (until - self._since)
        self._since = until


class Run(msgspec.Struct, frozen=True):
    """A simulation under a policy that has run, the journal that it wrote, and what was free."""

    policy: str
    simulation: Simulation
    journal: Journal
    idle: IdleHistory


class Outcome(msgspec.Struct, frozen=True):
    """What became of the work under one policy.

    :param seconds: how long the run took, in virtual seconds.
    :param earnings: what tenants pay and what idle capacity costs, None without prices.
    :param utilisation: how much of each resource in service was used over that time, as a part
        of 1.
    :param evicted: how many pods, and workloads of Kueue, were evicted.
    :param pending: how many pods have no node at the end.
    :param idle: what was free while jobs waited, by resource, in amounts times seconds (CPU in
        milli-CPU).
    :param lost: what evicted pods had held, likewise.
    :param notes: what people have to know of the run: which pods no profile schedules.
    :param goodput: what became of all GPU hours, None where nothing fails.
    :param nodes: what an autoscaler bought and what that cost, as ``Autoscaler.as_json`` has it.
    """

    policy: str
    seconds: float
    earnings: Earnings | None
    utilisation: Mapping[str, float]
    waits: Waits
    evicted: int
    pending: int
    idle: Mapping[str, float]
    lost: Mapping[str, float]
    notes: Sequence[str] = ()
    nodes: Mapping[str, Any] | None = None
    goodput: GoodputReport | None = None

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object; money is a decimal in text, times are seconds."""
        costs = {} if self.earnings is None else {"costs": self.earnings.as_json()}
        return {
            "policy": self.policy,
            "seconds": round(self.seconds, 3),
            **costs,
            "utilisation": {name: round(part, 6) for name, part in self.utilisation.items()},
            "wait": self.waits.as_json(),
            "evicted": self.evicted,
            "pending": self.pending,
            "idleWhileWaiting": {name: round(one, 3) for name, one in self.idle.items()},
            "lost": {name: round(one, 3) for name, one in self.lost.items()},
            "notes": list(self.notes),
            **({} if self.nodes is None else {"autoscaling": dict(self.nodes)}),
            **({} if self.goodput is None else {"goodput": self.goodput.as_json()}),
        }


class JobChange(msgspec.Struct, frozen=True):
    """A job under the first policy and under another."""

    job: str
    before: JobHistory
    after: JobHistory

    @property
    def moved(self) -> bool:
        """Whether it has pods on other nodes, or has pods under one policy only."""
        return self.before.nodes != self.after.nodes

    @property
    def waits_longer_by(self) -> float:
        """For how many seconds longer it waited; below 0 for shorter."""
        return self.after.waited - self.before.waited

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {
            "job": self.job,
            "moved": self.moved,
            "waitsLongerBy": round(self.waits_longer_by, 3),
            "before": self.before.as_json(),
            "after": self.after.as_json(),
        }


class Difference(msgspec.Struct, frozen=True):
    """What another policy changes against the first: ``changes`` are the jobs that notice.

    ``jobs`` counts all of them. The jobs are in the order of how much longer they wait.
    """

    policy: str
    against: str
    jobs: int
    changes: Sequence[JobChange]

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {
            "policy": self.policy,
            "against": self.against,
            "jobs": self.jobs,
            "changes": [one.as_json() for one in self.changes],
        }


class Comparison(msgspec.Struct, frozen=True):
    """The outcome of each policy, and how all but the first differ from it."""

    outcomes: Sequence[Outcome]
    differences: Sequence[Difference]

    def as_json(self) -> dict[str, Any]:
        """Return one JSON object."""
        return {
            "policies": [one.as_json() for one in self.outcomes],
            "differences": [one.as_json() for one in self.differences],
        }


def compare(runs: Sequence[Run], prices: PriceList | None = None) -> Comparison:
    """Return what became of the same work under several policies.

    All runs are taken to the end of the longest, so that what is idle is idle for as long.

    :raises InputError: when there are no prices for the virtual time.
    """
    until = max((run.simulation.ended_at for run in runs), default=0.0)
    for run in runs:
        run.simulation.outlast(until)
        run.idle.ends(until)
    histories = [run.simulation.histories() for run in runs]
    outcomes = [
        _outcome(run, found, until, prices) for run, found in zip(runs, histories, strict=True)
    ]
    differences = [
        _difference(runs[0], histories[0], run, found)
        for run, found in zip(runs[1:], histories[1:], strict=True)
    ]
    return Comparison(outcomes, differences)


def _difference(
    first: Run, before: Mapping[str, JobHistory], run: Run, after: Mapping[str, JobHistory]
) -> Difference:
    nothing = JobHistory()
    jobs = sorted({*before, *after})
    changes = [JobChange(job, before.get(job, nothing), after.get(job, nothing)) for job in jobs]
    noticed = [
        one
        for one in changes
        if one.moved
        or abs(one.waits_longer_by) > _SAME
        or one.before.waiting != one.after.waiting
        or one.before.evicted != one.after.evicted
    ]
    noticed.sort(key=lambda one: -one.waits_longer_by)
    return Difference(run.policy, first.policy, len(jobs), noticed)


def _outcome(
    run: Run, histories: Mapping[str, JobHistory], until: float, prices: PriceList | None
) -> Outcome:
    # The database takes longer to import than a small simulation.
    from bayplan.billing.earnings import earnings

    simulation, journal = run.simulation, run.journal
    begin = round(simulation.cluster.start.timestamp() * 1000)
    end = journal.heartbeat
    lost: dict[str, float] = {}
    for history in histories.values():
        for name, amount in history.lost.items():
            lost[name] = lost.get(name, 0.0) + amount
    return Outcome(
        run.policy,
        until,
        earnings(prices, journal, begin, end) if prices is not None else None,
        _utilisation(journal, begin, end),
        simulation.waits(),
        simulation.evictions,
        len(simulation.pending()),
        dict(sorted(run.idle.total.items())),
        dict(sorted(lost.items())),
        tuple(simulation.foreign_pods()),
        simulation.autoscaler.as_json() if simulation.autoscaler is not None else None,
        simulation.fault_play.report() if simulation.fault_play is not None else None,
    )


def _utilisation(journal: Journal, since: int, until: int) -> dict[str, float]:
    from bayplan.metering.summary import Summary

    summary = Summary(journal, since, until)
    used = summary.usage(["resource"])
    return {
        resource: used.get((resource,), 0) / total
        for (resource, state), total in sorted(summary.capacity(["resource", "state"]).items())
        if state == "in-service"
    }
