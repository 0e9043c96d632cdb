"""The cluster that is a Kubernetes API server: what it tells us, and where our writes go."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from bayplan.api import ApiObject, Kind
from bayplan.api.object_key import object_key
from bayplan.cluster.kubernetes.outages import Outages
from bayplan.cluster.kubernetes.reflector import Health, Reflector
from bayplan.cluster.kubernetes.resources import WATCHED, Resource, is_required
from bayplan.cluster.kubernetes.transport import Transport
from bayplan.cluster.kubernetes.writer import Writer
from bayplan.cluster.protocol import Done, WatchEvent, WatchHandler, WatchType, Write

__all__ = ["KubernetesCluster"]

Obj = TypeVar("Obj", bound=ApiObject)

_log = logging.getLogger("bayplan.cluster")


class KubernetesCluster:
    """A backend, as ``protocol.Cluster`` asks for it, in one asyncio loop.

    Watch events wait until ``deliver`` is called, so that nothing changes in the middle of a
    scheduling cycle.

    :param writer: carries out writes; None for a dry run, which takes every write for done.
    :param kinds: what to follow.
    :param clock: tells the seconds of a clock that never jumps; None for the loop's.
    """

    def __init__(
        self,
        transport: Transport,
        writer: Writer | None,
        kinds: Iterable[Kind] = WATCHED,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._writer = writer
        self._handler: WatchHandler | None = None
        self._waiting: deque[WatchEvent] = deque()
        self._tasks: list[asyncio.Task[None]] = []
        self._clock = clock or _since_now()
        self.changed = asyncio.Event()
        self.on_unreadable: Callable[[Kind, str, str], None] = lambda kind, key, problem: None
        self._outages = Outages()
        self.reflectors = tuple(
            Reflector(transport, kind, self._received, self._not_read, self._outages)
            for kind in kinds
        )
        self._by_type: dict[type, Reflector] = {r.kind.type: r for r in self.reflectors}
        if writer is not None:
            writer.lookup = self.get
            writer.resource_of = self.resource_of

    @property
    def now(self) -> float:
        """Seconds of a clock that never jumps."""
        return self._clock()

    # Reading ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to follow everything."""
        for reflector in self.reflectors:
            task = asyncio.create_task(reflector.run(), name=f"follow {reflector.kind.plural}")
            self._tasks.append(task)

    async def stop(self) -> None:
        """Stop following."""
        self._outages.forget()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    async def restart(self) -> None:
        """List everything anew, and wait for it: what is known then is what is."""
        await self.stop()
        for reflector in self.reflectors:
            reflector.begin_anew()
        await self.start()
        while not all(self._is_known(reflector) for reflector in self.reflectors):
            await asyncio.sleep(0.02)

    @staticmethod
    def _is_known(reflector: Reflector) -> bool:
        """Whether a kind was listed, or is one that can be done without and may not be read."""
        refused = reflector.health is Health.REFUSED and not is_required(reflector.kind)
        return reflector.settled.is_set() or refused

    async def settle(self) -> None:
        """Wait until every kind was listed, or is known not to be there."""
        for reflector in self.reflectors:
            await reflector.settled.wait()

    def problems(self, required: bool | None = None) -> list[str]:
        """Return what cannot be followed now; ``required`` selects kinds by whether they are."""
        return [
            reflector.problem or f"{reflector.resource.name}: not listed yet"
            for reflector in self.reflectors
            if reflector.health not in (Health.FOLLOWING, Health.ABSENT)
            and (required is None or is_required(reflector.kind) is required)
        ]

    @property
    def refused(self) -> list[str]:
        """What the credentials do not allow to follow."""
        return [
            reflector.problem for reflector in self.reflectors if reflector.health is Health.REFUSED
        ]

    @property
    def settled_or_refused(self) -> bool:
        """Whether every kind was listed, is not there, or may not be read."""
        return all(r.settled.is_set() or r.health is Health.REFUSED for r in self.reflectors)

    @property
    def unreadable(self) -> dict[tuple[str, str], str]:
        """The objects that cannot be read, by kind and key, and why."""
        return {
            (reflector.kind.name, key): problem
            for reflector in self.reflectors
            for key, problem in reflector.unreadable.items()
        }

    def watch(self, handler: WatchHandler) -> None:
        """Deliver all objects as ADDED at the next ``deliver``, then every change.

        There is one handler; another one takes its place, and gets everything anew.
        """
        self._handler = handler
        self._waiting.clear()
        for reflector in self.reflectors:
            for obj in sorted(reflector.objects.values(), key=_age):
                self._waiting.append(WatchEvent(WatchType.ADDED, obj))
        self.changed.set()

    def deliver(self, most: int = 1000) -> bool:
        """Hand out at most so many events; return whether there were any."""
        handler, waiting = self._handler, self._waiting
        if handler is None or not waiting:
            return False
        for _ in range(min(most, len(waiting))):
            event = waiting.popleft()
            try:
                handler(event)
            except Exception:
                # One object that nobody thought of must not end what all others need, nor come
                # back as the first thing after every restart.
                assert event.obj is not None, "reflectors send objects"
                name = f"{type(event.obj).__name__} {object_key(event.obj)}"
                _log.exception("%s could not be taken in", name)
        return True

    @property
    def undelivered(self) -> int:
        """How many events wait for ``deliver``."""
        return len(self._waiting)

    def get(self, type_: type[Obj], key: str) -> Obj | None:
        """Return an object as it was last seen."""
        reflector = self._by_type.get(type_)
        found = reflector.objects.get(key) if reflector is not None else None
        return found if isinstance(found, type_) else None

    def objects(self) -> Mapping[Kind, Mapping[str, ApiObject]]:
        """Return everything as it was last seen."""
        return {r.kind: r.objects for r in self.reflectors}

    def resource_of(self, type_: type[ApiObject]) -> Resource | None:
        """Return where objects of a type are in the API, None for a type that is not followed."""
        reflector = self._by_type.get(type_)
        return reflector.resource if reflector is not None else None

    def _received(self, event: WatchEvent) -> None:
        assert event.obj is not None, "reflectors send objects"
        if self._handler is not None:
            self._waiting.append(event)
            self.changed.set()

    def _not_read(self, kind: Kind, key: str, problem: str) -> None:
        self.on_unreadable(kind, key, problem)

    # Writing ---------------------------------------------------------------------------------

    @property
    def writes(self) -> bool:
        """Whether writes are carried out, which they are not in a dry run."""
        return self._writer is not None

    @property
    def writing(self) -> int:
        """How many writes are not answered yet, events not counted."""
        return self._writer.waiting if self._writer is not None else 0

    def submit(self, write: Write, done: Done | None = None) -> None:
        """Carry out a write in the background, and call ``done`` from the loop."""
        if self._writer is not None:
            self._writer.submit(write, done)
        elif done is not None:
            asyncio.get_running_loop().call_soon(done, None)


def _since_now() -> Callable[[], float]:
    time = asyncio.get_running_loop().time
    start = time()
    return lambda: time() - start


def _age(obj: ApiObject) -> tuple[str, int, str]:
    """Order objects as they came: a list has them by name, and the oldest pods wait longest."""
    version = obj.metadata.resource_version
    number = int(version) if version.isdecimal() else 0
    return obj.metadata.creation_timestamp or "", number, version
