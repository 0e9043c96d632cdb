"""Calls over a plugin's socket."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc

SECONDS = 60.0
"""Of the wall: no call of a test takes as long."""


def open_channel(path: Path | str) -> grpc.Channel:
    """Return a channel to a socket."""
    # A shared pool would back off for all channels to a path.
    return grpc.insecure_channel(f"unix:{path}", [("grpc.use_local_subchannel_pool", 1)])


def call(channel: grpc.Channel, method: str, request: Any, answer: Any) -> Any:
    """Call a method; return its answer, of the given type.

    :raises grpc.RpcError: when there is none.
    """
    run = channel.unary_unary(
        method,
        request_serializer=type(request).SerializeToString,
        response_deserializer=answer.FromString,
    )
    return run(request, timeout=SECONDS)


def stream(channel: grpc.Channel, method: str, request: Any, answer: Any) -> Any:
    """Call a method that answers again and again; return its answers, which can be cancelled."""
    run = channel.unary_stream(
        method,
        request_serializer=type(request).SerializeToString,
        response_deserializer=answer.FromString,
    )
    return run(request)
