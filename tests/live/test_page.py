"""Who may read the scheduler's page, and what it says."""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.certificates import certificates, needs_openssl
from tests.live.stage import Stage, stage

from bayplan.cluster.apiserver import Role, Rule
from bayplan.live.address import Address, parse_address
from bayplan.testing import make_node, make_pod

PAGES = (
    "/metrics",
    "/debug/decisions",
    "/debug/explain?pod=default/p",
    "/page/data",
    "/page/explain?unit=default/p",
)


async def get(url: str, token: str = "", **more: Any) -> tuple[int, str]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with (
        aiohttp.ClientSession() as session,
        session.get(url, headers=headers, ssl=False, **more) as answer,
    ):
        return answer.status, await answer.text()


async def opened(made: Stage, folder: Path, **more: Any) -> str:
    """Start a scheduler that listens on all addresses; return its page's address."""
    address = Address("0.0.0.0", 0, folder / "server.crt", folder / "server.key", **more)
    app = await made.start(address=address)
    return f"https://127.0.0.1:{app.listener.port}"


@needs_openssl
async def test_beyond_loopback_all_but_the_probes_needs_the_token_of_the_file(
    tmp_path: Path,
) -> None:
    certificates(tmp_path)
    (tmp_path / "token").write_text("right\n")

    async with stage([make_node("n"), make_pod("p")]) as made:
        url = await opened(made, tmp_path, token=tmp_path / "token")
        await made.run_out(1)
        for probe in ("/healthz", "/livez", "/readyz"):
            assert (await get(url + probe))[0] == 200
        code, document = await get(f"{url}/")
        assert code == 200, "the document holds nothing of the cluster, and asks for the token"
        assert "default/p" not in document
        for page in PAGES:
            assert (await get(url + page))[0] == 401
            assert (await get(url + page, "wrong"))[0] == 403
            assert (await get(url + page, "right"))[0] == 200
        with pytest.raises((aiohttp.ClientError, ssl.SSLError)):
            await get(url.replace("https", "http"))


@needs_openssl
async def test_without_a_token_file_the_api_server_is_asked_about_the_callers_token(
    tmp_path: Path,
) -> None:
    certificates(tmp_path)
    scraper = Role("prometheus", (Rule(verbs=("get",), non_resource_urls=("/metrics",)),))

    tokens = {"admin": None, "scrape": scraper}
    async with stage([make_node("n")], tokens=tokens) as made:
        url = await opened(made, tmp_path)
        assert (await get(f"{url}/metrics", "scrape"))[0] == 200
        assert (await get(f"{url}/debug/decisions", "scrape"))[0] == 403
        assert (await get(f"{url}/metrics", "nobody"))[0] == 403
        # Who tries tokens does not get to the API server with all of them.
        for index in range(50):
            assert (await get(f"{url}/metrics", f"guess-{index}"))[0] == 403
        reviews = made.server.calls["create", "authentication.k8s.io", "tokenreviews", False]
        assert reviews < 40
        # Whoever cannot be asked about is not let in.
        await made.server.stop()
        assert (await get(f"{url}/metrics", "admin"))[0] == 403
        await made.server.start()


async def test_readiness_says_what_is_missing() -> None:
    async with stage([make_node("n")]) as made:
        made.server.faults.fail(None, "list", "nodes", code=503)
        app = made.make()
        made.run(app)
        await made.until(lambda: any("503" in one for one in app.cache.problems()))
        url = f"http://127.0.0.1:{app.listener.port}"
        code, text = await get(f"{url}/readyz")
        assert code == 503
        assert "nodes" in text
        assert (await get(f"{url}/healthz"))[0] == 200
        made.server.faults.clear()
        await made.until(lambda: app.live is not None)
        assert (await get(f"{url}/readyz"))[0] == 200


async def test_on_loopback_a_name_that_is_not_loopbacks_is_not_answered() -> None:
    async with stage([make_node("n")]) as made:
        app = await made.start()
        url = f"http://127.0.0.1:{app.listener.port}/metrics"
        for host, code in (("localhost:1", 200), ("[::1]:1", 200), ("evil.example", 403)):
            async with (
                aiohttp.ClientSession(headers={"Host": host}) as session,
                session.get(url) as answer,
            ):
                assert answer.status == code


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:80", ("127.0.0.1", 80)),
        ("[::1]:80", ("::1", 80)),
        ("localhost:0", ("localhost", 0)),
    ],
)
def test_addresses_are_read(text: str, expected: tuple[str, int]) -> None:
    assert parse_address(text) == expected
    assert Address(*expected).on_loopback


@pytest.mark.parametrize("text", ["", "80", ":80", "host:", "host:99999", "host:-1"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        parse_address(text)


async def test_what_is_no_request_is_refused_in_one_line_of_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = logging.getLogger("bayplan.http.requests")
    log.addHandler(caplog.handler)
    try:
        async with stage([make_node("n")]) as made:
            app = await made.start()
            status, text = await get(f"http://127.0.0.1:{app.listener.port}/metrics?{'a' * 9000}")
            assert status == 400
            assert "Traceback" not in text
    finally:
        log.removeHandler(caplog.handler)
    [record] = [one for one in caplog.records if one.name == log.name][:1]
    assert record.levelno == logging.INFO
    assert record.exc_info is None
    assert "\n" not in record.getMessage()


@needs_openssl
async def test_a_token_that_is_no_text_is_refused(tmp_path: Path) -> None:
    certificates(tmp_path)
    (tmp_path / "token").write_bytes(b"right")

    async with stage([make_node("n")]) as made:
        url = await opened(made, tmp_path, token=tmp_path / "token")
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        port = int(url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer \xff\xfe\r\n\r\n")
        assert b" 403 " in await reader.readline()
        writer.close()
        await writer.wait_closed()


async def test_a_request_that_is_half_sent_does_not_keep_the_page_from_ending() -> None:
    async with stage([make_node("n")]) as made:
        app = await made.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", app.listener.port)
        writer.write(b"POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{")
        await writer.drain()
        await reader.readline()
        # Far below what the library takes by default, far above what it takes.
        assert app.pages is not None
        await asyncio.wait_for(app.pages.stop(), 30)
        writer.close()
