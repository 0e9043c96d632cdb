"""KAI's shares as the policies see them: what pods ask for, and what is left of shared GPUs.

A reservation pod holds a shared GPU, so the ledger of GPUs has the GPU as given out whole. What
the pods of its group leave of it is known by :class:`~bayplan_plugins.gpus.vendors.kai.groups`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache

from bayplan import PodInfo
from bayplan.api.gpu_shares import MEBIBYTE, WHOLE
from bayplan.dialects.kai.shares import GpuShareRequest, is_reservation
from bayplan.snapshot import Snapshot
from bayplan_plugins.gpus.ledger import GpuLedger
from bayplan_plugins.gpus.requests import NO_REQUESTS, Requests
from bayplan_plugins.gpus.vendors.adapter import ShareRequest
from bayplan_plugins.gpus.vendors.kai.groups import GpuGroups
from bayplan_plugins.gpus.vendors.kai.requests import known_share, says_shares

__all__ = ["SharedGpus"]

_KAI = "KAI"


class SharedGpus:
    """What pods ask of GPUs in any words, and which GPUs KAI's groups share."""

    def __init__(self, snapshot: Snapshot, ledger: GpuLedger) -> None:
        self._snapshot = snapshot
        self._ledger = ledger
        self._groups = snapshot.shared(GpuGroups, GpuGroups)

    def concerns(self, pod: PodInfo) -> bool:
        """Tell whether a pod may ask for GPUs, by its spec and the names of its annotations."""
        return self._ledger.concerns(pod) or says_shares(pod)

    def requests(self, pod: PodInfo) -> Requests:
        """Return what a pod requests; nothing for one that holds a GPU for others."""
        if not (pod.facts.wants_devices or pod.annotations):
            # Nor do KAI's words, which are annotations.
            return NO_REQUESTS
        found = self._ledger.requests(pod)
        if found:
            return NO_REQUESTS if is_reservation(pod.pod) else found
        share = known_share(pod)
        return _of_kai(share) if isinstance(share, GpuShareRequest) else NO_REQUESTS

    def places(self, pod: PodInfo, node: str) -> tuple[int, ...]:
        """Return the places of a pod's GPUs among those of its node."""
        position = {gpu.index: place for place, gpu in enumerate(self._ledger.gpus(node))}
        holders = [pod]
        groups = self._groups.on_node(node)
        for name in self._groups.of_pod(pod.key):
            placed = self._snapshot.placed.get(groups[name].reservation)
            holders += [placed[0]] if placed is not None else []
        shares = (share for one in holders for share in self._ledger.shares(one, node))
        return tuple(position[share.gpu] for share in shares if share.gpu in position)

    @property
    def any_groups(self) -> bool:
        """Whether any node has GPUs that groups share."""
        return next(self._groups.nodes(), None) is not None

    def left(self, node: str) -> Iterator[tuple[int, int]]:
        """Yield the place of each shared GPU of a node, and the thousandths left of it."""
        groups = self._groups.on_node(node)
        if not groups:
            return
        size = self._groups.gpu_memory(node)
        for group in groups.values():
            placed = self._snapshot.placed.get(group.reservation)
            # A group that its last pod has left gives its GPU back whole.
            rest = max(0, size - group.memory(size)) * WHOLE // size if group.pods else WHOLE
            for place in self.places(placed[0], node) if placed is not None else ():
                yield place, rest


@lru_cache(4096)
def _of_kai(share: GpuShareRequest) -> Mapping[str, ShareRequest]:
    part, memory = round(share.fraction * WHOLE), share.memory * MEBIBYTE
    return {_KAI: ShareRequest(_KAI, share.devices, max(1, part), memory)}
