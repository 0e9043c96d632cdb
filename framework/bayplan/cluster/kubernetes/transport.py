"""The HTTP client for an API server: requests, watch streams, and their errors.

The only module of the framework that makes requests with aiohttp. Bodies are bytes, so that a
caller decodes only what it reads.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Protocol
from urllib.parse import urlencode, urlsplit

import aiohttp
import msgspec
from yarl import URL

from bayplan.cluster.kubernetes.credentials import Endpoint
from bayplan.errors import (
    AlreadyExists,
    ClusterError,
    Conflict,
    Forbidden,
    Gone,
    NotFound,
    TooManyDisruptions,
    Transient,
    Unauthorized,
)

__all__ = ["JSON", "MERGE_PATCH", "STRATEGIC_PATCH", "Requests", "Transport", "error_of"]

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"

_SECONDS = 30.0
_CONNECT_SECONDS = 10.0
_SILENCE = 90.0
"""Seconds without a byte after which a watch counts as dead; bookmarks come every minute."""
_LARGEST_LINE = 16 * 2**20
_AGENT = "bayplan"
_WRITES = frozenset(("POST", "PUT", "PATCH"))


class _Cause(msgspec.Struct):
    reason: str = ""


class _Details(msgspec.Struct, rename="camel"):
    retry_after_seconds: float | None = None
    causes: tuple[_Cause, ...] = ()


class _Status(msgspec.Struct):
    """metav1.Status, as errors carry it."""

    message: str = ""
    reason: str = ""
    code: int = 0
    details: _Details | None = None


class _Authenticator(Protocol):
    async def endpoint(self) -> Endpoint: ...
    async def authorization(self, refused: str | None = None) -> str | None: ...


class Requests(Protocol):
    """What sends requests to an API server."""

    async def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        content_type: str = JSON,
        query: Mapping[str, str] | None = None,
        seconds: float | None = None,
    ) -> bytes:
        """Return the body of a successful answer.

        :raises ClusterError: a subclass of it, for every other answer and for none.
        """


Observer = Callable[[str, str, float], None]


class Transport:
    """Sends requests to one API server over persistent connections.

    :param who: the credentials.
    :param observe: called with (method, status code or "error", seconds) of each request.
    :param field_validation: what the server does about unknown fields in what is written: Ignore,
        Warn or Strict. Looking for them costs it up to a third of a write, and our structs have
        none.
    """

    def __init__(
        self,
        who: _Authenticator,
        observe: Observer | None = None,
        field_validation: str = "Ignore",
    ) -> None:
        self._who = who
        self._observe = observe
        self._validation = {"fieldValidation": field_validation}
        self._session: aiohttp.ClientSession | None = None
        self._old: list[aiohttp.ClientSession] = []
        self._closing: set[asyncio.Future[None]] = set()
        self._endpoint: Endpoint | None = None
        self.host = ""
        """The server's name and port, "" before the first request."""
        self._server_name: str | None = None
        # A timeout for reads costs less per request than a total one.
        self._limit = aiohttp.ClientTimeout(
            total=None, sock_connect=_CONNECT_SECONDS, sock_read=_SECONDS
        )

    @property
    def url(self) -> str:
        """The server's address, "" before the first request."""
        return self._endpoint.url if self._endpoint is not None else ""

    async def close(self) -> None:
        """Close all connections."""
        sessions = [*self._old, *([self._session] if self._session is not None else [])]
        self._old, self._session = [], None
        for session in sessions:
            await session.close()

    async def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        content_type: str = JSON,
        query: Mapping[str, str] | None = None,
        seconds: float | None = None,
    ) -> bytes:
        """Return the body of a successful answer.

        :raises ClusterError: a subclass of it, for every other answer and for none.
        :raises InputError: when the credentials cannot be loaded.
        """
        limit = self._limit if seconds is None else aiohttp.ClientTimeout(total=seconds)
        if method in _WRITES:
            query = {**query, **self._validation} if query else self._validation
        token = await self._who.authorization()
        answer = await self._send(method, path, body, content_type, query, limit, token)
        if isinstance(answer, Unauthorized):
            # The token may have been rotated meanwhile.
            token = await self._who.authorization(token)
            answer = await self._send(method, path, body, content_type, query, limit, token)
        if isinstance(answer, ClusterError):
            raise answer
        return answer

    async def _send(
        self,
        method: str,
        path: str,
        body: bytes | None,
        content_type: str,
        query: Mapping[str, str] | None,
        limit: aiohttp.ClientTimeout,
        token: str | None,
    ) -> bytes | ClusterError:
        session = await self._ready()
        headers = {} if token is None else {"Authorization": token}
        if body is not None:
            headers["Content-Type"] = content_type
        started = time.perf_counter()
        code = "error"
        try:
            async with session.request(
                method,
                self._address(path, query),
                data=body,
                headers=headers,
                timeout=limit,
                server_hostname=self._server_name,
            ) as response:
                content = await response.read()
                code = str(response.status)
                if response.status < 300:
                    return content
                return error_of(f"{method} {path}", response.status, content, response.headers)
        except (aiohttp.ClientConnectorError, aiohttp.ClientProxyConnectionError) as exc:
            return Transient(f"{method} {path}: {_reason(exc)}")
        except (aiohttp.ClientError, TimeoutError, OSError) as exc:
            return Transient(f"{method} {path}: {_reason(exc)}", sent=True)
        finally:
            if self._observe is not None:
                self._observe(method, code, time.perf_counter() - started)

    async def lines(
        self, path: str, query: Mapping[str, str], begun: Callable[[], None]
    ) -> AsyncIterator[bytes]:
        """Yield the lines of a watch until the server ends it; call ``begun`` when it starts.

        A watch that is silent for too long counts as ended.

        :raises ClusterError: when it cannot start, or breaks.
        """
        session = await self._ready()
        limit = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=_SILENCE)
        token: str | None = None
        for refused in (False, True):
            token = await self._who.authorization(token if refused else None)
            try:
                async with session.get(
                    self._address(path, query),
                    headers={} if token is None else {"Authorization": token},
                    timeout=limit,
                    server_hostname=self._server_name,
                ) as response:
                    if response.status >= 300:
                        content = await response.read()
                        error = error_of(
                            f"watch {path}", response.status, content, response.headers
                        )
                        if isinstance(error, Unauthorized) and not refused:
                            continue
                        raise error
                    begun()
                    try:
                        async for line in _lines_of(response.content):
                            yield line
                    except aiohttp.SocketTimeoutError:
                        # It may only be quiet; a new watch resumes from the same version.
                        return
                    return
            except (aiohttp.ClientError, TimeoutError, OSError) as exc:
                raise Transient(f"watch {path}: {_reason(exc)}") from None

    async def _ready(self) -> aiohttp.ClientSession:
        endpoint = await self._who.endpoint()
        if self._session is None or endpoint is not self._endpoint:
            if self._session is not None:
                # The certificates changed; pending requests may finish on the old connections.
                self._old = [one for one in self._old if not one.closed] + [self._session]
                asyncio.get_running_loop().call_later(_SECONDS, self._close_old)
            self._endpoint = endpoint
            self.host = urlsplit(endpoint.url).netloc
            self._server_name = endpoint.server_name
            self._session = _session_for(endpoint)
        return self._session

    def _close_old(self) -> None:
        old, self._old = self._old, []
        for session in old:
            task = asyncio.ensure_future(session.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def _address(self, path: str, query: Mapping[str, str] | None) -> URL:
        assert self._endpoint is not None, "set when the session is made"
        text = f"{self._endpoint.url}{path}"
        return URL(f"{text}?{urlencode(query)}" if query else text, encoded=True)


def _session_for(endpoint: Endpoint) -> aiohttp.ClientSession:
    connector = aiohttp.TCPConnector(
        limit=0,
        limit_per_host=0,
        ssl=endpoint.ssl if endpoint.ssl is not None else True,
        keepalive_timeout=60.0,
    )
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"User-Agent": _AGENT, "Accept": JSON},
        proxy=endpoint.proxy,
        read_bufsize=2**20,
    )


