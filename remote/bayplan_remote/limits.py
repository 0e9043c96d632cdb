"""What one client may take of a server."""

from __future__ import annotations

import msgspec

__all__ = ["Limits"]

_MIB = 1 << 20


class Limits(msgspec.Struct, frozen=True):
    """Limits of a server: ``sessions`` at once; all others are of one session or call.

    ``bytes`` are those of all buffers and tensors, ``chunk`` the data of one message. ``launches``
    may wait to be run, ``calls`` may be answered at once. A call may last ``seconds`` at most.
    """

    sessions: int = 16
    bytes: int = 1024 * _MIB
    chunk: int = _MIB
    handles: int = 4096
    launches: int = 1024
    calls: int = 8
    dimensions: int = 8
    layers: int = 256
    seconds: float = 600.0
