"""What goes when something else has gone: owned objects and namespaces."""

from __future__ import annotations

from msgspec.structs import replace

from bayplan.api import Namespace
from bayplan.cluster.apiserver.resources import Resource
from bayplan.cluster.apiserver.store import ServedCluster
from bayplan.cluster.apiserver.watch_cache import Change, StoredObject
from bayplan.errors import NotFound

__all__ = ["FOREGROUND", "GarbageCollector", "NamespaceEnd"]

FOREGROUND = "foregroundDeletion"
_Place = tuple[Resource, str]


class GarbageCollector:
    """Deletes objects whose owners are all gone, and owners that wait for what they own."""

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


class NamespaceEnd:
    """Empties namespaces that are being deleted, and removes them then."""

    def __init__(self, cluster: ServedCluster) -> None:
        self._cluster = cluster
        self._ending: set[str] = set()
        self._asked = False
        cluster.observe(self._changed)

    def _changed(self, resource: Resource, change: Change) -> None:
        meta = change.record.obj.metadata
        if resource.type is Namespace and meta.deletion_timestamp is not None:
            if change.type == "DELETED":
                self._ending.discard(meta.name)
            elif meta.name not in self._ending:
                self._ending.add(meta.name)
                self._ask()
        elif change.type == "DELETED" and meta.namespace in self._ending:
            self._ask()

    def _ask(self) -> None:
        if not self._asked:
            self._asked = True
            self._cluster.clock.call_later(0, self._empty)

    def _empty(self) -> None:
        self._asked = False
        for name in sorted(self._ending):
            contents = [
                (resource, record)
                for resource in self._cluster.resources.all()
                if resource.namespaced
                for record in list(self._cluster.records(resource).values())
                if record.obj.metadata.namespace == name
            ]
            for resource, record in contents:
                self._delete(resource, record)
            if not contents:
                self._cluster.remove_namespace(name)
            elif not any(r.key in self._cluster.records(kind) for kind, r in contents):
                self._ask()

    def _delete(self, resource: Resource, record: StoredObject) -> None:
        if record.obj.metadata.deletion_timestamp is None:
            try:
                self._cluster.delete(resource.type, record.key)
            except NotFound:
                return
