"""What servers ask of the system: who reaches an address, and how many connections there may be."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import resource
from typing import Any

__all__ = ["allow_many_connections", "is_loopback"]

_MOST_FILES = 65536
_REMIND_SECONDS = 60.0

_log = logging.getLogger("bayplan.http")


def is_loopback(host: str) -> bool:
    """Tell whether only this machine reaches a host, given by name or address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


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
