"""Clients that send what is no request, half of one, or far too much."""

from __future__ import annotations

import logging
import resource
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml
from tests.cluster.apiserver.faces import Face, pod, serving
from tests.cluster.apiserver.processes import PODS, Served, connect, head, status_of


@pytest.fixture
def face() -> Iterator[Face]:
    with serving() as face:
        yield face


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
        assert served.end() == "note: too many open connections; new ones have to wait\n"


def test_a_pod_is_made_beside_clients_that_hang(face: Face) -> None:
    with ExitStack() as open_:
        for _ in range(200):
            open_.enter_context(connect(face.server.port)).sendall(b"GET /api")
        body = yaml.safe_dump(pod("p")).encode()
        lines = ("Content-Type: application/yaml", f"Content-Length: {len(body)}")
        assert status_of(face.server.port, head("POST", PODS, *lines) + body) == 201
