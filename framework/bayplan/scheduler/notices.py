"""Evictions that wait until their pods have saved their work.

A pod that says how long that takes learns why and when it goes, from annotations that the workload
itself can read. It goes at that time, or as soon as it says that its work is saved; pods that are
evicted together go together, with the last of them. A notice is taken back once nobody needs it any
more. A restart keeps it for as long as the next process may ask again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec

from bayplan.api import Node, Pod
from bayplan.api.node_state import NodeState, state_of
from bayplan.api.times import rfc3339, seconds_of
from bayplan.cluster.protocol import Cluster, PatchFields, annotation_field
from bayplan.dialects.progress import (
    EVICTION_NOTICE,
    GOING_AT,
    LONGEST_NOTICE,
    checkpointed_at,
    notice_wanted,
)
from bayplan.snapshot import PodInfo, Snapshot

__all__ = ["Notices"]

_STRAY_AFTER = 60.0
"""Seconds after its time for which a notice is left that nobody asks for any more."""
_SKEW = 60.0
"""Seconds by which the clock of a workload may be ahead."""


class _Request(msgspec.Struct, eq=False):
    """Pods to evict together once the last of them may go.

    :param evict: evicts those that are still there.
    :param is_wanted: tells whether anybody still needs that.
    :param may_go: tells it at the end, once.
    """

    pods: dict[str, PodInfo]
    evict: Callable[[Sequence[PodInfo]], None]
    is_wanted: Callable[[], bool]
    may_go: Callable[[], bool]


class _Notice(msgspec.Struct, eq=False):
    """What a pod knows: since when and until when it has time (seconds since 1970); for whom."""

    pod: PodInfo
    given_at: float
    due: float
    is_gone: bool = False
    """Whether the pod ends, or has."""
    requests: list[_Request] = msgspec.field(default_factory=list)


class Notices:
    """Gives pods notice of their eviction. Times are seconds since 1970."""

    def __init__(self, cluster: Cluster, snapshot: Snapshot) -> None:
        self._cluster = cluster
        self._snapshot = snapshot
        self._waiting: dict[str, _Notice] = {}
        self._requests: list[_Request] = []
        self._strays: dict[str, tuple[PodInfo, float]] = {}
        """Pods with notices that nobody here gave, by uid, and when these are taken back."""
        snapshot.on_living(self._living_changed)

    def give(
        self,
        pods: Sequence[PodInfo],
        why: Callable[[PodInfo], str],
        evict: Callable[[Sequence[PodInfo]], None],
        is_wanted: Callable[[], bool] = lambda: True,
        may_go: Callable[[], bool] = lambda: True,
    ) -> None:
        """Evict pods together once they have had their notices; at once if none gets any.

        Pods get none that want none, or could not save anything.

        :param evict: evicts those that are still there then.
        :param is_wanted: tells until then whether anybody still needs that; it is asked often.
        :param may_go: tells it then, once; it may take longer.
        """
        request = _Request({pod.uid: pod for pod in pods}, evict, is_wanted, may_go)
        noticed = [pod for pod in pods if self._notice(pod, why(pod), request)]
        if noticed:
            self._requests.append(request)
        else:
            evict(pods)

    def _notice(self, pod: PodInfo, why: str, request: _Request) -> bool:
        """Give a pod notice, or let its notice count for one more request; tell whether it has."""
        known = self._waiting.get(pod.uid)
        if known is not None:
            known.requests.append(request)
            return True
        seconds = notice_wanted(pod.annotations)
        if not seconds or not self._can_save(pod):
            return False
        now = self._cluster.unix_time
        due = self._given_before(pod)
        if not now - _STRAY_AFTER < due <= now + seconds:
            due = now + seconds
            self._write(pod, why, rfc3339(due))
        self._strays.pop(pod.uid, None)
        # Times in annotations have no fractions.
        made = _Notice(pod, math.floor(due - seconds), due, requests=[request])
        self._waiting[pod.uid] = made
        self._let_go_if_saved(made)
        return True

    def waits(self, pod: PodInfo) -> bool:
        """Tell whether a pod has had notice here, and goes later."""
        return pod.uid in self._waiting

    def seconds(self, pod: PodInfo) -> float:
        """Return for how long at most a pod stays that is to go now."""
        return notice_wanted(pod.annotations)

    def cut_short(self, pod: PodInfo) -> None:
        """Forget a pod's notice: it goes now, for another reason."""
        if self._waiting.pop(pod.uid, None) is not None:
            for request in self._requests:
                request.pods.pop(pod.uid, None)

    def take_back(self, pod: PodInfo) -> None:
        """Take a pod's notice back: it stays."""
        self._waiting.pop(pod.uid, None)
        now = self._snapshot.living.get(pod.key)
        if now is None or now.uid != pod.uid or now.pod.metadata.deletion_timestamp:
            return
        if EVICTION_NOTICE in now.pod.metadata.annotations:
            self._write(now, None, None)

    def tick(self) -> None:
        """Evict those whose time has come, and take notices back that nobody asks for."""
        if not self._requests and not self._waiting and not self._strays:
            return
        now = self._cluster.unix_time
        for request in list(self._requests):
            self._look_at(request, now)
        for notice in list(self._waiting.values()):
            notice.requests = [one for one in notice.requests if one in self._requests]
            if not notice.requests:
                self.take_back(notice.pod)
        for uid in [uid for uid, (_, at) in self._strays.items() if at <= now]:
            self.take_back(self._strays.pop(uid)[0])

    def _look_at(self, request: _Request, now: float) -> None:
        """Evict the pods of a request if all of them may go; forget it if nobody wants it."""
        living = self._snapshot.living
        for uid, pod in list(request.pods.items()):
            there = living.get(pod.key)
            if there is None or there.uid != uid or there.pod.metadata.deletion_timestamp:
                del request.pods[uid]
                self._waiting.pop(uid, None)
        wanted = bool(request.pods) and request.is_wanted()
        noticed = [one for uid in request.pods if (one := self._waiting.get(uid)) is not None]
        if wanted and any(one.due > now for one in noticed):
            return
        self._requests.remove(request)
        if wanted and request.may_go():
            for uid in request.pods:
                self._waiting.pop(uid, None)
                for other in self._requests:
                    other.pods.pop(uid, None)
            request.evict(list(request.pods.values()))

    def next_times(self) -> list[float]:
        """Return when ``tick`` has something to do, in the cluster's seconds."""
        if not self._requests and not self._strays:
            return []
        offset = self._cluster.now - self._cluster.unix_time
        waiting = self._waiting
        # A request is due with the last of its pods, at once if none of them waits.
        times = []
        for request in self._requests:
            own = (waiting[uid] for uid in request.pods if uid in waiting)
            times.append(max((one.due for one in own if not one.is_gone), default=0.0))
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
        notice = self._waiting.get(pod.uid)
        if notice is not None:
            # A new version is reported as the end of the old one, and its own beginning.
            notice.is_gone = not added or pod.pod.metadata.deletion_timestamp is not None
        if not added:
            return
        if notice is not None:
            notice.pod = pod
            self._let_go_if_saved(notice)
        elif EVICTION_NOTICE in pod.pod.metadata.annotations:
            now = self._cluster.unix_time
            latest = min(max(self._given_before(pod), now), now + LONGEST_NOTICE)
            self._strays[pod.uid] = pod, latest + _STRAY_AFTER

    def _let_go_if_saved(self, notice: _Notice) -> None:
        saved = seconds_of(checkpointed_at(notice.pod.pod))
        now = self._cluster.unix_time
        if notice.given_at <= saved <= now + _SKEW:
            notice.due = min(notice.due, now)

    def _write(self, pod: PodInfo, why: str | None, at: str | None) -> None:
        own = pod.pod.metadata.annotations
        fields = annotation_field(own, GOING_AT, at) | annotation_field(own, EVICTION_NOTICE, why)
        # Through the status, which bayplan may write anyway; a pod's annotations go that way, too.
        self._cluster.submit(PatchFields(Pod, pod.key, pod.uid, fields, "status"))
