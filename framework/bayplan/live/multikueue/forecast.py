"""What a cluster would do with a job: a simulation on what is seen of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from datetime import UTC, datetime

import msgspec

from bayplan.api import KINDS, ApiObject, Pod
from bayplan.api.object_key import object_key
from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.dialects.queued_jobs import queued_job
from bayplan.naming import counted
from bayplan.profiles.loading import ProfileSet
from bayplan.simulation.simulation import Simulation

__all__ = ["Forecast", "forecast"]

_HORIZON = 120.0
"""Virtual seconds in which a job has to start: evictions, and their grace periods, fit in."""
_OWNERS_DEEP = 4
"""A TrainJob's JobSet's Job's pods."""


class Forecast(msgspec.Struct, frozen=True):
    """What becomes of a job in a cluster.

    :param starts: after how many seconds all of its pods have nodes; None if they get none now.
    :param evicted: how many pods and workloads are evicted for it.
    :param why: what it waits for.
    """

    cluster: str
    starts: float | None
    evicted: int = 0
    why: str = ""

    @property
    def order(self) -> tuple[bool, float, int]:
        """A sort key: where it starts first comes first, then where it evicts least."""
        return self.starts is None, self.starts or 0.0, self.evicted

    def __str__(self) -> str:
        """Return what a person reads."""
        if self.starts is None:
            return f"{self.cluster}: waits{f': {self.why}' if self.why else ''}"
        when = f"in {self.starts:.0f} s" if self.starts >= 1 else "now"
        evicts = f", evicts {counted(self.evicted, 'pod')}" if self.evicted else ""
        return f"{self.cluster}: starts {when}{evicts}"


def forecast(
    cluster: str, objects: Iterable[ApiObject], jobs: Sequence[ApiObject], profiles: ProfileSet
) -> Forecast:
    """Return what a cluster would do with a job, or with pods, that are created now.

    :param objects: what is seen of the cluster.
    :param jobs: the job, suspended, or the pods.
    :param profiles: those that schedule there.
    """
    simulation = Simulation(profiles, start=datetime.now(UTC))
    simulation.create(objects, restore=True)
    # What happens there without the job counts neither as a wait nor as an eviction.
    simulation.outlast(0.0)
    begun, evicted = simulation.cluster.now, simulation.evictions
    simulation.create(jobs)
    made = [one for job in jobs if (one := simulation.cluster.get(type(job), object_key(job)))]
    if len(made) < len(jobs):
        refused = simulation.refused()
        return Forecast(cluster, None, why=next(iter(refused.values()), "it is refused"))
    uids = {one.metadata.uid for one in made}
    wanted = sum(1 if isinstance(one, Pod) else _pods_of(one) for one in jobs)
    started: list[float] = []

    def look(_: Simulation) -> None:
        if not started and _placed(simulation.cluster, uids) >= wanted:
            started.append(simulation.cluster.now - begun)

    simulation.on_settled(look)
    simulation.outlast(begun + _HORIZON)
    if started:
        return Forecast(cluster, started[0], simulation.evictions - evicted)
    keys = set(map(object_key, jobs))
    held = (one.why for one in simulation.held_jobs() if one.key in keys)
    pending = (why for key, (why, _) in simulation.pending().items() if key in keys)
    why = next(held, "") or next(pending, "")
    return Forecast(cluster, None, why=why or "not all of its pods get nodes")


def _pods_of(job: ApiObject) -> int:
    return sum(queued_job(job).counts.values())


def _placed(cluster: MemoryCluster, uids: Set[str]) -> int:
    """Return how many pods with nodes some objects have, or are."""
    placed = (pod for pod in cluster.list(Pod) if pod.spec.node_name)
    return sum(pod.metadata.uid in uids or _is_of(cluster, pod, uids) for pod in placed)


def _is_of(cluster: MemoryCluster, pod: Pod, uids: Set[str]) -> bool:
    obj: ApiObject | None = pod
    for _ in range(_OWNERS_DEEP):
        owners = obj.metadata.owner_references if obj is not None else ()
        owner = next((one for one in owners if one.controller), None)
        if owner is None:
            return False
        if owner.uid in uids:
            return True
        kind = KINDS.get((owner.api_version.rpartition("/")[0], owner.kind))
        key = f"{pod.metadata.namespace}/{owner.name}"
        obj = cluster.get(kind.type, key) if kind is not None else None
    return False
