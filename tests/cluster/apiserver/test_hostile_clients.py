"""Clients that send what is no request, half of one, or far too much."""

from __future__ import annotations

import logging
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml
from faces import Face, pod, serving

PODS = "/api/v1/namespaces/default/pods"
PATIENCE = 60.0
"""Seconds after which a server that hangs fails a test."""


@pytest.fixture
def face() -> Iterator[Face]:
    with serving() as face:
        yield face


def head(method: str, path: str, *lines: str) -> bytes:
    return "\r\n".join((f"{method} {path} HTTP/1.1", "Host: localhost", *lines, "", "")).encode()


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)


def status_of(port: int, request: bytes) -> int:
    """Send bytes; return the status of the answer."""
    with connect(port) as client:
        client.sendall(request)
        return int(client.makefile("rb").readline().split()[1])


@pytest.mark.parametrize(
    "request_",
    [
        head("GET", f"{PODS}?labelSelector={'a' * 9000}"),
        head("GET", f"/{'a' * 100_000}"),
        head("GET", PODS, f"X-Long: {'a' * 20_000}"),
        head("GET", PODS, *(f"X-{number}: y" for number in range(5000))),
        head("GET", PODS, "No colon"),
        head("POST", PODS, "Content-Length: -5"),
        head("POST", PODS, "Content-Length: 1", "Transfer-Encoding: chunked"),
        head("POST", PODS, "Transfer-Encoding: chunked") + b"zz\r\nabc\r\n0\r\n\r\n",
        head("POST", PODS, "Content-Encoding: gzip", "Content-Length: 5") + b"abcde",
        head("POST", PODS, "Content-Type: application/json; charset=none", "Content-Length: 1")
        + b"{",
        b"GET /\xff\xfe HTTP/1.1\r\n\r\n",
        b"GET http://[::1/api HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
    ids=lambda request: repr(request[:30]),
)
def test_what_is_no_request_is_refused_and_fills_no_log(
    face: Face, caplog: pytest.LogCaptureFixture, request_: bytes
) -> None:
    log = logging.getLogger("bayplan.http.requests")
    log.addHandler(caplog.handler)
    try:
        assert 400 <= status_of(face.server.port, request_) < 500
    finally:
        log.removeHandler(caplog.handler)
    lines = {record.getMessage() for record in caplog.records if record.name != "asyncio"}
    assert all("\n" not in line and len(line) < 300 for line in lines)
    assert not [one for one in caplog.records if one.levelno > logging.INFO or one.exc_info]
    # It is as well as before.
    assert status_of(face.server.port, head("GET", PODS)) == 200


class Served:
    """bayplan cluster up as a process, with as many open files as is said."""

    def __init__(self, folder: Path, files: int | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bayplan.cli", "cluster", "up"],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        if files is not None:
            resource.prlimit(self.process.pid, resource.RLIMIT_NOFILE, (files, files))
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("export"):
                break
        config = yaml.safe_load((folder / "bayplan.kubeconfig").read_text())
        server = config["clusters"][0]["cluster"]["server"]
        address, _, self.token = server.removeprefix("http://127.0.0.1:").partition("/token/")
        self.port = int(address)

    def head(self, method: str, path: str, *lines: str) -> bytes:
        return head(method, path, f"Authorization: Bearer {self.token}", *lines)

    def end(self) -> str:
        """Send SIGTERM; return what it wrote on standard error."""
        self.process.send_signal(signal.SIGTERM)
        _, errors = self.process.communicate(timeout=PATIENCE)
        assert self.process.returncode == 0
        return errors

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


def test_no_client_keeps_a_server_from_ending(tmp_path: Path) -> None:
    with Served(tmp_path) as served, ExitStack() as open_:
        requests = [
            b"",
            b"GET /api/v1/po",
            served.head("GET", f"{PODS}?watch=true"),
            served.head("POST", PODS, "Content-Length: 500") + b'{"kind": "Po',
            served.head("POST", PODS, "Expect: 100-continue", "Content-Length: 500"),
            # Nobody reads the answers.
            served.head("GET", "/openapi/v3/api/v1") * 20,
        ]
        for _ in range(10):
            for request in requests:
                open_.enter_context(connect(served.port)).sendall(request)
        assert status_of(served.port, served.head("GET", PODS)) == 200
        assert served.end() == ""
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="sets limits as Linux does")
def test_more_connections_than_files_are_told_in_one_line(tmp_path: Path) -> None:
    with Served(tmp_path, files=64) as served, ExitStack() as open_:
        for _ in range(100):
            open_.enter_context(connect(served.port))
        open_.pop_all().close()
        # Those that waited are served when others have gone.
        assert status_of(served.port, served.head("GET", PODS)) == 200
        assert served.end() == "too many open connections; new ones have to wait\n"


def test_a_pod_is_made_beside_clients_that_hang(face: Face) -> None:
    with ExitStack() as open_:
        for _ in range(200):
            open_.enter_context(connect(face.server.port)).sendall(b"GET /api")
        body = yaml.safe_dump(pod("p")).encode()
        lines = ("Content-Type: application/yaml", f"Content-Length: {len(body)}")
        assert status_of(face.server.port, head("POST", PODS, *lines) + body) == 201
