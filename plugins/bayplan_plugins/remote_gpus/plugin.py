"""RemoteGPUs: pods that use GPUs over the network, near the workers that serve them.

A client and its worker are placed together. The nearest distance class in which a domain has room
for both is tried first; a client states how far away its worker may be. A worker is an ordinary pod
otherwise: what it takes of its node, other plugins count.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence

import numpy as np
from msgspec import structs
from msgspec.structs import replace

from bayplan import (
    NOTES,
    SKIP,
    ClusterEvent,
    CycleState,
    Handle,
    NodeRow,
    NodeView,
    Normalize,
    Placement,
    Placements,
    Plugin,
    PodInfo,
    Reads,
    Reject,
    Unit,
    hookimpl,
)
from bayplan.dialects.tensor_fusion import (
    MAX_LATENCY,
    MIN_BANDWIDTH,
    Link,
    client_problem,
    link_of,
    says_side,
    side_of,
    workload_of,
)
from bayplan.plugin.base import Skip
from bayplan.plugin.hookspecs import BoolColumn, FloatColumn, IntColumn
from bayplan_plugins.remote_gpus.counterparts import Counterparts, workload_key
from bayplan_plugins.remote_gpus.distances import Distances
from bayplan_plugins.remote_gpus.settings import DistanceArgs, RemoteGPUsArgs

__all__ = ["DISTANCE_ANNOTATION", "RemoteGPUs"]

DISTANCE_ANNOTATION = "bayplan.dev/gpu-distance"
"""The annotation of a bound client with the distance class of its farthest worker."""
_MOST_OFFERED = 32
"""Domains of one class that are offered."""
_BEST = 100.0


class RemoteGPUs(Plugin[RemoteGPUsArgs]):
    """Place clients and workers together, as near as there is room and as near as asked for."""

    Args = RemoteGPUsArgs
    reads = Reads.CLUSTER
    normalize_scores = Normalize.NONE
    requeue_on = ClusterEvent.NODE_ADDED | ClusterEvent.NODE_LABELS | ClusterEvent.POD

    def __init__(self, args: RemoteGPUsArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._placed = handle.snapshot.shared(Counterparts, Counterparts)
        self._distances = Distances(handle.snapshot, args.distances)

    # What clients ask for --------------------------------------------------------------------

    @hookimpl
    def concerns(self, pod: PodInfo) -> bool:
        """Concern pods that say something of GPUs over the network."""
        return says_side(pod.pod)

    @hookimpl
    def pre_enqueue(self, pod: PodInfo) -> str | None:
        """Hold back clients that ask for what cannot be, and those without a worker."""
        if side_of(pod.pod) != "client":
            return None
        problem = client_problem(pod.pod)
        if problem is not None:
            return problem
        link = link_of(pod.pod)
        if not any(one.serves(link) for one in self.args.distances):
            offered = "; ".join(f"{one.name}: {one.figures}" for one in self.args.distances)
            return f"no distance to a worker is what the pod asks for ({offered})"
        if self._placed.of(pod) or self._has_worker(pod):
            return None
        return f'waiting for a worker of the workload "{workload_of(pod.pod)}", there is none'

    def _has_worker(self, pod: PodInfo) -> bool:
        """Whether the gang of a client has a worker of its workload, with or without a node."""
        if pod.gang is None:
            return False
        members, own = self.handle.gang(pod.gang), workload_key(pod)
        return any(
            side_of(other.pod) == "worker" and workload_key(other) == own
            for other in members.pending.values()
        )

    @hookimpl
    def sign(self, pod: PodInfo) -> Hashable:
        """Sign by what a client asks for, and by the workload if placed pods of it count."""
        side = side_of(pod.pod)
        if side is None:
            return None
        return side, workload_key(pod) if self._placed.of(pod) else None, _link(pod)

    @hookimpl
    def requeue_hint(self, event: ClusterEvent, pod: PodInfo, subject: PodInfo | None) -> bool:
        """Try a pod again when a pod of its workload comes or goes, or nodes change."""
        if subject is None:
            return True
        return side_of(subject.pod) is not None and workload_key(subject) == workload_key(pod)

    # Which nodes -----------------------------------------------------------------------------

    @hookimpl
    def pre_filter(self, pod: PodInfo) -> Skip | None:
        """Skip pods without a counterpart that has a node."""
        return None if self._placed.of(pod) else SKIP

    @hookimpl
    def filter(self, pod: PodInfo, nodes: NodeView) -> Iterator[Reject]:
        """Refuse nodes that are too far from a worker for its client."""
        far = np.zeros(len(nodes), dtype=np.bool_)
        other = "worker" if side_of(pod.pod) == "client" else "client"
        for link, row in self._ways(pod):
            classes = nodes.pick(self._distances.from_row(row))
            for place, distance in enumerate(self.args.distances):
                mask = (classes == place) & ~far
                if not distance.serves(link) and mask.any():
                    far |= mask
                    away = distance.shortfall(link)
                    reason = f"{away} from its {other} ({distance.name}: {distance.figures})"
                    yield Reject(mask, reason, resolvable=False)

    def _ways(self, pod: PodInfo) -> Iterator[tuple[Link, int]]:
        """Yield what each pair with this pod needs, and the row of the counterpart's node."""
        rows = self.handle.snapshot.nodes.row_of
        own = _link(pod)
        seen = set()
        for other, node in self._placed.of(pod).values():
            link = own if own is not None else _link(other)
            if link is not None and node in rows and (link, node) not in seen:
                seen.add((link, node))
                yield link, rows[node]

    @hookimpl
    def pre_score(self, pod: PodInfo) -> Skip | None:
        """Skip pods without a counterpart that has a node."""
        return None if self._placed.of(pod) else SKIP

    @hookimpl
    def score(self, pod: PodInfo, nodes: NodeView) -> FloatColumn:
        """Prefer nodes near the farthest counterpart."""
        places = nodes.pick(self._farthest(pod))
        scores: FloatColumn = _BEST * (1 - places / (len(self.args.distances) - 1))
        return scores

    def _farthest(self, pod: PodInfo) -> IntColumn:
        """Return, per row, the class of the way to the counterpart that is farthest away."""
        farthest = np.zeros(len(self.handle.snapshot.nodes), dtype=np.int64)
        for _, row in self._ways(pod):
            np.maximum(farthest, self._distances.from_row(row), out=farthest)
        return farthest

    # Where the pair goes ---------------------------------------------------------------------

    @hookimpl
    def placement_generate(
        self, unit: Unit, nodes: NodeView, parent: Placement
    ) -> Placements | None:
        """Offer the domains that have room for a client and its worker, the nearest class first."""
        workers = [pod for pod in unit.pods if side_of(pod.pod) == "worker"]
        clients = [pod for pod in unit.pods if side_of(pod.pod) == "client"]
        both = len(workers) + len(clients) == len(unit.pods)
        workload, gang = workload_key(unit.pods[0]), unit.gang
        if gang is not None and (gang.gather or gang.slices):
            return None
        if unit.parts or not (workers and clients and both):
            return None
        if any(workload_key(pod) != workload for pod in unit.pods):
            return None
        links = [link for link in map(_link, clients) if link is not None]
        candidates: list[Placement] = []
        room = [self._room(pods, nodes, parent) for pods in (workers, clients)]
        nearer = zip(self.args.distances[:-1], self._distances.domains(), strict=False)
        for distance, domains in nearer:
            if not all(distance.serves(link) for link in links):
                continue
            candidates += _offered(distance, domains, room, (len(workers), len(clients)))
        return Placements((*candidates, parent))

    def _room(self, pods: Sequence[PodInfo], nodes: NodeView, parent: Placement) -> IntColumn:
        """Return, per row, how many of these pods fit there, each without the others."""
        slots: IntColumn = np.maximum.reduce(
            [self.handle.free_slots(pod) for pod in {pod.facts: pod for pod in pods}.values()]
        )
        slots = np.minimum(slots, len(pods))
        if parent.rows is not None:
            inside: BoolColumn = np.zeros(len(nodes), dtype=np.bool_)
            inside[parent.rows] = True
            slots[~inside] = 0
        return slots

    # Why not ---------------------------------------------------------------------------------

    @hookimpl
    def relax(self, unit: Unit) -> Iterator[tuple[str, Unit]]:
        """Yield the unit with clients that accept any latency, any bandwidth, and both."""
        links = [link for link in map(_link, unit.pods) if link is not None]
        late = any(math.isfinite(link.max_latency) for link in links)
        wide = any(link.min_bandwidth for link in links)
        for names in ((MAX_LATENCY,) if late else (), (MIN_BANDWIDTH,) if wide else ()):
            if names:
                yield f"without {names[0]}", _without(unit, names)
        if late and wide:
            both = (MAX_LATENCY, MIN_BANDWIDTH)
            yield f"without {' and '.join(both)}", _without(unit, both)

    # On the node -----------------------------------------------------------------------------

    @hookimpl
    def reserve(self, pod: PodInfo, node: NodeRow, state: CycleState) -> None:
        """Note how far a client is from its worker, and why not nearer."""
        if side_of(pod.pod) == "client":
            found = self._farthest_worker(pod, node)
            if found is not None:
                state[NOTES] = (*(state.get(NOTES) or ()), self._note(*found))

    @hookimpl
    def unreserve(self, pod: PodInfo) -> None:
        """Nothing is held here: a worker is a pod, and counts as one."""

    def _note(self, place: int, worker: PodInfo, node: str) -> str:
        distance = self.args.distances[place]
        text = f"its worker {worker.key} is on {node} ({distance.name}: {distance.figures})"
        if not place or worker.spec.node_name:
            return text
        # Placed together with the client, so all that is nearer was tried before.
        nearer = " and no ".join(one.name for one in self.args.distances[:place])
        return f"{text}; no {nearer} has room for both"

    def _farthest_worker(self, pod: PodInfo, node: NodeRow) -> tuple[int, PodInfo, str] | None:
        """Return the worker that is farthest from a client on a node: class, pod, and its node."""
        rows = self.handle.snapshot.nodes.row_of
        found = [
            (int(self._distances.from_row(rows[other])[node.row]), worker, other)
            for worker, other in self._placed.of(pod).values()
            if other in rows
        ]
        return max(found, key=lambda one: (one[0], one[1].key)) if found else None

    @hookimpl
    def bind(self, pod: PodInfo, node: NodeRow) -> dict[str, str] | None:
        """Say at the client how far its worker is."""
        if side_of(pod.pod) != "client":
            return None
        found = self._farthest_worker(pod, node)
        return {DISTANCE_ANNOTATION: self.args.distances[found[0]].name} if found else None


