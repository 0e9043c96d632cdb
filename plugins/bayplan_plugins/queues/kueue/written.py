"""Writes that are not repeated while their reason stays the same."""

from __future__ import annotations

from collections.abc import Callable

from bayplan import Handle
from bayplan.cluster.protocol import Done, Write
from bayplan.errors import ClusterError

__all__ = ["Written"]


class Written:
    """What was written of each workload, and for what reason.

    :param again: called with the key of a workload one of whose writes was refused.
    """

    def __init__(self, handle: Handle, again: Callable[[str], None]) -> None:
        self._handle = handle
        self._again = again
        self._reasons: dict[str, dict[str, object]] = {}

    def once(self, key: str, what: str, reason: object, write: Write) -> None:
        """Submit a write, unless the last one of its name had an equal reason.

        :param key: the key of the workload that it is about.
        :param what: names the writes of which each replaces the one before.
        """
        reasons = self._reasons.setdefault(key, {})
        if reasons.get(what) != reason:
            reasons[what] = reason
            self._handle.submit(write, self._answered(key, what, reason))

    def _answered(self, key: str, what: str, reason: object) -> Done:
        def answered(error: ClusterError | None) -> None:
            reasons = self._reasons.get(key, {})
            if error is not None and reasons.get(what) is reason:
                del reasons[what]
                self._again(key)

        return answered

    def forget(self, key: str) -> None:
        """Forget a workload that is gone."""
        self._reasons.pop(key, None)
