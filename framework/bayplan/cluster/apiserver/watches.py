"""watch: a resource's changes as they happen, one JSON object per line."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec
from aiohttp import web

from bayplan.cluster.api_errors import ApiError, expired
from bayplan.cluster.apiserver.faults import ServerFaults, WatchFault
from bayplan.cluster.apiserver.reads import convert_for, selection
from bayplan.cluster.apiserver.request_info import RequestInfo
from bayplan.cluster.apiserver.store import ServedCluster
from bayplan.cluster.apiserver.transfer import PIECE, pieces
from bayplan.cluster.apiserver.watch_cache import Change, StoredObject

__all__ = ["Watch", "WatchSettings"]

_BATCH = 512
_INITIAL_END = {"k8s.io/initial-events-end": "true"}

Encode = Callable[[StoredObject], bytes]


class WatchSettings(msgspec.Struct):
    """Settings of watches, in seconds.

    :param bookmark_every: between bookmarks.
    :param timeout: until a watch ends.
    :param stalled: until a client has to take what was sent; the objects that a watch starts with
        are taken in this time, too.
    """

    bookmark_every: float = 60.0
    timeout: float = 1800.0
    stalled: float = 30.0


class Watch(msgspec.Struct, eq=False, dict=True):
    """One watch of one client.

    :param encode: encodes an object, when it is not sent as itself.
    :param ended: set when the server stops.
    """

    cluster: ServedCluster
    info: RequestInfo
    faults: ServerFaults
    settings: WatchSettings
    encode: Encode | None = None
    ending: asyncio.Event = msgspec.field(default_factory=asyncio.Event)
    broken: bool = False
    """Whether the connection should break instead of closing."""
    _position: int = 0
    _sent: int = 0

    def __post_init__(self) -> None:
        self._matches = selection(self.info)
        self._log = self.cluster.log(self.info.resource)
        convert, version = convert_for(self.info), self.info.api_version
        self._encode = self.encode or (lambda record: record.encoded(version, convert))
        self._first = self._start()

    def _start(self) -> Iterable[bytes]:
        """Find the start position; return the lines to send before the first change."""
        text = self.info.params.get("resourceVersion", "")
        initial = self.info.truth("sendInitialEvents")
        if text in ("", "0") or initial:
            self._position = self._log.end
            records = self.cluster.records(self.info.resource)
            present = [records[key] for key in sorted(records)]
            end = [self._bookmark(_INITIAL_END)] if self._wants_end(initial) else []
            return itertools.chain(self._added(present), end)
        if not text.isdecimal():
            why = f'strconv.ParseUint: parsing "{text}": invalid syntax'
            raise ApiError(500, "", f'resourceVersion: Invalid value: "{text}": {why}')
        if int(text) > self.cluster.version:
            # A version of an earlier cluster.
            raise expired(f"too old resource version: {text} ({self.cluster.version})")
        self._position = self._log.position_after(int(text))
        return ()

    def _wants_end(self, initial: bool) -> bool:
        return initial and self.info.truth("allowWatchBookmarks")

    def _added(self, records: list[StoredObject]) -> Iterator[bytes]:
        for record in records:
            if self._matches is None or self._matches(record.content):
                yield self._line("ADDED", record)

    async def run(self, response: web.StreamResponse) -> None:
        """Send changes until the client, the server or the time allowed ends it.

        :raises TimeoutError: when the client does not take what was sent.
        """
        changed = self._log.listen()
        loop = asyncio.get_running_loop()
        seconds = self.info.number("timeoutSeconds") or self.settings.timeout
        end = loop.time() + seconds
        try:
            async with asyncio.timeout(self.settings.stalled):
                for piece in pieces(self._first):
                    await response.write(piece)
            self._first = ()
            while self._goes_on() and loop.time() < end:
                changed.clear()
                if await self._send_changes(response):
                    return
                if self._position < self._log.end:
                    continue
                wait = min(self.settings.bookmark_every, end - loop.time())
                with contextlib.suppress(asyncio.TimeoutError):
                    # Not wait_for, which loses a cancellation that arrives together with a change.
                    async with asyncio.timeout(max(wait, 0)):
                        await changed.wait()
                    continue
                if self.info.truth("allowWatchBookmarks") and self._position == self._log.end:
                    await self._write(response, self._bookmark())
        finally:
            self._log.leave(changed)

    def _goes_on(self) -> bool:
        served = self.cluster.resources.knows(self.info.resource.type)
        return not self.ending.is_set() and (served or self._position < self._log.end)

    async def _send_changes(self, response: web.StreamResponse) -> bool:
        """Send a piece of what there is to send; return whether that was the end."""
        try:
            lines = self._next_lines()
        except ApiError as exc:
            await self._write(response, _line(b"ERROR", msgspec.json.encode(exc.status())))
            return True
        every = self.faults.drop_watches_every
        if every is not None and self._sent + len(lines) >= every:
            await self._write(response, b"".join(lines[: every - self._sent]))
            self.broken = True
            return True
        self._sent += len(lines)
        if lines:
            await self._write(response, b"".join(lines))
        return await self._fail(response)

    def _next_lines(self) -> list[bytes]:
        """Return about a piece of the next changes' lines.

        :raises ApiError: 410, when changes were dropped before they could be sent.
        """
        lines: list[bytes] = []
        size = 0
        for change in self._log.since(self._position, _BATCH):
            self._position += 1
            made = self._lines(change)
            lines += made
            size += sum(map(len, made))
            if size >= PIECE:
                break
        return lines

    async def _write(self, response: web.StreamResponse, data: bytes) -> None:
        async with asyncio.timeout(self.settings.stalled):
            await response.write(data)

    async def _fail(self, response: web.StreamResponse) -> bool:
        """End the watch if a fault says so; return whether it ended."""
        if not self.faults.watches_to_end:
            return False
        self.faults.watches_to_end -= 1
        fault = self.faults.watch_fault
        self.broken = fault is not WatchFault.EXPIRE
        if fault is WatchFault.TRUNCATE:
            await self._write(response, b'{"type":"MODIFIED","object":{"kind":"')
        elif fault is WatchFault.GARBAGE:
            await self._write(response, b"\x00garbage\n")
        elif fault is WatchFault.EXPIRE:
            error = expired("The resourceVersion for the provided watch is too old.")
            await self._write(response, _line(b"ERROR", msgspec.json.encode(error.status())))
        return True

    def _lines(self, change: Change) -> Sequence[bytes]:
        """Return the event of a change as the client's selector sees it, None when it does not."""
        matches = self._matches
        if matches is None:
            return (self._line(change.type, change.record),)
        before = change.before
        was = before is not None and matches(before.content)
        now = change.type != "DELETED" and matches(change.record.content)
        if now:
            return (self._line("MODIFIED" if was else "ADDED", change.record),)
        if not was:
            return ()
        if change.type == "DELETED":
            return (self._line("DELETED", change.record),)
        assert before is not None
        return (self._line("DELETED", _as_of(before, change.record)),)

    def _line(self, type_: str, record: StoredObject) -> bytes:
        return _line(type_.encode(), self._encode(record))

    def _bookmark(self, annotations: dict[str, str] | None = None) -> bytes:
        meta: dict[str, Any] = {"resourceVersion": str(self.cluster.version)}
        if annotations:
            meta["annotations"] = annotations
        resource = self.info.resource
        content = {"kind": resource.kind, "apiVersion": self.info.api_version, "metadata": meta}
        return _line(b"BOOKMARK", msgspec.json.encode(content))


def _as_of(before: StoredObject, after: StoredObject) -> StoredObject:
    """Return the previous state of an object, with the version at which it left the selection."""
    meta = {**before.content["metadata"], "resourceVersion": str(after.version)}
    return StoredObject(before.key, before.obj, {**before.content, "metadata": meta}, after.version)


def _line(type_: bytes, content: bytes) -> bytes:
    return b"".join((b'{"type":"', type_, b'","object":', content, b"}\n"))
