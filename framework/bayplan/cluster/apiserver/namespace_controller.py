"""The namespace controller, as k8s.io/kubernetes pkg/controller/namespace."""

from __future__ import annotations

from bayplan.api import Namespace
from bayplan.cluster.apiserver.resources import Resource
from bayplan.cluster.apiserver.store import ServedCluster
from bayplan.cluster.apiserver.watch_cache import Change, StoredObject
from bayplan.errors import NotFound

__all__ = ["NamespaceController"]


class NamespaceController:
    """Deletes the contents of terminating namespaces, then the namespaces."""

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
