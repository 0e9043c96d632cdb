"""The objects of a Kubernetes cluster, kept current by one reflector for each kind."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from bayplan.api import ApiObject, Kind
from bayplan.api.object_key import object_key
from bayplan.cluster.kubernetes.outages import Outages
from bayplan.cluster.kubernetes.reflector import Reader, Reflector, ReflectorHealth, age_key
from bayplan.cluster.kubernetes.resources import (
    Part,
    WatchedResource,
    comes_last,
    is_required,
    watched,
)
from bayplan.cluster.protocol import WatchEvent, WatchHandler, WatchType

__all__ = ["ObjectCache"]

Obj = TypeVar("Obj", bound=ApiObject)

_NONE: Mapping[Kind, Sequence[Part]] = {}
_WHOLE = (Part(),)

_log = logging.getLogger("bayplan.cluster")


class ObjectCache:
    """Everything that is watched, as it was last seen, and the watch events not yet handed out.

    Watch events wait until ``deliver`` is called, so that nothing changes in the middle of a
    scheduling cycle.

    :param kinds: the kinds to watch; None for those that the scheduler watches.
    :param on_unreadable: called with (kind, key, problem) of an object that cannot be decoded.
    :param parts: more kinds to watch, of which only some objects matter; no object is in two parts.
    :param changed: is set with each watch event; several caches may share it.
    """

    def __init__(
        self,
        reader: Reader,
        kinds: Iterable[Kind] | None = None,
        on_unreadable: Callable[[Kind, str, str], None] | None = None,
        parts: Mapping[Kind, Sequence[Part]] = _NONE,
        changed: asyncio.Event | None = None,
    ) -> None:
        self._handler: WatchHandler | None = None
        self._events: deque[WatchEvent] = deque()
        self._held: deque[WatchEvent] | None = deque()
        """Events of kinds that come last, until the others are listed for the first time."""
        self._tasks: list[asyncio.Task[None]] = []
        self.changed = changed or asyncio.Event()
        followed = watched() if kinds is None else kinds
        self._outages = Outages()
        self._reader = reader
        self.on_unreadable = on_unreadable
        self.reflectors: tuple[Reflector, ...] = ()
        self._last: tuple[type, ...] = ()
        self._by_type: dict[type, list[Reflector]] = {}
        self.follow({**parts, **dict.fromkeys(followed, _WHOLE)})

    # Following --------------------------------------------------------------------------------

    def follow(self, parts: Mapping[Kind, Sequence[Part]], reader: Reader | None = None) -> None:
        """Follow parts of more kinds, from now on if others are followed already.

        :param reader: reads them; None for what reads the others.
        """
        made = [
            Reflector(
                reader or self._reader,
                kind,
                self._received,
                self._unusable,
                self._outages,
                part,
                self._installed,
            )
            for kind, found in parts.items()
            for part in found
        ]
        self.reflectors += tuple(made)
        self._last = tuple({r.kind.type for r in self.reflectors if comes_last(r.kind)})
        for reflector in made:
            self._by_type.setdefault(reflector.kind.type, []).append(reflector)
        if self._tasks:
            self._run(made)

    async def start(self) -> None:
        """Start all reflectors, unless they run already."""
        if not self._tasks:
            self._run(self.reflectors)

    def _run(self, reflectors: Iterable[Reflector]) -> None:
        for reflector in reflectors:
            task = asyncio.create_task(reflector.run(), name=f"follow {reflector.kind.plural}")
            self._tasks.append(task)

    def _unusable(self, kind: Kind, key: str, problem: str) -> None:
        if self.on_unreadable is not None:
            self.on_unreadable(kind, key, problem)

    async def stop(self) -> None:
        """Stop all reflectors."""
        self._outages.forget()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    async def restart(self) -> None:
        """Relist every kind and wait until all lists are in."""
        await self.stop()
        for reflector in self.reflectors:
            reflector.relist()
        await self.start()
        while not all(self._is_known(reflector) for reflector in self.reflectors):
            await asyncio.sleep(0.02)

    @staticmethod
    def _is_known(reflector: Reflector) -> bool:
        """Return whether a kind is listed, or is optional and forbidden."""
        refused = reflector.health is ReflectorHealth.REFUSED and not is_required(reflector.kind)
        return reflector.settled.is_set() or refused

    async def settle(self) -> None:
        """Wait until every kind is listed or known to be absent."""
        for reflector in self.reflectors:
            await reflector.settled.wait()

    def problems(self, required: bool | None = None) -> list[str]:
        """Return the problems of kinds that are not followed now.

        :param required: only of kinds that scheduling needs, or only of others; None for all.
        """
        return [
            reflector.problem or f"{reflector.resource.name}: not listed yet"
            for reflector in self.reflectors
            if reflector.health not in (ReflectorHealth.FOLLOWING, ReflectorHealth.ABSENT)
            and (required is None or is_required(reflector.kind) is required)
        ]

    @property
    def refused(self) -> list[str]:
        """The problems of kinds that the credentials may not read, but should."""
        return [
            reflector.problem
            for reflector in self.reflectors
            if reflector.health is ReflectorHealth.REFUSED and not reflector.is_partial
        ]

    @property
    def settled_or_refused(self) -> bool:
        """Whether every kind is listed, absent, or forbidden."""
        return all(
            r.settled.is_set() or r.health is ReflectorHealth.REFUSED for r in self.reflectors
        )

    @property
    def unreadable(self) -> dict[tuple[str, str], str]:
        """Why objects cannot be decoded, by kind and key."""
        return {
            (reflector.kind.name, key): problem
            for reflector in self.reflectors
            for key, problem in reflector.unreadable.items()
        }

    def watch(self, handler: WatchHandler) -> None:
        """Deliver all objects as ADDED at the next ``deliver``, then every change.

        There is one handler: a new one replaces it and gets all objects.
        """
        self._handler = handler
        self._events.clear()
        if self._held is not None:
            self._held.clear()
        for reflector in self.reflectors:
            for obj in sorted(reflector.objects.values(), key=age_key):
                self._events.append(WatchEvent(WatchType.ADDED, obj))
        self.changed.set()

    def deliver(self, most: int = 1000) -> bool:
        """Deliver up to ``most`` events; return whether there were any."""
        if self._held is not None:
            self._release()
        handler, events = self._handler, self._events
        if handler is None or not events:
            return False
        for _ in range(min(most, len(events))):
            event = events.popleft()
            try:
                handler(event)
            except Exception:
                # One bad object must not stop the others, nor come back first after every
                # restart.
                assert event.obj is not None, "reflectors deliver objects"
                name = f"{type(event.obj).__name__} {object_key(event.obj)}"
                _log.exception("%s: its handler failed", name)
        return True

    def _release(self) -> None:
        """Hand out what comes last, once everything else is listed."""
        assert self._held is not None, "checked by the caller"
        if all(r.settled.is_set() for r in self.reflectors if not comes_last(r.kind)):
            self._events += self._held
            self._held = None

    @property
    def undelivered(self) -> int:
        """The number of events waiting for ``deliver``."""
        return len(self._events) + len(self._held or ())

    def get(self, type_: type[Obj], key: str) -> Obj | None:
        """Return an object as it was last seen."""
        for reflector in self._by_type.get(type_, ()):
            found = reflector.objects.get(key)
            if isinstance(found, type_):
                return found
        return None

    def all(self, type_: type[Obj]) -> list[Obj]:
        """Return all objects of a type as they were last seen."""
        found = (one for r in self._by_type.get(type_, ()) for one in r.objects.values())
        return [one for one in found if isinstance(one, type_)]

    def objects(self) -> Mapping[Kind, Mapping[str, ApiObject]]:
        """Return all objects as they were last seen, by kind and key."""
        return {
            group[0].kind: group[0].objects
            if len(group) == 1
            else {key: one for r in group for key, one in r.objects.items()}
            for group in self._by_type.values()
        }

    def resource_of(self, type_: type[ApiObject]) -> WatchedResource | None:
        """Return where objects of a type are in the API, None for a type that is not watched."""
        found = self._by_type.get(type_)
        return found[0].resource if found else None

    def follows(self, type_: type[ApiObject]) -> bool:
        """Tell whether objects of a type are followed now: what is not seen is not there.

        While an API server starts, kinds that are installed may seem to be absent.
        """
        found = self._by_type.get(type_, ())
        return bool(found) and all(one.health is ReflectorHealth.FOLLOWING for one in found)

    def is_absent(self, type_: type[ApiObject]) -> bool:
        """Tell whether the kind of a type was not installed when it was last looked up."""
        found = self._by_type.get(type_, ())
        return any(one.health is ReflectorHealth.ABSENT for one in found)

    def _installed(self, kind: Kind) -> None:
        """Look up at once the other kinds of a group that has a new one: they come together."""
        for reflector in self.reflectors:
            if reflector.kind.group == kind.group:
                reflector.look_up()

    def _received(self, event: WatchEvent) -> None:
        assert event.obj is not None, "reflectors deliver objects"
        if self._handler is not None:
            held = self._held if isinstance(event.obj, self._last) else None
            (self._events if held is None else held).append(event)
        self.changed.set()
