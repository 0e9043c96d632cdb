"""A limit of requests per second."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["RateLimiter"]


@dataclass
class RateLimiter:
    """A token bucket: ``per_second`` requests on average, ``burst`` at once.

    Times are seconds of any clock that does not go back.
    """

    per_second: float
    burst: int
    _tokens: float = field(init=False)
    _at: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self._tokens = float(self.burst)

    def delay(self, now: float) -> float:
        """Take a token; return the seconds to wait before using it."""
        self._refill(now)
        self._tokens -= 1
        return max(0.0, -self._tokens / self.per_second)

    def allows(self, now: float) -> bool:
        """Take a token if there is one."""
        self._refill(now)
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def wait(self, now: float) -> float:
        """Return the seconds until there is a token."""
        self._refill(now)
        return max(0.0, (1 - self._tokens) / self.per_second)

    def _refill(self, now: float) -> None:
        self._tokens = min(self.burst, self._tokens + (now - self._at) * self.per_second)
        self._at = now
