"""Requests and streams by libcurl: what is answered, what breaks, what is cancelled."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from tests.certificates import certificates, needs_openssl

from bayplan.cluster.kubernetes.credentials import Endpoint, Tls
from bayplan.cluster.kubernetes.curl import Answer, Connections, TransferFailed


@asynccontextmanager
async def serving(handler: object, context: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """Serve; yield the port."""
    runner = web.ServerRunner(
        web.Server(handler, access_log=None),  # type: ignore[arg-type]
        shutdown_timeout=0.1,
    )
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@asynccontextmanager
async def connected(handler: object) -> AsyncIterator[Connections]:
    async with serving(handler) as port:
        connections = Connections(Endpoint(f"http://127.0.0.1:{port}"))
        try:
            yield connections
        finally:
            connections.close()


async def get(connections: Connections, path: str = "/", seconds: float | None = None) -> Answer:
    return await connections.request("GET", path, None, [], 30, seconds)


async def test_a_request_says_what_was_given_and_the_answer_what_came() -> None:
    async def answer(request: web.BaseRequest) -> web.Response:
        seen = [request.method, request.path_qs, request.headers["Content-Type"]]
        text = " ".join([*seen, (await request.read()).decode()])
        return web.Response(status=201, text=text, headers={"Retry-After": "3"})

    async with connected(answer) as connections:
        headers = ["Content-Type: text/x"]
        found = await connections.request("PATCH", "/a?b=c", b"body", headers, 30)
        assert found == Answer(201, b"PATCH /a?b=c text/x body")


async def test_an_error_comes_with_when_to_try_again() -> None:
    async def answer(_: web.BaseRequest) -> web.Response:
        return web.Response(status=429, headers={"Retry-After": "7"})

    async with connected(answer) as connections:
        assert await get(connections) == Answer(429, b"", "7")


async def test_many_requests_at_once_get_their_own_answers() -> None:
    async def answer(request: web.BaseRequest) -> web.Response:
        body = await request.read()
        await asyncio.sleep(0)
        return web.Response(body=request.path.encode() + body)

    async with connected(answer) as connections:
        sent = [(f"/{index}", f"body {index}".encode()) for index in range(200)]
        found = await asyncio.gather(
            *(connections.request("POST", path, body, [], 30) for path, body in sent)
        )
        assert [one.body for one in found] == [path.encode() + body for path, body in sent]


async def test_connections_are_used_again() -> None:
    peers = set()

    async def answer(request: web.BaseRequest) -> web.Response:
        assert request.transport is not None
        peers.add(request.transport.get_extra_info("peername"))
        return web.Response()

    async with connected(answer) as connections:
        for _ in range(10):
            await get(connections)
    assert len(peers) == 1


async def test_a_server_that_is_not_there_got_nothing() -> None:
    async with serving(lambda _: web.Response()) as port:
        pass
    connections = Connections(Endpoint(f"http://127.0.0.1:{port}"))
    with pytest.raises(TransferFailed, match="Could not connect") as found:
        await get(connections)
    assert not found.value.sent
    connections.close()


async def test_a_server_that_hangs_up_may_have_got_the_request() -> None:
    async def answer(request: web.BaseRequest) -> web.Response:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async with connected(answer) as connections:
        with pytest.raises(TransferFailed) as found:
            await get(connections)
        assert found.value.sent


async def test_an_answer_that_takes_too_long_is_given_up() -> None:
    async def answer(_: web.BaseRequest) -> web.Response:
        await asyncio.sleep(60)
        return web.Response()

    async with connected(answer) as connections:
        with pytest.raises(TransferFailed, match="no answer in time") as found:
            await get(connections, seconds=0.05)
        assert found.value.sent


async def test_a_cancelled_request_leaves_the_others_alone() -> None:
    asked, go = asyncio.Event(), asyncio.Event()

    async def answer(request: web.BaseRequest) -> web.Response:
        asked.set()
        if request.path == "/slow":
            await go.wait()
        return web.Response(text=request.path)

    async with connected(answer) as connections:
        slow = asyncio.create_task(get(connections, "/slow"))
        await asked.wait()
        slow.cancel()
        with pytest.raises(asyncio.CancelledError):
            await slow
        assert (await get(connections, "/next")).body == b"/next"
        go.set()


async def test_a_stream_tells_its_status_before_anything_comes_and_then_each_part() -> None:
    more = asyncio.Event()

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await more.wait()
        await response.write(b"one\n")
        await response.write(b"two\n")
        return response

    async with connected(answer) as connections:
        stream = connections.stream("/", [], 30)
        assert await anext(stream) == Answer(200, b"")
        more.set()
        parts = [part async for part in stream if isinstance(part, bytes)]
        assert b"".join(parts) == b"one\ntwo\n"


async def test_a_stream_that_breaks_fails_after_what_has_come() -> None:
    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"one\n")
        assert request.transport is not None
        request.transport.close()
        return response

    async with connected(answer) as connections:
        stream = connections.stream("/", [], 30)
        assert await anext(stream) == Answer(200, b"")
        assert await anext(stream) == b"one\n"
        with pytest.raises(TransferFailed):
            await anext(stream)


async def test_a_silent_stream_ends_and_one_without_an_answer_fails() -> None:
    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        if request.path == "/begun":
            await web.StreamResponse().prepare(request)
        await asyncio.sleep(60)
        return web.Response()

    async with connected(answer) as connections:
        assert [item async for item in connections.stream("/begun", [], 0.05)] == [Answer(200, b"")]
        with pytest.raises(TransferFailed, match="no answer in time"):
            await anext(connections.stream("/", [], 0.05))


async def test_closing_fails_what_is_under_way() -> None:
    asked = asyncio.Event()

    async def answer(_: web.BaseRequest) -> web.Response:
        asked.set()
        await asyncio.sleep(60)
        return web.Response()

    async with connected(answer) as connections:
        task = asyncio.create_task(get(connections))
        await asked.wait()
        connections.close()
        with pytest.raises(TransferFailed, match="closed"):
            await task
        with pytest.raises(TransferFailed, match="closed"):
            await get(connections)


@needs_openssl
async def test_another_name_than_that_in_the_address_can_be_expected(tmp_path: Path) -> None:
    certificates(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")
    hosts = []

    async def answer(request: web.BaseRequest) -> web.Response:
        hosts.append(request.headers["Host"])
        return web.Response()

    async with serving(answer, context) as port:
        tls = Tls((tmp_path / "ca.crt").read_bytes())
        url = f"https://localhost:{port}"
        wrong = Connections(Endpoint(url, tls))
        with pytest.raises(TransferFailed, match="SSL"):
            await get(wrong)
        right = Connections(Endpoint(url, tls, server_name="127.0.0.1"))
        assert (await get(right)).status == 200
        assert hosts == [f"localhost:{port}"]
        wrong.close()
        right.close()
