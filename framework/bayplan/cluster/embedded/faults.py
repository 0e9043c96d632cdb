"""Faults of the embedded store: writes that a test wants to fail."""

from __future__ import annotations

from collections import deque

import msgspec

from bayplan.cluster.protocol import Write
from bayplan.errors import ClusterError

__all__ = ["WriteFaults"]


class WriteFaults(msgspec.Struct):
    """The errors with which the next writes fail.

    ``refuse`` maps a write type to the errors of its next submissions, in order.
    """

    refuse: dict[type, deque[ClusterError]] = msgspec.field(default_factory=dict)

    def fail_next(self, write: type, *errors: ClusterError) -> None:
        """Fail the next writes of a type with these errors, one each."""
        self.refuse.setdefault(write, deque()).extend(errors)

    def take(self, write: Write) -> ClusterError | None:
        """Return the error that a write fails with, None when it succeeds."""
        waiting = self.refuse.get(type(write))
        return waiting.popleft() if waiting else None
