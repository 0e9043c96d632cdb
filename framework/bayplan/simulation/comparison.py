"""What several policies make of the same work: what they earn, leave idle, and let wait."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bayplan.simulation.queue_statistics import Waits
from bayplan.simulation.simulation import Simulation

if TYPE_CHECKING:
    from bayplan.billing.earnings import Earnings
    from bayplan.billing.prices import PriceList
    from bayplan.metering.journal import Journal

__all__ = ["Outcome", "Run", "outcomes"]


@dataclass(frozen=True)
class Run:
    """A simulation under a policy that has run, and the journal that it wrote."""

    policy: str
    simulation: Simulation
    journal: Journal


@dataclass(frozen=True)
class Outcome:
    """What became of the work under one policy.

    :param seconds: how long the run took, in virtual seconds.
    :param earnings: what tenants pay and what idle capacity costs, None without prices.
    :param utilisation: how much of each resource in service was used over that time, as a part
        of 1.
    :param evicted: how many pods, and workloads of Kueue, were evicted.
    """

    policy: str
    seconds: float
    earnings: Earnings | None
    utilisation: Mapping[str, float]
    waits: Waits
    evicted: int

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
        }


def outcomes(runs: Sequence[Run], prices: PriceList | None = None) -> list[Outcome]:
    """Return what became of the same work under several policies.

    All runs are taken to the end of the longest, so that what is idle is idle for as long.

    :raises InputError: when there are no prices for the virtual time.
    """
    until = max((run.simulation.ended_at for run in runs), default=0.0)
    for run in runs:
        run.simulation.outlast(until)
    return [_outcome(run, until, prices) for run in runs]


def _outcome(run: Run, until: float, prices: PriceList | None) -> Outcome:
    # The database takes longer to import than a small simulation.
    from bayplan.billing.earnings import earnings

    simulation, journal = run.simulation, run.journal
    begin = round(simulation.cluster.start.timestamp() * 1000)
    end = journal.heartbeat
    return Outcome(
        run.policy,
        until,
        earnings(prices, journal, begin, end) if prices is not None else None,
        _utilisation(journal, begin, end),
        simulation.waits(),
        simulation.evictions,
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
