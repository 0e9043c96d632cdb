"""An example of each hook, shown in docs/hooks.md: small plugins that work."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

import numpy as np
from msgspec.structs import replace

from bayplan import (
    SKIP,
    Args,
    ClusterEvent,
    CycleState,
    Event,
    Eviction,
    FloatColumn,
    GangMembers,
    Handle,
    IntColumn,
    NetworkTree,
    NodeDevices,
    NodeRequest,
    NodeRow,
    NodeView,
    Normalize,
    Overdue,
    Placement,
    Placements,
    Plugin,
    PodInfo,
    Preemption,
    PreFilterResult,
    Preparation,
    Queueing,
    Refusal,
    Reject,
    Remedy,
    Skip,
    StateKey,
    Unit,
    Wait,
    hookimpl,
)
from bayplan.api.configmap import ConfigMap
from bayplan.api.dra import Device, DeviceId
from bayplan.api.times import seconds_of

_TEAM = "example.com/team"
_MAY_GO = "example.com/may-go"
_DESKS = "example.com/desks"
_LEASE: StateKey[int] = StateKey("example.lease")
_log = logging.getLogger(__name__)


class TeamNodes(Plugin[Args]):
    """Pods of a team run on nodes with the team's label."""

    requeue_on = ClusterEvent.NODE_LABELS | ClusterEvent.POD_REMOVED

    @hookimpl
    def concerns(self, pod: PodInfo) -> bool:
        return _TEAM in pod.labels

    @hookimpl
    def pre_enqueue(self, pod: PodInfo) -> str | None:
        return None if pod.labels[_TEAM] else "its team has no name"

    @hookimpl
    def requeue_hint(self, pod: PodInfo, subject: PodInfo | None) -> bool:
        # A pod of another team leaves no room on our nodes.
        return subject is None or subject.labels.get(_TEAM) == pod.labels[_TEAM]

    @hookimpl
    def sign(self, pod: PodInfo) -> Hashable:
        return pod.labels[_TEAM]

    @hookimpl
    def pre_filter(self, pod: PodInfo, nodes: NodeView) -> PreFilterResult:
        own = nodes.label_in(_TEAM, [pod.labels[_TEAM]])
        return PreFilterResult(frozenset(np.array(nodes.names, dtype=object)[own]))

    @hookimpl
    def filter(self, pod: PodInfo, nodes: NodeView) -> Iterator[Reject]:
        own = nodes.label_in(_TEAM, [pod.labels[_TEAM]])
        yield Reject(~own, "node(s) of other teams", resolvable=False)

    @hookimpl
    def filter_node(self, pod: PodInfo, node: NodeRow) -> Refusal | None:
        own = node.labels.get(_TEAM) == pod.labels[_TEAM]
        return None if own else Refusal(("node(s) of other teams",), resolvable=False)

    @hookimpl
    def remedies(self, pod: PodInfo) -> Iterable[Remedy]:
        label = f"{_TEAM}={pod.labels[_TEAM]}"
        yield Remedy(f"would be tried again if a node had the label {label}", None, cost=1)


class FewPodsOfATeam(Plugin[Args]):
    """Prefer nodes with few pods of the pod's team; a node takes as many as it has places."""

    normalize_scores = Normalize.HOOK

    @hookimpl
    def serves(self, pod: PodInfo) -> frozenset[str]:
        return frozenset({_DESKS}).intersection(pod.requests)

    @hookimpl
    def slots(self, nodes: NodeView) -> IntColumn:
        return np.maximum(nodes.free("pods"), 0)

    @hookimpl
    def pre_score(self, pod: PodInfo) -> Skip | None:
        return None if _TEAM in pod.labels else SKIP

    @hookimpl
    def score(self, pod: PodInfo, nodes: NodeView) -> FloatColumn:
        return np.array([self.score_node(pod, node) for node in nodes], dtype=np.float64)

    @hookimpl
    def score_node(self, pod: PodInfo, node: NodeRow) -> float:
        team = pod.labels.get(_TEAM)
        return -float(sum(other.labels.get(_TEAM) == team for other in node.pods.values()))

    @hookimpl
    def normalize(self, scores: FloatColumn) -> FloatColumn:
        return 100.0 + np.maximum(scores, -100.0)


class Leases(Plugin[Args]):
    """Each pod with a budget holds one of a node's ten leases, and says so."""

    def __init__(self, args: Args, handle: Handle) -> None:
        super().__init__(args, handle)
        self._held: Counter[str] = Counter()

    @hookimpl
    def reserve(self, pod: PodInfo, node: NodeRow, state: CycleState) -> str | None:
        if self._held[node.name] >= 10:
            return "the node has no lease left"
        self._held[node.name] += 1
        state[_LEASE] = self._held[node.name]
        return None

    @hookimpl
    def unreserve(self, node: NodeRow, state: CycleState) -> None:
        if state.get(_LEASE) is not None:
            self._held[node.name] -= 1

    @hookimpl
    def permit(self, pod: PodInfo) -> Wait | None:
        at = float(pod.annotations.get("example.com/not-before", "0"))
        return Wait(at - self.handle.unix_time) if at > self.handle.unix_time else None

    @hookimpl
    def pre_bind(self, pod: PodInfo) -> Preparation | None:
        key = pod.annotations.get("example.com/needs-config")
        if key is None:
            return None
        return Preparation(ready=lambda: key in self.handle.snapshot.objects(ConfigMap), seconds=60)

    @hookimpl
    def bind(self, state: CycleState) -> dict[str, str]:
        return {"example.com/lease": str(state[_LEASE])}

    @hookimpl
    def post_bind(self, pod: PodInfo, node: NodeRow) -> None:
        _log.info("%s has a lease of %s", pod.key, node.name)

    @hookimpl
    def post_evict(self, pod: PodInfo, eviction: Eviction) -> None:
        _log.info("%s gives its lease to %s", pod.key, eviction.unit or "nobody")

    @hookimpl
    def group_status(self, members: GangMembers, why: str) -> list[Event]:
        gang = members.gang
        if gang is None or not why:
            return []
        return [Event(gang.key, "Normal", "Waits", why, about="PodGroup")]


