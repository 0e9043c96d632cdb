"""GPUSharing: pods that share GPUs in KAI's words (annotations gpu-fraction and gpu-memory).

Who shares which GPU is known by :class:`~bayplan_plugins.gpus.vendors.kai.groups.GpuGroups`. A
reservation pod takes the GPU for each group, as an ordinary pod with a GPU. So every other plugin
counts shared GPUs as taken, and only this one knows what is left of them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from functools import partial
from typing import Literal

import numpy as np
from msgspec import structs

from bayplan import (
    SKIP,
    Args,
    ClusterEvent,
    Handle,
    NodeRow,
    NodeView,
    Overdue,
    Plugin,
    PodInfo,
    Preparation,
    Reads,
    Reject,
    Remedy,
    hookimpl,
)
from bayplan.api.gpu_shares import WHOLE
from bayplan.cluster.protocol import CreateObject, PutConfigMap
from bayplan.dialects.kai.shares import (
    GPU,
    RECEIVED_ANNOTATION,
    GpuShareRequest,
    config_maps,
    group_labels,
    old_group_labels,
    received,
    reservation_fields,
    reservation_pod,
    reserved_index,
)
from bayplan.dialects.reading import timestamp
from bayplan.plugin.base import Skip
from bayplan.plugin.devices import GpuHolder, NodeDevices
from bayplan.plugin.hookspecs import FloatColumn, IntColumn
from bayplan_plugins.gpus.vendors.adapter import own_lock
from bayplan_plugins.gpus.vendors.kai.fit import KaiFit
from bayplan_plugins.gpus.vendors.kai.groups import GpuGroups
from bayplan_plugins.gpus.vendors.kai.requests import known_share, says_shares

__all__ = ["GPUSharing", "GPUSharingArgs"]

_TOO_LITTLE = "Insufficient shares of GPUs"
_LOST = "the reservation pod of its GPU is gone"
_UNUSED = "no pod shares its GPU any more"
_WAIT = 40.0
"""Seconds within which a reservation pod has to tell its GPU, as in KAI's binder."""
_UNTIL_USED = 60.0
"""Seconds for which a reservation pod is left to a scheduler that may be about to use it."""
_HALF = 50.0
_MOST_LISTED = 8
_LOCK = own_lock(RECEIVED_ANNOTATION)


class GPUSharingArgs(Args):
    """Arguments of GPUSharing.

    ``gpus``: "pack" takes the fullest shared GPU first, "spread" a whole one (KAI's plugins gpupack
    and gpuspread). ``nodes``: "pack" takes nodes with such a shared GPU first, then those with used
    GPUs, "spread" those with free ones. ``image`` is the image of the reservation pods, the one
    that KAI is installed with.
    """

    gpus: Literal["pack", "spread"] = "pack"
    nodes: Literal["pack", "spread"] = "pack"
    image: str = "ghcr.io/kai-scheduler/kai-scheduler/resource-reservation:latest"


