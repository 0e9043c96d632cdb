"""Who shares which GPU, as KAI counts it: groups of pods on each node.

A pod gets its groups when it is placed in the snapshot, in trials, too, so that everybody who
places pods to see what fits counts them. The first pod of a group takes a whole GPU of its node.
That is what a *reservation pod* does in the cluster; until it is there, a stand-in takes its place
in the snapshot. So every count of whole GPUs is right without knowing of groups.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import msgspec

from bayplan import PodInfo
from bayplan.api import Node
from bayplan.dialects.kai.shares import (
    GPU,
    GROUP_LABEL,
    GpuShareRequest,
    gpu_memory_of,
    groups_of,
    is_reservation,
    reservation_pod,
    reserved_index,
)
from bayplan.snapshot import Snapshot
from bayplan_plugins.gpus.vendors.kai.requests import known_share

__all__ = ["GpuGroups", "Group"]

_MOST_REMEMBERED = 50_000
_EXPECTED = "-expected"
"""What the name of a reservation pod's stand-in ends with."""


class Group(msgspec.Struct):
    """The pods that share one GPU.

    ``pods`` are their requests by key. ``reservation`` is the key of the pod that holds the GPU
    for them, or of its stand-in. ``used`` says that it need not be kept for a pod that is
    about to be bound: it had pods that were, or did not tell its GPU in time. ``lost`` says that
    the reservation pod went.
    """

    pods: dict[str, GpuShareRequest] = msgspec.field(default_factory=dict)
    reservation: str = ""
    used: bool = False
    lost: bool = False

    def memory(self, gpu: int) -> int:
        """Return the MiB that its pods take of a GPU of so many MiB."""
        return sum(one.memory_of(gpu) for one in self.pods.values())


class _Held(msgspec.Struct):
    node: str
    request: GpuShareRequest
    groups: tuple[str, ...]
    failed: bool = False


