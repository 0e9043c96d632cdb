"""Workloads that were let go without quota, until their objects say so."""

from __future__ import annotations

from collections.abc import Sequence

from bayplan import Handle
from bayplan.api.kueue import KueueWorkload
from bayplan.cluster.protocol import PatchStatus
from bayplan_plugins.queues.kueue.store import Store

__all__ = ["Released"]

_MOST = 8192


class Released:
    """Remembers what was let go: until that is written, its object says that it is admitted."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._known: dict[str, tuple[KueueWorkload, KueueWorkload]] = {}
        """By key, Workloads that were let go, each with its object at that time."""

    def report(self, keys: Sequence[str], store: Store) -> None:
        """Write that Workloads have no quota any more: nobody looks at them from now on."""
        objects = self._handle.snapshot.objects(KueueWorkload)
        for key in keys:
            one, seen = store.workloads.get(key), objects.get(key)
            if one is not None and seen is not None and one.status != seen.status:
                if len(self._known) >= _MOST:
                    self._known.clear()
                self._known[key] = one, seen
                self._handle.submit(PatchStatus(KueueWorkload, key, one.status))

    def get(self, key: str) -> KueueWorkload | None:
        """Return a Workload as it was let go, until the cluster shows it otherwise than before."""
        one, before = self._known.get(key, (None, None))
        seen = self._handle.snapshot.objects(KueueWorkload).get(key)
        if one is not None and seen is not before:
            del self._known[key]
            return None
        return one
