"""What pods request of GPUs, in the words of each system; read once for pods that ask alike."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence

from bayplan import PodInfo
from bayplan.snapshot import Snapshot, SpecFacts
from bayplan_plugins.gpus.namespace_use import NamespaceUse
from bayplan_plugins.gpus.vendors.adapter import ShareRequest, VendorAdapter

__all__ = ["NO_REQUESTS", "GpuRequests", "Requests", "decides"]

Requests = Mapping[str, ShareRequest]
"""What a pod requests, by the name of the adapter."""
NO_REQUESTS: Requests = {}
_MOST_REMEMBERED = 8192


class GpuRequests:
    """The requests of pods, by adapter."""

    def __init__(
        self, snapshot: Snapshot, adapters: Sequence[VendorAdapter], use: NamespaceUse
    ) -> None:
        self._snapshot = snapshot
        self._adapters = adapters
        self._use = use
        self._reads = frozenset[str]().union(*(one.reads for one in adapters))
        self._of_pods: dict[int, Requests] = {}
        self._of_kinds: dict[tuple[SpecFacts, str, Hashable], Requests] = {}
        self._interned: dict[ShareRequest, ShareRequest] = {}
        self._objects_read = self._use_read = 0

    def concerns(self, pod: PodInfo) -> bool:
        """Tell whether a pod may ask for GPUs, by its spec and the names of its annotations."""
        return pod.facts.wants_devices or not self._reads.isdisjoint(pod.annotations)

    def of(self, pod: PodInfo) -> Requests:
        """Return what a pod requests, by adapter; empty for a pod without GPUs."""
        # As ``concerns``: most pods are asked about again and again, and most ask for none.
        if not pod.facts.wants_devices and self._reads.isdisjoint(pod.annotations):
            return NO_REQUESTS
        # Limits of namespaces are part of a request.
        objects, use = self._snapshot.objects_version, self._use.version
        if objects != self._objects_read or use != self._use_read:
            self._objects_read, self._use_read = objects, use
            self.forget()
        known = self._of_pods.get(pod.serial)
        if known is not None:
            return known
        if len(self._of_pods) > _MOST_REMEMBERED:
            self._of_pods.clear()
        found = self._of_pods[pod.serial] = self._of_kind(pod)
        return found

    def forget(self) -> None:
        """Read all again: what a request means may have changed."""
        self._of_pods.clear()
        self._of_kinds.clear()

    def _of_kind(self, pod: PodInfo) -> Requests:
        """Return what a pod requests; read once for all that differ in nothing that is read."""
        said = tuple((key, text) for key, text in pod.annotations.items() if key in self._reads)
        kind = (pod.facts, pod.namespace, said)
        found = self._of_kinds.get(kind)
        if found is None:
            found = self._asked(pod)
            if pod.namespace in self._use.limited:
                # What it may have depends on what it holds itself.
                return found
            if len(self._of_kinds) > _MOST_REMEMBERED:
                self._of_kinds.clear()
            self._of_kinds[kind] = found
        return found

    def _asked(self, pod: PodInfo) -> Requests:
        asked = ((one.name, one.request(pod)) for one in self._adapters)
        found = {name: request for name, request in asked if request is not None}
        # Equal requests are one object, which makes looking them up cheap.
        if len(self._interned) > _MOST_REMEMBERED:
            self._interned.clear()
        return {name: self._interned.setdefault(one, one) for name, one in found.items()}


def decides(requests: Requests, offered: Collection[str]) -> bool:
    """Tell whether the GPUs of some node decide on a pod, more than their number does.

    :param offered: the adapters that describe GPUs of any node.
    """
    return any(
        not one.implicit or bool(one.problem) or (name in offered and not one.counted)
        for name, one in requests.items()
    )
