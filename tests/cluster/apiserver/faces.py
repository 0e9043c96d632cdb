"""The embedded cluster's HTTP face in a thread, and a client of any API server."""

from __future__ import annotations

import asyncio
import http.client
import json
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from bayplan.cluster.apiserver import ApiServer, ServedCluster, start_all

T = TypeVar("T")
Content = dict[str, Any]

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"
JSON_PATCH = "application/json-patch+json"


class Face:
    """A server that runs in a loop of its own; ``do`` runs something in that loop."""

    def __init__(self, server: ApiServer) -> None:
        self.server = server
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)

    def start(self) -> None:
        self._thread.start()
        self.wait(self.server.start())

    def end(self) -> None:
        self.wait(self.server.stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    def wait(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(60)

    def do(self, action: Callable[[ApiServer], T]) -> T:
        async def run() -> T:
            result = action(self.server)
            self.server.cluster.settle()
            return result

        answer: T = self.wait(run())
        return answer

    def wait_until_idle(self) -> None:
        """Wait until no request is being answered."""

        async def idle() -> None:
            while self.server.busy:
                await asyncio.sleep(0.01)

        self.wait(idle())

    def advance(self, seconds: float) -> None:
        """Let virtual time pass."""
        clock = self.server.cluster.clock
        self.do(lambda _: clock.advance(clock.now + seconds))


@contextmanager
def serving(cluster: ServedCluster | None = None, **more: Any) -> Iterator[Face]:
    """Serve a cluster with its controllers for the time of a test."""
    face = Face(ApiServer(start_all(cluster or ServedCluster()), **more))
    face.start()
    try:
        yield face
    finally:
        face.end()


class Answer:
    """What a server said."""

    def __init__(
        self, code: int, headers: Mapping[str, str], body: bytes, warnings: Sequence[str] = ()
    ) -> None:
        self.warnings = [text.removeprefix("299 - ") for text in warnings]
        self.code = code
        self.headers = headers
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def version(self) -> str:
        return str(self.json["metadata"]["resourceVersion"])

    def __repr__(self) -> str:
        return f"{self.code} {self.body[:2000].decode(errors='replace')}"


class Client:
    """Speaks to an API server, one connection a request."""

    def __init__(self, url: str, token: str = "", context: ssl.SSLContext | None = None) -> None:
        self._parts = urlsplit(url)
        self._token = token
        self._context = context

    def _connect(self, timeout: float) -> http.client.HTTPConnection:
        host = self._parts.netloc.rpartition("@")[2]
        if self._parts.scheme == "https":
            return http.client.HTTPSConnection(host, timeout=timeout, context=self._context)
        return http.client.HTTPConnection(host, timeout=timeout)

    def _send(
        self,
        method: str,
        path: str,
        body: Any,
        kind: str,
        params: Mapping[str, Any],
        headers: Mapping[str, str],
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        connection = self._connect(30)
        sent = {"Accept": "application/json", **headers}
        if self._token:
            sent["Authorization"] = f"Bearer {self._token}"
        content = None
        if body is not None:
            sent["Content-Type"] = kind
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
        query = f"?{urlencode(params, quote_via=quote)}" if params else ""
        try:
            connection.request(method, f"{self._parts.path}{path}{query}", content, sent)
            return connection, connection.getresponse()
        except BaseException:
            connection.close()
            raise

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        kind: str = "application/json",
        headers: Mapping[str, str] | None = None,
        **params: Any,
    ) -> Answer:
        connection, response = self._send(method, path, body, kind, params, headers or {})
        try:
            warnings = response.headers.get_all("Warning") or []
            return Answer(response.status, dict(response.headers), response.read(), warnings)
        finally:
            connection.close()

    def get(self, path: str, **params: Any) -> Answer:
        return self.call("GET", path, **params)

    def post(self, path: str, body: Any, **params: Any) -> Answer:
        return self.call("POST", path, body, **params)

    def put(self, path: str, body: Any, **params: Any) -> Answer:
        return self.call("PUT", path, body, **params)

    def patch(self, path: str, body: Any, kind: str = MERGE, **params: Any) -> Answer:
        return self.call("PATCH", path, body, kind, **params)

    def names(self, path: str, **params: Any) -> list[str]:
        """Return the names of what a list holds."""
        answer = self.get(path, **params)
        assert answer.code == 200, answer
        return [item["metadata"]["name"] for item in answer.json["items"]]

    def delete(self, path: str, body: Any = None, **params: Any) -> Answer:
        return self.call("DELETE", path, body, **params)

    @contextmanager
    def watch(self, path: str, **params: Any) -> Iterator[Events]:
        connection, response = self._send(
            "GET", path, None, "", {"watch": "true", "timeoutSeconds": 30, **params}, {}
        )
        try:
            yield Events(response)
        finally:
            connection.close()


def client_of(path: str) -> Client:
    """Return a client of the cluster of a kubeconfig."""
    import kubernetes.client
    import kubernetes.config

    configuration = kubernetes.client.Configuration()
    kubernetes.config.load_kube_config(path, client_configuration=configuration)
    context = None
    if configuration.host.startswith("https"):
        context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
        if configuration.cert_file:
            context.load_cert_chain(configuration.cert_file, configuration.key_file)
    keys = configuration.api_key
    key = keys.get("authorization") or keys.get("BearerToken", "")
    return Client(configuration.host, key.removeprefix("Bearer "), context)


class Events:
    """The events of a watch, as they come."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.code = response.status
        self._response = response

    def next(self) -> tuple[str, Content]:
        line = self._response.readline()
        if not line:
            raise EOFError
        event = json.loads(line)
        return event["type"], event["object"]

    def some(self, count: int) -> list[tuple[str, str]]:
        """Return type and name of the next events that are no bookmarks."""
        found: list[tuple[str, str]] = []
        while len(found) < count:
            type_, obj = self.next()
            if type_ != "BOOKMARK":
                found.append((type_, obj["metadata"].get("name", "")))
        return found


def pod(name: str, **spec: Any) -> Content:
    container = {"name": "main", "image": "registry.k8s.io/pause:3.10"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"containers": [container], **spec},
    }


def node(name: str, **labels: str) -> Content:
    amounts = {"cpu": "8", "memory": "16Gi", "pods": "110"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
