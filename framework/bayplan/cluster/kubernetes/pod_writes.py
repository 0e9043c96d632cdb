"""Bindings, evictions and statuses of pods, as requests to the API server."""

from __future__ import annotations

import re
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
from msgspec.structs import replace

from bayplan.api import KINDS, Node, ObjectMeta, Pod, PodCondition
from bayplan.api.objects import decode_json
from bayplan.api.times import rfc3339
from bayplan.cluster.kubernetes.transport import (
    JSON_PATCH,
    MERGE_PATCH,
    STRATEGIC_PATCH,
    Requests,
)
from bayplan.cluster.node_lock import lock_for
from bayplan.cluster.protocol import Bind, BindLock, Evict, PatchPodStatus, pointer
from bayplan.dialects.hami.node_lock import read_lock
from bayplan.errors import Conflict, Invalid, Locked, NotFound, Transient

__all__ = ["PodWrites", "pod_path"]

_REMEMBERED = 50_000
_LOCK_WAIT = 0.5
"""Seconds until a node is looked at again that is locked for another pod."""

_POD_KEY = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?/[a-z0-9]([-.a-z0-9]*[a-z0-9])?")
"""Anything may be written into a lock, and the key becomes a path."""

Lookup = Callable[[type[Any], str], Any]


def pod_path(key: str) -> str:
    """Return the API path of a pod by its key ``namespace/name``."""
    namespace, _, name = key.partition("/")
    return f"/api/v1/namespaces/{namespace}/pods/{name}"


def _node_path(name: str) -> str:
    return f"/api/v1/nodes/{name}"


class _Status(msgspec.Struct, frozen=True):
    phase: str = ""


class _Bound(msgspec.Struct, frozen=True):
    """What counts of a pod that has a node."""

    metadata: ObjectMeta = ObjectMeta()
    status: _Status = _Status()

    @property
    def has_ended(self) -> bool:
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def stays(self) -> bool:
        return not self.has_ended and self.metadata.deletion_timestamp is None


class _Pods(msgspec.Struct):
    items: tuple[_Bound, ...] | None = ()


