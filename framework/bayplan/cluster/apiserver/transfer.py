"""Bytes from and to clients, a piece at a time, so that slow clients hold little memory."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping

import msgspec
from aiohttp import web

from bayplan.cluster.api_errors import ApiError, bad_request
from bayplan.cluster.apiserver.server_limits import Allowance
from bayplan.inputs.limits import BODY

__all__ = ["PIECE", "Reply", "pieces", "receive", "send"]

PIECE = 64 * 1024
"""Bytes that are sent at once."""
_JSON = "application/json"


class Reply(msgspec.Struct, frozen=True):
    """An answer.

    :param content: the body, or its parts, which are made while they are sent.
    """

    content: bytes | Iterable[bytes]
    code: int = 200
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    content_type: str = _JSON


async def receive(request: web.BaseRequest, large: Allowance) -> bytes:
    """Return the body of a request.

    :param large: what all bodies may take beyond their first piece.
    :raises ApiError: 413 for a body that is too large, 429 when too many are being received, 400
        when it cannot be read.
    """
    if (request.content_length or 0) > BODY.size:
        raise _too_large()
    body, taken = bytearray(), 0
    try:
        async for chunk in request.content.iter_any():
            body += chunk
            if len(body) > BODY.size:
                raise _too_large()
            more = max(len(body) - PIECE - taken, 0)
            large.take(more)
            taken += more
    except web.RequestPayloadError as exc:
        problem = " ".join(str(exc).split())
        raise bad_request(f"the body of the request cannot be read: {problem}") from None
    finally:
        large.give_back(taken)
    return bytes(body)


def _too_large() -> ApiError:
    text = f"Request entity too large: limit is {BODY.size}"
    return ApiError(413, "RequestEntityTooLarge", text)


async def send(request: web.BaseRequest, reply: Reply) -> web.StreamResponse:
    """Send an answer; a client that has gone gets none."""
    parts = [reply.content] if isinstance(reply.content, bytes) else reply.content
    rest = pieces(parts)
    first, second = next(rest, b""), next(rest, None)
    response: web.StreamResponse
    if second is None:
        response = web.Response(body=first, status=reply.code, headers=reply.headers)
        rest = iter(())
    else:
        response = web.StreamResponse(status=reply.code, headers=reply.headers)
        rest = itertools.chain((first, second), rest)
    response.content_type = reply.content_type
    with contextlib.suppress(ConnectionError):
        await response.prepare(request)
        for piece in rest:
            await response.write(piece)
        await response.write_eof()
    return response


def pieces(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Join small parts and split large ones into pieces of about 64 KiB."""
    held, size = [], 0
    for part in parts:
        for start in range(0, len(part), PIECE):
            slice_ = part if len(part) <= PIECE else part[start : start + PIECE]
            held.append(slice_)
            size += len(slice_)
            if size >= PIECE:
                yield b"".join(held)
                held, size = [], 0
    if held:
        yield b"".join(held)
