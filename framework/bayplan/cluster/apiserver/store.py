"""The embedded cluster with the whole JSON of its objects and a watch cache."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, TypeVar, cast

import msgspec
from msgspec.structs import replace

from bayplan.api import ApiObject, Kind, Namespace, Node, ObjectMeta, Pod
from bayplan.cluster.api_errors import ApiError
from bayplan.cluster.apiserver.defaults import pod_defaults
from bayplan.cluster.apiserver.resources import Resource, Resources
from bayplan.cluster.apiserver.unknown_fields import overlay, plain
from bayplan.cluster.apiserver.watch_cache import Change, ChangeLog, StoredObject
from bayplan.cluster.embedded.admission import with_tolerations
from bayplan.cluster.embedded.clock import VirtualClock
from bayplan.cluster.embedded.disruption_budgets import budgets_of, health
from bayplan.cluster.embedded.store import LONG_AGO, MemoryCluster
from bayplan.cluster.protocol import Event, WatchType
from bayplan.errors import AlreadyExists, InputError

__all__ = ["ServedCluster"]

Obj = TypeVar("Obj", bound=ApiObject)
Content = dict[str, Any]
Observer = Callable[[Resource, Change], None]

_EVENT_TTL = 3600.0
_MIB = 2**20
_LARGEST_OBJECT = 3 * _MIB // 2
"""Bytes of JSON; etcd's ``--max-request-bytes``."""
_COMPONENT = "bayplan-cluster"
_FULL = "etcdserver: mvcc: database space exceeded"