class PodWrites:
    """Writes of pods; ``sent`` says that an earlier attempt may have been carried out.

    :param lookup: returns an object as it was last seen, by type and key, or None.
    :param alone: tells whether no other scheduler gives out shares of GPUs at the same time.
    """

    def __init__(
        self, transport: Requests, lookup: Lookup, alone: Callable[[], bool] = lambda: False
    ) -> None:
        self._transport = transport
        self._lookup = lookup
        self._alone = alone
        self._patched: OrderedDict[str, None] = OrderedDict()
        self._locks: dict[str, str] = {}
        """The latest lock that was taken of each node."""
        self._locked: OrderedDict[str, None] = OrderedDict()
        """The pods, by uid, whose bindings this process has sent under a lock."""

    async def bind(self, write: Bind, sent: bool) -> None:
        """Bind a pod to a node.

        A Conflict counts as success when the pod has this node: an earlier attempt succeeded.

        :raises Conflict: when the pod has another node, is being deleted, or was recreated; when
            another scheduler has bound pods to the node that this binding does not know; and when a
            pod that it needs there is gone.
        :raises Locked: while another pod has the lock that the binding needs.
        :raises ClusterError: when a request fails.
        """
        await self._lock(write)
        namespace, _, name = write.pod.partition("/")
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {
                "name": name,
                "namespace": namespace,
                "uid": write.uid,
                "annotations": dict(write.annotations),
            },
            "target": {"apiVersion": "v1", "kind": "Node", "name": write.node},
        }
        try:
            if write.labels:
                # The uid makes the API server refuse the patch of a pod that was recreated.
                meta = {"uid": write.uid, "labels": write.labels}
                patch = msgspec.json.encode({"metadata": meta})
                await self._transport.request("PATCH", pod_path(write.pod), patch, MERGE_PATCH)
            await self._transport.request(
                "POST", f"{pod_path(write.pod)}/binding", msgspec.json.encode(body)
            )
        except Conflict:
            if not await self._is_bound(write):
                await self._release_lock(write)
                raise
        except NotFound:
            await self._release_lock(write)
            raise

    async def _lock(self, write: Bind | Evict) -> bool:
        """Take the lock that a write needs, and check that it may go on; False if it needs none."""
        lock = write.lock
        if lock is None or (lock.own and self._alone()):
            return False
        await self._take_lock(write, lock)
        try:
            if lock.marks:
                await self._check_node(write, lock)
        except BaseException:
            await self._release_lock(write)
            raise
        self._locked[write.uid] = None
        if len(self._locked) > _REMEMBERED:
            self._locked.popitem(last=False)
        return True

    async def _take_lock(self, write: Bind | Evict, lock: BindLock) -> None:
        """Write a lock into the node as it was last seen; it must not have changed since then."""
        node = self._lookup(Node, write.node)
        if not isinstance(node, Node):
            raise NotFound(f"Node {write.node} does not exist")
        meta = node.metadata
        try:
            held = await self._is_held(meta.annotations.get(lock.annotation, ""), lock)
            text = lock_for(write, meta.annotations, time.time(), lambda _: held)
        except Locked as exc:
            raise Locked(str(exc), retry_after=_LOCK_WAIT) from None
        change = {"resourceVersion": meta.resource_version, "annotations": {lock.annotation: text}}
        body = msgspec.json.encode({"metadata": change})
        try:
            await self._transport.request("PATCH", _node_path(write.node), body, MERGE_PATCH)
        except Conflict:
            # The node has changed; its watch will show how.
            raise Locked(f"Node {write.node} changed meanwhile", retry_after=_LOCK_WAIT) from None
        self._locks[write.node] = text

    async def _check_node(self, write: Bind | Evict, lock: BindLock) -> None:
        """Refuse a write if the node has pods that it does not know, or not those that it needs.

        Only who has the lock binds pods with the mark, so no more of them come meanwhile.
        """
        query = {"fieldSelector": f"spec.nodeName={write.node}"}
        content = await self._transport.request("GET", "/api/v1/pods", query=query)
        known = {write.uid, *lock.known, *self._locked}
        missing = set(lock.needs)
        for one in msgspec.json.decode(content, type=_Pods).items or ():
            meta = one.metadata
            key = f"{meta.namespace}/{meta.name}"
            if lock.marks in meta.annotations and meta.uid not in known and not one.has_ended:
                raise Conflict(f"Node {write.node} has got {key} as well")
            if one.stays:
                missing.discard(key)
        if missing:
            raise Conflict(f"Node {write.node} has no {min(missing)} any more")

    async def _is_held(self, text: str, lock: BindLock) -> bool:
        """Tell whether there is the pod that a lock names, waiting for its binding if it is ours.

        The watch of nodes may be ahead of that of pods, so a pod that is not known is asked for: a
        lock must not be broken whose pod has only just come.
        """
        key = read_lock(text).pod if text else ""
        if not _POD_KEY.fullmatch(key):
            return False
        pod = self._lookup(Pod, key)
        if pod is None:
            try:
                content = await self._transport.request("GET", pod_path(key))
            except NotFound:
                return False
            pod = decode_json(KINDS["", "Pod"], "v1", content)
            assert isinstance(pod, Pod), "the path is a pod's"
        return not (lock.own and pod.spec.node_name)

    async def _release_lock(self, write: Bind | Evict) -> None:
        """Give back the lock of a pod that is not bound, or of an eviction, if it still has it."""
        text = self._locks.pop(write.node, None) if write.lock is not None else None
        if write.lock is None or text is None:
            return
        path = pointer("metadata", "annotations", write.lock.annotation)
        operations = [
            {"op": "test", "path": path, "value": text},
            {"op": "remove", "path": path},
        ]
        with suppress(Conflict, Invalid, NotFound):
            await self._transport.request(
                "PATCH", _node_path(write.node), msgspec.json.encode(operations), JSON_PATCH
            )

    async def _is_bound(self, write: Bind) -> bool:
        try:
            content = await self._transport.request("GET", pod_path(write.pod))
        except NotFound:
            return False
        pod = decode_json(KINDS["", "Pod"], "v1", content)
        assert isinstance(pod, Pod), "the path is a pod's"
        return pod.metadata.uid == write.uid and pod.spec.node_name == write.node

    async def evict(self, write: Evict, sent: bool) -> None:
        """Evict a pod, then set its DisruptionTarget condition.

        The eviction itself sets a DisruptionTarget condition, so ours comes after it. A
        refused eviction leaves no condition behind.

        :raises TooManyDisruptions: when a disruption budget forbids the eviction.
        :raises Conflict: when another scheduler has bound pods to the node that this eviction does
            not know.
        :raises Locked: while another pod has the lock that the eviction needs.
        :raises ClusterError: when a request fails.
        """
        locked = await self._lock(write)
        try:
            await self._evict(write)
        finally:
            if locked:
                await self._release_lock(write)

    async def _evict(self, write: Evict) -> None:
        namespace, _, name = write.pod.partition("/")
        body: dict[str, Any] = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
        }
        if write.uid:
            body["deleteOptions"] = {"preconditions": {"uid": write.uid}}
        path = pod_path(write.pod)
        await self._transport.request("POST", f"{path}/eviction", msgspec.json.encode(body))
        condition = PodCondition("DisruptionTarget", "True", "PreemptionByScheduler", write.message)
        try:
            await self._patch(
                path, write.uid, {"conditions": [_plain(condition, rfc3339(time.time()))]}
            )
        except (NotFound, Conflict):
            # The pod is gone already.
            return

    async def patch_status(self, write: PatchPodStatus, sent: bool) -> None:
        """Set a pod's condition and nominated node.

        An unchanged condition is not written again before this process has patched the pod; after
        that, the cache may be older than the last patch.

        :raises Conflict: when the pod was recreated.
        :raises Transient: when the pod changed at the same time.
        :raises ClusterError: when a request fails.
        """
        pod = self._lookup(Pod, write.pod)
        known = pod if isinstance(pod, Pod) and pod.metadata.uid == write.uid else None
        status = _status(write, known)
        if known is not None and write.uid not in self._patched and _has(known, write):
            return
        self._patched[write.uid] = None
        if len(self._patched) > _REMEMBERED:
            self._patched.popitem(last=False)
        try:
            await self._patch(pod_path(write.pod), write.uid, status)
        except Conflict as exc:
            content = await self._transport.request("GET", pod_path(write.pod))
            now = decode_json(KINDS["", "Pod"], "v1", content)
            if now.metadata.uid == write.uid:
                raise Transient(str(exc)) from None
            raise

    async def _patch(self, path: str, uid: str, status: dict[str, Any]) -> None:
        body = {"metadata": {"uid": uid} if uid else {}, "status": status}
        await self._transport.request(
            "PATCH", f"{path}/status", msgspec.json.encode(body), STRATEGIC_PATCH
        )


def _status(write: PatchPodStatus, known: Pod | None) -> dict[str, Any]:
    """Return the patch; lastTransitionTime stays while the condition's status does."""
    since = rfc3339(time.time())
    for condition in known.status.conditions if known is not None else ():
        if (condition.type, condition.status) == (write.condition.type, write.condition.status):
            since = condition.last_transition_time or since
    status: dict[str, Any] = {"conditions": [_plain(write.condition, since)]}
    if write.nominated_node is not None:
        status["nominatedNodeName"] = write.nominated_node or None
    return status


def _has(pod: Pod, write: PatchPodStatus) -> bool:
    wanted = replace(write.condition, last_transition_time=None)
    return (write.nominated_node in (None, pod.status.nominated_node_name)) and wanted in [
        replace(c, last_transition_time=None) for c in pod.status.conditions
    ]


def _plain(condition: PodCondition, since: str) -> dict[str, Any]:
    return {
        "type": condition.type,
        "status": condition.status,
        "reason": condition.reason,
        "message": condition.message,
        "lastTransitionTime": since,
    }