class Halves(Plugin[Args]):
    """Gangs stay in the first or the second half of the cluster, the emptier one first."""

    @hookimpl
    def placement_generate(
        self, unit: Unit, nodes: NodeView, parent: Placement
    ) -> Placements | None:
        if unit.gang is None or parent.rows is not None:
            return None
        first, second = np.array_split(np.arange(len(nodes)), 2)
        return Placements([Placement("first half", first), Placement("second half", second)])

    @hookimpl
    def placement_score(self, placement: Placement) -> float:
        rows = placement.rows
        free = self.handle.snapshot.view().free("cpu")
        return 100.0 * float(np.mean(free[rows] > 0)) if rows is not None and len(rows) else 0.0

    @hookimpl
    def relax(self, unit: Unit) -> Iterable[tuple[str, Unit]]:
        if unit.gang is not None and unit.gang.min_member > 1:
            fewer = replace(unit.gang, min_member=unit.gang.min_member - 1)
            yield f"with {fewer.min_member} members", replace(unit, gang=fewer)

    @hookimpl
    def network_tree(self) -> NetworkTree | None:
        return None  # these halves are drawn nowhere


class FirstDevices(Plugin[Args]):
    """Of the devices that a claim may get, those with the first names."""

    @hookimpl
    def device_score(
        self, chosen: Sequence[tuple[str, DeviceId]], devices: Mapping[DeviceId, Device]
    ) -> float:
        names = sorted(devices)
        return -float(sum(names.index(device) for _, device in chosen))

    @hookimpl
    def node_devices(self, node: str) -> NodeDevices | None:
        return NodeDevices() if node in self.handle.snapshot.nodes.row_of else None


class GoodNeighbours(Plugin[Args]):
    """Pods with the label example.com/may-go give way to others, and after an hour in any case."""

    actions = ("ask",)

    @hookimpl
    def admit(self) -> None:
        waiting = [unit.key for unit in self.handle.pending("example/small")]
        _log.debug("%d units wait in the small queue", len(waiting))

    @hookimpl
    def prepare(self) -> None:
        self._willing = [pod for pod, _ in self.handle.snapshot.placed.values() if _may_go(pod)]

    @hookimpl
    def may_preempt(self, unit: Unit) -> bool:
        return not any(map(_may_go, unit.pods))

    @hookimpl
    def post_filter(self, unit: Unit) -> Preemption | None:
        (pod, *others) = unit.pods
        for victim, node in list(self.handle.snapshot.placed.values()):
            with self.handle.snapshot.trial():
                if others or not _may_go(victim):
                    continue
                self.handle.snapshot.remove_pod(victim.key)
                for offered in self.handle.offers(unit).candidates:
                    if self.handle.place(unit, offered) == {pod.key: node}:
                        return Preemption([victim], {pod.key: node}, f"{victim.key} gives way.")
        return None

    @hookimpl
    def overdue(self) -> Overdue | None:
        starts = {
            pod: self.handle.unix_time - 3600 > seconds_of(pod.pod.status.start_time)
            for pod, _ in self.handle.snapshot.placed.values()
            if _may_go(pod) and pod.pod.status.start_time
        }
        return Overdue([(pod, "it has run for an hour") for pod, old in starts.items() if old])

    @hookimpl
    def request_nodes(self, unit: Unit) -> NodeRequest | None:
        if not all(map(_may_go, unit.pods)):
            return None
        return NodeRequest("No nodes are added for what may go at any time.")

    @hookimpl
    def may_give_up(self) -> list[PodInfo]:
        return [pod for pod, _ in self.handle.snapshot.placed.values() if _may_go(pod)]


def _may_go(pod: PodInfo) -> bool:
    return _MAY_GO in pod.labels


class OldestFirst(Plugin[Args]):
    """Try the unit that waits longest."""

    @hookimpl
    def queue_sort(self, unit: Unit, added: float) -> tuple[float, ...]:
        return (added,)


class SmallAndLarge(Plugin[Args]):
    """Single pods and gangs have a queue each; the queue with fewer pods on nodes is next."""

    @hookimpl
    def queueing(self) -> Queueing:
        return _TwoQueues(self.handle)


class _TwoQueues(Queueing):
    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def queue_of(self, unit: Unit) -> str:
        return "example/small" if unit.gang is None else "example/large"

    def next_queue(self, heads: Mapping[str, Unit], action: str) -> str | None:
        placed = [pod for pod, _ in self._handle.snapshot.placed.values()]
        large = sum(pod.gang is not None for pod in placed)
        used = {"example/large": large, "example/small": len(placed) - large}
        return min(heads, key=lambda queue: used.get(queue, 0))
