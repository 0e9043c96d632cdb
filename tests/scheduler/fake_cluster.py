"""A cluster that only notes what is written, and answers when the test says so."""

from __future__ import annotations

from typing import TypeVar

from bayplan.api import ApiObject
from bayplan.cluster.protocol import Done, WatchEvent, WatchHandler, WatchType, Write
from bayplan.errors import ClusterError

W = TypeVar("W", bound=Write)


class FakeCluster:
    """Implements ``bayplan.cluster.protocol.Cluster``. Times are in seconds.

    ``writes`` are all writes in order. They stay unanswered until ``answer``.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.writes: list[Write] = []
        self._unanswered: list[tuple[Write, Done]] = []
        self._handlers: list[WatchHandler] = []

    def watch(self, handler: WatchHandler) -> None:
        self._handlers.append(handler)

    def submit(self, write: Write, done: Done | None = None) -> None:
        self.writes.append(write)
        if done is not None:
            self._unanswered.append((write, done))

    def show(self, *objects: ApiObject, type_: WatchType = WatchType.MODIFIED) -> None:
        """Deliver watch events about objects."""
        for obj in objects:
            for handler in self._handlers:
                handler(WatchEvent(type_, obj))

    def of(self, kind: type[W]) -> list[W]:
        """Return the writes of one kind, oldest first."""
        return [write for write in self.writes if isinstance(write, kind)]

    def unanswered(self, kind: type[W]) -> list[W]:
        """Return the writes of one kind that wait for their answer, oldest first."""
        return [write for write, _ in self._unanswered if isinstance(write, kind)]

    def answer(self, kind: type[Write], error: ClusterError | None = None) -> None:
        """Answer the oldest unanswered write of a kind."""
        index = next(i for i, (write, _) in enumerate(self._unanswered) if isinstance(write, kind))
        _, done = self._unanswered.pop(index)
        done(error)
