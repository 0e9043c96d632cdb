"""A Kubernetes API server on loopback, over an embedded cluster."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import StreamReader, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_parser import RawRequestMessage
from aiohttp.web_protocol import RequestHandler
from msgspec.structs import replace
from multidict import CIMultiDict

from bayplan.cluster.api_errors import ApiError
from bayplan.cluster.apiserver.crds import CustomResources
from bayplan.cluster.apiserver.discovery import VERSION, OpenApiV2, discover, openapi
from bayplan.cluster.apiserver.faults import Fault, FaultKind, ServerFaults, WatchFault
from bayplan.cluster.apiserver.field_validation import FieldValidation, read_mode
from bayplan.cluster.apiserver.handlers import answer, table_of, wants_table
from bayplan.cluster.apiserver.kubeconfig import write_kubeconfig
from bayplan.cluster.apiserver.metrics_api import GROUP as METRICS
from bayplan.cluster.apiserver.metrics_api import usage
from bayplan.cluster.apiserver.protobuf import MEDIA_TYPE, decode_protobuf
from bayplan.cluster.apiserver.rbac import Access, Role, authorize, authorize_path
from bayplan.cluster.apiserver.request_bodies import Body, read_json, read_yaml
from bayplan.cluster.apiserver.request_info import PathNotFound, RequestInfo, parse_request
from bayplan.cluster.apiserver.request_options import check_body_type, check_options
from bayplan.cluster.apiserver.reviews import REVIEWS, review
from bayplan.cluster.apiserver.server_limits import Allowance, ServerLimits
from bayplan.cluster.apiserver.store import ServedCluster
from bayplan.cluster.apiserver.transfer import Reply, receive, send
from bayplan.cluster.apiserver.watches import Watch, WatchSettings
from bayplan.cluster.apiserver.writes import creates
from bayplan.inputs.httpserver import SHUTDOWN_SECONDS, BoundedServer, Connection, request_log

__all__ = ["ApiServer"]

_log = logging.getLogger(__name__)
_OPTIONED = ("create", "delete", "deletecollection", "list", "patch", "update", "watch")
_HEALTH = ("/healthz", "/livez", "/readyz")
_MOST_CALLS = 10_000
"""Calls that are counted apart; clients choose the names of subresources."""
_TIMEOUT = "Timeout: request did not complete within the allotted timeout"
_TOKEN_PREFIX = "/token/"  # noqa: S105 - a part of paths


class ApiServer:
    """Serves a cluster on 127.0.0.1.

    The server does not move the cluster's clock. Everything runs in the event loop in which
    ``start`` is called.

    :param port: the port; 0 for any free one.
    :param tokens: roles by bearer token, with None for an administrator; without a mapping
        everybody may do everything.
    """

    def __init__(
        self,
        cluster: ServedCluster,
        port: int = 0,
        tokens: Mapping[str, Role | None] | None = None,
        watches: WatchSettings | None = None,
        faults: ServerFaults | None = None,
        limits: ServerLimits | None = None,
    ) -> None:
        self.cluster = cluster
        self.port = port
        self.faults = faults or ServerFaults()
        self.calls: Counter[tuple[str, str, str, bool]] = Counter()
        self._access = Access(tokens)
        CustomResources(cluster)
        self._tokens = tokens
        self._settings = watches or WatchSettings()
        self._watches: set[Watch] = set()
        self._limits = limits or ServerLimits()
        self._large_bodies = Allowance(self._limits.large_bodies)
        self._openapi = OpenApiV2(cluster.resources)
        self._runner: web.ServerRunner | None = None
        self.busy = 0
        """The number of requests that are being answered."""

    # Running -----------------------------------------------------------------------------

    async def start(self) -> None:
        """Start listening; after ``stop``, on the same port with the same objects.

        :raises OSError: when the port is taken.
        """
        server = BoundedServer(
            self._handle,
            self._limits.connections,
            request_factory=_request,
            access_log=None,
            logger=request_log(),
            handler_cancellation=True,
        )
        self._runner = web.ServerRunner(server, shutdown_timeout=SHUTDOWN_SECONDS)
        await self._runner.setup()
        try:
            site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True)
            await site.start()
        except OSError:
            await self._runner.cleanup()
            self._runner = None
            raise
        self.port = self._runner.addresses[0][1]
        self.cluster.settle()

    async def stop(self) -> None:
        """Close all watches and connections, and stop listening."""
        runner, self._runner = self._runner, None
        if runner is None:
            return
        for watch in self._watches:
            watch.ending.set()
        self._wake()
        await runner.cleanup()

    async def __aenter__(self) -> ApiServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def url(self) -> str:
        """The server's URL."""
        return f"http://127.0.0.1:{self.port}"

    def write_kubeconfig(self, path: Path, token: str | None = None) -> None:
        """Write a kubeconfig with a token, by default the first administrator's.

        kubectl sends no token over plain HTTP, so the server's URL contains it, too.

        :raises OSError: when it cannot be written.
        """
        if token is None and self._tokens:
            token = next((t for t, role in self._tokens.items() if role is None), None)
        url = f"{self.url}{_TOKEN_PREFIX}{token}" if token else self.url
        write_kubeconfig(path, url, token)

    # Faults ------------------------------------------------------------------------------

    def compact(self) -> None:
        """Drop the watch cache: watches and lists of older versions get 410 Gone."""
        for log in self.cluster.logs():
            log.compact()

    def end_watches(self, fault: WatchFault = WatchFault.DROP) -> int:
        """End all current watches with a fault; return their number."""
        self.faults.watch_fault = fault
        self.faults.watches_to_end = len(self._watches)
        self._wake()
        return len(self._watches)

    def _wake(self) -> None:
        for log in self.cluster.logs():
            log.wake()

    # Answering ---------------------------------------------------------------------------

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = request.protocol
        assert isinstance(connection, Connection)
        with connection.answering():
            self.busy += 1
            try:
                answer = await self._answer(request)
                if isinstance(answer, Watch):
                    return await self._watch(request, answer)
                async with asyncio.timeout(self._limits.request_seconds):
                    return await send(request, answer)
            except TimeoutError:
                # The client does not read.
                connection.abort()
                return web.Response()
            finally:
                self.busy -= 1

    async def _answer(self, request: web.BaseRequest) -> Reply | Watch:
        try:
            async with asyncio.timeout(self._limits.request_seconds):
                return await self._route(request)
        except PathNotFound:
            return Reply(b"404 page not found\n", 404, content_type="text/plain")
        except ApiError as exc:
            return _refusal(exc)
        except TimeoutError:
            return _refusal(ApiError(504, "Timeout", _TIMEOUT))
        except Exception:
            _log.exception("%s %s", request.method, request.path)
            text = "Internal error occurred: see the server's log"
            return _refusal(ApiError(500, "InternalError", text))

    async def _route(self, request: web.BaseRequest) -> Reply | Watch:
        path, token = _credentials(request)
        if path in _HEALTH or path.startswith(tuple(f"{p}/" for p in _HEALTH)):
            return Reply(b"ok", content_type="text/plain")
        user = self._user(token, request.headers.get("Impersonate-User", ""))
        content = self._discovery(path) if request.method == "GET" else None
        if path == "/openapi/v2" and request.method == "GET":
            authorize_path(user, "get", path)
            document, content_type = self._openapi.document(request.headers.get("Accept", ""))
            return Reply(document, content_type=content_type)
        if content is not None:
            authorize_path(user, "get", path)
            return Reply(msgspec.json.encode(content))
        if not path.startswith(("/api/", "/apis/")):
            authorize_path(user, request.method.lower(), path)
            raise PathNotFound
        kind = REVIEWS.get(path)
        if kind is not None and request.method == "POST":
            body = review(self._access, user, kind, (await self._body(request)).content)
            return Reply(msgspec.json.encode(body), 201)
        used = usage(self.cluster, path, request.query.get("labelSelector", ""))
        if used is not None and request.method == "GET":
            verb = "list" if "items" in used[2] else "get"
            authorize(user, verb, METRICS, used[0], used[1], "")
            return Reply(msgspec.json.encode(used[2]))
        info = parse_request(self.cluster.resources, request.method, path, request.query)
        call = (info.verb, info.group, info.target, bool(info.namespace))
        if len(self.calls) < _MOST_CALLS or call in self.calls:
            self.calls[call] += 1
        authorize(user, info.verb, info.group, info.target, info.namespace, info.target_name)
        if info.verb == "update" and creates(self.cluster, info):
            authorize(user, "create", info.group, info.target, info.namespace, info.name)
        return await self._serve(request, info)

    def _user(self, token: str, other: str) -> Role:
        """Return the user of a request, after impersonation.

        :raises ApiError: 401 without a token, 403 when impersonation fails.
        """
        user = self._access.user(token)
        if not other:
            return user
        authorize(user, "impersonate", "", "users", "", other)
        found = self._access.named(other)
        if found is None:
            text = f'users "{other}" is forbidden: this cluster has no such user'
            raise ApiError(403, "Forbidden", text)
        return found

    def _discovery(self, path: str) -> dict[str, Any] | None:
        if path == "/version":
            return dict(VERSION)
        if path.startswith("/openapi/v3"):
            return openapi(self.cluster.resources, path)
        return discover(self.cluster.resources, path, f"127.0.0.1:{self.port}")

    async def _serve(self, request: web.BaseRequest, info: RequestInfo) -> Reply | Watch:
        if self.faults.latency:
            await asyncio.sleep(self.faults.latency)
        content_type = request.headers.get("Content-Type", "")
        if info.verb in _OPTIONED:
            check_options(info.verb, request.query, content_type)
        if info.verb in ("create", "update"):
            check_body_type(content_type)
        fault = self.faults.take(info)
        if fault is not None and fault.kind is not FaultKind.CLOSE_AFTER:
            return _fail(request, fault)
        if info.verb == "watch":
            self.cluster.settle()
            as_table = wants_table(request.headers.get("Accept", ""))
            encode = table_of(self.cluster, info) if as_table else None
            return Watch(self.cluster, info, self.faults, self._settings, encode)
        body = await self._body(request)
        if info.verb in ("create", "update", "patch"):
            mode = read_mode(info.verb, request.query)
            info = replace(info, fields=FieldValidation(mode, body))
        self.cluster.settle()
        try:
            code, content = answer(self.cluster, info, request.headers, body.content)
        finally:
            self.cluster.settle()
        if fault is not None:
            return _fail(request, fault)
        texts = [*info.fields.warnings, *_without_effect(info, code)]
        return Reply(content, code, CIMultiDict(("Warning", _warning(text)) for text in texts))

    async def _body(self, request: web.BaseRequest) -> Body:
        if request.method == "GET":
            return Body(None)
        content = await receive(request, self._large_bodies)
        if not content:
            return Body(None)
        if request.content_type == MEDIA_TYPE:
            return Body(decode_protobuf(content))
        # Clients also label JSON as YAML, and parsing YAML is slow.
        if "yaml" in request.content_type and content.lstrip()[:1] != b"{":
            return read_yaml(content)
        return read_json(content)

    async def _watch(self, request: web.BaseRequest, watch: Watch) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        self._watches.add(watch)
        try:
            with contextlib.suppress(ConnectionResetError):
                await response.prepare(request)
                await watch.run(response)
        finally:
            self._watches.discard(watch)
        if watch.broken:
            _close(request)
        return response


