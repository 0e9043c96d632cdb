"""The double of a fabric's controller beside a real API server: it reads and writes over HTTP."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from tests.cluster.apiserver.faces import MERGE, Client
from tests.controlplane.installation import path_of
from tests.controlplane.live_cluster import Content

from bayplan.api import KINDS, ApiObject, Node, ResourceClaim, ResourceSlice
from bayplan.api.configmap import ConfigMap
from bayplan.api.object_key import object_key
from bayplan.api.objects import Kind, decode_object, kind_of
from bayplan.api.times import rfc3339
from bayplan.cluster.embedded.fabric import VirtualFabric
from bayplan.cluster.protocol import WatchEvent, WatchType

Obj = TypeVar("Obj", bound=ApiObject)
_PATHS: dict[type, str] = {
    ConfigMap: "/api/v1/namespaces/default/configmaps",
    Node: "/api/v1/nodes",
    ResourceClaim: "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims",
    ResourceSlice: "/apis/resource.k8s.io/v1/resourceslices",
}


class _Clock:
    """Real time, in seconds."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()

    def call_later(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._due, (time.monotonic() + seconds, next(self._count), action))

    def run_due(self) -> None:
        while self._due and self._due[0][0] <= time.monotonic():
            heapq.heappop(self._due)[2]()


class FabricAgent:
    """Has what the double needs of a cluster, and looks for changes again and again."""

    def __init__(self, client: Client) -> None:
        self.clock = _Clock()
        self._client = client
        self._known: dict[tuple[type, str], ApiObject] = {}
        self._handlers: list[Callable[[WatchEvent], None]] = []
        self._ending = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Start the double."""
        VirtualFabric(self)  # type: ignore[arg-type]
        self._thread.start()

    def end(self) -> None:
        """End it, remove its slices, and raise what it ran into."""
        self._ending.set()
        self._thread.join()
        self._client.delete(_PATHS[ResourceSlice])
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            while not self._ending.wait(0.05):
                for type_ in (ConfigMap, Node, ResourceClaim):
                    self._look(type_)
                self.clock.run_due()
        except BaseException as exc:
            self._failure = exc

    def _look(self, type_: type[ApiObject]) -> None:
        found = {object_key(obj): obj for obj in self.list(type_)}
        before = {key: obj for (kind, key), obj in self._known.items() if kind is type_}
        for key, obj in before.items():
            if key not in found:
                del self._known[type_, key]
                self._tell(WatchType.DELETED, obj)
        for key, obj in found.items():
            if obj != before.get(key):
                self._known[type_, key] = obj
                self._tell(WatchType.MODIFIED if key in before else WatchType.ADDED, obj)

    def _tell(self, type_: WatchType, obj: ApiObject) -> None:
        for handler in self._handlers:
            handler(WatchEvent(type_, obj))

    # What the double uses ----------------------------------------------------------------

    def watch(self, handler: Callable[[WatchEvent], None]) -> None:
        self._handlers.append(handler)

    def list(self, type_: type[Obj]) -> list[Obj]:
        answer = self._client.get(_PATHS[type_])
        assert answer.code == 200, answer
        return [_decoded(type_, content) for content in answer.json["items"]]

    def get(self, type_: type[Obj], key: str) -> Obj | None:
        answer = self._client.get(f"{_PATHS[type_]}/{key.rpartition('/')[2]}")
        return _decoded(type_, answer.json) if answer.code == 200 else None

    def create(self, obj: Obj) -> Obj:
        answer = self._client.post(_PATHS[type(obj)], _content(obj))
        assert answer.code == 201, answer
        return _decoded(type(obj), answer.json)

    def update(self, obj: Obj) -> Obj:
        content = _content(obj)
        path = path_of(content)
        if isinstance(obj, ResourceClaim):
            body: Content = {"status": {"devices": content["status"]["devices"]}}
            answer = self._client.patch(f"{path}/status", body, MERGE)
        else:
            spec = {key: content["spec"].get(key) for key in ("devices", "pool")}
            answer = self._client.patch(path, {"spec": spec}, MERGE)
        assert answer.code == 200, answer
        return _decoded(type(obj), answer.json)

    def timestamp(self) -> str:
        return rfc3339(time.time())

    def report(self, obj: ApiObject, problem: Exception) -> None:
        raise AssertionError(f"{object_key(obj)}: {problem}")


def _content(obj: ApiObject) -> Content:
    kind = kind_of(obj)
    plain: Content = msgspec.to_builtins(obj, enc_hook=lambda quantity: quantity.text)
    version = f"{kind.group}/{kind.versions[0]}".lstrip("/")
    return {"apiVersion": version, "kind": kind.name, **plain}


def _decoded(type_: type[Obj], content: Content) -> Obj:
    kind: Kind = _KINDS[type_]
    version = f"{kind.group}/{kind.versions[0]}".lstrip("/")
    found: Any = decode_object(kind, {**content, "apiVersion": version, "kind": kind.name})
    assert isinstance(found, type_)
    return found


_KINDS: dict[type, Kind] = {
    type_: next(kind for kind in KINDS.values() if kind.type is type_) for type_ in _PATHS
}
