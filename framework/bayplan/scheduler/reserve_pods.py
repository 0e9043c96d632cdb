"""Reservations as pods: the scheduler gets a pod for each, and what it writes of it is of that.

So a reservation is queued, placed, preferred and refused like any pod, alone or in a gang, with
devices, CPUs and quotas. No such pod is ever in the cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from msgspec.structs import replace

from bayplan.api import ApiObject, Pod, Reservation
from bayplan.api.reservation import ReservationStatus
from bayplan.cluster.protocol import (
    Bind,
    Cluster,
    Done,
    Event,
    Evict,
    PatchAnnotations,
    PatchFields,
    PatchPodStatus,
    PatchStatus,
    WatchEvent,
    WatchHandler,
    WatchType,
    Write,
)
from bayplan.cluster.wrapped import WrappedCluster
from bayplan.dialects.koordinator.reservations import (
    as_available,
    as_expired,
    as_unschedulable,
    reserve_pod,
)
from bayplan.errors import ClusterError, NotFound

__all__ = ["WithReservePods"]


class WithReservePods(WrappedCluster):
    """A cluster whose reservations are pods as well."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self._pods: dict[str, Pod] = {}
        """The pod of each reservation, by the reservation's name."""
        self._names: dict[str, str] = {}
        """The reservation of each pod, by the pod's key."""
        self._found: dict[str, Reservation] = {}

    # What comes ------------------------------------------------------------------------------

    def watch(self, handler: WatchHandler) -> None:
        """Deliver all objects as ADDED, then every change; a reservation's pod after it."""
        self._cluster.watch(partial(self._deliver, handler))

    def _deliver(self, handler: WatchHandler, event: WatchEvent) -> None:
        if event.type is WatchType.RESYNC:
            self._resync(handler, event)
            return
        handler(event)
        if isinstance(event.obj, Reservation):
            gone = event.type is WatchType.DELETED
            self._follow(handler, event.obj, None if gone else reserve_pod(event.obj))

    def _resync(self, handler: WatchHandler, event: WatchEvent) -> None:
        self._pods, self._names, self._found = {}, {}, {}
        listed: list[ApiObject] = list(event.objects)
        for obj in event.objects:
            pod = reserve_pod(obj) if isinstance(obj, Reservation) else None
            if pod is not None and isinstance(obj, Reservation):
                self._keep(obj, pod)
                listed.append(pod)
        handler(replace(event, objects=tuple(listed)))

    def _keep(self, found: Reservation, pod: Pod) -> None:
        name = found.key
        self._pods[name], self._names[pod.key], self._found[name] = pod, name, found

    def _follow(self, handler: WatchHandler, found: Reservation, pod: Pod | None) -> None:
        """Deliver what has become of a reservation's pod."""
        name = found.key
        old = self._pods.get(name)
        if old is not None and (pod is None or pod.key != old.key):
            del self._pods[name], self._names[old.key]
            handler(WatchEvent(WatchType.DELETED, old))
            old = None
        if pod is None:
            self._found.pop(name, None)
            return
        self._found[name] = found
        if old != pod:
            self._keep(found, pod)
            handler(WatchEvent(WatchType.ADDED if old is None else WatchType.MODIFIED, pod))

    # What is written -------------------------------------------------------------------------

    def submit(self, write: Write, done: Done | None = None) -> None:
        """Carry out a write; one of a reservation's pod is carried out on the reservation."""
        if not self._names:
            self._cluster.submit(write, done)
            return
        key = write.key if isinstance(write, PatchFields) and write.type is Pod else ""
        key = key or getattr(write, "pod", "")
        name = self._names.get(key)
        if name is None or (isinstance(write, Event) and write.about != "Pod"):
            self._cluster.submit(write, done)
            return
        found = self._found[name]
        if isinstance(write, Bind):
            self._bind(found, write, done)
        elif isinstance(write, PatchPodStatus):
            message = write.condition.message
            self._status(found, as_unschedulable(found, message, self.unix_time), done)
        elif isinstance(write, Event):
            self._cluster.submit(replace(write, pod=name, about="Reservation"), done)
        elif isinstance(write, Evict):
            self._status(found, as_expired(found, self.unix_time), done)
        elif done is not None:
            # Of a pod that is nowhere, nothing else can be written.
            done(NotFound(f"{key} only stands for the reservation {name}"))

    def _bind(self, found: Reservation, write: Bind, done: Done | None) -> None:
        """Write where a reservation is, after what its runtime's agents read."""
        status = as_available(found, write.node, self.unix_time)
        if not write.annotations:
            self._status(found, status, done)
            return
        annotations: Mapping[str, str | None] = dict(write.annotations)

        def annotated(error: ClusterError | None) -> None:
            if error is None:
                self._status(found, status, done)
            elif done is not None:
                done(error)

        self._cluster.submit(PatchAnnotations(Reservation, found.key, annotations), annotated)

    def _status(self, found: Reservation, status: ReservationStatus, done: Done | None) -> None:
        # Whoever may use it waits for its node.
        awaited = status.phase != "Pending"
        self._cluster.submit(PatchStatus(Reservation, found.key, status, awaited=awaited), done)
