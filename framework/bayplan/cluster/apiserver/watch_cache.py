"""The watch cache: the latest changes of each resource, from which watches resume."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from bayplan.api import ApiObject
from bayplan.cluster.api_errors import expired, too_large_version

__all__ = ["Change", "ChangeLog", "StoredObject"]

Convert = Callable[[dict[str, Any]], dict[str, Any]]


class StoredObject:
    """One immutable state of an object: typed, as JSON, and encoded."""

    __slots__ = ("_encoded", "_others", "content", "cost", "key", "obj", "version")

    def __init__(self, key: str, obj: ApiObject, content: dict[str, Any], version: int) -> None:
        self.key = key
        self.obj = obj
        self.content = content
        self.version = version
        self._encoded = msgspec.json.encode(content)
        self._others: dict[str, bytes] | None = None
        self.cost = _cost(self._encoded)
        """About how many bytes of memory it takes."""

    def encoded(self, version: str = "", convert: Convert | None = None) -> bytes:
        """Return the object's encoded JSON, cached."""
        if convert is None:
            return self._encoded
        if self._others is None:
            self._others = {}
        found = self._others.get(version)
        if found is None:
            found = self._others[version] = msgspec.json.encode(convert(self.content))
        return found


def _cost(text: bytes) -> int:
    """Estimate the memory of an object from its JSON: the text and Python's values of it."""
    values = text.count(b",") + text.count(b"[")
    return 2 * len(text) + 64 * values + 192 * text.count(b"{")


class Change(msgspec.Struct, frozen=True):
    """One watch event; ``before`` is the previous state."""

    type: str
    record: StoredObject
    before: StoredObject | None


class ChangeLog(msgspec.Struct):
    """The latest changes of one resource, up to a limit.

    :param compacted: the last dropped version; a client that is older must relist.
    :param cost: about how many bytes of memory the changes take.
    """

    limit: int
    compacted: int = 0
    cost: int = 0
    _changes: list[Change] = msgspec.field(default_factory=list)
    _forgotten: int = 0
    _listeners: set[asyncio.Event] = msgspec.field(default_factory=set)

    @property
    def end(self) -> int:
        """The position after the last change."""
        return self._forgotten + len(self._changes)

    @property
    def last_version(self) -> int:
        """The resource version of the last change, 0 when none is kept."""
        return self._changes[-1].record.version if self._changes else 0

    def append(self, change: Change) -> None:
        """Add a change and wake all listeners."""
        self._changes.append(change)
        self.cost += change.record.cost
        if len(self._changes) > self.limit + self.limit // 4:
            self._forget(len(self._changes) - self.limit)
        self.wake()

    def compact(self) -> None:
        """Drop all changes, as etcd's compaction does."""
        self._forget(len(self._changes))

    def halve(self) -> None:
        """Drop the older half of the changes."""
        self._forget((len(self._changes) + 1) // 2)

    def _forget(self, count: int) -> None:
        if count:
            self.cost -= sum(change.record.cost for change in self._changes[:count])
            self.compacted = self._changes[count - 1].record.version
            del self._changes[:count]
            self._forgotten += count

    def position_after(self, version: int) -> int:
        """Return the position of the first change after a version.

        :raises ApiError: 410, when changes after it were dropped.
        """
        if version < self.compacted:
            raise expired(f"too old resource version: {version} ({self.compacted})")
        low, high = 0, len(self._changes)
        while low < high:
            middle = (low + high) // 2
            if self._changes[middle].record.version <= version:
                low = middle + 1
            else:
                high = middle
        return self._forgotten + low

    def since(self, position: int, most: int) -> list[Change]:
        """Return the changes from a position on.

        :raises ApiError: 410, when some of them were dropped.
        """
        start = position - self._forgotten
        if start < 0:
            raise expired(f"too old resource version: {self.compacted}")
        return self._changes[start : start + most]

    def back(self, version: int, current: int) -> Iterator[Change]:
        """Yield the changes after a version, newest first.

        :raises ApiError: 410 for a version that is too old, 504 for one in the future.
        """
        if version > current:
            raise too_large_version(version, current)
        start = self.position_after(version) - self._forgotten
        return reversed(self._changes[start:])

    def listen(self) -> asyncio.Event:
        """Return an asyncio event that is set at every change."""
        event = asyncio.Event()
        self._listeners.add(event)
        return event

    def leave(self, event: asyncio.Event) -> None:
        """Remove a listener."""
        self._listeners.discard(event)

    def wake(self) -> None:
        """Set the events of all listeners."""
        for event in self._listeners:
            event.set()
