"""Evictions that wait until their pods have saved their work.

A pod that says how long that takes learns why and when it goes, from annotations that the workload
itself can read. It goes at that time, or as soon as it says that its work is saved. Whoever asked
for the eviction may give it up until then; so does a restart, unless the next process asks again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bayplan.api import Node, Pod
from bayplan.api.node_state import NodeState, state_of
from bayplan.api.times import rfc3339, seconds_of
from bayplan.cluster.protocol import Cluster, PatchFields, annotation_field
from bayplan.dialects.progress import EVICTION_NOTICE, GOING_AT, checkpointed_at, notice_wanted
from bayplan.snapshot import PodInfo, Snapshot

__all__ = ["Notices"]

_STRAY_AFTER = 60.0
"""Seconds after its time for which a notice is left that nobody asks for any more."""


@dataclass
class _Notice:
    """An eviction to come: when (seconds since 1970), how, and whether it is still asked for."""

    pod: PodInfo
    given_at: float
    due: float
    evict: Callable[[], None]
    is_wanted: Callable[[], bool]


class Notices:
    """Gives pods notice of their eviction. Times are seconds since 1970."""

    def __init__(self, cluster: Cluster, snapshot: Snapshot) -> None:
        self._cluster = cluster
        self._snapshot = snapshot
        self._waiting: dict[str, _Notice] = {}
        self._strays: dict[str, tuple[PodInfo, float]] = {}
        """Pods with notices that nobody here gave, by uid, and when these are taken back."""
        snapshot.on_living(self._living_changed)

    def give(
        self,
        pod: PodInfo,
        why: str,
        evict: Callable[[], None],
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        """Evict a pod once it has had its notice; at once if it wants none, or could not save.

        :param evict: evicts it.
        :param is_wanted: tells at the end whether it still has to go.
        """
        if pod.uid in self._waiting:
            return
        seconds = notice_wanted(pod.annotations)
        if not seconds or not self._can_save(pod):
            evict()
            return
        now = self._cluster.unix_time
        due = self._given_before(pod)
        if not now - _STRAY_AFTER < due <= now + seconds:
            due = now + seconds
            self._write(pod, why, rfc3339(due))
        self._strays.pop(pod.uid, None)
        self._waiting[pod.uid] = _Notice(pod, now, due, evict, is_wanted)

    def waits(self, pod: PodInfo) -> bool:
        """Tell whether a pod has had notice here, and goes later."""
        return pod.uid in self._waiting

    def seconds(self, pod: PodInfo) -> float:
        """Return for how long at most a pod stays that is to go now."""
        return notice_wanted(pod.annotations)

    def cut_short(self, pod: PodInfo) -> bool:
        """Evict a pod now that has had notice of a later time; tell whether it had."""
        notice = self._waiting.pop(pod.uid, None)
        if notice is not None:
            notice.evict()
        return notice is not None

    def tick(self) -> None:
        """Evict those whose time has come, and take notices back that nobody asks for."""
        if not self._waiting and not self._strays:
            return
        now = self._cluster.unix_time
        for uid in [uid for uid, one in self._waiting.items() if one.due <= now]:
            notice = self._waiting.pop(uid)
            if notice.is_wanted():
                notice.evict()
            else:
                self._take_back(notice.pod)
        for uid in [uid for uid, (_, at) in self._strays.items() if at <= now]:
            self._take_back(self._strays.pop(uid)[0])

    def next_times(self) -> list[float]:
        """Return when ``tick`` has something to do, in the cluster's seconds."""
        if not self._waiting and not self._strays:
            return []
        offset = self._cluster.now - self._cluster.unix_time
        times = [one.due for one in self._waiting.values()]
        return [at + offset for at in (*times, *(at for _, at in self._strays.values()))]

    def _can_save(self, pod: PodInfo) -> bool:
        """Tell whether a pod has anything to save, and a node that lets it."""
        row = self._snapshot.nodes.row_of.get(pod.spec.node_name)
        node: Node | None = self._snapshot.nodes.nodes[row] if row is not None else None
        up = node is not None and state_of(node) is not NodeState.FAILED
        return up and pod.pod.status.phase == "Running"

    def _given_before(self, pod: PodInfo) -> float:
        """Return when a pod goes as a process before this one wrote; 0 if none did."""
        annotations = pod.pod.metadata.annotations
        return seconds_of(annotations.get(GOING_AT)) if EVICTION_NOTICE in annotations else 0.0

    def _living_changed(self, pod: PodInfo, added: bool) -> None:
        self._strays.pop(pod.uid, None)
        if not added:
            return
        notice = self._waiting.get(pod.uid)
        if notice is not None:
            notice.pod = pod
            saved = seconds_of(checkpointed_at(pod.pod.metadata.annotations))
            if saved >= notice.given_at:
                notice.due = min(notice.due, self._cluster.unix_time)
        elif EVICTION_NOTICE in pod.pod.metadata.annotations:
            at = max(self._given_before(pod), self._cluster.unix_time) + _STRAY_AFTER
            self._strays[pod.uid] = pod, at

    def _take_back(self, pod: PodInfo) -> None:
        now = self._snapshot.living.get(pod.key)
        if now is not None and now.uid == pod.uid and not now.pod.metadata.deletion_timestamp:
            self._write(now, None, None)

    def _write(self, pod: PodInfo, why: str | None, at: str | None) -> None:
        own = pod.pod.metadata.annotations
        fields = annotation_field(own, GOING_AT, at) | annotation_field(own, EVICTION_NOTICE, why)
        self._cluster.submit(PatchFields(Pod, pod.key, pod.uid, fields))
