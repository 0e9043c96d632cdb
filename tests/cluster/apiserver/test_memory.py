"""Hostile clients of ``bayplan cluster up``: each is refused or cut off, and costs little memory.

Run as a script, with a fresh server for each attack, it prints what they cost::

    python -m tests.cluster.apiserver.test_memory
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from tests.cluster.apiserver.faces import JSON_PATCH, Client
from tests.cluster.apiserver.processes import PODS, Served, connect, read_status

MOST = 512
"""MiB that the server may take, whatever these clients do."""
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
JSON = "Content-Type: application/json"
YAML = "Content-Type: application/yaml"
MIB = 2**20


class Target(Served):
    """A served cluster whose memory is watched."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.client = Client(f"http://127.0.0.1:{self.port}", self.token)

    def forget_peak(self) -> None:
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def peak(self) -> int:
        """Return the most MiB that it has taken since ``forget_peak``."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM"))

    def post(self, body: bytes, kind: str = JSON) -> int:
        """Send a body as a ConfigMap; return the status of the answer."""
        with connect(self.port) as client:
            head = self.head("POST", CONFIG_MAPS, kind, f"Content-Length: {len(body)}")
            client.sendall(head + body)
            return read_status(client)

    def hang(self, request: bytes, count: int, open_: ExitStack) -> None:
        """Open connections that send as much as is taken, and read nothing."""
        for _ in range(count):
            client = open_.enter_context(connect(self.port))
            client.settimeout(0.02)
            with suppress(OSError):
                client.sendall(request)

    def serve_a_client(self) -> None:
        """Serve a client that behaves, beside the others."""
        name = f"c-{time.monotonic_ns()}"
        body = {"metadata": {"name": name}, "data": {"a": "b"}}
        assert self.client.post(CONFIG_MAPS, body).code == 201
        assert self.client.get(f"{CONFIG_MAPS}/{name}").json["data"] == {"a": "b"}
        assert self.client.delete(f"{CONFIG_MAPS}/{name}").code == 200


def nested(target: Target) -> None:
    for text in (b"[" * (3 * MIB), b'{"a":' * 500_000, b"[" * MIB + b"]" * MIB):
        assert target.post(text) == 400


def values(target: Target) -> None:
    objects = b",".join([b'{"a":{}}'] * 300_000)
    assert target.post(b'{"kind":"ConfigMap","data":[' + objects + b"]}") == 400
    assert target.post(b"[" + b",".join([b"[]"] * 1_000_000) + b"]") == 400
    assert target.post(b"a: &a [1]\nb: [" + b"*a," * 900_000 + b"]", YAML) == 400


def too_large(target: Target) -> None:
    assert target.post(b" " * (3 * MIB + 1)) == 413
    chunk = b"10000\r\n" + b"a" * 65536 + b"\r\n"
    with connect(target.port) as client:
        with suppress(ConnectionError):
            client.sendall(target.head("POST", CONFIG_MAPS, JSON, "Transfer-Encoding: chunked"))
            client.sendall(chunk * 100)
        assert read_status(client) in (0, 413)
    big = {"metadata": {"name": "big"}, "data": {"a": "x" * (2 * MIB)}}
    assert target.client.post(CONFIG_MAPS, big).code in (422, 500)


def copies(target: Target) -> None:
    """A patch that doubles the object again and again."""
    body = {"metadata": {"name": "copies"}, "data": {"a": "x" * 1000}}
    assert target.client.post(CONFIG_MAPS, body).code == 201
    patch = [{"op": "copy", "from": "/data", "path": f"/data/{number}"} for number in range(40)]
    assert target.client.patch(f"{CONFIG_MAPS}/copies", patch, JSON_PATCH).code == 422
    many = [{"op": "test", "path": "/data/a", "value": ""}] * 10_001
    assert target.client.patch(f"{CONFIG_MAPS}/copies", many, JSON_PATCH).code == 413


def bodies(target: Target) -> None:
    """Large bodies of which the end never comes."""
    head = target.head("POST", CONFIG_MAPS, JSON, f"Content-Length: {3 * MIB}")
    with ExitStack() as open_:
        target.hang(head + b" " * (3 * MIB - 1), 150, open_)
        target.serve_a_client()


def heads(target: Target) -> None:
    """Heads of which the end never comes, and requests behind one that does not end."""
    lines = b"".join(b"X-%d: %s\r\n" % (number, b"a" * 8000) for number in range(60))
    with ExitStack() as open_:
        target.hang(b"GET /api HTTP/1.1\r\n" + lines, 100, open_)
        watch = target.head("GET", f"{PODS}?watch=true")
        target.hang(watch + (b"GET /api HTTP/1.1\r\n" + lines + b"\r\n") * 20, 50, open_)
        target.serve_a_client()


def connections(target: Target) -> None:
    with ExitStack() as open_:
        for _ in range(1050):
            open_.enter_context(connect(target.port))
        target.serve_a_client()
        target.hang(target.head("GET", f"{PODS}?watch=true"), 200, open_)
        target.serve_a_client()


def history(target: Target) -> None:
    """Large objects that come and go, so that watches have much to resume from."""
    body = {"metadata": {"name": "h"}, "data": {str(number): "" for number in range(60_000)}}
    for _ in range(10):
        assert target.client.post(CONFIG_MAPS, body).code == 201
        assert target.client.delete(f"{CONFIG_MAPS}/h").code == 200


def readers(target: Target) -> None:
    """Lists and watches that nobody reads, while what they show changes."""
    names = [f"r-{number}" for number in range(20)]
    for name in names:
        body = {"metadata": {"name": name}, "data": {"a": "x" * 900_000}}
        assert target.client.post(CONFIG_MAPS, body).code == 201
    with ExitStack() as open_:
        for request in (
            target.head("GET", CONFIG_MAPS),
            target.head("GET", f"{CONFIG_MAPS}?watch=true"),
            target.head("GET", CONFIG_MAPS, "Accept: application/json;as=Table;includeObject=x"),
            target.head("GET", "/openapi/v2") * 3,
        ):
            target.hang(request, 60, open_)
        target.serve_a_client()
        for text in ("y", "z"):
            for name in names:
                change = {"data": {"a": text * 900_000}}
                assert target.client.patch(f"{CONFIG_MAPS}/{name}", change).code == 200
        target.serve_a_client()
    target.client.delete(CONFIG_MAPS)


def definitions(target: Target) -> None:
    """Kinds that come and go."""
    for number in range(20):
        plural, kind = f"things{number}", f"Thing{number}"
        schema = {"type": "object", "description": "x" * 500_000}
        version = {"name": "v1", "served": True, "storage": True}
        body = {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{plural}.example.com"},
            "spec": {
                "group": "example.com",
                "scope": "Namespaced",
                "names": {"plural": plural, "kind": kind},
                "versions": [{**version, "schema": {"openAPIV3Schema": schema}}],
            },
        }
        assert target.client.post(CRDS, body).code == 201
        assert target.client.delete(f"{CRDS}/{plural}.example.com").code == 200


ATTACKS: tuple[Callable[[Target], None], ...] = (
    nested,
    values,
    too_large,
    copies,
    bodies,
    heads,
    connections,
    history,
    readers,
    definitions,
)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with Target(tmp_path_factory.mktemp("cluster")) as target:
        yield target


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="measured as Linux does")
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_no_client_takes_much_memory(target: Target, attack: Callable[[Target], None]) -> None:
    target.forget_peak()
    attack(target)
    target.serve_a_client()
    assert target.peak() < MOST


def main() -> None:
    for attack in ATTACKS:
        with tempfile.TemporaryDirectory() as folder, Target(Path(folder)) as target:
            start, said = time.monotonic(), "refused"
            try:
                attack(target)
            except (AssertionError, OSError) as exc:
                said = f"failed: {type(exc).__name__}"
            seconds = time.monotonic() - start
            sys.stdout.write(
                f"{attack.__name__:12} {target.peak():5} MiB {seconds:5.1f} s {said}\n"
            )


if __name__ == "__main__":
    main()
