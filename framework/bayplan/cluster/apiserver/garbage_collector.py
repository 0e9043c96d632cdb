"""The garbage collector, as k8s.io/kubernetes pkg/controller/garbagecollector."""

from __future__ import annotations

from msgspec.structs import replace

from bayplan.cluster.apiserver.resources import Resource
from bayplan.cluster.apiserver.store import ServedCluster
from bayplan.cluster.apiserver.watch_cache import Change

__all__ = ["FOREGROUND", "GarbageCollector"]

FOREGROUND = "foregroundDeletion"
_Place = tuple[Resource, str]


class GarbageCollector:
    """Deletes objects whose owners are gone, and completes foreground deletions."""

    def __init__(self, cluster: ServedCluster) -> None:
        self._cluster = cluster
        self._owned: dict[str, dict[tuple[type, str], _Place]] = {}
        self._alive: set[str] = set()
        self._gone: list[str] = []
        self._waiting: dict[str, _Place] = {}
        cluster.observe(self._changed)

    def _changed(self, resource: Resource, change: Change) -> None:
        meta, key = change.record.obj.metadata, change.record.key
        if change.before is not None:
            for reference in change.before.obj.metadata.owner_references:
                self._disown(reference.uid, resource, key)
        if change.type == "DELETED":
            self._alive.discard(meta.uid)
            self._waiting.pop(meta.uid, None)
            self._later(meta.uid)
            return
        self._alive.add(meta.uid)
        for reference in meta.owner_references:
            self._owned.setdefault(reference.uid, {})[resource.type, key] = (resource, key)
        if meta.deletion_timestamp is not None and FOREGROUND in meta.finalizers:
            self._waiting[meta.uid] = (resource, key)
            self._later(meta.uid)

    def _disown(self, uid: str, resource: Resource, key: str) -> None:
        owned = self._owned.get(uid, {})
        owned.pop((resource.type, key), None)
        if not owned:
            self._owned.pop(uid, None)
            if uid in self._waiting:
                self._later(uid)

    def _later(self, uid: str) -> None:
        if uid not in self._owned and uid not in self._waiting:
            return
        if not self._gone:
            self._cluster.clock.call_later(0, self._collect)
        self._gone.append(uid)

    def _collect(self) -> None:
        gone, self._gone = self._gone, []
        for uid in gone:
            for resource, key in list(self._owned.get(uid, {}).values()):
                self._delete_if_orphan(resource, key, uid)
            if uid in self._waiting and not self._owned.get(uid):
                self._release(*self._waiting.pop(uid))

    def _delete_if_orphan(self, resource: Resource, key: str, uid: str) -> None:
        record = self._cluster.records(resource).get(key)
        if record is None or record.obj.metadata.deletion_timestamp is not None:
            return
        others = {r.uid for r in record.obj.metadata.owner_references} - {uid}
        if not others & self._alive:
            self._cluster.delete(resource.type, key)

    def _release(self, resource: Resource, key: str) -> None:
        record = self._cluster.records(resource).get(key)
        if record is not None:
            meta = record.obj.metadata
            left = tuple(f for f in meta.finalizers if f != FOREGROUND)
            self._cluster.update(replace(record.obj, metadata=replace(meta, finalizers=left)))
