"""Settings that bayplan's HTTP servers share: logging, and protection from misbehaving clients."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import resource
from typing import Any

from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web import RequestPayloadError

__all__ = ["SHUTDOWN_SECONDS", "allow_many_connections", "request_log"]

SHUTDOWN_SECONDS = 0.4
"""How long a server that shuts down waits for requests in progress."""
_MOST_FILES = 65536
_REMIND_SECONDS = 60.0
_LONGEST = 200

_log = logging.getLogger("bayplan.http")


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


def allow_many_connections(loop: asyncio.AbstractEventLoop) -> None:
    """Let the process hold as many connections as the system allows; further ones wait.

    Waiting connections are logged once a minute; asyncio's own handler would log a traceback for
    each of them.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        # Some systems refuse limits that they claim to allow.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    loop.set_exception_handler(_TooManyConnections())


class _TooManyConnections:
    """An event loop's exception handler that logs too many open connections once a minute."""

    def __init__(self) -> None:
        self._logged_at = -_REMIND_SECONDS

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        exc = context.get("exception")
        if not isinstance(exc, OSError) or exc.errno not in (errno.EMFILE, errno.ENFILE):
            loop.default_exception_handler(context)
        elif loop.time() - self._logged_at >= _REMIND_SECONDS:
            self._logged_at = loop.time()
            _log.warning("too many open connections; new ones have to wait")