def _without(unit: Unit, names: Sequence[str]) -> Unit:
    """Return a unit whose clients do not say this of the way to their workers."""
    pods = []
    for pod in unit.pods:
        meta = pod.pod.metadata
        if side_of(pod.pod) == "client":
            others = {key: text for key, text in meta.annotations.items() if key not in names}
            weaker = structs.replace(pod.pod, metadata=structs.replace(meta, annotations=others))
            pod = pod.changed(weaker)
        pods.append(pod)
    return replace(unit, pods=pods, parts=[_without(part, names) for part in unit.parts])


def _offered(
    distance: DistanceArgs,
    domains: IntColumn,
    room: Sequence[IntColumn],
    need: tuple[int, int],
) -> list[Placement]:
    """Return the domains of a class with room for both sides, those with the least first."""
    inside = np.flatnonzero(domains >= 0)
    if not len(inside):
        return []
    size = int(domains.max()) + 1
    sums = [np.bincount(domains[inside], column[inside], minlength=size) for column in room]
    enough = np.flatnonzero((sums[0] >= need[0]) & (sums[1] >= need[1]))
    order = enough[np.lexsort((enough, sums[1][enough], sums[0][enough]))][:_MOST_OFFERED]
    found = []
    for number in order.tolist():
        rows = np.flatnonzero(domains == number)
        found.append(Placement(distance.name, rows, int(sums[0][number] + sums[1][number])))
    return found


def _link(pod: PodInfo) -> Link | None:
    """Return what a client asks for; None for other pods, and where it cannot be read."""
    if side_of(pod.pod) != "client":
        return None
    try:
        return link_of(pod.pod)
    except ValueError:
        return None
