"""Addresses to listen at, as users write them."""

from __future__ import annotations

__all__ = ["parse_address"]


def parse_address(text: str) -> tuple[str, int]:
    """Split ``HOST:PORT``; an IPv6 address is in brackets.

    :raises ValueError: for anything else.
    """
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f'expected HOST:PORT such as 127.0.0.1:10259, got "{text}"')
    return host, int(port)
