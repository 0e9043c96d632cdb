"""Times as RFC 3339 text, and as seconds since 1970."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from functools import lru_cache

__all__ = ["rfc3339", "seconds_of"]


@lru_cache(maxsize=65536)
def seconds_of(text: str | None) -> float:
    """Return RFC 3339 text as seconds since 1970; absent or unreadable text is 0."""
    try:
        moment = datetime.fromisoformat(text or "")
    except ValueError:
        return 0.0
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()


def rfc3339(seconds: float) -> str:
    """Return seconds since 1970 as Kubernetes writes a time, without fractions of a second."""
    return _text_of(math.floor(seconds))


@lru_cache(maxsize=64)
def _text_of(second: int) -> str:
    # Most that is written tells the same few moments.
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
