"""Who the scheduler is to an API server: everything that a kubeconfig can say, and its rotation."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from tests.certificates import certificates, needs_openssl

from bayplan.cluster.kubernetes import plain_credentials
from bayplan.cluster.kubernetes.credentials import Credentials
from bayplan.cluster.kubernetes.transport import Transport
from bayplan.errors import InputError, Unauthorized


def kubeconfig(folder: Path, user: dict[str, Any], **cluster: Any) -> Path:
    path = folder / "kubeconfig"
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
    }
    path.write_text(yaml.safe_dump(content))
    return path


class Server:
    """Accepts one token, and remembers which were shown to it."""

    def __init__(self) -> None:
        self.accepted = ""
        self.shown: list[str] = []
        self.port = 0

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        self.shown.append(token)
        if self.accepted and token != self.accepted:
            return web.json_response({"kind": "Status", "message": "Unauthorized"}, status=401)
        return web.json_response({"peer": bool(request.transport.get_extra_info("peercert"))})  # type: ignore[union-attr]


@asynccontextmanager
async def serving(context: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    server = Server()
    runner = web.ServerRunner(web.Server(server.answer, access_log=None))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    server.port = runner.addresses[0][1]
    try:
        yield server
    finally:
        await runner.cleanup()


async def ask(path: Path | None) -> bytes:
    transport = Transport(Credentials(path))
    try:
        return await transport.request("GET", "/version")
    finally:
        await transport.close()


async def test_a_token_that_was_rotated_is_read_again_when_the_old_one_is_refused(
    tmp_path: Path,
) -> None:
    async with serving() as server:
        token = tmp_path / "token"
        token.write_text("old")
        path = kubeconfig(
            tmp_path, {"tokenFile": str(token)}, server=f"http://127.0.0.1:{server.port}"
        )
        transport = Transport(Credentials(path))
        server.accepted = "old"
        await transport.request("GET", "/version")
        token.write_text("new")
        server.accepted = "new"
        await transport.request("GET", "/version")
        assert server.shown == ["old", "old", "new"]
        server.accepted = "another"
        with pytest.raises(Unauthorized):
            await transport.request("GET", "/version")
        await transport.close()


PLUGIN = """#!/bin/sh
count=$(cat "$COUNT" 2>/dev/null || echo 0)
count=$((count + 1))
echo $count > "$COUNT"
echo '{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",'
echo '"status": {"token": "token-'$count'", "expirationTimestamp": "2000-01-01T00:00:00Z"}}'
"""


def exec_user(tmp_path: Path, script: str) -> dict[str, Any]:
    command = tmp_path / "plugin"
    command.write_text(script)
    command.chmod(0o700)
    return {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": str(command),
            "env": [{"name": "COUNT", "value": str(tmp_path / "count")}],
        }
    }


async def test_an_exec_plugin_is_asked_and_asked_again_when_its_token_is_over(
    tmp_path: Path,
) -> None:
    async with serving() as server:
        user = exec_user(tmp_path, PLUGIN)
        path = kubeconfig(tmp_path, user, server=f"http://127.0.0.1:{server.port}")
        transport = Transport(Credentials(path))
        server.accepted = "token-1"
        await transport.request("GET", "/version")
        server.accepted = "token-2"
        await transport.request("GET", "/version")
        assert server.shown[-1] == "token-2"
        await transport.close()


async def test_an_exec_plugin_that_fails_says_so(tmp_path: Path) -> None:
    user = exec_user(tmp_path, "#!/bin/sh\necho 'log in first' >&2\nexit 3\n")
    path = kubeconfig(tmp_path, user, server="http://127.0.0.1:1")
    with pytest.raises(InputError, match="log in first") as caught:
        await ask(path)
    assert str(path) in str(caught.value)


def demanding(folder: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=folder / "ca.crt")
    context.load_cert_chain(folder / "server.crt", folder / "server.key")
    context.verify_mode = ssl.CERT_OPTIONAL
    return context


@needs_openssl
async def test_a_client_certificate_is_shown_and_the_servers_is_checked(tmp_path: Path) -> None:
    certificates(tmp_path)

    async with serving(demanding(tmp_path)) as server:
        url = f"https://127.0.0.1:{server.port}"
        user = {"client-certificate": "client.crt", "client-key": "client.key"}
        authority = {"certificate-authority": "ca.crt"}
        path = kubeconfig(tmp_path, user, server=url, **authority)
        assert b"true" in await ask(path)
        path = kubeconfig(tmp_path, {"token": "t"}, server=url, **authority)
        assert b"false" in await ask(path)
        path = kubeconfig(tmp_path, {"token": "t"}, server=url)
        with pytest.raises(Exception, match="self-signed certificate"):
            await ask(path)
        skip = {"insecure-skip-tls-verify": True}
        path = kubeconfig(tmp_path, {"token": "t"}, server=url, **skip)
        assert b"false" in await ask(path)


@needs_openssl
async def test_inside_of_a_cluster_the_service_account_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificates(tmp_path)
    (tmp_path / "token").write_text("account")
    monkeypatch.setattr(plain_credentials, "SERVICE_ACCOUNT", tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)

    async with serving(demanding(tmp_path)) as server:
        monkeypatch.setitem(os.environ, "KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setitem(os.environ, "KUBERNETES_SERVICE_PORT", str(server.port))
        await ask(None)
        assert [token.removeprefix("bearer ") for token in server.shown] == ["account"]


async def test_without_any_cluster_it_says_what_to_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(InputError, match="give --kubeconfig FILE"):
        await ask(None)


async def test_who_is_cancelled_as_the_credentials_are_read_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def read(settings: Any) -> float:
        settings.host = "http://127.0.0.1:1"
        task.cancel()
        return 60.0

    credentials = Credentials(kubeconfig(tmp_path, {"exec": {}}))
    monkeypatch.setattr(credentials, "_read", read)
    task = asyncio.create_task(credentials.authorization())
    await asyncio.wait((task,))
    assert task.cancelled()