async def _lines_of(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Yield complete lines of any length; an unterminated rest is dropped."""
    rest = b""
    while chunk := await content.readany():
        if b"\n" not in chunk:
            rest += chunk
            if len(rest) > _LARGEST_LINE:
                raise Transient("watch: a line is too long")
            continue
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            if line:
                yield line


def error_of(
    what: str, code: int, content: bytes, headers: Mapping[str, str] | None = None
) -> ClusterError:
    """Return the error for an API server's answer; ``what`` names the request."""
    try:
        status = msgspec.json.decode(content, type=_Status)
    except (msgspec.DecodeError, UnicodeDecodeError):
        status = _Status(message=_short(content[:300].decode(errors="replace")))
    text = f"{_short(status.message) or 'no reason given'} ({what}: {code})"
    details = status.details or _Details()
    if code == 429 and any(cause.reason == "DisruptionBudget" for cause in details.causes):
        return TooManyDisruptions(text)
    if code == 429 or code >= 500:
        wait = details.retry_after_seconds
        if headers is not None and wait is None:
            wait = _seconds(headers.get("Retry-After", ""))
        return Transient(text, wait, sent=code >= 500)
    if code == 409 and status.reason == "AlreadyExists":
        return AlreadyExists(text)
    kinds: dict[int, type[ClusterError]] = {
        401: Unauthorized,
        403: Forbidden,
        404: NotFound,
        409: Conflict,
        410: Gone,
    }
    return kinds.get(code, ClusterError)(text)


def _seconds(text: str) -> float | None:
    return float(text) if text.isdecimal() else None


def _reason(exc: BaseException) -> str:
    if isinstance(exc, TimeoutError | asyncio.TimeoutError):
        return "no answer in time"
    return _short(str(exc)) or type(exc).__name__


def _short(text: str) -> str:
    return " ".join(text.split())[:500]
