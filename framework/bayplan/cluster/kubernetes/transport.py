"""The HTTP client for an API server: requests, watch streams, and their errors.

Bodies are bytes, so that a caller decodes only what it reads.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from typing import Protocol
from urllib.parse import urlencode, urlsplit

import msgspec

from bayplan.cluster.kubernetes.credentials import Endpoint
from bayplan.cluster.kubernetes.curl import Answer, Connections, TransferFailed
from bayplan.errors import (
    AlreadyExists,
    ClusterError,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    Terminating,
    TooManyDisruptions,
    Transient,
    Unauthorized,
)

__all__ = [
    "APPLY_PATCH",
    "JSON",
    "JSON_PATCH",
    "MERGE_PATCH",
    "STRATEGIC_PATCH",
    "Requests",
    "Transport",
    "error_of",
]

JSON = "application/json"
JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"

_SILENCE = 30.0
"""Seconds without a byte after which a request fails."""
_WATCH_SILENCE = 90.0
"""Seconds without a byte after which a watch counts as dead; bookmarks come every minute."""
_WARM_UP = 30.0
"""Seconds after a lost connection in which what is forbidden is retried.

An API server that has just started answers before it has read the roles.
"""
_LARGEST_LINE = 16 * 2**20
_WRITES = frozenset(("POST", "PUT", "PATCH"))


class _Cause(msgspec.Struct):
    reason: str = ""
    field: str = ""


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
    :param patience: seconds from the first request on in which what is forbidden is retried,
        because a role that was just applied may not be known yet.
    """

    def __init__(
        self,
        who: _Authenticator,
        observe: Observer | None = None,
        field_validation: str = "Ignore",
        patience: float = 0.0,
    ) -> None:
        self._who = who
        self.observe = observe
        self._validation = {"fieldValidation": field_validation}
        self._connections: Connections | None = None
        self._old: list[Connections] = []
        self._endpoint: Endpoint | None = None
        self.host = ""
        """The server's name and port, "" before the first request."""
        self._roles_known_at = -math.inf
        self._patience = patience

    @property
    def url(self) -> str:
        """The server's address, "" before the first request."""
        return self._endpoint.url if self._endpoint is not None else ""

    async def close(self) -> None:
        """Close all connections."""
        for connections in [*self._old, self._connections]:
            if connections is not None:
                connections.close()
        self._old, self._connections = [], None

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
        if method in _WRITES:
            query = {**query, **self._validation} if query else self._validation
        target = f"{path}?{urlencode(query)}" if query else path
        token = await self._who.authorization()
        answer = await self._send(method, target, body, content_type, seconds, token)
        if isinstance(answer, Unauthorized):
            # The token may have been rotated meanwhile.
            token = await self._who.authorization(token)
            answer = await self._send(method, target, body, content_type, seconds, token)
        if isinstance(answer, ClusterError):
            raise answer
        return answer

    async def _send(
        self,
        method: str,
        target: str,
        body: bytes | None,
        content_type: str,
        seconds: float | None,
        token: str | None,
    ) -> bytes | ClusterError:
        connections = await self._ready()
        headers = _headers(token)
        if body is not None:
            headers.append(f"Content-Type: {content_type}")
        started = time.perf_counter()
        code = "error"
        what = f"{method} {target.partition('?')[0]}"
        try:
            answer = await connections.request(method, target, body, headers, _SILENCE, seconds)
            code = str(answer.status)
            return answer.body if answer.status < 300 else self._checked(error_of(what, answer))
        except TransferFailed as exc:
            return self._lost(what, exc)
        finally:
            if self.observe is not None:
                self.observe(method, code, time.perf_counter() - started)

    async def lines(
        self, path: str, query: Mapping[str, str], begun: Callable[[], None]
    ) -> AsyncIterator[bytes]:
        """Yield the lines of a watch until the server ends it; call ``begun`` when it starts.

        A watch that is silent for too long counts as ended.

        :raises ClusterError: when it cannot start, or breaks.
        """
        connections = await self._ready()
        target = f"{path}?{urlencode(query)}"
        token: str | None = None
        for refused in (False, True):
            token = await self._who.authorization(token if refused else None)
            stream = connections.stream(target, _headers(token), _WATCH_SILENCE)
            try:
                async with aclosing(stream):
                    error = await _refusal(stream, path)
                    if isinstance(error, Unauthorized) and not refused:
                        continue
                    if error is not None:
                        raise self._checked(error)
                    begun()
                    async for line in _lines_of(stream):
                        yield line
                    return
            except TransferFailed as exc:
                raise self._lost(f"watch {path}", exc) from None

    def _lost(self, what: str, exc: TransferFailed) -> Transient:
        """Return the error for a lost connection."""
        self._roles_known_at = asyncio.get_running_loop().time() + _WARM_UP
        return Transient(f"{what}: {_short(str(exc))}", sent=exc.sent)

    def _checked(self, error: ClusterError) -> ClusterError:
        """Return a server's error, as one to retry while the server may not know the roles."""
        now = asyncio.get_running_loop().time()
        if isinstance(error, Forbidden) and now < self._roles_known_at:
            early = Transient(str(error))
            early.__cause__ = error
            return early
        return error

    async def _ready(self) -> Connections:
        endpoint = await self._who.endpoint()
        if self._connections is None or endpoint is not self._endpoint:
            if self._connections is not None:
                # The certificates changed; pending requests may finish on the old connections.
                old = self._connections
                self._old.append(old)
                asyncio.get_running_loop().call_later(_SILENCE, self._close_old, old)
            if self._endpoint is None:
                self._roles_known_at = asyncio.get_running_loop().time() + self._patience
            self._endpoint = endpoint
            self.host = urlsplit(endpoint.url).netloc
            self._connections = Connections(endpoint)
        return self._connections

    def _close_old(self, old: Connections) -> None:
        if old in self._old:
            self._old.remove(old)
            old.close()