class GpuGroups:
    """The groups of all nodes; ``Snapshot.shared`` makes the one of a snapshot.

    ``spreads`` says that pods get whole GPUs first, and shared ones in the reverse order.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._nodes: dict[str, dict[str, Group]] = {}
        self._held: dict[str, _Held] = {}
        self._kept: dict[tuple[str, str], tuple[str, ...]] = {}
        """The groups of pods that left their nodes, by uid and node, to give them those again."""
        self._restored: dict[str, tuple[str, ...]] = {}
        """The groups that pods get whose removal is being undone, by key."""
        self._failures: dict[tuple[str, str], int] = {}
        self._given_up: set[str] = set()
        self._unassigned: dict[str, dict[str, PodInfo]] = {}
        """Pods without a node that are placed where no GPU has room for them, by node and key."""
        self._assigning = False
        self.spreads = False
        snapshot.on_pod(self._moved)
        for pod, node in list(snapshot.placed.values()):
            self._moved(pod, node, True)

    # Reading -----------------------------------------------------------------------------

    def on_node(self, node: str) -> Mapping[str, Group]:
        """Return the groups of a node by name, those without pods included."""
        return self._nodes.get(node, {})

    def of_pod(self, key: str) -> tuple[str, ...]:
        """Return the groups of a pod on a node, by its key."""
        held = self._held.get(key)
        return held.groups if held is not None else ()

    def uids(self, node: str) -> frozenset[str]:
        """Return the pods that share GPUs of a node, by uid."""
        placed = self._snapshot.placed
        groups = self.on_node(node).values()
        return frozenset(placed[key][0].uid for group in groups for key in group.pods)

    def gpu_memory(self, node: str) -> int:
        """Return the MiB of each GPU of a node."""
        found = self._node(node)
        return gpu_memory_of(found.metadata.labels if found is not None else {})

    def _node(self, name: str) -> Node | None:
        row = self._snapshot.nodes.row_of.get(name)
        return self._snapshot.nodes.nodes[row] if row is not None else None

    def free_gpus(self, node: str) -> int:
        """Return how many whole GPUs of a node are free."""
        row = self._snapshot.nodes.row_of.get(node)
        if row is None:
            return 0
        table = self._snapshot.nodes
        return max(0, int(table.allocatable(GPU)[row] - table.used(GPU)[row]))

    def nodes(self) -> Iterator[str]:
        """Yield the nodes with groups."""
        return (node for node, groups in self._nodes.items() if groups)

    def free_parts(self) -> float:
        """Return the parts of shared GPUs that are free, in GPUs, on all nodes together."""
        total = 0.0
        for node, groups in self._nodes.items():
            gpu = self.gpu_memory(node)
            total += sum(max(0, gpu - group.memory(gpu)) / gpu for group in groups.values())
        return total

    def unused(self) -> list[tuple[str, bool]]:
        """Return the reservation pods, by key, whose groups have no pods; and whether they had."""
        placed = self._snapshot.placed
        return sorted(
            (group.reservation, group.used)
            for groups in self._nodes.values()
            for group in groups.values()
            if not group.pods
            and not _is_stand_in(group.reservation)
            and not placed[group.reservation][0].terminating
        )

    def bound(self, key: str) -> None:
        """Take note that a pod, by key, was bound: its groups are in use."""
        held = self._held.get(key)
        if held is not None:
            for name in held.groups:
                self._nodes[held.node][name].used = True

    def give_up(self, key: str) -> None:
        """Let no pod join the group of a reservation pod, by key, that is about to be evicted."""
        self._given_up.add(key)

    def is_reserved(self, group: Group) -> bool:
        """Tell whether a pod of the cluster holds the GPU of a group."""
        return bool(group.reservation) and not _is_stand_in(group.reservation)

    def is_too_full(self, key: str, node: str) -> bool:
        """Tell whether a pod, by key, shares a GPU that has too little, or one that is not free.

        :param node: the pod's node.
        """
        own = self.on_node(node)
        if self.is_overfull(node, self.of_pod(key)):
            return True
        opens = any(len(own[name].pods) == 1 for name in self.of_pod(key))
        return opens and self._has_too_few_gpus(node)

    def _has_too_few_gpus(self, node: str) -> bool:
        """Tell whether more GPUs of a node are in use than it has.

        Two schedulers reserved the last one, or a reservation pod went whose group has pods.
        """
        row = self._snapshot.nodes.row_of.get(node)
        table = self._snapshot.nodes
        return row is not None and bool(table.used(GPU)[row] > table.allocatable(GPU)[row])

    def is_overfull(self, node: str, groups: Sequence[str]) -> bool:
        """Tell whether pods take more of the GPU of any of the groups than it has."""
        gpu, own = self.gpu_memory(node), self.on_node(node)
        return any(own[name].memory(gpu) > gpu for name in groups if name in own)

    def slots(self, request: GpuShareRequest, node: str) -> int:
        """Return how many such pods a node takes at most; 0 where not even one fits."""
        if self.choose(request, node) is None:
            return 0
        gpu = self.gpu_memory(node)
        need = request.memory_of(gpu)
        left = [max(0, gpu - one.memory(gpu)) // need for one in self.on_node(node).values()]
        return (sum(left) + self.free_gpus(node) * (gpu // need)) // request.devices

    def left(self, node: str) -> list[int]:
        """Return the MiB that are left of each shared GPU of a node, the most first."""
        gpu = self.gpu_memory(node)
        groups = self.on_node(node).values()
        return sorted((max(0, gpu - one.memory(gpu)) for one in groups), reverse=True)

    # Choosing ----------------------------------------------------------------------------

    def choose(
        self, request: GpuShareRequest, node: str, wanted: Sequence[str] = (), later: bool = False
    ) -> tuple[str, ...] | None:
        """Return the groups for a pod, None if it does not fit; "" stands for a new group.

        The fullest groups come first, whole GPUs last; the other way round to spread. Groups of
        ``wanted`` come before all, if they fit.

        :param later: whether to count what will be free once pods that are being deleted have gone.
        """
        gpu = self.gpu_memory(node)
        asked = request.memory_of(gpu)
        if not 0 < asked <= gpu:
            return None
        found: list[tuple[int, str]] = []
        too_few = self._has_too_few_gpus(node)
        for name, group in self.on_node(node).items():
            staying = self._staying(group)
            used = sum(one.memory_of(gpu) for one in (staying if later else group.pods.values()))
            if used + asked <= gpu and self._is_open(group, later or bool(staying), too_few):
                found.append((used if self.spreads else -used, name))
        shared = [name for _, name in sorted(found)]
        fresh = [""] * min(request.devices, self.free_gpus(node))
        again = [name for name in wanted if name in shared]
        # A group that its last pod left is made again under its name.
        again += [name for name in wanted if name not in self.on_node(node)][: len(fresh)]
        fresh = fresh[len([name for name in again if name not in shared]) :]
        others = [name for name in shared if name not in again]
        order = [*again, *fresh, *others] if self.spreads else [*again, *others, *fresh]
        return tuple(order[: request.devices]) if len(order) >= request.devices else None

    def _staying(self, group: Group) -> list[GpuShareRequest]:
        """Return what those pods of a group ask for that are not being deleted."""
        placed = self._snapshot.placed
        return [one for key, one in group.pods.items() if not placed[key][0].terminating]

    def _is_open(self, group: Group, stays: bool, too_few: bool) -> bool:
        """Tell whether another pod may share the GPU of a group.

        :param stays: whether the group has pods that are not being deleted, or will have.
        :param too_few: whether more GPUs of the node are in use than it has: then only groups with
            pods and a reservation pod certainly have one.
        """
        if too_few and not (stays and self.is_reserved(group)):
            return False
        key = group.reservation
        if group.pods:
            return True
        about_to_go = not key or key in self._given_up or self._snapshot.placed[key][0].terminating
        return not about_to_go

    # Following ---------------------------------------------------------------------------

    def _moved(self, pod: PodInfo, node: str, placed: bool) -> None:
        if is_reservation(pod.pod):
            self._reservation_moved(pod, node, placed)
        else:
            self._sharer_moved(pod, node, placed)
        self._assign_waiting(node)

    def _assign_waiting(self, node: str) -> None:
        """Give pods that found no GPU one, now that others have gone or are being deleted."""
        if self._snapshot.in_trial or self._assigning or not self._unassigned.get(node):
            return
        self._assigning = True
        try:
            for pod in list(self._unassigned[node].values()):
                self._assign_one(pod, node)
        finally:
            self._assigning = False

    def _assign_one(self, pod: PodInfo, node: str) -> None:
        held = self._held.get(pod.key)
        if held is None or held.node != node:
            self._unassigned[node].pop(pod.key, None)
            return
        chosen = self.choose(held.request, node, later=True)
        if chosen is not None:
            # Its present groups have no GPU, so it need not get them again.
            held.failed = True
            self._leave(pod)
            self._restored[pod.key] = tuple(self._named(chosen, pod, node))
            self._enter(pod, node, held.request)

    def _sharer_moved(self, pod: PodInfo, node: str, placed: bool) -> None:
        request = known_share(pod)
        if isinstance(request, str):
            self._snapshot.set_problem(node, f"shares of {pod.key}", request if placed else "")
        if not placed:
            if pod.key in self._held:
                self._leave(pod)
        elif isinstance(request, GpuShareRequest):
            self._enter(pod, node, request)
        elif request is not None and groups_of(pod.pod):
            # Nobody knows how much it uses of the GPUs that it shares.
            self._enter(pod, node, GpuShareRequest(1.0, devices=len(groups_of(pod.pod))))

    def _enter(self, pod: PodInfo, node: str, request: GpuShareRequest) -> None:
        groups, assigned = self._restored.pop(pod.key, None), True
        if groups is None:
            groups, assigned = self._groups_for(pod, node, request)
        self._held[pod.key] = _Held(node, request, groups)
        if not assigned and not self._snapshot.in_trial:
            self._unassigned.setdefault(node, {})[pod.key] = pod
        on_node = self._nodes.setdefault(node, {})
        for name in groups:
            group = on_node.setdefault(name, Group())
            group.pods[pod.key] = request
            group.used |= pod.spec.node_name == node
            self._settle(node, name, pod)

    def _leave(self, pod: PodInfo) -> None:
        held = self._held.pop(pod.key)
        snapshot = self._snapshot
        if not snapshot.in_trial and held.node in self._unassigned:
            self._unassigned[held.node].pop(pod.key, None)
        if not snapshot.undoing:
            if snapshot.in_trial:
                snapshot.on_rollback(partial(self._restored.__setitem__, pod.key, held.groups))
            elif not held.failed:
                self._keep(pod, held)
        for name in held.groups:
            del self._nodes[held.node][name].pods[pod.key]
            self._settle(held.node, name, pod)

    def _keep(self, pod: PodInfo, held: _Held) -> None:
        if len(self._kept) >= _MOST_REMEMBERED:
            del self._kept[next(iter(self._kept))]
        self._kept[pod.uid, held.node] = held.groups

    def _groups_for(
        self, pod: PodInfo, node: str, request: GpuShareRequest
    ) -> tuple[tuple[str, ...], bool]:
        """Return the groups of a pod that is placed, and whether it may have room there.

        They are those that it has, or those chosen for it: for a pod that waits for others to go,
        with the room that these will leave.
        """
        said = groups_of(pod.pod) if pod.spec.node_name == node else ()
        said = said or self._kept.get((pod.uid, node), ())
        if pod.spec.node_name == node and said and not self._snapshot.in_trial:
            return said, True
        chosen = self.choose(request, node, said)
        bound = bool(pod.spec.node_name)
        if chosen is None and not bound:
            chosen = self.choose(request, node, said, later=True)
        # One that somebody else put there holds whole GPUs until its groups are known.
        named = self._named(chosen or ("",) * request.devices, pod, node)
        return tuple(named), bound or chosen is not None

    def _named(self, chosen: Sequence[str], pod: PodInfo, node: str) -> Iterator[str]:
        """Name new groups: each by the pod that opens it, so that a second try finds the first."""
        known = self.on_node(node)
        count = 0
        for name in chosen:
            while not name or (name in known and name not in chosen):
                text = f"{pod.uid}/{node}/{count}{self._failures.get((pod.uid, node), '')}"
                digest = hashlib.sha256(text.encode()).hexdigest()
                name = "-".join(
                    (digest[:8], digest[8:12], digest[12:16], digest[16:20], digest[20:32])
                )
                count += 1
            yield name

    def failed(self, pod: PodInfo, node: str) -> None:
        """Name the groups that a pod opens otherwise: its reservation may be in the way.

        A reservation pod that has not reported its GPU so far is not waited for any longer.
        """
        for name in self.of_pod(pod.key):
            group = self._nodes[node][name]
            if self.is_reserved(group):
                holder = self._snapshot.placed[group.reservation][0].pod
                group.used |= reserved_index(holder) is None
        if len(self._failures) >= _MOST_REMEMBERED:
            del self._failures[next(iter(self._failures))]
        self._failures[pod.uid, node] = self._failures.get((pod.uid, node), 0) + 1
        self._kept.pop((pod.uid, node), None)
        if pod.key in self._held:
            self._held[pod.key].failed = True

    # Reservation pods --------------------------------------------------------------------

    def _reservation_moved(self, pod: PodInfo, node: str, placed: bool) -> None:
        name = pod.labels[GROUP_LABEL]
        group = self._nodes.setdefault(node, {}).setdefault(name, Group())
        if placed:
            before, group.reservation = group.reservation, pod.key
            group.lost &= _is_stand_in(pod.key)
            if _is_stand_in(before) and before != pod.key and not self._snapshot.undoing:
                self._snapshot.remove_pod(before)
        else:
            if group.reservation == pod.key:
                group.reservation = ""
            if not self._snapshot.in_trial:
                self._given_up.discard(pod.key)
                group.lost |= not _is_stand_in(pod.key)
            self._settle(node, name, None)

    def _settle(self, node: str, name: str, source: PodInfo | None) -> None:
        """Add a group's stand-in, or take its reservation away, as its pods need it."""
        group = self._nodes[node][name]
        if not self._snapshot.undoing:
            if group.pods and not group.reservation:
                self._stand_in(node, name, source)
            elif group.reservation and not group.pods:
                if self._snapshot.in_trial or _is_stand_in(group.reservation):
                    self._snapshot.remove_pod(group.reservation)
        if not group.pods and not group.reservation:
            self._nodes[node].pop(name, None)

    def _stand_in(self, node: str, name: str, source: PodInfo | None) -> None:
        known = source or self._snapshot.placed[next(iter(self._nodes[node][name].pods))][0]
        pod = reservation_pod(node, name, known.pod)
        meta = msgspec.structs.replace(pod.metadata, name=f"{pod.metadata.name}{_EXPECTED}")
        info = PodInfo(msgspec.structs.replace(pod, metadata=meta))
        self._snapshot.add_pod(info, node)


def _is_stand_in(key: str) -> bool:
    return key.endswith(_EXPECTED)
