"""The elastic jobs of the cluster, with their pods, replica by replica."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from msgspec.structs import replace

from bayplan import Handle, PodInfo
from bayplan.api import ApiObject, HorizontalPodAutoscaler
from bayplan.api.object_key import object_key
from bayplan.api.times import seconds_of
from bayplan.dialects.elastic import (
    ELASTIC_KINDS,
    RESIZED_ANNOTATION,
    Mark,
    Replicas,
    elastic_parts,
    index_of,
    part_marks,
    targets,
)
from bayplan.dialects.progress import EVICTION_NOTICE, GOING_AT

__all__ = ["ElasticJobs", "Replica", "State"]


class Replica(msgspec.Struct, frozen=True):
    """The pods of one replica; the removal of any makes it useless."""

    index: int
    pods: Sequence[PodInfo]


class State(msgspec.Struct, frozen=True):
    """A part of a job as it is now.

    :param replicas: those that have pods, in the order in which they stay: the last goes first.
    :param going_at: when the last of them go that were reported so, in seconds since 1970.
    :param placed: how many have a node for every pod.
    :param changed: when the size was set last, in seconds since 1970; None for never.
    """

    part: Replicas
    replicas: Sequence[Replica]
    going_at: Sequence[float]
    placed: int
    changed: float | None

    @property
    def going(self) -> int:
        """How many of the replicas, the last ones, are about to be removed."""
        return len(self.going_at)

    def due(self, now: float) -> Sequence[Replica]:
        """Return the replicas whose time is over; ``now`` is in seconds since 1970."""
        count = 0
        while count < self.going and self.going_at[-1 - count] <= now:
            count += 1
        return self.replicas[len(self.replicas) - count :]

    @property
    def is_settled(self) -> bool:
        """Whether every replica that there should be has its nodes, and none goes."""
        return not self.going and self.placed == len(self.replicas) == self.part.size.now

    @property
    def surplus(self) -> Sequence[Replica]:
        """The replicas beyond the minimum that have nodes and stay so far."""
        return self.replicas[self.part.size.least : len(self.replicas) - self.going]

    @property
    def priority(self) -> int:
        """The highest priority of its pods, or else the one that its template states."""
        pods = [pod.priority for one in self.replicas for pod in one.pods]
        return max(pods, default=self.part.template.spec.priority or 0)


class ElasticJobs:
    """Follows the jobs that want to be resized, and their pods."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._parts: dict[tuple[type, str], list[Replicas]] = {}
        self._by_mark: dict[Mark, Replicas] = {}
        self._were_any = False
        self._pods: dict[Mark, dict[str, PodInfo]] = {}
        self._noticed: dict[str, float] = {}
        self._autoscalers: dict[str, HorizontalPodAutoscaler] = {}
        for type_ in ELASTIC_KINDS:
            handle.snapshot.on_object(type_, self._job_changed)
        handle.snapshot.on_object(HorizontalPodAutoscaler, self._autoscaler_changed)
        handle.snapshot.on_living(self._lives)

    def __bool__(self) -> bool:
        return bool(self._by_mark)

    def _job_changed(self, old: ApiObject | None, new: ApiObject | None) -> None:
        obj = new if new is not None else old
        assert obj is not None, "a change is of something"
        place = type(obj), object_key(obj)
        for part in self._parts.pop(place, ()):
            self._by_mark.pop(part.mark, None)
        parts = elastic_parts(obj) if new is not None else []
        owner = self._autoscaler_of(obj) if parts else None
        if owner is not None:
            text = f"HorizontalPodAutoscaler {owner.metadata.name} sets its replicas"
            parts = [replace(one, problem=text) for one in parts]
        if parts:
            self._parts[place] = parts
            self._by_mark |= {part.mark: part for part in parts}
        if bool(self) != self._were_any:
            self._were_any = bool(self)
            self._handle.concerns_changed()

    def _autoscaler_changed(
        self, old: HorizontalPodAutoscaler | None, new: HorizontalPodAutoscaler | None
    ) -> None:
        for one in (old, new):
            if one is not None:
                self._autoscalers.pop(object_key(one), None)
        if new is not None:
            self._autoscalers[object_key(new)] = new
        for type_, key in list(self._parts):
            obj = self._handle.snapshot.objects(type_).get(key)
            if obj is not None and any(targets(one, obj) for one in (old, new) if one is not None):
                self._job_changed(obj, obj)

    def _autoscaler_of(self, job: ApiObject) -> HorizontalPodAutoscaler | None:
        """Return the autoscaler that sets a job's replicas: a field has one writer."""
        found = (one for one in self._autoscalers.values() if targets(one, job))
        return min(found, key=object_key, default=None)

    def noticed(self, pod: PodInfo, at: float) -> None:
        """Note when a pod goes, in seconds since 1970, until the watch shows it."""
        self._noticed[pod.key] = at

    def _lives(self, pod: PodInfo, added: bool) -> None:
        if self._noticed and not added:
            self._noticed.pop(pod.key, None)
        for mark in part_marks(pod.pod.metadata):
            pods = self._pods.setdefault(mark, {})
            if added:
                pods[pod.key] = pod
            else:
                pods.pop(pod.key, None)
                if not pods:
                    del self._pods[mark]

    def all(self) -> list[Replicas]:
        """Return all parts of jobs that want to be resized, in a stable order."""
        return sorted(self._by_mark.values(), key=lambda one: (one.kind, one.key, one.part))

    def part_of(self, pod: PodInfo) -> Replicas | None:
        """Return the part of an elastic job that a pod belongs to; None for other pods."""
        if not self._by_mark:
            return None
        marks = part_marks(pod.pod.metadata)
        return next((self._by_mark[mark] for mark in marks if mark in self._by_mark), None)

    def pods_of(self, part: Replicas) -> list[PodInfo]:
        """Return the living pods of a part that are not being deleted."""
        pods = self._pods.get(part.mark, {}).values()
        return [pod for pod in pods if pod.pod.metadata.deletion_timestamp is None]

    def leaving(self) -> list[PodInfo]:
        """Return the pods on nodes that are about to go, or are being deleted."""
        placed = self._handle.snapshot.placed
        return [
            pod
            for mark in self._by_mark
            for pod in self._pods.get(mark, {}).values()
            if pod.key in placed and (pod.terminating or self._reported(pod) is not None)
        ]

    def _has_node(self, pod: PodInfo) -> bool:
        handle = self._handle
        return pod.key in handle.snapshot.placed and not handle.is_nominated(pod)

    def state(self, part: Replicas) -> State:
        """Return a part as it is now, without pods beyond its size: its controller removes them."""
        replicas = [one for one in self._replicas(part) if one.index < part.size.now]
        complete = [
            len(one.pods) >= part.pods_each and all(map(self._has_node, one.pods))
            for one in replicas
        ]
        times: list[float] = []
        for one in reversed(replicas):
            at = self._going_at(one)
            if at is None:
                break
            times.append(at)
        stamp = part.obj.metadata.annotations.get(RESIZED_ANNOTATION)
        return State(
            part,
            replicas,
            times[::-1],
            sum(complete),
            seconds_of(stamp) if stamp is not None else None,
        )

    def _replicas(self, part: Replicas) -> Iterator[Replica]:
        pods = self.pods_of(part)
        if part.indexed:
            by_index: dict[int, list[PodInfo]] = {}
            for pod in pods:
                index = index_of(pod.pod.metadata)
                if index is not None:
                    by_index.setdefault(index, []).append(pod)
            for index in sorted(by_index):
                yield Replica(index, sorted(by_index[index], key=lambda pod: pod.key))
            return
        placed = self._handle.snapshot.placed
        pods.sort(
            key=lambda pod: (
                pod.key not in placed,
                self._reported(pod) is not None,
                _born(pod),
                pod.key,
            )
        )
        step = max(1, part.pods_each)
        for index, first in enumerate(range(0, len(pods), step)):
            yield Replica(index, pods[first : first + step])

    def _reported(self, pod: PodInfo) -> float | None:
        """Return when a pod goes for its job's size, in seconds since 1970; None for others."""
        if EVICTION_NOTICE in pod.pod.metadata.annotations:
            return None
        stamp = pod.pod.metadata.annotations.get(GOING_AT)
        return seconds_of(stamp) if stamp is not None else self._noticed.get(pod.key)

    def _going_at(self, replica: Replica) -> float | None:
        times = map(self._reported, replica.pods)
        return next((at for at in times if at is not None), None)


def _born(pod: PodInfo) -> str:
    return pod.pod.metadata.creation_timestamp or "~"