class ServedCluster(MemoryCluster):
    """An embedded cluster that an API server can serve.

    For each typed object it keeps the whole JSON: the original, updated with the typed fields that
    changed since.

    :param without: API groups that are not installed.
    :param history: the number of changes of each resource that the watch cache keeps.
    :param first_version: where resource versions start, so that those of an earlier cluster are
        too old.
    :param quota: about how many bytes of memory the objects may take; etcd has such a quota, too.
    :param history_size: about how many bytes of memory the watch caches may take together.
    """

    def __init__(
        self,
        seed: int = 0,
        clock: VirtualClock | None = None,
        start: datetime = LONG_AGO,
        without: tuple[str, ...] = (),
        history: int = 10_000,
        first_version: int = 0,
        quota: int = 1024 * _MIB,
        history_size: int = 256 * _MIB,
    ) -> None:
        super().__init__(seed, clock, start)
        self.resources = Resources(without)
        self.history = history
        self._quota, self._used = quota, 0
        self._history_size, self._history_used = history_size, 0
        self._version = self._first_version = first_version
        self._records: dict[type, dict[str, StoredObject]] = {}
        self._logs: dict[type, ChangeLog] = {}
        self._incoming: tuple[Content, ApiObject] | None = None
        self.last: StoredObject | None = None
        """The object of the last write, as stored."""
        self._observers: list[Observer] = []
        for name in ("default", "kube-node-lease", "kube-public", "kube-system"):
            self.create(Namespace(ObjectMeta(name=name)))

    # Reading -----------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """The resource version of the whole cluster."""
        return self._version

    def kind_of(self, obj: ApiObject) -> Kind:
        """Return the kind of an object, even one that bayplan does not read."""
        resource = self.resources.of(type(obj))
        return resource.known or Kind(
            resource.group, resource.kind, resource.versions, resource.type, resource.namespaced
        )

    def key_of(self, obj: ApiObject) -> str:
        """Return the key under which an object is stored."""
        resource = self.resources.of(type(obj))
        return resource.key(obj.metadata.namespace, obj.metadata.name)

    def records(self, resource: Resource) -> dict[str, StoredObject]:
        """Return all objects of a resource, by key."""
        return self._records.setdefault(resource.type, {})

    def log(self, resource: Resource) -> ChangeLog:
        """Return the watch cache of a resource."""
        log = self._logs.get(resource.type)
        if log is None:
            log = self._logs[resource.type] = ChangeLog(self.history, self._first_version)
        return log

    def observe(self, handler: Observer) -> None:
        """Call a handler for all objects as ADDED, then for every change while it happens.

        A handler must not change objects itself; it can schedule a call on the clock.
        """
        for resource in self.resources.all():
            for record in self.records(resource).values():
                handler(resource, Change("ADDED", record, None))
        self._observers.append(handler)

    def logs(self) -> list[ChangeLog]:
        """Return the watch caches of all resources that have one."""
        return list(self._logs.values())

    def state_at(self, resource: Resource, version: int) -> dict[str, StoredObject]:
        """Return all objects of a resource at a resource version, by key.

        :raises ApiError: 410 for a version that is too old, 504 for one in the future.
        """
        state = self.records(resource)
        changes = list(self.log(resource).back(version, self.version))
        if changes:
            state = dict(state)
        for change in changes:
            if change.before is None:
                del state[change.record.key]
            else:
                state[change.record.key] = change.before
        return state

    def forget(self, resource: Resource) -> None:
        """Remove a resource with all its objects and end its watches."""
        for obj in self.list(resource.type):
            self._remove(obj)
        self.resources.remove(resource)
        log = self.log(resource)
        if resource.known is None:
            # The kind has a new type when it comes back.
            del self._logs[resource.type]
            self._records.pop(resource.type, None)
        log.wake()

    # Writing -----------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        """Whether the quota is used up, so that nothing but deletions is accepted."""
        return self._used > self._quota

    def check_space(self, content: Content | None = None) -> None:
        """Refuse to store more than fits.

        :param content: an object that is to be stored.
        :raises ApiError: 500 with etcd's message, as the real API server answers then.
        """
        if content is not None and len(msgspec.json.encode(content)) > _LARGEST_OBJECT:
            raise ApiError(500, "", "etcdserver: request is too large")
        if self.full:
            raise ApiError(500, "", _FULL)

    @contextmanager
    def carrying(self, content: Content, obj: ApiObject) -> Iterator[None]:
        """Store the next write of ``obj`` with the JSON that it was decoded from."""
        self._incoming = (content, obj)
        try:
            yield
        finally:
            self._incoming = None

    def dry_run(self, obj: ApiObject) -> StoredObject:
        """Return the object that ``create`` would store.

        :raises AlreadyExists: when the name is taken.
        :raises InputError: when admission refuses it.
        """
        resource = self.resources.of(type(obj))
        key = self.key_of(obj)
        if key in self.records(resource):
            raise AlreadyExists(f"{resource.kind} {key} exists already")
        meta = replace(obj.metadata, uid=self._new_uid(obj), creation_timestamp=self.timestamp())
        admitted = self._admit(replace(obj, metadata=meta))
        return StoredObject(key, admitted, self._content(resource, admitted, None), self._version)

    def settle(self) -> None:
        """Deliver events and run actions until nothing is left to do at this instant."""
        clock = self.clock
        while True:
            clock.catch_up()
            if not self.deliver():
                following = clock.next_time()
                if following is None or following > clock.now:
                    break
        clock.wake_at(following, self.settle)

    def budget_problems(self, pod: StoredObject) -> list[str]:
        """Return messages about the disruption budgets that forbid a pod's eviction."""
        messages = []
        for budget in budgets_of(self, pod.obj) if isinstance(pod.obj, Pod) else ():
            if budget.status.disruptions_allowed < 1:
                healthy, wanted = health(budget, self.list(Pod))
                messages.append(
                    f"The disruption budget {budget.metadata.name} needs {wanted} healthy pods "
                    f"and has {healthy} currently"
                )
        return messages

    def store_content(self, resource: Resource, key: str, content: Content) -> None:
        """Replace the JSON of an object whose typed fields do not change."""
        record = self.records(resource)[key]
        with self.carrying(content, record.obj):
            self._store(record.obj, WatchType.MODIFIED)

    def delete(self, type_: type[ApiObject], key: str, grace: float | None = None) -> None:
        """Delete an object; a namespace is removed once it is empty.

        :raises NotFound: when there is no such object.
        """
        if type_ is not Namespace or self.get(Namespace, key) is None:
            super().delete(type_, key, grace)
            return
        record = self._records[Namespace][key]
        if record.obj.metadata.deletion_timestamp is None:
            meta = replace(record.obj.metadata, deletion_timestamp=self.timestamp())
            content = {**record.content, "status": {"phase": "Terminating"}}
            with self.carrying(content, record.obj):
                self._store(replace(record.obj, metadata=meta), WatchType.MODIFIED)

    def remove_namespace(self, name: str) -> None:
        """Remove an empty namespace."""
        namespace = self.get(Namespace, name)
        if namespace is not None:
            self._remove(namespace)

    def wall_time(self) -> datetime:
        """Return the cluster's date and time."""
        return self.start + timedelta(seconds=self.now)

    def _new_uid(self, obj: ApiObject) -> str:
        return str(uuid.UUID(int=self._random.getrandbits(128), version=4))

    def _admit(self, obj: Obj) -> Obj:
        obj = super()._admit(obj)
        if isinstance(obj, Pod) and not obj.metadata.resource_version:
            return cast(Obj, with_tolerations(obj))
        return obj

    def _is_current(self, obj: Obj, current: Obj) -> bool:
        # JSON that comes with an object may differ in fields that are not typed.
        return self._incoming is None and super()._is_current(obj, current)

    def _store(self, obj: Obj, type_: WatchType) -> Obj:
        stored = super()._store(obj, type_)
        resource = self.resources.of(type(stored))
        records = self.records(resource)
        key = self.key_of(stored)
        before = records.get(key)
        record = StoredObject(key, stored, self._content(resource, stored, before), self._version)
        records[key] = record
        self._used += record.cost - (before.cost if before is not None else 0)
        self._changed(resource, Change(type_.value, record, before))
        return stored

    def _remove(self, obj: Obj) -> Obj:
        resource = self.resources.of(type(obj))
        before = self.records(resource).get(self.key_of(obj))
        removed = super()._remove(obj)
        if before is not None:
            content = self._content(resource, removed, before)
            record = StoredObject(before.key, removed, content, self._version)
            del self.records(resource)[before.key]
            self._used -= before.cost
            self._changed(resource, Change("DELETED", record, before))
        return removed

    def _changed(self, resource: Resource, change: Change) -> None:
        self.last = change.record
        log = self.log(resource)
        log.append(change)
        self._history_used += change.record.cost
        if self._history_used > self._history_size:
            self._forget_history()
        if change.type == "ADDED" and resource.plural == "events":
            key = change.record.key
            self.clock.call_later(_EVENT_TTL, lambda: self._expire(resource, key))
        for handler in self._observers:
            handler(resource, change)

    def _forget_history(self) -> None:
        """Drop the older changes of the largest watch caches."""
        logs = self._logs.values()
        while (used := sum(log.cost for log in logs)) > self._history_size:
            max(logs, key=lambda log: log.cost).halve()
        self._history_used = used

    def _content(self, resource: Resource, obj: ApiObject, before: StoredObject | None) -> Content:
        incoming, self._incoming = self._incoming, None
        came = incoming is not None and type(incoming[1]) is type(obj)
        if incoming is not None and came:
            base, typed = incoming
        elif before is not None:
            base, typed = before.content, before.obj
        else:
            base, typed = self._new_content(resource, obj)
        content = overlay(base, typed, obj)
        if before is None:
            content = _first_state(resource, content)
        elif (came or not isinstance(obj, Pod)) and "spec" in content:
            content = _with_generation(content, before.content)
        return content

    def _new_content(self, resource: Resource, obj: ApiObject) -> tuple[Content, ApiObject]:
        """Return the JSON of an object that was created typed."""
        version = resource.api_version(resource.storage_version)
        return {"apiVersion": version, "kind": resource.kind, **plain(obj)}, obj

    # For controllers ---------------------------------------------------------------------

    def content_of(self, obj: ApiObject) -> Content | None:
        """Return the whole JSON of an object."""
        record = self.records(self.resources.of(type(obj))).get(self.key_of(obj))
        return record.content if record is not None else plain(obj)

    def create_from(self, obj: Obj, content: Content, typed: ApiObject) -> Obj:
        """Create an object that is as ``content`` says, but where ``obj`` differs from ``typed``.

        :raises AlreadyExists: when the name is taken.
        :raises InputError: when admission refuses it, or too little space is left for pods.
        """
        if self.full and isinstance(obj, Pod):
            raise InputError(_FULL)
        with self.carrying(content, typed):
            return self.create(obj)

    def generation_of(self, obj: ApiObject) -> int | None:
        """Return an object's metadata.generation."""
        content = self.content_of(obj) or {}
        generation: int | None = content["metadata"].get("generation")
        return generation

    # Events ------------------------------------------------------------------------------

    def record_event(self, obj: ApiObject, component: str, reason: str, message: str) -> None:
        """Record a controller's event about an object."""
        self._write_event(self._reference(obj), "Normal", reason, message, component)

    def report(self, obj: ApiObject, error: InputError) -> None:
        """Record a Warning event about what a controller could not do."""
        reason = "Failed" if isinstance(obj, Pod) else "FailedCreate"
        self._write_event(self._reference(obj), "Warning", reason, str(error), _COMPONENT)

    def _reference(self, obj: ApiObject) -> Content:
        """Return an event's reference to an object."""
        resource, meta = self.resources.of(type(obj)), obj.metadata
        return {
            "kind": resource.kind,
            "namespace": meta.namespace,
            "name": meta.name,
            "apiVersion": resource.api_version(resource.storage_version),
            "uid": meta.uid,
            "resourceVersion": meta.resource_version,
        }

    def _keep_event(self, event: Event) -> None:
        super()._keep_event(event)
        namespace, _, name = event.pod.rpartition("/")
        involved = {"kind": event.about, "namespace": namespace or "default", "name": name}
        pod = self.get(Pod, event.pod) if event.about == "Pod" else None
        if pod is not None:
            involved = self._reference(pod)
        component = event.component or _COMPONENT
        self._write_event(involved, event.type, event.reason, event.message, component)

    def _write_event(
        self, involved: Content, type_: str, reason: str, message: str, component: str
    ) -> None:
        if self.full:
            return
        stamp = self.timestamp()
        # Events about cluster-scoped objects are in the default namespace.
        namespace = involved["namespace"] or "default"
        self.create_content(
            self._events(),
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"generateName": f"{involved['name']}.", "namespace": namespace},
                "involvedObject": involved,
                "reason": reason,
                "message": message,
                "source": {"component": component},
                "firstTimestamp": stamp,
                "lastTimestamp": stamp,
                "count": 1,
                "type": type_,
                "reportingComponent": component,
                "reportingInstance": "",
            },
        )

    def _events(self) -> Resource:
        resource = self.resources.named("", "events")
        assert resource is not None
        return resource

    def create_content(self, resource: Resource, content: Content) -> StoredObject:
        """Create an object from JSON, of a kind that bayplan does not read."""
        obj = msgspec.convert(content, resource.type)
        with self.carrying(content, obj):
            created = self.create(obj)
        return self.records(resource)[self.key_of(created)]

    def _expire(self, resource: Resource, key: str) -> None:
        record = self.records(resource).get(key)
        if record is not None:
            self._remove(record.obj)


def _first_state(resource: Resource, content: Content) -> Content:
    if resource.type in (Node, Pod):
        content = {**content, "spec": content.get("spec", {})}
    if resource.type is Pod:
        content = pod_defaults(content)
    if "spec" in content and resource.plural != "nodes":
        content = {**content, "metadata": {**content["metadata"], "generation": 1}}
    if resource.type is Namespace:
        content = {**content, "status": {"phase": "Active"}}
    return content


def _with_generation(content: Content, before: Content) -> Content:
    """Increase metadata.generation when the spec changed."""
    generation = before["metadata"].get("generation")
    if generation is None:
        return content
    old, new = before.get("spec"), content.get("spec")
    if not (old is new or old == new):
        generation += 1
    if content["metadata"].get("generation") == generation:
        return content
    return {**content, "metadata": {**content["metadata"], "generation": generation}}
