"""How much of the machine the clients of a served cluster may take."""

from __future__ import annotations

import msgspec

from bayplan.cluster.api_errors import ApiError, too_many_requests
from bayplan.inputs.httpserver import ConnectionLimits

__all__ = ["Allowance", "ServerLimits"]

_MIB = 2**20


class ServerLimits(msgspec.Struct, frozen=True):
    """The limits of an API server.

    :param request_seconds: until a request that is no watch has to be answered and read.
    :param large_bodies: bytes of bodies that are being received, beyond the first 64 KiB of each.
    """

    connections: ConnectionLimits = msgspec.field(default_factory=ConnectionLimits)
    request_seconds: float = 60.0
    large_bodies: int = 64 * _MIB


class Allowance:
    """Bytes that concurrent requests share.

    Small requests take nothing of it, so that they are served beside large ones.
    """

    def __init__(self, size: int) -> None:
        self._left = size

    def take(self, count: int) -> None:
        """Take bytes.

        :raises ApiError: 429, when too few are left.
        """
        if count > self._left:
            raise _too_many()
        self._left -= count

    def give_back(self, count: int) -> None:
        """Return bytes that were taken."""
        self._left += count


def _too_many() -> ApiError:
    return too_many_requests("Too many requests, please try again later.", retry_after=1)
