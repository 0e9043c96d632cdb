"""What bayplan's HTTP servers share: logging, and protection from misbehaving clients."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from typing import Any, cast

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web import RequestPayloadError
from aiohttp.web_protocol import RequestHandler

from bayplan.inputs.sockets import is_loopback

__all__ = [
    "SHUTDOWN_SECONDS",
    "BoundedServer",
    "Connection",
    "ConnectionLimits",
    "asks_loopback",
    "request_log",
]

SHUTDOWN_SECONDS = 0.4
"""Seconds that a server waits at shutdown for requests in progress."""
_LONGEST = 200


class _ClientErrors(logging.Filter):
    """Logs a malformed request in one line at level INFO: it is the client's fault."""

    def filter(self, record: logging.LogRecord) -> bool:
        exc = record.exc_info[1] if record.exc_info else None
        if isinstance(exc, HttpProcessingError | RequestPayloadError):
            what = " ".join(str(exc).split())[:_LONGEST]
            record.msg, record.args = f"{record.getMessage()}: {what}", ()
            record.exc_info = record.exc_text = None
            record.levelno, record.levelname = logging.INFO, "INFO"
        return True


def request_log() -> logging.Logger:
    """Return the logger to give to an aiohttp server."""
    log = logging.getLogger("bayplan.http.requests")
    if not log.filters:
        log.addFilter(_ClientErrors())
    return log


def asks_loopback(request: web.Request) -> bool:
    """Tell whether a request names this machine.

    Another host name comes from a web page in a browser (DNS rebinding), not from an operator.
    """
    name = request.host.rpartition(":")[0] or request.host
    return is_loopback(name.removeprefix("[").removesuffix("]"))


# Connections -------------------------------------------------------------------------------------


class ConnectionLimits(msgspec.Struct, frozen=True):
    """The limits of a server's connections.

    :param most: connections that are open at once.
    :param head_seconds: until the head of a request has to be complete.
    :param idle_seconds: between requests.
    :param headers: headers of a request, each of up to 8 KiB.
    """

    most: int = 1000
    head_seconds: float = 10.0
    idle_seconds: float = 75.0
    headers: int = 64


class Connection(RequestHandler):
    """One connection of a ``BoundedServer``."""

    def __init__(self, server: BoundedServer, limits: ConnectionLimits, **settings: Any) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            max_headers=limits.headers,
            keepalive_timeout=limits.idle_seconds,
            # A small body can unpack to gigabytes.
            auto_decompress=False,
            **settings,
        )
        # Clients of Kubernetes wait for an answer before they send the next request.
        self._max_msg_queue_size, self._msg_queue_resume_size = 1, 0
        self._server = server
        self._head_seconds = limits.head_seconds
        self._head_timer: asyncio.TimerHandle | None = None
        self.busy = False
        """Whether a request is being answered."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start a connection, or refuse it."""
        if self._server.admit(self):
            super().connection_made(transport)
            return
        made = cast(asyncio.Transport, transport)
        made.write(_REFUSAL)
        made.close()

    def data_received(self, data: bytes) -> None:
        """Take bytes; a head that does not end ends the connection."""
        if data and not self.busy and self._head_timer is None:
            self._head_timer = self._loop.call_later(self._head_seconds, self.abort)
        super().data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        """End a connection."""
        self._cancel_timer()
        self._server.leave(self)
        super().connection_lost(exc)

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """Mark the connection as busy."""
        self._cancel_timer()
        self.busy = True
        try:
            yield
        finally:
            self.busy = False

    def abort(self) -> None:
        """End the connection at once; what the client has not read is lost."""
        if self.transport is not None:
            self.transport.abort()

    def _cancel_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


_REFUSAL_TEXT = b"Too many connections, please try again.\n"
_REFUSAL = (
    b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nConnection: close\r\n"
    b"Content-Type: text/plain\r\nContent-Length: %d\r\n\r\n%s"
) % (len(_REFUSAL_TEXT), _REFUSAL_TEXT)


class BoundedServer(web.Server):
    """An aiohttp server whose connections are limited in number, time and size.

    A connection too many replaces the oldest one that has no request; when all have one, it is
    refused.

    :param settings: further settings of ``aiohttp.web.Server`` and of its connections.
    """

    def __init__(self, handler: Any, limits: ConnectionLimits, **settings: Any) -> None:
        names = ("request_factory", "handler_cancellation")
        super().__init__(handler, **{name: settings.pop(name) for name in names})
        self._limits = limits
        self._settings = settings
        self._open: dict[Connection, None] = {}

    def __call__(self) -> Connection:
        """Return the protocol of a new connection."""
        return Connection(self, self._limits, **self._settings)

    def admit(self, connection: Connection) -> bool:
        """Count a connection; return False when there are too many."""
        if len(self._open) >= self._limits.most:
            idle = next((one for one in self._open if not one.busy), None)
            if idle is None:
                return False
            self.leave(idle)
            idle.abort()
        self._open[connection] = None
        return True

    def leave(self, connection: Connection) -> None:
        """Count a connection no longer."""
        self._open.pop(connection, None)
