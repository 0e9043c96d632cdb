"""Writes that are not repeated while their reason stays the same."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from bayplan import Handle
from bayplan.cluster.protocol import Done, Write
from bayplan.errors import ClusterError, Conflict, NotFound, Terminating

__all__ = ["Written"]

_log = logging.getLogger("bayplan.queues.kueue")
_PAUSE = 60.0
"""Seconds after which a write that may not be made is tried again, if there is a reason."""


class Written:
    """What was written of each workload, and for what reason.

    :param again: called with the key of a workload one of whose writes was refused.
    """

    def __init__(self, handle: Handle, again: Callable[[str], None]) -> None:
        self._handle = handle
        self._again = again
        self._reasons: dict[str, dict[str, object]] = {}
        self._refused: dict[tuple[str, str], float] = {}
        """When writes were refused that nobody may make, or that say what is not allowed."""

    def once(self, key: str, what: str, reason: object, write: Write) -> bool:
        """Submit a write, unless the last one of its name had an equal reason; tell if it did.

        :param key: the key of the workload that it is about.
        :param what: names the writes of which each replaces the one before.
        """
        reasons = self._reasons.setdefault(key, {})
        at = self._refused.get((key, what))
        again = at is not None and self._handle.now >= at + _PAUSE
        if reasons.get(what) == reason and not again:
            return False
        reasons[what] = reason
        self._refused.pop((key, what), None)
        self._handle.submit(write, self._answered(key, what, reason))
        return True

    def _answered(self, key: str, what: str, reason: object) -> Done:
        def answered(error: ClusterError | None) -> None:
            reasons = self._reasons.get(key, {})
            if error is None or reasons.get(what) is not reason:
                return
            going = isinstance(error, Terminating)
            if isinstance(error, Conflict | NotFound) and not going:
                del reasons[what]
            else:
                # All that is in a namespace that is being deleted goes soon.
                level = logging.INFO if going else logging.WARNING
                _log.log(level, "%s of the Workload %s: %s", what, key, error)
                self._refused[key, what] = self._handle.now
            self._again(key)

        return answered

    def is_refused(self, key: str, names: Iterable[str]) -> bool:
        """Tell whether one of these writes of a workload was refused."""
        return any((key, what) in self._refused for what in names)

    def forget(self, key: str) -> None:
        """Forget a workload that is gone."""
        for what in self._reasons.pop(key, ()):
            self._refused.pop((key, what), None)