def _request(
    message: RawRequestMessage,
    payload: StreamReader,
    protocol: RequestHandler,
    writer: AbstractStreamWriter,
    task: asyncio.Task[None],
) -> web.BaseRequest:
    loop = asyncio.get_running_loop()
    return web.BaseRequest(message, payload, protocol, writer, task, loop)


def _credentials(request: web.BaseRequest) -> tuple[str, str]:
    """Return the path and the token of a request."""
    path = request.path
    if path.startswith(_TOKEN_PREFIX):
        token, _, rest = path.removeprefix(_TOKEN_PREFIX).partition("/")
        return f"/{rest}", token
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return path, token.strip() if scheme.lower() == "bearer" else ""


def _refusal(error: ApiError) -> Reply:
    headers = {"Retry-After": str(error.retry_after)} if error.retry_after is not None else {}
    return Reply(msgspec.json.encode(error.status()), error.code, headers)


def _warning(text: str) -> str:
    """Return the value of a Warning header."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
    return f'299 - "{escaped}"'


def _without_effect(info: RequestInfo, code: int) -> list[str]:
    """Return a warning for a new object without effect; kubectl prints it."""
    if code != 201 or not info.resource.inert or info.subresource:
        return []
    return [f"{info.resource.kind} is stored and has no effect here: {info.resource.inert}"]


def _close(request: web.BaseRequest) -> None:
    if request.transport is not None:
        request.transport.close()


def _fail(request: web.BaseRequest, fault: Fault) -> Reply:
    if fault.kind is not FaultKind.STATUS:
        _close(request)
        return Reply(b"")
    reasons = {409: "Conflict", 429: "TooManyRequests", 503: "ServiceUnavailable"}
    reason = reasons.get(fault.code, "InternalError")
    text = "this failure was asked for"
    raise ApiError(fault.code, reason, text, retry_after=fault.retry_after)
