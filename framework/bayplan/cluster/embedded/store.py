"""The embedded cluster: objects in memory, resource versions, watch events and virtual time.

It does what an API server does for a scheduler: optimistic locking, admission, names, graceful
deletion. ``writes`` says what each write of a scheduler does. Controllers and the kubelet use it
as clients.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, cast

from msgspec.structs import replace

from bayplan.api import (
    ApiObject,
    ClusterColocationProfile,
    Kind,
    Namespace,
    Node,
    PersistentVolumeClaim,
    Pod,
    PriorityClass,
    StorageClass,
    kind_of,
)
from bayplan.api.node_state import is_silent
from bayplan.api.object_key import object_key
from bayplan.api.volumes import default_class
from bayplan.cluster.embedded.admission import with_condition_taints, with_spec
from bayplan.cluster.embedded.clock import VirtualClock
from bayplan.cluster.embedded.faults import WriteFaults
from bayplan.cluster.embedded.writes import carry_out
from bayplan.cluster.protocol import (
    Bind,
    Done,
    Event,
    WatchEvent,
    WatchHandler,
    WatchType,
    Write,
)
from bayplan.dialects.koordinator.colocation import colocated, with_class_resources
from bayplan.errors import (
    AlreadyExists,
    ClusterError,
    Conflict,
    InputError,
    Locked,
    NotFound,
    did_you_mean,
)

__all__ = ["LONG_AGO", "MemoryCluster"]

Obj = TypeVar("Obj", bound=ApiObject)
Content = dict[str, Any]

LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)
_SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_NAME_LABEL = "kubernetes.io/metadata.name"
_SYSTEM_PRIORITIES = {"system-cluster-critical": 2000000000, "system-node-critical": 2000001000}


class MemoryCluster:
    """All objects by type and key, and their watchers.

    :param seed: seeds the random suffixes of generated names.
    :param start: the date and time at which the clock is 0.

    ``reports`` holds what failed, by kind and key of the object whose spec caused it.
    """

    def __init__(
        self, seed: int = 0, clock: VirtualClock | None = None, start: datetime = LONG_AGO
    ) -> None:
        self.start = start
        self._start_seconds = start.timestamp()
        self.clock = clock or VirtualClock()
        self.faults = WriteFaults()
        self.events: list[tuple[float, Event]] = []
        self.reports: dict[tuple[str, str], str] = {}
        self._random = random.Random(seed)  # noqa: S311 - names, not secrets
        self._objects: dict[type, dict[str, ApiObject]] = {}
        self._ending_on: dict[str, dict[str, None]] = {}
        """Pods that are being deleted, by their nodes."""
        self._version = 0
        self._given_uids: set[str] = set()
        """Of objects that came with one, as those of a cluster that is restored."""
        self._watchers: list[WatchHandler] = []
        self._undelivered: deque[tuple[WatchHandler, WatchEvent]] = deque()
        self._broken = False
        self._stamp = (-1, "")
        self._locked: list[tuple[Bind, Done | None]] = []
        self._looks_at_locks: float | None = None

    @property
    def now(self) -> float:
        """The virtual time in seconds from the start."""
        return self.clock.now

    @property
    def unix_time(self) -> float:
        """The virtual time in seconds since 1970."""
        return self._start_seconds + self.now

    @property
    def in_order(self) -> bool:
        """Whether an object is always delivered before what it owns."""
        return True

    @property
    def writes(self) -> bool:
        """Whether writes are carried out: always."""
        return True

    # Reading -----------------------------------------------------------------------------

    def list(self, type_: type[Obj]) -> list[Obj]:
        """Return all objects of a type, oldest first."""
        return list(self._of(type_).values())

    def get(self, type_: type[Obj], key: str) -> Obj | None:
        """Return an object, None when there is none."""
        return self._of(type_).get(key)

    def _of(self, type_: type[Obj]) -> Mapping[str, Obj]:
        # A type checker cannot see that objects are stored under their own type.
        return cast("Mapping[str, Obj]", self._objects.get(type_, {}))

    def watch(self, handler: WatchHandler) -> None:
        """Send all objects as ADDED, then every change; ``deliver`` hands them out."""
        self._watchers.append(handler)
        for obj in self._everything():
            self._undelivered.append((handler, WatchEvent(WatchType.ADDED, obj)))

    def deliver(self) -> bool:
        """Hand out all pending events; return whether there were any."""
        any_event = bool(self._undelivered)
        while self._undelivered:
            handler, event = self._undelivered.popleft()
            handler(event)
        return any_event

    def break_watch(self) -> None:
        """Drop all events until ``resume_watch``, as a lost connection does."""
        self._broken = True

    def resume_watch(self) -> None:
        """Send every watcher the whole state, as a relist after a lost watch does."""
        self._broken = False
        everything = tuple(self._everything())
        for handler in self._watchers:
            self._undelivered.append((handler, WatchEvent(WatchType.RESYNC, objects=everything)))

    def _everything(self) -> Iterable[ApiObject]:
        for objects in self._objects.values():
            yield from objects.values()

    def _emit(self, type_: WatchType, obj: ApiObject) -> None:
        if not self._broken:
            event = WatchEvent(type_, obj)
            for handler in self._watchers:
                self._undelivered.append((handler, event))

    # Writing -----------------------------------------------------------------------------

    def kind_of(self, obj: ApiObject) -> Kind:
        """Return the kind of an object."""
        return kind_of(obj)

    def key_of(self, obj: ApiObject) -> str:
        """Return the key under which an object is stored."""
        return object_key(obj)

    def create(self, obj: Obj, created: str | None = None) -> Obj:
        """Create an object; give it a name, a uid and a resource version.

        :param created: its creationTimestamp; None for now.
        :raises AlreadyExists: when the name is taken.
        :raises InputError: when admission refuses it.
        """
        meta = obj.metadata
        taken = self._objects.setdefault(type(obj), {})
        uid = meta.uid or self._new_uid(obj)
        if meta.uid:
            self._given_uids.add(uid)
        meta = replace(meta, uid=uid, creation_timestamp=created or self.timestamp())
        if not meta.name:
            meta = replace(meta, name=self._free_name(meta.generate_name, meta.namespace, taken))
        obj = self._admit(replace(obj, metadata=meta))
        key = self.key_of(obj)
        if key in taken:
            raise AlreadyExists(f"{self.kind_of(obj).name} {key} exists already")
        stored = self._store(obj, WatchType.ADDED)
        if isinstance(stored, Node):
            self._kubelet_is_back(stored)
        elif isinstance(stored, Pod) and stored.metadata.deletion_timestamp is not None:
            self._wait_for_end(stored, self._left_of_grace(stored))
        return stored

    def update(self, obj: Obj) -> Obj:
        """Replace an object. Its resourceVersion, if set, must be the current one.

        What changes nothing is not written, and nobody gets, as in Kubernetes.

        :raises NotFound: when there is no such object.
        :raises Conflict: when its resourceVersion is stale.
        """
        key = self.key_of(obj)
        current = self.get(type(obj), key)
        if current is None:
            raise NotFound(f"{self.kind_of(obj).name} {key} does not exist")
        version = obj.metadata.resource_version
        if version and version != current.metadata.resource_version:
            raise Conflict(f"{self.kind_of(obj).name} {key} changed meanwhile")
        if isinstance(obj, Node):
            obj = self._admit(obj)
        meta = obj.metadata
        # A terminating pod is removed when its grace period ends.
        over = meta.deletion_timestamp is not None and not meta.deletion_grace_period_seconds
        if current.metadata.finalizers and over and not meta.finalizers:
            return self._remove(obj)
        if self._is_current(obj, current):
            return current
        stored = self._store(obj, WatchType.MODIFIED)
        if isinstance(stored, Node) and isinstance(current, Node):
            if self._locked:
                self.clock.call_later(0.0, self._unlock)
            if is_silent(current):
                self._kubelet_is_back(stored)
        return stored

    def _is_current(self, obj: Obj, current: Obj) -> bool:
        """Return whether an object is as it is stored, whatever its resourceVersion."""
        version = current.metadata.resource_version
        return replace(obj, metadata=replace(obj.metadata, resource_version=version)) == current

    def delete(self, type_: type[ApiObject], key: str, grace: float | None = None) -> None:
        """Delete an object; a running pod gets its grace period (seconds) first.

        A pod of a silent kubelet stays until the kubelet is back or the grace period is 0.
        An object with finalizers is only marked; ``update`` without finalizers removes it.

        :raises NotFound: when there is no such object.
        """
        obj = self.get(type_, key)
        if obj is None:
            raise NotFound(f"{type_.__name__} {key} does not exist")
        if isinstance(obj, Pod):
            seconds = obj.spec.termination_grace_period_seconds if grace is None else grace
            if obj.spec.node_name and seconds > 0 and obj.status.phase in ("Pending", "Running"):
                self._terminate(obj, seconds)
                return
            # Kubernetes marks a pod before it removes it, even without a grace period.
            since = obj.metadata.deletion_timestamp or self.timestamp()
            meta = replace(obj.metadata, deletion_timestamp=since, deletion_grace_period_seconds=0)
            obj = self._store(replace(obj, metadata=meta), WatchType.MODIFIED)
        if obj.metadata.finalizers:
            if obj.metadata.deletion_timestamp is None:
                meta = replace(obj.metadata, deletion_timestamp=self.timestamp())
                self._store(replace(obj, metadata=meta), WatchType.MODIFIED)
            return
        self._remove(obj)

    def vanish_node(self, name: str) -> None:
        """Remove a node and its pods at once, as a crash does."""
        self.delete(Node, name)
        for pod in self.list(Pod):
            if pod.spec.node_name == name:
                self._remove(pod)

    def submit(self, write: Write, done: Done | None = None) -> None:
        """Carry out a scheduler's write now, or once a lock lets it, then call ``done``."""
        error = self.faults.take(write)
        if error is None:
            try:
                if isinstance(write, Event):
                    self._keep_event(write)
                else:
                    carry_out(self, write)
            except Locked as exc:
                assert isinstance(write, Bind), "only bindings need a lock"
                self._wait_for_lock(write, done, exc)
                return
            except ClusterError as exc:
                error = exc
        if done is not None:
            done(error)

    def _wait_for_lock(self, write: Bind, done: Done | None, locked: Locked) -> None:
        """Keep a binding until its node changes, a pod goes, or the lock may be broken."""
        self._locked.append((write, done))
        at = self.now + (locked.retry_after or 0.0) + 1.0
        if self._looks_at_locks is None or at < self._looks_at_locks:
            self._looks_at_locks = at
            # Nobody waits for a lock from the future, of a clock that was ahead.
            idle = write.lock is None or at > self.now + write.lock.seconds + 1.0
            self.clock.call_at(at, lambda: self._look_at_locks(at), idle)

    def _look_at_locks(self, at: float) -> None:
        if self._looks_at_locks == at:
            self._looks_at_locks = None
            self._unlock()

    def _unlock(self) -> None:
        """Try the bindings again that wait for a lock, in their order."""
        waiting, self._locked = self._locked, []
        for write, done in waiting:
            self.submit(write, done)

    def _free_name(self, prefix: str, namespace: str, taken: Mapping[str, ApiObject]) -> str:
        """Return an unused name: the prefix and five random letters."""
        while True:
            name = f"{prefix}{''.join(self._random.choices(_SUFFIX_LETTERS, k=5))}"
            if f"{namespace}/{name}" not in taken:
                return name

    def timestamp(self, later: float = 0.0) -> str:
        """Return the virtual time as Kubernetes writes times.

        :param later: seconds from now.
        """
        seconds = int(self.now + later)
        if self._stamp[0] == seconds:
            return self._stamp[1]
        text = f"{self.start + timedelta(seconds=seconds):%Y-%m-%dT%H:%M:%SZ}"
        self._stamp = (seconds, text)
        return text

    def _new_uid(self, obj: ApiObject) -> str:
        prefix, number = self.kind_of(obj).name.lower(), self._version + 1
        while (uid := f"{prefix}-{number:08x}") in self._given_uids:
            # Far from the numbers that versions reach.
            number += 0x1000_0000
        return uid

    def _next_version(self, obj: Obj) -> Obj:
        self._version += 1
        return replace(obj, metadata=replace(obj.metadata, resource_version=str(self._version)))

    def _store(self, obj: Obj, type_: WatchType) -> Obj:
        obj = self._next_version(obj)
        self._objects.setdefault(type(obj), {})[self.key_of(obj)] = obj
        if isinstance(obj, Pod) and obj.metadata.deletion_timestamp is not None:
            self._ending_on.setdefault(obj.spec.node_name, {})[obj.key] = None
        self._emit(type_, obj)
        return obj

    def _remove(self, obj: Obj) -> Obj:
        """Remove an object; return it with the resource version of its deletion."""
        if self._objects.get(type(obj), {}).pop(self.key_of(obj), None) is not None:
            obj = self._next_version(obj)
            if isinstance(obj, Pod):
                self._ending_on.get(obj.spec.node_name, {}).pop(obj.key, None)
            self._emit(WatchType.DELETED, obj)
            if self._locked and isinstance(obj, Pod):
                self.clock.call_later(0.0, self._unlock)
        return obj

    def _terminate(self, pod: Pod, seconds: float) -> None:
        if pod.metadata.deletion_timestamp is not None:
            return
        # As in Kubernetes, the time when it is to be gone.
        meta = replace(
            pod.metadata,
            deletion_timestamp=self.timestamp(seconds),
            deletion_grace_period_seconds=int(seconds),
        )
        pod = self._store(replace(pod, metadata=meta), WatchType.MODIFIED)
        self._wait_for_end(pod, seconds)

    def _wait_for_end(self, pod: Pod, seconds: float) -> None:
        """Let the kubelet end a pod after its grace period, if it hears of the deletion."""
        if not self._has_silent_kubelet(pod):
            self.clock.call_later(seconds, lambda: self._end(pod.key, pod.metadata.uid))

    def _kubelet_is_back(self, node: Node) -> None:
        """Let the kubelet end what was deleted while it was silent."""
        if is_silent(node):
            return
        for key in list(self._ending_on.get(node.metadata.name, ())):
            pod = self.get(Pod, key)
            if pod is not None:
                self._wait_for_end(pod, pod.metadata.deletion_grace_period_seconds or 0)

    def _has_silent_kubelet(self, pod: Pod) -> bool:
        node = self.get(Node, pod.spec.node_name)
        return node is not None and is_silent(node)

    def _left_of_grace(self, pod: Pod) -> float:
        """Return the seconds until the end of a pod whose deletion began elsewhere."""
        meta = pod.metadata
        left = self.seconds_of(meta.deletion_timestamp) - self.now
        return max(0.0, min(left, meta.deletion_grace_period_seconds or 0))

    def _end(self, key: str, uid: str) -> None:
        pod = self.get(Pod, key)
        if pod is None or pod.metadata.uid != uid or self._has_silent_kubelet(pod):
            return
        if pod.metadata.finalizers:
            meta = replace(pod.metadata, deletion_grace_period_seconds=0)
            self._store(replace(pod, metadata=meta), WatchType.MODIFIED)
        else:
            self._remove(pod)

    def seconds_of(self, stamp: str | None) -> float:
        """Return the virtual time of a Kubernetes timestamp; now when it is missing or invalid."""
        try:
            then = datetime.fromisoformat(stamp or "")
        except ValueError:
            return self.now
        if then.tzinfo is None:
            then = then.replace(tzinfo=UTC)
        return (then - self.start).total_seconds()

    # For controllers ---------------------------------------------------------------------

    def content_of(self, obj: ApiObject) -> Content | None:
        """Return an object's whole JSON, None when only its typed fields are known."""
        return None

    def create_from(self, obj: Obj, content: Content, typed: ApiObject) -> Obj:
        """Create an object from ``content``, changed where ``obj`` differs from ``typed``.

        :param content: JSON whose typed fields are those of ``typed``.
        :raises AlreadyExists: when the name is taken.
        :raises InputError: when admission refuses it.
        """
        return self.create(obj)

    def generation_of(self, obj: ApiObject) -> int | None:
        """Return an object's metadata.generation, None when it is not tracked."""
        return None

    def record_event(self, obj: ApiObject, component: str, reason: str, message: str) -> None:
        """Record a controller's event about an object, on clusters that keep events."""

    def report(self, obj: ApiObject, error: InputError) -> None:
        """Record why an object was refused or a controller failed on it."""
        # The user wrote the Deployment, not its ReplicaSet.
        owner = next((one for one in obj.metadata.owner_references if one.controller), None)
        kind, key = self.kind_of(obj).name, self.key_of(obj)
        if owner is not None and not isinstance(obj, Pod):
            kind, key = owner.kind, f"{obj.metadata.namespace}/{owner.name}"
        self.reports.setdefault((kind, key), error.message)

    # Admission ---------------------------------------------------------------------------

    def _admit(self, obj: Obj) -> Obj:
        admitted: ApiObject = obj
        if isinstance(obj, Pod):
            admitted = with_class_resources(self.with_priority(self._colocated(obj)))
        elif isinstance(obj, Node):
            admitted = with_condition_taints(obj, self.timestamp())
        elif isinstance(obj, PersistentVolumeClaim) and obj.spec.storage_class_name is None:
            found = default_class(self.list(StorageClass))
            if found is not None:
                spec = replace(obj.spec, storage_class_name=found.metadata.name)
                admitted = replace(obj, spec=spec)
        return cast(Obj, admitted)

    def _colocated(self, pod: Pod) -> Pod:
        """Return a new pod as Koordinator's profiles want it."""
        profiles = self.list(ClusterColocationProfile)
        if pod.metadata.resource_version or not profiles:
            return pod
        namespace = self.get(Namespace, pod.metadata.namespace)
        labels = namespace.metadata.labels if namespace is not None else {}
        return colocated(pod, {**labels, _NAME_LABEL: pod.metadata.namespace}, profiles)

    def with_priority(self, pod: Pod) -> Pod:
        """Resolve the priority class as the Priority admission plugin does."""
        name = pod.spec.priority_class_name
        classes = self._objects.get(PriorityClass, {})
        chosen: PriorityClass | None = None
        if name in _SYSTEM_PRIORITIES:
            chosen = PriorityClass(_SYSTEM_PRIORITIES[name])
        elif name:
            found = classes.get(name)
            if found is None:
                text = f'no PriorityClass with name "{name}" was found'
                near = did_you_mean(name, {*classes, *_SYSTEM_PRIORITIES})
                raise InputError(f"{text}{near}", f"Pod {pod.key}")
            assert isinstance(found, PriorityClass)
            chosen = found
        elif pod.spec.priority is None:
            defaults = [c for c in classes.values() if isinstance(c, PriorityClass)]
            chosen = max(
                (c for c in defaults if c.global_default), key=lambda c: -c.value, default=None
            )
        if chosen is None:
            return pod if pod.spec.priority is not None else with_spec(pod, priority=0)
        policy = pod.spec.preemption_policy or chosen.preemption_policy
        return with_spec(pod, priority=chosen.value, preemption_policy=policy)

    # What a scheduler writes -------------------------------------------------------------

    def _keep_event(self, event: Event) -> None:
        self.events.append((self.now, event))
