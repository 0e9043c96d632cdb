"""Announced maintenance: new work stays off where it would not end in time, jobs move whole."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import msgspec

from bayplan import Handle, Overdue, PodInfo
from bayplan.api.owners import belongs_to_node
from bayplan.api.times import rfc3339
from bayplan.dialects import may_be_evicted
from bayplan.dialects.maintenance import maintenance_at
from bayplan.dialects.progress import notice_wanted
from bayplan.gangs.completeness import has_minimum
from bayplan.inputs.durations import stated_duration
from bayplan_plugins.recovery.broken import is_deleted
from bayplan_plugins.shared.moving import maker_of, placed_again, started_at
from bayplan_plugins.shared.victims import Evictable

__all__ = ["MAINTENANCE", "Maintenance"]

MAINTENANCE = "maintenance"
_AGAIN = 60.0
"""Seconds after which jobs for which there was no room are tried again."""
_UNTIL_MADE = 30.0
"""Seconds for which a pod without a gang is waited for once it has left."""
_ON_ITS_WAY = 600.0
"""Seconds for which a job that moves is waited for before the next one does."""


class _Move(msgspec.Struct, frozen=True):
    """Members of a job that leave nodes in maintenance, and the job's gang, "" without one.

    ``gang`` is set where all of them go, so that the gang begins again as a whole.
    """

    pods: Sequence[PodInfo]
    gang: str
    nodes: Mapping[str, str]


class Maintenance:
    """Which nodes go when, and which jobs move away before."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._read: object = None
        self._times: dict[str, float] = {}
        self._moving: dict[str, str] = {}
        """The pods that move now, by key, with their uids."""
        self._gang = ""
        self._left_at = math.inf
        self._until = 0.0
        self._next = 0.0

    def times(self) -> Mapping[str, float]:
        """Return when the maintenance of each node begins, in seconds since 1970."""
        table = self._handle.snapshot.nodes
        at = table.epoch, table.node_version
        if at != self._read:
            self._read = at
            found = ((node.metadata.name, maintenance_at(node)) for node in table.nodes)
            self._times = {name: begins for name, begins in found if begins is not None}
        return self._times

    def closed_to(self, pod: PodInfo) -> list[str]:
        """Return the nodes whose maintenance begins before a pod would end that started now."""
        times = self.times()
        if not times:
            return []
        seconds = stated_duration(pod.annotations, pod.spec.active_deadline_seconds)
        ends = self._handle.unix_time + seconds if seconds is not None else None
        return [name for name, begins in times.items() if ends is None or begins < ends]

    # Moving what runs there ----------------------------------------------------------------------

    def overdue(self) -> Overdue | None:
        """Return the members of one job that leave, and when to look again."""
        now = self._handle.now
        if not self.times():
            return None
        if now < self._next:
            return Overdue(again=self._next)
        if self._is_under_way():
            self._next = now + 1.0
            return Overdue(again=self._next)
        move = next(self._moves(), None)
        if move is None:
            self._next = now + _AGAIN
            return Overdue(again=self._next)
        self._moving = {pod.key: pod.uid for pod in move.pods}
        self._gang, self._left_at = move.pods[0].gang or "", math.inf
        notice = max(notice_wanted(pod.annotations) for pod in move.pods)
        self._until = now + notice + _ON_ITS_WAY
        self._next = now + 1.0
        placed = self._handle.snapshot.placed
        victims = [(pod, self._why(placed[pod.key][1])) for pod in move.pods]
        restarts = frozenset([move.gang] if move.gang else ())
        return Overdue(
            victims,
            self._next,
            moves=move.nodes,
            action=MAINTENANCE,
            restarts=restarts,
            is_wanted=partial(self._is_wanted, move),
        )

    def _is_wanted(self, move: _Move) -> bool:
        """Tell whether a job still has to move, and still can."""
        placed = self._handle.snapshot.placed
        own = [placed[pod.key][0] for pod in move.pods if pod.key in placed]
        if not any(placed[pod.key][1] in self.times() for pod in own):
            return False
        return len(self._tried(own)) == len(own)

    def _why(self, node: str) -> str:
        begins = self._times.get(node)
        if begins is None:
            return (
                f"{MAINTENANCE}: its job moves as a whole, away from nodes whose maintenance begins"
            )
        return f"{MAINTENANCE}: that of node {node} begins at {rfc3339(begins)}"

    def _is_under_way(self) -> bool:
        """Tell whether what was moved last still leaves, or may have no node again yet."""
        now, placed = self._handle.now, self._handle.snapshot.placed
        if now >= self._until:
            return False
        if any(k in placed and placed[k][0].uid == uid for k, uid in self._moving.items()):
            return True
        self._left_at = min(self._left_at, now)
        members = self._handle.gang(self._gang) if self._gang else None
        if members is not None and members.gang is not None:
            return not has_minimum(members.gang, members.staying)
        return now < self._left_at + _UNTIL_MADE

    def _moves(self) -> Iterator[_Move]:
        """Yield what could move now: of each job its members there, or else all of it."""
        snapshot, now = self._handle.snapshot, self._handle.unix_time
        seen: set[str] = set()
        for name in sorted(self._times, key=lambda name: (self._times[name], name)):
            for pod in sorted(snapshot.pods_on(name), key=lambda pod: pod.key):
                key = pod.gang or pod.key
                if key in seen or belongs_to_node(pod.pod.metadata) or self._ends_in_time(pod, now):
                    continue
                seen.add(key)
                yield from self._ways(pod)

    def _ends_in_time(self, pod: PodInfo, now: float) -> bool:
        seconds = stated_duration(pod.annotations, pod.spec.active_deadline_seconds)
        if seconds is None:
            return False
        node = self._handle.snapshot.placed[pod.key][1]
        return (started_at(pod) or now) + seconds <= self._times[node]

    def _ways(self, pod: PodInfo) -> Iterator[_Move]:
        """Yield the ways in which a pod's job could leave: with the fewest pods first."""
        if pod.gang is None:
            members = [pod]
        else:
            members = [one for one, _ in self._handle.gang(pod.gang).bound.values()]
        placed = self._handle.snapshot.placed
        here = [one for one in members if placed[one.key][1] in self._times]
        if not here or not self._may_move(members):
            return
        for pods, whole in ((here, False), (members, True)):
            if whole and len(members) == len(here):
                return
            nodes = self._tried(pods)
            if len(nodes) == len(pods):
                yield _Move(pods, (pod.gang or "") if whole else "", nodes)
                return

    def _tried(self, pods: Sequence[PodInfo]) -> Mapping[str, str]:
        """Return where pods would be if they left their nodes now; not all of them may fit."""
        with self._handle.snapshot.trial():
            for one in pods:
                self._handle.snapshot.remove_pod(one.key)
            return placed_again(self._handle, pods)

    def _may_move(self, pods: Sequence[PodInfo]) -> bool:
        """Tell whether somebody makes these pods again, and nothing keeps any of them."""
        handle, queueing = self._handle, self._handle.queueing
        for pod in pods:
            if is_deleted(pod) or not maker_of(pod) or not handle.schedules(pod):
                return False
            if not may_be_evicted(pod.pod) or handle.in_eviction_cooldown(pod):
                return False
            if queueing is not None and queueing.keep_in_place(pod):
                return False
        return not Evictable.by(handle.unit(pods[:1]), handle).violations(pods)
