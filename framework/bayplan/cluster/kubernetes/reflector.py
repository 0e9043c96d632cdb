"""Reflectors follow all objects of one kind: a list, then a watch from its version, forever.

No change is missed: after a break the watch resumes from the last version, and when the server
has dropped that version, a new list is compared with the known objects.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from enum import Enum
from typing import Protocol

import msgspec
from msgspec.structs import replace

from bayplan.api import ApiObject, Kind, Node, ObjectMeta, Pod, ResourceSlice
from bayplan.api.object_key import object_key
from bayplan.api.objects import DecodeError
from bayplan.cluster.kubernetes.curl import Answer
from bayplan.cluster.kubernetes.outages import Outages
from bayplan.cluster.kubernetes.resources import (
    Part,
    WatchedResource,
    is_required,
    what_is_used,
)
from bayplan.cluster.kubernetes.transport import error_of
from bayplan.cluster.protocol import WatchEvent, WatchType
from bayplan.errors import (
    ClusterError,
    Forbidden,
    Gone,
    InputError,
    NotFound,
    Transient,
    Unauthorized,
)

__all__ = ["Reader", "Reflector", "ReflectorHealth", "age_key"]

_FIRST_PAGE = 1000
"""Objects of the first page of a list."""
_PAGE_BYTES = 16 * 2**20
"""About the size of each other page: a server takes 40 ms for a page besides its objects."""
_LARGEST_PAGE = 20_000
_BITE = 500
"""Objects that are read between two turns of others."""
_FIRST_WAIT = 0.2
_LONGEST_WAIT = 10.0
_LONGEST_ABSENT_WAIT = 30.0
"""Seconds until a kind that is not installed is looked up again."""
_FIRST_ABSENT_WAIT = 1.0
"""Seconds until then just after another kind of its API group was installed."""
_WATCH_SECONDS = (240, 480)
_WHOLE = Part()

_log = logging.getLogger("bayplan.cluster")


class ReflectorHealth(Enum):
    """The state of a reflector."""

    STARTING = "starting"
    FOLLOWING = "following"
    ABSENT = "not installed"
    REFUSED = "refused"
    BROKEN = "broken"


class Reader(Protocol):
    """What a reflector needs of a transport."""

    async def request(
        self, method: str, path: str, *, query: Mapping[str, str] | None = None
    ) -> bytes:
        """Return the body of a successful answer."""

    def lines(
        self, path: str, query: Mapping[str, str], begun: Callable[[], None]
    ) -> AsyncIterator[bytes]:
        """Yield the lines of a watch; call ``begun`` first."""


class _ListMeta(msgspec.Struct, rename="camel", frozen=True):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class _List(msgspec.Struct):
    metadata: _ListMeta = _ListMeta()
    items: tuple[msgspec.Raw, ...] | None = ()


class _Frame(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Named(msgspec.Struct):
    """The metadata of any object."""

    metadata: ObjectMeta = ObjectMeta()


_read_list = msgspec.json.Decoder(_List)
_read_frame = msgspec.json.Decoder(_Frame)
_read_named = msgspec.json.Decoder(_Named)


class Reflector:
    """Keeps all objects of one kind, by key.

    :param deliver: called with every change, in order.
    :param on_unreadable: called with (kind, key, problem) of an object that cannot be decoded.
    :param outages: logs outages of the server for all kinds together.
    :param part: which objects of the kind to follow.
    :param on_installed: called with the kind when it was absent and is there.
    """

    def __init__(
        self,
        reader: Reader,
        kind: Kind,
        deliver: Callable[[WatchEvent], None],
        on_unreadable: Callable[[Kind, str, str], None] | None,
        outages: Outages,
        part: Part = _WHOLE,
        on_installed: Callable[[Kind], None] | None = None,
    ) -> None:
        self.kind = kind
        self.objects: dict[str, ApiObject] = {}
        self.unreadable: dict[str, str] = {}
        self.health = ReflectorHealth.STARTING
        self.problem = ""
        self.settled = asyncio.Event()
        self.relists = 0
        self.version = ""
        self._reader = reader
        self._deliver = deliver
        self._on_unreadable = on_unreadable
        self._outages = outages
        self._on_installed = on_installed
        self._looked_up = asyncio.Event()
        """Is set to look an absent kind up at once."""
        self._absent_wait = _LONGEST_ABSENT_WAIT
        self._resource = WatchedResource(kind, kind.versions[0], part)
        self._wait = _FIRST_WAIT
        self._random = random.Random()  # noqa: S311 - spreads retries, guards nothing

    @property
    def resource(self) -> WatchedResource:
        """The kind in the version that the server serves."""
        return self._resource

    @property
    def is_partial(self) -> bool:
        """Whether only a part of the kind is followed; the scheduler works without it."""
        return self._resource.part != _WHOLE

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            try:
                if not self.version or self.kind.poll_seconds:
                    await self._list()
                if self.kind.poll_seconds:
                    await asyncio.sleep(self.kind.poll_seconds)
                else:
                    await self._watch()
            except NotFound as exc:
                # A proxy may answer 404 for a kind that every API server has.
                await (self._failed(exc) if is_required(self.kind) else self._absent(exc))
            except Gone:
                self.version = ""
            except (ClusterError, InputError) as exc:
                await self._failed(exc)
            except Exception:
                # A bug with one kind must not stop the reflectors of the others.
                _log.exception("%s: the reflector failed", self._resource.name)
                self.version = ""
                await self._failed(ClusterError("an error of the scheduler; see its log"))

    def look_up(self) -> None:
        """Look the kind up again at once, and soon again, if it is absent."""
        self._absent_wait = _FIRST_ABSENT_WAIT
        self._looked_up.set()

    def relist(self) -> None:
        """Make the next ``run`` relist, and ``settled`` wait for it."""
        self.version = ""
        self.settled.clear()

    # Listing ---------------------------------------------------------------------------------

    async def _list(self) -> None:
        self._looked_up.clear()
        found, version = await self._all_pages()
        self.relists += 1
        for key in [key for key in self.objects if key not in found]:
            self._gone(key)
        # Lists are sorted by name, and the oldest pods wait longest.
        for key, obj in sorted(self._news(found), key=lambda item: age_key(item[1])):
            self._take(key, obj)
        self.version = version
        self._wait = _FIRST_WAIT
        self._followed()

    async def _all_pages(self) -> tuple[dict[str, ApiObject], str]:
        versions = self.kind.versions
        for position, version in enumerate(versions):
            self._resource = replace(self._resource, version=version)
            try:
                return await self._pages(_FIRST_PAGE)
            except NotFound:
                if position == len(versions) - 1:
                    raise
            except Gone:
                # The server dropped the version before the last page.
                return await self._pages(None)
        raise AssertionError("every kind has a version")

    def _news(self, found: Mapping[str, ApiObject]) -> list[tuple[str, ApiObject]]:
        """Return what a list found that is not delivered yet."""
        known = self.objects
        return [(key, obj) for key, obj in found.items() if known.get(key) is not obj]

    async def _pages(self, size: int | None) -> tuple[dict[str, ApiObject], str]:
        self.unreadable.clear()
        found: dict[str, ApiObject] = {}
        first = not self.objects
        query = self._resource.query | ({} if size is None else {"limit": str(size)})
        asked = asyncio.create_task(self._page(query))
        try:
            while True:
                page, length = await asked
                items, more = page.items or (), page.metadata.continue_
                if more:
                    # The server makes the next page while this one is read.
                    query |= {"limit": str(_next_limit(len(items), length)), "continue": more}
                    asked = asyncio.create_task(self._page(query))
                for number, raw in enumerate(items):
                    if number % _BITE == 0:
                        await asyncio.sleep(0)
                    key, obj = self._read(raw)
                    if obj is not None:
                        found[key] = obj
                        if first and _needs_no_order(obj):
                            # While the server makes the next page, somebody can read this one.
                            self._take(key, obj)
                if not more:
                    return found, page.metadata.resource_version
        finally:
            asked.cancel()

    async def _page(self, query: Mapping[str, str]) -> tuple[_List, int]:
        """Return a page of the list, and its size in bytes."""
        content = await self._reader.request("GET", self._resource.watched, query=query)
        try:
            return _read_list.decode(content), len(content)
        except msgspec.DecodeError as exc:
            raise Transient(f"{self._resource.name}: the list is truncated: {exc}") from None

    # Watching --------------------------------------------------------------------------------

    async def _watch(self) -> None:
        query = {
            **self._resource.query,
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": self.version,
            "timeoutSeconds": str(self._random.randint(*_WATCH_SECONDS)),
        }
        began = asyncio.get_running_loop().time()
        seen = False
        async for line in self._reader.lines(self._resource.watched, query, self._followed):
            if not seen:
                seen, self._wait = True, _FIRST_WAIT
            try:
                frame = _read_frame.decode(line)
            except msgspec.DecodeError:
                raise Transient(f"watch {self._resource.name}: a line is truncated") from None
            self._frame(frame)
        if asyncio.get_running_loop().time() - began < 1.0 and not seen:
            raise Transient(f"watch {self._resource.name}: ended at once")
        self._wait = _FIRST_WAIT

    def _frame(self, frame: _Frame) -> None:
        content = bytes(frame.object)
        if frame.type == "ERROR":
            raise _watch_error(self._resource.name, content)
        if frame.type == "BOOKMARK":
            self.version = _read_named.decode(content).metadata.resource_version
            return
        key, obj = self._read(frame.object)
        if frame.type == "DELETED":
            self.unreadable.pop(key, None)
            self._gone(key, obj)
            meta = obj.metadata if obj is not None else _read_named.decode(content).metadata
            self.version = meta.resource_version
            return
        if obj is None:
            self.version = _read_named.decode(content).metadata.resource_version
            return
        self._take(key, obj)
        self.version = obj.metadata.resource_version

    # Objects ---------------------------------------------------------------------------------

    def _read(self, raw: msgspec.Raw) -> tuple[str, ApiObject | None]:
        try:
            obj = self._resource.read(raw)
        except DecodeError as exc:
            meta = _read_named.decode(bytes(raw)).metadata
            key = f"{meta.namespace}/{meta.name}" if self.kind.namespaced else meta.name
            if self.unreadable.get(key) != str(exc):
                self.unreadable[key] = str(exc)
                _log.warning("%s %s cannot be used: %s", self.kind.name, key, exc)
                if self._on_unreadable is not None:
                    self._on_unreadable(self.kind, key, str(exc))
            used = what_is_used(bytes(raw)) if self.kind.type is Pod else None
            if used is None:
                # The last known state is stale.
                self._gone(key)
            return key, used
        key = object_key(obj)
        if self.unreadable:
            self.unreadable.pop(key, None)
        return key, obj

    def _take(self, key: str, obj: ApiObject) -> None:
        old = self.objects.get(key)
        if old is not None:
            same = old.metadata.resource_version == obj.metadata.resource_version
            # What is computed for each answer has no version.
            if same and (obj.metadata.resource_version or old == obj):
                return
            if old.metadata.uid != obj.metadata.uid:
                self._gone(key)
                old = None
        self.objects[key] = obj
        self._deliver(WatchEvent(WatchType.ADDED if old is None else WatchType.MODIFIED, obj))

    def _gone(self, key: str, last: ApiObject | None = None) -> None:
        old = self.objects.pop(key, None)
        if old is not None:
            self._deliver(WatchEvent(WatchType.DELETED, last or old))

    # Trouble ---------------------------------------------------------------------------------

    def _followed(self) -> None:
        reported_with_others = self._outages.ended(self._resource.name)
        if self.health is not ReflectorHealth.FOLLOWING:
            before, self.health = self.health, ReflectorHealth.FOLLOWING
            if before is ReflectorHealth.ABSENT:
                _log.info("%s: installed now", self._resource.name)
                if self._on_installed is not None:
                    self._on_installed(self.kind)
            elif before is not ReflectorHealth.STARTING and not reported_with_others:
                _log.info("%s: followed again", self._resource.name)
        self.problem = ""
        self.settled.set()

    async def _absent(self, exc: NotFound) -> None:
        """Drop all objects of a kind that is not installed, and wait."""
        self.version = ""
        for key in list(self.objects):
            self._gone(key)
        self._outages.ended(self._resource.name)
        if self.health is not ReflectorHealth.ABSENT:
            _log.info("%s: not installed", self._resource.name)
        self.health, self.problem = ReflectorHealth.ABSENT, str(exc)
        self.settled.set()
        pause = self._absent_wait * (1 + self._random.random() / 4)
        self._absent_wait = min(self._absent_wait * 2, _LONGEST_ABSENT_WAIT)
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._looked_up.wait()

    async def _failed(self, exc: ClusterError | InputError) -> None:
        refused = isinstance(exc, Forbidden | Unauthorized | InputError)
        health = ReflectorHealth.REFUSED if refused else ReflectorHealth.BROKEN
        if isinstance(exc, Transient):
            self._outages.began(self._resource.name, str(exc), late=bool(self.kind.poll_seconds))
        else:
            self._outages.ended(self._resource.name)
            if self.health is not health or str(exc) != self.problem:
                level = logging.ERROR if refused else logging.WARNING
                # What only some clusters use need not be allowed everywhere.
                _log.log(logging.INFO if refused and self.is_partial else level, "%s", exc)
        self.health, self.problem = health, str(exc)
        # What is asked for now and then is known later; nobody waits for it.
        may_be_denied = self.is_partial and (refused or isinstance(exc.__cause__, Forbidden))
        if may_be_denied or self.kind.poll_seconds:
            self.settled.set()
        pause = self._wait * (1 + self._random.random())
        after = exc.retry_after if isinstance(exc, Transient) else None
        self._wait = min(self._wait * 2, _LONGEST_WAIT)
        await asyncio.sleep(max(pause, after or 0.0))


def _next_limit(count: int, length: int) -> int:
    """Return how many objects to ask for next, as so many took ``length`` bytes."""
    return max(1, min(_PAGE_BYTES * count // max(length, 1), _LARGEST_PAGE))


def _needs_no_order(obj: ApiObject) -> bool:
    """Tell whether nothing depends on which of a kind's objects is delivered first."""
    if isinstance(obj, Pod):
        return bool(obj.spec.node_name)
    return isinstance(obj, Node | ResourceSlice)


def age_key(obj: ApiObject) -> tuple[str, int, str]:
    """Return a sort key of objects, the oldest first."""
    version = obj.metadata.resource_version
    number = int(version) if version.isdecimal() else 0
    return obj.metadata.creation_timestamp or "", number, version


def _watch_error(name: str, content: bytes) -> ClusterError:
    """Return the error in an ERROR event of a watch."""
    try:
        code = msgspec.json.decode(content, type=_Code).code
    except msgspec.DecodeError:
        code = 500
    return error_of(f"watch {name}", Answer(code or 500, content))


class _Code(msgspec.Struct):
    code: int = 500