class GPUSharing(Plugin[GPUSharingArgs]):
    """Let pods share GPUs, and keep them off nodes whose GPUs have too little left."""

    Args = GPUSharingArgs
    reads = Reads.NODE | Reads.PODS
    locks_nodes = True
    gate_reads = ()
    requeue_on = (
        ClusterEvent.NODE_ADDED
        | ClusterEvent.NODE_ALLOCATABLE
        | ClusterEvent.NODE_LABELS
        | ClusterEvent.POD_REMOVED
    )

    def __init__(self, args: GPUSharingArgs, handle: Handle) -> None:
        super().__init__(args, handle)
        self._groups = handle.snapshot.shared(GpuGroups, GpuGroups)
        self._groups.spreads = args.gpus == "spread"
        self._fit = KaiFit(self._groups)
        self._prepared: set[str] = set()

    @hookimpl
    def concerns(self, pod: PodInfo) -> bool:
        """Concern pods that ask for shares by annotations."""
        return says_shares(pod)

    @hookimpl
    def pre_enqueue(self, pod: PodInfo) -> str | None:
        """Hold back pods whose annotations cannot be read."""
        request = known_share(pod)
        return request if isinstance(request, str) else None

    @hookimpl
    def sign(self, pod: PodInfo) -> Hashable:
        """Sign by what the pod asks for."""
        return known_share(pod)

    @hookimpl
    def pre_filter(self, pod: PodInfo) -> Skip | str | None:
        """Skip pods that share no GPUs."""
        request = known_share(pod)
        return SKIP if request is None else request if isinstance(request, str) else None

    # Which nodes -----------------------------------------------------------------------------

    @hookimpl
    def filter(self, pod: PodInfo, nodes: NodeView) -> Iterator[Reject]:
        """Refuse nodes whose GPUs have too little left."""
        request = _request(pod)
        able = self._fit.may_ever(request, nodes)
        yield Reject(~able, _TOO_LITTLE, resolvable=False)
        yield Reject(able & (self._fit.slots(request, nodes) < 1), _TOO_LITTLE)

    @hookimpl
    def slots(self, pod: PodInfo, nodes: NodeView) -> IntColumn:
        """Return how many pods equal to this one the GPUs of each node have left."""
        if known_share(pod) is None:
            return np.full(len(nodes), np.iinfo(np.int64).max, dtype=np.int64)
        return self._fit.slots(_request(pod), nodes)

    @hookimpl
    def pre_score(self, pod: PodInfo) -> Skip | None:
        """Skip pods that share no GPUs."""
        return None if known_share(pod) is not None else SKIP

    @hookimpl
    def score(self, pod: PodInfo, nodes: NodeView) -> FloatColumn:
        """Prefer nodes with a shared GPU that is taken first, then those with GPUs in use."""
        offered = np.maximum(nodes.allocatable(GPU), 1)
        used = np.clip(nodes.used(GPU) / offered, 0.0, 1.0)
        if self.args.nodes == "spread":
            return 2 * _HALF * (1 - used)
        return _HALF * used + np.where(self._fit.joins(_request(pod), nodes), _HALF, 0.0)

    @hookimpl
    def remedies(self, pod: PodInfo, nodes: NodeView) -> Iterator[Remedy]:
        """Say what is missing on the GPU of each node that has the most left."""
        request = _request(pod)
        able = self._fit.may_ever(request, nodes)
        slots = self._fit.slots(request, nodes)
        for node, may, count in zip(nodes, able, slots, strict=True):
            if may and count < 1:
                gpu = self._groups.gpu_memory(node.name)
                free = self._groups.left(node.name)
                # Of several GPUs, the one with the least left among those with the most decides.
                most = [*free, *[0] * request.devices][: request.devices]
                missing = request.memory_of(gpu) - most[-1]
                short = sum(one < request.memory_of(gpu) for one in most)
                where = "one GPU" if short == 1 else f"each of {short} GPUs"
                reported = ", ".join(f"{one} MiB" for one in free[:_MOST_LISTED])
                here = f"; its shared GPUs have {reported} left" if sum(free) else ""
                if sum(free) >= request.memory_of(gpu) * request.devices:
                    here += ": fragmented"
                text = f"would fit if {missing} MiB more were free on {where} of {node.name}{here}"
                yield Remedy(text, node.row, missing / gpu, frees=True)

    # On the node -----------------------------------------------------------------------------

    @hookimpl
    def reserve(self, pod: PodInfo, node: NodeRow) -> str | None:
        """Refuse a pod whose groups, which it has since it was placed, are too full."""
        if known_share(pod) is None or not self._groups.is_too_full(pod.key, node.name):
            return None
        return _TOO_LITTLE

    @hookimpl
    def unreserve(self, pod: PodInfo, node: NodeRow) -> None:
        """Name new groups otherwise next time: a reservation that failed keeps its name."""
        if pod.uid in self._prepared:
            self._prepared.discard(pod.uid)
            self._groups.failed(pod, node.name)

    @hookimpl
    def pre_bind(self, pod: PodInfo, node: NodeRow) -> Preparation | None:
        """Reserve the GPUs; once it is known which those are, tell the pod's container."""
        if known_share(pod) is None:
            return None
        request, groups = _request(pod), self._groups.of_pod(pod.key)
        self._prepared.add(pod.uid)
        fields = reservation_fields()
        known = self._groups.on_node(node.name)
        reserved = {
            name: known[name].reservation
            for name in groups
            if self._groups.is_reserved(known[name])
        }
        missing = {
            name: reservation_pod(node.name, name, pod.pod, self.args.image)
            for name in groups
            if name not in reserved
        }
        writes = [CreateObject(one, fields) for one in missing.values()]
        needs = frozenset((*reserved.values(), *(one.key for one in missing.values())))
        labels = {**dict.fromkeys(old_group_labels(pod.pod)), **group_labels(request, groups)}
        counted = self._groups.uids(node.name)
        return Preparation(
            writes,
            partial(self._is_ready, node.name, groups),
            _WAIT,
            then=partial(self._config_maps, pod, node.name, groups),
            labels=labels,
            lock=structs.replace(_LOCK, known=counted, needs=needs),
        )

    def _gpus(self, node: str, groups: Sequence[str]) -> list[int | str | None]:
        """Return the indices of the GPUs of groups: None for one not known yet, a text if wrong."""
        placed = self.handle.snapshot.placed
        found: list[int | str | None] = []
        for name in groups:
            group = self._groups.on_node(node).get(name)
            if group is None or not self._groups.is_reserved(group):
                found.append(None)
            else:
                found.append(reserved_index(placed[group.reservation][0].pod))
        return found

    def _is_ready(self, node: str, groups: Sequence[str]) -> bool | str:
        """Tell whether the GPUs of groups are known, or why the pod cannot have them any more."""
        if self._groups.is_overfull(node, groups):
            # Another scheduler put pods on the GPU while it was prepared.
            return _TOO_LITTLE
        known = self._groups.on_node(node)
        if any(name in known and known[name].lost for name in groups):
            return _LOST
        gpus = self._gpus(node, groups)
        wrong = next((one for one in gpus if isinstance(one, str)), None)
        return wrong if wrong is not None else None not in gpus

    def _config_maps(self, pod: PodInfo, node: str, groups: Sequence[str]) -> list[PutConfigMap]:
        gpus = [one for one in self._gpus(node, groups) if isinstance(one, int)]
        request = _request(pod)
        part = request.part_of(self._groups.gpu_memory(node))
        return [PutConfigMap(one) for one in config_maps(pod.pod, request, part, gpus)]

    @hookimpl
    def bind(self, pod: PodInfo) -> dict[str, str] | None:
        """Say what the pod got."""
        return received(pod.pod) if known_share(pod) is not None else None

    @hookimpl
    def post_bind(self, pod: PodInfo) -> None:
        """The pod's reservations are its own."""
        self._prepared.discard(pod.uid)
        self._groups.bound(pod.key)

    @hookimpl
    def overdue(self) -> Overdue | None:
        """Evict the reservation pods of groups that have no pods any more.

        One that never had any may be a scheduler's that is about to bind its first pod. The lock
        keeps another one from binding a pod that shares the GPU while its reservation pod goes.
        """
        victims, times, locks = [], [], {}
        for key, used in self._groups.unused():
            pod, node = self.handle.snapshot.placed[key]
            age = self.handle.unix_time - timestamp(pod.pod.metadata.creation_timestamp)
            if used or age >= _UNTIL_USED:
                self._groups.give_up(key)
                victims.append((pod, _UNUSED))
                locks[key] = structs.replace(_LOCK, known=self._groups.uids(node))
                # The eviction may be refused.
                age = 0.0
            times.append(self.handle.now + _UNTIL_USED - age)
        return Overdue(victims, again=min(times), locks=locks) if times else None

    # What there is ---------------------------------------------------------------------------

    @hookimpl
    def node_devices(self, node: str) -> NodeDevices | None:
        """Tell which pods share the GPUs of a node."""
        groups = self._groups.on_node(node)
        if not groups:
            return None
        size = max(1, self._groups.gpu_memory(node))
        gpus = self._gpus(node, list(groups))
        holders = [
            GpuHolder(gpu, key, round(WHOLE * request.memory_of(size) / size))
            for gpu, group in zip(gpus, groups.values(), strict=True)
            if isinstance(gpu, int)
            for key, request in group.pods.items()
        ]
        return NodeDevices(holders=holders)


def _request(pod: PodInfo) -> GpuShareRequest:
    request = known_share(pod)
    assert isinstance(request, GpuShareRequest), "PreFilter let only these through"
    return request
