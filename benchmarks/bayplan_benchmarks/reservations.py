"""Koordinator's reservations: made for gangs, and used by them, beside the same gangs of pods.

Every gang has four members. What is measured: pods of gangs that reserve nothing, reservations of
gangs, and pods of gangs each of which has its reservation.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from bayplan.api import ApiObject, LabelSelector, ObjectMeta, PodSpec, Reservation
from bayplan.api.pod import PodTemplate
from bayplan.api.reservation import ReservationOwner, ReservationSpec
from bayplan.benchmark import Benchmark, BenchmarkResult
from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.garbage import collect_rarely
from bayplan.profiles.loading import default_profiles
from bayplan.scheduler.scheduler import Scheduler
from bayplan_benchmarks.gang import pod_group
from bayplan_benchmarks.workloads import container, make_node, make_pod, peak_memory

__all__ = ["reservations"]

_GANG = "pod-group.scheduling.sigs.k8s.io"
_SIZE = 4
_SPEC = PodSpec(containers=(container("1", "1Gi"),))


def _measure(nodes: int, pods: int) -> BenchmarkResult:
    gangs = pods // _SIZE
    plain = _Stage(nodes).seconds(_pods(gangs))
    stage = _Stage(nodes)
    kept = stage.seconds(_reservations(gangs))
    used = stage.seconds(_pods(gangs))
    over = sum(one.status.phase == "Succeeded" for one in stage.cluster.list(Reservation))
    return BenchmarkResult(
        {"nodes": nodes, "pods": gangs * _SIZE},
        {
            "podsPerSecond": round(gangs * _SIZE / plain, 1),
            "reservationsPerSecond": round(gangs * _SIZE / kept, 1),
            "usersPerSecond": round(gangs * _SIZE / used, 1),
            "used": over,
            "peakMemoryMiB": round(peak_memory(), 1),
        },
    )


class _Stage:
    """A cluster, and a scheduler that has read its nodes."""

    def __init__(self, nodes: int) -> None:
        self.cluster = MemoryCluster()
        self._scheduler = Scheduler(self.cluster, default_profiles())
        self.seconds(map(make_node, range(nodes)))

    def seconds(self, objects: Iterable[ApiObject]) -> float:
        """Create objects; return how long it takes until nothing is left to do."""
        created = list(objects)
        collect_rarely()
        started = time.perf_counter()
        for obj in created:
            self.cluster.create(obj)
        self.cluster.deliver()
        while self._scheduler.step():
            self.cluster.deliver()
        return time.perf_counter() - started


def _pods(gangs: int) -> Iterable[ApiObject]:
    for gang in range(gangs):
        yield pod_group(f"gang-{gang}", _SIZE)
        for index in range(_SIZE):
            labels = {_GANG: f"gang-{gang}", "job": f"job-{gang}"}
            yield make_pod(f"gang-{gang}-{index}", _SPEC, labels)


def _reservations(gangs: int) -> Iterable[ApiObject]:
    """Yield a reservation for each of the pods, in gangs of their own."""
    for gang in range(gangs):
        yield pod_group(f"kept-{gang}", _SIZE)
        owner = ReservationOwner(label_selector=LabelSelector({"job": f"job-{gang}"}))
        meta = ObjectMeta(namespace="bench", labels={_GANG: f"kept-{gang}"})
        spec = ReservationSpec(PodTemplate(meta, _SPEC), (owner,))
        for index in range(_SIZE):
            yield Reservation(ObjectMeta(name=f"kept-{gang}-{index}"), spec)


reservations = Benchmark(
    "reservations of gangs, and gangs that use them, beside gangs without",
    (1000,),
    4000,
    _measure,
)
