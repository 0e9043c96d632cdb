"""What becomes of the jobs of nodes whose maintenance is announced, in virtual time."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from bayplan.api import Node, Pod
from bayplan.api.owners import belongs_to_node
from bayplan.api.times import rfc3339
from bayplan.dialects.maintenance import MAINTENANCE_AT
from bayplan.dialects.progress import EVICTION_NOTICE, GOING_AT
from bayplan.errors import InputError, did_you_mean
from bayplan.naming import counted, natural_key
from bayplan.simulation.job_histories import job_of
from bayplan.simulation.simulation import Simulation
from bayplan.snapshot import Snapshot
from bayplan.snapshot.networks import Networks

__all__ = ["DrainReport", "JobFate", "drained", "nodes_named"]

_ENDED = ("Succeeded", "Failed")
Outcome = Literal["ends", "moves", "stays", "waits"]


class JobFate(msgspec.Struct, frozen=True):
    """What becomes of a job's pods on nodes that go into maintenance.

    :param pods: how many it has there now.
    :param outcome: they ``end`` in time, ``move``, ``stay`` there, or have gone and ``wait``.
    :param nodes: the nodes that the job has when the maintenance begins.
    :param why: why they stay or wait, "" otherwise.
    """

    job: str
    pods: int
    outcome: Outcome
    nodes: Sequence[str]
    why: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {
            "job": self.job,
            "pods": self.pods,
            "outcome": self.outcome,
            "nodes": list(self.nodes),
            "why": self.why or None,
        }


class DrainReport(msgspec.Struct, frozen=True):
    """Nodes that go into maintenance, when, and what becomes of the jobs there.

    :param begins: the time in RFC 3339, ``seconds`` from now.
    """

    nodes: Sequence[str]
    begins: str
    seconds: float
    jobs: Sequence[JobFate]

    def count(self, outcome: Outcome) -> int:
        """Return how many jobs fare so."""
        return sum(one.outcome == outcome for one in self.jobs)

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        jobs = [one.as_json() for one in self.jobs]
        return {
            "nodes": list(self.nodes),
            "begins": self.begins,
            "seconds": round(self.seconds, 3),
            "jobs": jobs,
        }


def nodes_named(snapshot: Snapshot, names: Sequence[str]) -> list[str]:
    """Return the nodes of names, each of which is that of a node or of a network domain.

    :raises InputError: for a name of neither, or of several domains.
    """
    table = snapshot.nodes
    domains: dict[str, list[list[str]]] = {}
    for tree in Networks.of(snapshot).trees().values():
        for layer in tree.layers.values():
            for one in layer:
                own = [table.names[row] for row in one.rows.tolist()]
                for name in {one.label, "/".join(one.path), one.name}:
                    domains.setdefault(name, []).append(own)
    found: dict[str, None] = {}
    for name in names:
        if name in table.row_of:
            found[name] = None
            continue
        of = {frozenset(own): own for own in domains.get(name, [])}
        if not of:
            near = did_you_mean(name, [*table.names, *domains])
            raise InputError(f'there is no node and no network domain "{name}"{near}')
        if len(of) > 1:
            raise InputError(f'{counted(len(of), "network domain")} have the name "{name}"')
        found |= dict.fromkeys(next(iter(of.values())))
    return sorted(found, key=natural_key)


def drained(simulation: Simulation, nodes: Collection[str], seconds: float) -> DrainReport:
    """Announce the maintenance of nodes now, let the time pass until then, and say what became.

    :param simulation: one in which all pods that can be are placed.
    """
    cluster = simulation.cluster
    before = {pod.metadata.uid: pod for pod in cluster.list(Pod) if _is_there(pod, nodes)}
    known = {pod.metadata.uid for pod in cluster.list(Pod)}
    jobs: dict[str, list[Pod]] = {}
    for pod in before.values():
        jobs.setdefault(_job_of(simulation, pod), []).append(pod)
    begins = rfc3339(cluster.unix_time + seconds)
    for name in nodes:
        node = cluster.get(Node, name)
        if node is not None:
            annotations = {**node.metadata.annotations, MAINTENANCE_AT: begins}
            meta = replace(node.metadata, annotations=annotations)
            cluster.update(replace(node, metadata=meta))
    begun = simulation.scheduler.now
    simulation.outlast(cluster.now + seconds)
    evicted = {one.pod for one in simulation.scheduler.evictor.evicted if one.at >= begun}
    fates: list[JobFate] = []
    for job, pods in jobs.items():
        fates += _fates(simulation, job, pods, evicted, known)
    fates.sort(key=lambda one: natural_key(one.job))
    return DrainReport(sorted(nodes, key=natural_key), begins, seconds, fates)


def _is_there(pod: Pod, nodes: Collection[str]) -> bool:
    ended = pod.status.phase in _ENDED or _is_deleted(pod)
    return pod.spec.node_name in nodes and not ended and not belongs_to_node(pod.metadata)


def _job_of(simulation: Simulation, pod: Pod) -> str:
    info = simulation.scheduler.snapshot.living.get(pod.key)
    return job_of(info) if info is not None else pod.key


def _fates(
    simulation: Simulation,
    job: str,
    pods: Sequence[Pod],
    evicted: Collection[str],
    known: Collection[str],
) -> Iterator[JobFate]:
    """Yield what became of a job's pods that were on nodes in maintenance, by outcome.

    :param known: the pods, by uid, that were there before; those that moved are new.
    """
    by_outcome: dict[Outcome, list[Pod]] = {}
    living = simulation.scheduler.snapshot.living.values()
    own = [info.pod for info in living if job_of(info) == job]
    pending = [pod for pod in own if not pod.spec.node_name]
    for pod in pods:
        now = simulation.cluster.get(Pod, pod.key)
        same = now is not None and now.metadata.uid == pod.metadata.uid
        if now is not None and same and now.status.phase not in _ENDED and not _is_deleted(now):
            by_outcome.setdefault("stays", []).append(now)
        elif pod.key not in evicted:
            by_outcome.setdefault("ends", []).append(pod)
        else:
            by_outcome.setdefault("waits" if pending else "moves", []).append(pod)
    there = {
        pod.spec.node_name
        for pod in own
        if pod.spec.node_name and not _is_deleted(pod) and pod.metadata.uid not in known
    }
    for outcome, those in by_outcome.items():
        nodes, why = there, ""
        if outcome == "stays":
            nodes, why = {pod.spec.node_name for pod in those}, _why_it_stays(those[0])
        elif outcome == "waits":
            why, _ = simulation.pending().get(pending[0].key, ("", None))
        yield JobFate(job, len(those), outcome, sorted(nodes, key=natural_key), why)


def _is_deleted(pod: Pod) -> bool:
    return pod.metadata.deletion_timestamp is not None


def _why_it_stays(pod: Pod) -> str:
    if EVICTION_NOTICE in pod.metadata.annotations:
        return f"it has until {pod.metadata.annotations.get(GOING_AT, '')} to save its work"
    if not any(one.controller for one in pod.metadata.owner_references):
        return "no controller would make its pods again"
    return "no room elsewhere, or something keeps it in place"


def outcomes(report: DrainReport) -> Mapping[Outcome, int]:
    """Return how many jobs fare how."""
    kinds: tuple[Outcome, ...] = ("ends", "moves", "waits", "stays")
    return {kind: count for kind in kinds if (count := report.count(kind))}
