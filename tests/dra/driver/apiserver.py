"""The part of a Kubernetes API server that the driver uses, over HTTP on loopback."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

SLICES = "/apis/resource.k8s.io/v1/resourceslices"


class ApiServer:
    """Stores objects by path; ``denied`` methods get a 403, ``dropped`` device fields are lost."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.calls: list[str] = []
        self.denied: set[str] = set()
        self.dropped: set[str] = set()
        self._version = 0
        self._changes: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        self._ended = False
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def put(self, path: str, content: dict[str, Any]) -> dict[str, Any]:
        """Store an object; return it as it is stored."""
        self._version += 1
        meta = {"uid": f"uid-{self._version}", **content["metadata"]}
        meta["resourceVersion"] = str(self._version)
        for device in content.get("spec", {}).get("devices", ()):
            for name in self.dropped:
                device.pop(name, None)
        self._tell("MODIFIED" if path in self.objects else "ADDED", {**content, "metadata": meta})
        self.objects[path] = {**content, "metadata": meta}
        return self.objects[path]

    def _tell(self, kind: str, content: dict[str, Any]) -> None:
        with self._changed:
            self._changes.append({"type": kind, "object": content})
            self._changed.notify_all()

    def _watched(self) -> Iterator[dict[str, Any]]:
        """Yield the changes from now on until the server ends."""
        seen = len(self._changes)
        while True:
            with self._changed:
                self._changed.wait_for(lambda seen=seen: self._ended or len(self._changes) > seen)
                if self._ended:
                    return
                change = self._changes[seen]
            seen += 1
            yield change

    def slices(self) -> list[dict[str, Any]]:
        """Return all slices."""
        return [self.objects[path] for path in sorted(self.objects) if path.startswith(SLICES)]

    def write_kubeconfig(self, path: Path, **more: Any) -> Path:
        """Write a kubeconfig for this server."""
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "clusters": [{"name": "test", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}],
            "users": [{"name": "test", "user": {"token": "secret"}}],
            **more,
        }
        path.write_text(yaml.safe_dump(content))
        return path

    def answer(self, method: str, url: str, body: Any) -> tuple[int, dict[str, Any]]:
        """Answer one request."""
        path, query = urlsplit(url).path, parse_qs(urlsplit(url).query)
        self.calls.append(f"{method} {path}")
        if method in self.denied:
            return 403, {"message": f"resourceslices is forbidden: cannot {method}"}
        if method == "POST":
            name = f"{body['metadata']['generateName']}{self._version:05x}"
            body["metadata"]["name"] = name
            return 201, self.put(f"{path}/{name}", body)
        if method == "GET" and path == SLICES:
            wanted = dict(part.split("=") for part in query["fieldSelector"][0].split(","))
            items = [
                one
                for one in self.slices()
                if {f"spec.{name}": one["spec"].get(name) for name in ("driver", "nodeName")}
                == wanted
            ]
            first = int(query.get("continue", ["0"])[0])
            more = str(first + 1) if first + 1 < len(items) else ""
            return 200, {"items": items[first : first + 1], "metadata": {"continue": more}}
        current = self.objects.get(path)
        if current is None:
            return 404, {"message": f"{path} not found", "reason": "NotFound"}
        if method == "PUT":
            if body["metadata"]["resourceVersion"] != current["metadata"]["resourceVersion"]:
                return 409, {"message": "the object has been modified", "reason": "Conflict"}
            return 200, self.put(path, body)
        if method == "DELETE":
            if body["preconditions"]["uid"] != current["metadata"]["uid"]:
                return 409, {"message": "another object", "reason": "Conflict"}
            self._tell("DELETED", current)
            return 200, self.objects.pop(path)
        return 200, current

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        api = self

        class Handler(BaseHTTPRequestHandler):
            def _serve(self) -> None:
                if "watch=true" in self.path:
                    self._watch()
                    return
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                status, content = api.answer(self.command, self.path, body)
                data = json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def _watch(self) -> None:
                api.calls.append(f"WATCH {urlsplit(self.path).path}")
                denied = "WATCH" in api.denied
                self.send_response(403 if denied else 200)
                self.end_headers()
                with suppress(OSError):
                    for change in () if denied else api._watched():
                        self.wfile.write(json.dumps(change).encode() + b"\n")

            do_GET = do_POST = do_PUT = do_DELETE = _serve

            def log_message(self, format: str, *args: object) -> None: ...

        return Handler

    @contextmanager
    def serving(self) -> Iterator[ApiServer]:
        """Serve in the background."""
        self._thread.start()
        try:
            yield self
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()
