"""Kubernetes events: a repeated event raises its count, and events per object are limited.

The limits are those of client-go's event correlator: a burst of 25 events per object, then one in
five minutes.
"""

from __future__ import annotations

import contextlib
import time
from collections import OrderedDict
from typing import Any

import msgspec

from bayplan.api import KINDS, Kind, Pod
from bayplan.api.times import rfc3339
from bayplan.cluster.kubernetes.pod_writes import Lookup
from bayplan.cluster.kubernetes.transport import MERGE_PATCH, Requests
from bayplan.cluster.protocol import Event
from bayplan.errors import AlreadyExists, NotFound

__all__ = ["EventRecorder"]

_BURST = 25
_REFILL = 1 / 300
_REMEMBERED = 4096
_LONGEST = 1024
"""Characters of an event's message (NoteLengthLimit of k8s.io/kubernetes pkg/apis/core)."""
_SERIES_SECONDS = 600.0

_KINDS: dict[str, tuple[Kind, ...]] = {
    name: tuple(kind for kind in KINDS.values() if kind.name == name)
    for name in {kind.name for kind in KINDS.values()}
}

_Identity = tuple[str, str, str, str, str]


class _Series(msgspec.Struct):
    """A written event: its path, first time and count."""

    path: str
    count: int
    last: float


class _Bucket(msgspec.Struct):
    tokens: float
    at: float


class EventRecorder:
    """Records Kubernetes events.

    :param component: the reporting component.
    :param instance: the reporting process.
    """

    def __init__(self, transport: Requests, component: str, instance: str) -> None:
        self._transport = transport
        self._component = component
        self._instance = instance
        self._series: OrderedDict[_Identity, _Series] = OrderedDict()
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()
        self._count = 0
        self.suppressed = 0

    async def record(self, event: Event, lookup: Lookup) -> None:
        """Create an event, or raise the count of an equal one."""
        kind, obj = _subject(event, lookup)
        uid = obj.metadata.uid if obj is not None else ""
        now = time.monotonic()
        identity = (uid or event.pod, event.about, event.type, event.reason, event.message)
        series = self._series.get(identity)
        if series is not None and now - series.last > _SERIES_SECONDS:
            series = None
        # An attempt without an answer: keep its name, count nothing.
        unanswered = series is not None and not series.count
        if not unanswered and not self._allowed(uid or event.pod, now):
            self.suppressed += 1
            return
        if series is None:
            series = self._begin(identity, event.pod, now)
        elif series.count and await self._count_up(series, now):
            return
        await self._create(event, kind, obj, series.path)
        series.count, series.last = 1, now

    def _begin(self, identity: _Identity, key: str, now: float) -> _Series:
        namespace, _, name = key.rpartition("/")
        self._count += 1
        unique = f"{name}.{time.time_ns() // 1000:x}{self._count & 0xFFF:03x}"
        # Events about cluster-scoped objects are in "default", as with client-go.
        path = f"/api/v1/namespaces/{namespace or 'default'}/events/{unique}"
        series = self._series[identity] = _Series(path, 0, now)
        self._series.move_to_end(identity)
        if len(self._series) > _REMEMBERED:
            self._series.popitem(last=False)
        return series

    async def _count_up(self, series: _Series, now: float) -> bool:
        """Raise an event's count; return False when it has expired."""
        body = {"count": series.count + 1, "lastTimestamp": rfc3339(time.time())}
        try:
            await self._transport.request(
                "PATCH", series.path, msgspec.json.encode(body), MERGE_PATCH
            )
        except NotFound:
            return False
        series.count += 1
        series.last = now
        return True

    def _allowed(self, subject: str, now: float) -> bool:
        bucket = self._buckets.get(subject)
        if bucket is None:
            bucket = self._buckets[subject] = _Bucket(_BURST, now)
            if len(self._buckets) > _REMEMBERED:
                self._buckets.popitem(last=False)
        bucket.tokens = min(_BURST, bucket.tokens + (now - bucket.at) * _REFILL)
        bucket.at = now
        if bucket.tokens < 1:
            return False
        bucket.tokens -= 1
        return True

    async def _create(self, event: Event, kind: Kind | None, obj: Any, path: str) -> None:
        namespace, _, name = event.pod.rpartition("/")
        collection, _, unique = path.rpartition("/")
        stamp = rfc3339(time.time())
        component = obj.spec.scheduler_name if isinstance(obj, Pod) else self._component
        involved: dict[str, Any] = {"kind": event.about, "namespace": namespace, "name": name}
        if kind is not None:
            version = f"{kind.group}/{kind.versions[0]}".lstrip("/")
            involved["apiVersion"] = version
        if obj is not None:
            involved["uid"] = obj.metadata.uid
            involved["resourceVersion"] = obj.metadata.resource_version
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "name": unique,
                "namespace": namespace or "default",
                "annotations": event.annotations,
            },
            "involvedObject": involved,
            "type": event.type,
            "reason": event.reason,
            "message": _cut(event.message),
            "source": {"component": component},
            "reportingComponent": component,
            "reportingInstance": self._instance,
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            "count": 1,
        }
        # An earlier attempt succeeded, or the namespace is gone with the object.
        with contextlib.suppress(AlreadyExists, NotFound):
            await self._transport.request("POST", collection, msgspec.json.encode(body))


def _subject(event: Event, lookup: Lookup) -> tuple[Kind | None, Any]:
    kinds = _KINDS.get(event.about, ())
    for kind in kinds:
        obj = lookup(kind.type, event.pod)
        if obj is not None:
            return kind, obj
    return (kinds[0] if kinds else None), None


def _cut(message: str) -> str:
    return message if len(message) <= _LONGEST else f"{message[: _LONGEST - 4]} ..."
