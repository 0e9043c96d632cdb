"""GangRestart: the nodes of a gang whose pods are made again are kept for them, for a short time.

A LeaderWorkerSet makes a group again of which a pod failed, a JobSet or a Volcano job restarts, a
rolling update replaces pods. Nobody holds their nodes after the old pods are gone and before the
new ones have nodes. As much of them is kept from pods of no higher priority, as long as what owns
the pods makes them again, for ``seconds`` after the last one went. Whoever wrote the gang: of one
that is no owner's, each pod has its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator

import msgspec
import numpy as np
from pydantic import Field

from bayplan import (
    SKIP,
    Args,
    ClusterEvent,
    Eviction,
    Handle,
    NodeView,
    Overdue,
    Plugin,
    PodInfo,
    Reads,
    Reject,
    hookimpl,
)
from bayplan.api.gang import Gang, OwnedPart
from bayplan.api.owners import belongs_to_node
from bayplan.gangs.made_again import maker_of, pods_made_again
from bayplan.plugin.hookspecs import IntColumn

__all__ = ["GangRestart", "GangRestartArgs"]

_MANY = 1 << 20
"""Pods that a node takes which nothing limits."""


class GangRestartArgs(Args):
    """Arguments of GangRestart: for how many seconds nodes are kept; with 0 they are not."""

    seconds: float = Field(default=30.0, ge=0, le=600)


class _Restart(msgspec.Struct):
    """A gang whose members went, by key, and when the last one did, in the handle's seconds.

    ``others`` are the UIDs of those that had nodes when the first one went. ``makers`` is what
    makes members, by the UIDs of their controllers.
    """

    gang: Gang
    others: frozenset[str]
    gone: dict[str, PodInfo] = msgspec.field(default_factory=dict)
    makers: dict[str, OwnedPart | None] = msgspec.field(default_factory=dict)
    since: float = 0.0


class GangRestart(Plugin[GangRestartArgs]):
    """Keep the nodes of gangs whose pods are made again."""

    Args = GangRestartArgs
    reads = Reads.PODS
    requeue_on = ClusterEvent.POD | ClusterEvent.OBJECT_CHANGED | ClusterEvent.GANG_CHANGED

    def __init__(self, args: GangRestartArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._ends: list[tuple[PodInfo, Gang]] = []
        """Versions of members that are not known any more, some for a newer one."""
        self._evicted: set[str] = set()
        self._restarts: dict[str, _Restart] = {}
        self._kept: dict[str, list[PodInfo]] = {}
        """What is kept, as pods that are gone, by node."""
        self._mark: object = None
        self._version = 0
        self._released = False
        if args.seconds:
            handle.snapshot.on_living(self._on_living)

    # Who is made again ---------------------------------------------------------------------------

    def _on_living(self, pod: PodInfo, added: bool) -> None:
        if added or pod.gang is None or not pod.spec.node_name:
            return
        gang = self.handle.gang(pod.gang).gang
        if gang is not None and _controller(pod):
            self._ends.append((pod, gang))

    @hookimpl
    def post_evict(self, pod: PodInfo, eviction: Eviction) -> None:
        """Keep nothing of what bayplan takes away."""
        gang = self.handle.gang(pod.gang).gang if pod.gang is not None else None
        if gang is not None and _controller(pod) and self.args.seconds:
            self._evicted.add(pod.uid)

    def _look(self) -> None:
        """Bring what is kept up to date."""
        ends, self._ends = self._ends, []
        unmade: set[tuple[str, str]] = set()
        for pod, gang in ends:
            self._note_end(pod, gang, unmade)
        if not self._restarts:
            return
        now, members = self.handle.now, [self.handle.gang(key) for key in self._restarts]
        due = [one.since + self.args.seconds <= now for one in self._restarts.values()]
        mark = self.handle.snapshot.objects_version, due, [one.version for one in members]
        if ends or mark != self._mark:
            self._mark = mark
            self._keep()

    def _note_end(self, pod: PodInfo, gang: Gang, unmade: set[tuple[str, str]]) -> None:
        """Keep the node of a member that is gone, if it is made again.

        :param unmade: gangs with controllers whose pods are not, as was found in this look.
        """
        if self.handle.snapshot.is_living(pod):
            return
        members = self.handle.gang(gang.key)
        if pod.uid in self._evicted or members.ended.get(pod.key) == "Succeeded":
            self._evicted.discard(pod.uid)
            return
        restart = self._restarts.get(gang.key)
        if restart is None:
            made_by = gang.key, _controller(pod)
            if made_by in unmade:
                return
            if gang.owner is None and maker_of(pod.pod, self.handle.snapshot) is None:
                unmade.add(made_by)
                return
            others = frozenset(info.uid for info, _ in members.bound.values())
            restart = self._restarts[gang.key] = _Restart(gang, others)
        restart.gone[pod.key], restart.since = pod, self.handle.now

    def _keep(self) -> None:
        kept: dict[str, list[PodInfo]] = {}
        for key, restart in list(self._restarts.items()):
            pods = self._to_come(restart)
            if not pods:
                del self._restarts[key]
            for pod in pods:
                kept.setdefault(pod.spec.node_name, []).append(pod)
        if kept != self._kept:
            self._released |= len(kept) < len(self._kept)
            self._kept = kept
            self._version += 1

    def _to_come(self, restart: _Restart) -> list[PodInfo]:
        """Return the pods that are gone and will be made again, as far as there is time."""
        if self.handle.now >= restart.since + self.args.seconds:
            return []
        bound = self.handle.gang(restart.gang.key).bound
        left = {key: pod for key, pod in restart.gone.items() if key not in bound}
        taken = [node for info, node in bound.values() if info.uid not in restart.others]
        for key, pod in list(left.items()):
            if pod.spec.node_name in taken:
                taken.remove(pod.spec.node_name)
                del left[key]
        restart.gone = left
        missing = self._missing(restart, [info for info, _ in bound.values()])
        found = []
        for pod in left.values():
            maker = self._maker(restart, pod)
            if maker is not None and missing.get(maker, 0) > 0:
                missing[maker] -= 1
                found.append(pod)
        return found

    def _missing(self, restart: _Restart, bound: list[PodInfo]) -> Counter[OwnedPart]:
        """Return how many pods each maker of some that are gone still makes."""
        there = Counter(self._maker(restart, pod) for pod in bound)
        found: Counter[OwnedPart] = Counter()
        for pod in restart.gone.values():
            maker = self._maker(restart, pod)
            if maker is not None and maker not in found:
                wanted = pods_made_again(maker, pod.namespace, self.handle.snapshot)
                found[maker] = wanted - there[maker]
        return found

    def _maker(self, restart: _Restart, pod: PodInfo) -> OwnedPart | None:
        """Return what makes a member of a gang: mostly what owns all of them."""
        if restart.gang.owner is not None:
            return restart.gang.owner
        uid = _controller(pod)
        if uid not in restart.makers:
            restart.makers[uid] = maker_of(pod.pod, self.handle.snapshot)
        return restart.makers[uid]

    @hookimpl
    def overdue(self) -> Overdue | None:
        """Evict nobody: let others have what is kept no longer."""
        self._look()
        released, self._released = self._released, False
        times = [one.since + self.args.seconds for one in self._restarts.values()]
        again = min(times, default=None)
        return Overdue(again=again, waited=released) if times or released else None

    # Whom it is kept from ------------------------------------------------------------------------

    @hookimpl
    def sign(self, pod: PodInfo) -> Hashable:
        """Sign by what is kept from the pod."""
        if not self._ends and not self._restarts:
            # Mostly nothing is kept.
            return None
        closed = self._closed_to(pod)
        return (self._version, tuple(closed)) if closed else None

    @hookimpl
    def pre_filter(self, pod: PodInfo) -> object:
        """Skip pods from which nothing is kept."""
        if not self._ends and not self._restarts:
            return SKIP
        return None if self._closed_to(pod) else SKIP

    @hookimpl
    def filter(self, pod: PodInfo, nodes: NodeView) -> Iterator[Reject]:
        """Refuse nodes that have no room beside what is kept."""
        refused: dict[str, list[int]] = {}
        for node, kept in self._closed_to(pod).items():
            row = nodes.table.row_of.get(node)
            if row is not None and self._slots_beside(pod, nodes, row, kept) < 1:
                titles = sorted({self._restarts[one.gang or ""].gang.title for one in kept})
                why = f"node(s) are kept for {', '.join(titles)}, whose pods are made again"
                refused.setdefault(why, []).append(row)
        for why, rows in refused.items():
            mask = np.zeros(len(nodes.table), dtype=np.bool_)
            mask[rows] = True
            yield Reject(nodes.pick(mask), why, resolvable=False)

    @hookimpl
    def slots(self, pod: PodInfo, nodes: NodeView) -> IntColumn:
        """Divide what is free beside what is kept by what one pod requests."""
        found = np.full(len(nodes.table), _MANY, dtype=np.int64)
        for node, kept in self._closed_to(pod).items():
            row = nodes.table.row_of.get(node)
            if row is not None:
                found[row] = self._slots_beside(pod, nodes, row, kept)
        return nodes.pick(found)

    def _slots_beside(
        self, pod: PodInfo, nodes: NodeView, row: int, kept: Iterable[PodInfo]
    ) -> int:
        """Return how many such pods a node takes beside those that are to come back."""
        if pod.facts.wants_devices and any(one.facts.wants_devices for one in kept):
            # Which devices they will have is not known.
            return 0
        table, most = nodes.table, _MANY
        for resource, need in pod.requests.items():
            if need > 0:
                free = int(table.allocatable(resource)[row] - table.used(resource)[row])
                free -= sum(one.requests.get(resource, 0) for one in kept)
                most = min(most, max(0, free) // need)
        return most

    def _closed_to(self, pod: PodInfo) -> dict[str, list[PodInfo]]:
        """Return what is kept from a pod, by node."""
        self._look()
        if not self._kept or belongs_to_node(pod.pod.metadata):
            return {}
        gang = self.handle.gang(pod.gang).gang if pod.gang is not None else None
        own = {pod.gang, *(gang.predecessors if gang is not None else ())}
        found: dict[str, list[PodInfo]] = {}
        for node, kept in self._kept.items():
            others = [one for one in kept if one.gang not in own and one.priority >= pod.priority]
            if others:
                found[node] = others
        return found


def _controller(pod: PodInfo) -> str:
    """Return the UID of a pod's controller, "" without one."""
    return next((one.uid for one in pod.pod.metadata.owner_references if one.controller), "")