def _headers(token: str | None) -> list[str]:
    headers = [f"Accept: {JSON}", "Expect:"]
    if token is not None:
        headers.append(f"Authorization: {token}")
    return headers


async def _refusal(stream: AsyncIterator[Answer | bytes], path: str) -> ClusterError | None:
    """Read the beginning of a watch; return the error when the server refuses it."""
    answer = await anext(stream, None)
    if not isinstance(answer, Answer):
        return Transient(f"watch {path}: no answer")
    if answer.status < 300:
        return None
    body = b"".join([part async for part in stream if isinstance(part, bytes)])
    return error_of(f"watch {path}", Answer(answer.status, body, answer.retry_after))


async def _lines_of(stream: AsyncIterator[Answer | bytes]) -> AsyncIterator[bytes]:
    """Yield complete lines of any length; an unterminated rest is dropped."""
    rest = b""
    async for chunk in stream:
        assert isinstance(chunk, bytes), "the status comes first"
        if b"\n" not in chunk:
            rest += chunk
            if len(rest) > _LARGEST_LINE:
                raise Transient("watch: a line is too long")
            continue
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            if line:
                yield line


def error_of(what: str, answer: Answer) -> ClusterError:
    """Return the error for an API server's answer; ``what`` names the request."""
    code, content = answer.status, answer.body
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
        if wait is None:
            wait = _seconds(answer.retry_after)
        return Transient(text, wait, sent=code >= 500)
    if code == 403 and any(cause.reason == "NamespaceTerminating" for cause in details.causes):
        return Terminating(text)
    if code == 409 and status.reason == "AlreadyExists":
        return AlreadyExists(text)
    if code == 422 and any(cause.field == "metadata.uid" for cause in details.causes):
        # A patch that names the uid of an object that was recreated.
        return Conflict(text)
    kinds: dict[int, type[ClusterError]] = {
        401: Unauthorized,
        403: Forbidden,
        404: NotFound,
        409: Conflict,
        410: Gone,
        422: Invalid,
    }
    return kinds.get(code, ClusterError)(text)


def _seconds(text: str) -> float | None:
    return float(text) if text.isdecimal() else None


def _short(text: str) -> str:
    return " ".join(text.split())[:500]
