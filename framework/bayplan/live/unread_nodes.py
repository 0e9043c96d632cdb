"""What could not be read of nodes: reported once in the log, and as an event on each node."""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from bayplan.cluster.protocol import Event
from bayplan.snapshot import NodeProblem, Snapshot, problem_lines

__all__ = ["UnreadNodes"]

_EVERY = 1.0
"""Seconds between two looks, so that nodes that are alike are reported together."""
_WINDOW = 600.0
_MOST_TEXTS = 5
"""Texts that are reported of one part of a node in a window: some change with every heartbeat."""
_MOST_EVENTS = 100
"""Events of one look; the log names the nodes in any case."""

_log = logging.getLogger("bayplan.live")


class _Reported(msgspec.Struct):
    """What was reported last of a part of a node, when its window began, and how much in it."""

    text: str
    since: float
    count: int = 1


class UnreadNodes:
    """Tells each problem of a node once, as long as it lasts.

    :param submit: takes events.
    """

    def __init__(self, submit: Callable[[Event], None]) -> None:
        self._submit = submit
        self._seen: tuple[Snapshot, int] | None = None
        self._next = 0.0
        self._again: float | None = None
        self._reported: dict[NodeProblem, _Reported] = {}

    def look(self, snapshot: Snapshot, now: float) -> None:
        """Tell what is new. Cheap while nothing changes.

        :param now: the time in seconds.
        """
        if self._is_as_seen(snapshot) and (self._again is None or now < self._again):
            return
        if now < self._next:
            self._again = self._next
            return
        self._seen, self._again = (snapshot, snapshot.problems_version), None
        found = snapshot.problems
        for key in [key for key in self._reported if key not in found]:
            if now >= self._reported[key].since + _WINDOW:
                del self._reported[key]
        fresh = {key: text for key, text in found.items() if self._is_new(key, text, now)}
        if fresh:
            self._next = now + _EVERY
            self._tell(fresh, snapshot)

    @property
    def next_time(self) -> float | None:
        """When something is left to tell that had to wait; None for nothing."""
        return self._again

    def _is_as_seen(self, snapshot: Snapshot) -> bool:
        seen = self._seen
        return seen is not None and seen[0] is snapshot and seen[1] == snapshot.problems_version

    def _is_new(self, key: NodeProblem, text: str, now: float) -> bool:
        """Tell whether a problem is to be reported now, and take note of that."""
        reported = self._reported.get(key)
        if reported is None or (reported.text != text and now >= reported.since + _WINDOW):
            self._reported[key] = _Reported(text, now)
            return True
        if reported.text == text:
            return False
        if reported.count == _MOST_TEXTS:
            at = reported.since + _WINDOW
            self._again = at if self._again is None else min(self._again, at)
            return False
        reported.text, reported.count = text, reported.count + 1
        return True

    def _tell(self, fresh: dict[NodeProblem, str], snapshot: Snapshot) -> None:
        unread = {key: text for key, text in fresh.items() if key not in snapshot.assumed}
        for line in problem_lines(unread):
            _log.warning("%s", line)
        for line in problem_lines({key: fresh[key] for key in fresh.keys() - unread.keys()}):
            _log.info("%s", line)
        for (node, subject), text in sorted(unread.items())[:_MOST_EVENTS]:
            self._submit(Event(node, "Warning", "Unreadable", f"{subject}: {text}", about="Node"))
