"""What the pods of each namespace hold of GPUs, for limits of namespaces."""

from __future__ import annotations

from collections.abc import Sequence

from bayplan import PodInfo
from bayplan.api.gpu_shares import Share
from bayplan.snapshot import Snapshot

__all__ = ["NamespaceUse"]


class NamespaceUse:
    """Sums over the shares of a namespace's pods, by adapter. The ledger of GPUs keeps them."""

    def __init__(self, _: Snapshot) -> None:
        self._held: dict[str, tuple[tuple[str, str], int, int]] = {}
        self._sums: dict[tuple[str, str], list[int]] = {}
        self.limited: frozenset[str] = frozenset()
        """The namespaces with limits."""
        self.version = 0
        """Changes with every sum of a namespace with limits."""

    def set(self, adapter: str, pod: PodInfo, shares: Sequence[Share]) -> None:
        """Record what a pod holds now by an adapter; no shares for nothing."""
        self.version += pod.namespace in self.limited
        known = self._held.pop(pod.uid, None)
        if known is not None:
            self._count(known, -1)
        if shares:
            memory = sum(share.memory for share in shares)
            compute = sum(share.compute for share in shares)
            entry = ((adapter, pod.namespace), memory, compute)
            self._held[pod.uid] = entry
            self._count(entry, 1)

    def _count(self, entry: tuple[tuple[str, str], int, int], sign: int) -> None:
        key, memory, compute = entry
        sums = self._sums.setdefault(key, [0, 0])
        sums[0] += sign * memory
        sums[1] += sign * compute

    def of(self, adapter: str, namespace: str, but: str = "") -> tuple[int, int]:
        """Return the memory (bytes) and compute (thousandths) that a namespace's pods hold.

        :param but: the uid of a pod that is left out.
        """
        memory, compute = self._sums.get((adapter, namespace), (0, 0))
        own = self._held.get(but)
        if own is not None and own[0] == (adapter, namespace):
            return memory - own[1], compute - own[2]
        return memory, compute
