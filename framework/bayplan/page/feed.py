"""The page's rows of a cluster that goes on: a look now and then, and what changed for viewers."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from bayplan.api import Pod
from bayplan.cluster.protocol import WatchEvent
from bayplan.errors import BayplanError
from bayplan.page.cluster_view import ClusterView
from bayplan.page.content import content, organisation
from bayplan.page.pod_times import PodTimes
from bayplan.scheduler.scheduler import Scheduler
from bayplan.snapshot import problem_lines

__all__ = ["MOST_VIEWERS", "Feed", "Patch", "TooManyViewers"]

MOST_VIEWERS = 64
_EVERY = 0.5
"""Seconds between two looks while somebody looks on."""
_UNSEEN = 5.0
"""Seconds between two looks otherwise: what happened is to be seen later."""
_MOST = 2000
"""Nodes, pods and jobs of one look while somebody looks on: more would keep others waiting."""
_MOST_UNSEEN = 250
_EVENTS = 4
"""Events that are read for each of these."""
_TOGETHER = 0.01
"""Seconds in which events count as simultaneous: reading the clocks takes as long as the rest."""
_MOST_UNREAD = 100_000
_ORGANISATION = 2.0
"""Seconds between two looks at the queues and pools."""
_KEPT = 200
_BEHIND = 50

_log = logging.getLogger("bayplan.page")


class TooManyViewers(BayplanError):
    """More pages follow the feed than it serves."""


class Patch(msgspec.Struct, frozen=True):
    """What has changed with one version: the rows, and the same as JSON text."""

    version: int
    rows: Mapping[str, Any]
    text: str


class Feed:
    """Follows a scheduler and its watch; numbers each change, so that viewers miss none.

    :param title: the page's title.
    :param before: called before each look, to let a scheduler see what has happened.
    :param wall: the cluster's time is that of clocks.
    :param more: further parts of the content, which stay.
    """

    def __init__(
        self,
        title: str,
        before: Callable[[], None] | None = None,
        wall: bool = False,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        self.title = title
        self._wall = wall
        self._more = more or {}
        self._before = before
        self.cluster_view: ClusterView | None = None
        # No page of another process, or of an earlier version, can take changes of this one for
        # those that it missed: it gets everything again.
        self.version = time.time_ns() // 1_000_000 if wall else 0
        self._viewers: set[asyncio.Queue[Patch | None]] = set()
        self._sent: deque[Patch] = deque(maxlen=_KEPT)
        self._unread: deque[tuple[WatchEvent, PodTimes]] = deque()
        self._at: PodTimes | None = None
        self._at_read = 0.0
        self._events = 0
        self._waits = 0
        self._samples: tuple[float, int] = (-1.0, 0)
        self._machines = 0
        self._organisation: dict[str, Any] = {}
        self._organised = -_ORGANISATION

    # What it follows -------------------------------------------------------------------------

    def follow(self, scheduler: Scheduler) -> None:
        """Follow a scheduler, and another one once its profiles were read again."""
        if self.cluster_view is None:
            self.cluster_view = ClusterView(scheduler)
        else:
            self.cluster_view.follow(scheduler)

    def handle(self, event: WatchEvent) -> None:
        """Note an event of the watch, after the scheduler has seen it; looks read it later."""
        if self.cluster_view is None:
            return
        self._unread.append((event, self._time(self.cluster_view)))
        if len(self._unread) > _MOST_UNREAD:
            self._read(1)

    def _time(self, view: ClusterView) -> PodTimes:
        """Return the time now; by a clock, events that come together have the same."""
        read = time.monotonic() if self._wall else 0.0
        if self._at is None or not self._wall or read > self._at_read + _TOGETHER:
            self._at, self._at_read = view.time, read
        return self._at

    def _read(self, most: int) -> None:
        """Read some of the events that came."""
        for _ in range(min(most, len(self._unread))):
            event, at = self._unread.popleft()
            try:
                assert self.cluster_view is not None, "it saw the event"
                self.cluster_view.handle(event, at)
            except Exception:
                _log.exception("the page is not up to date")

    @property
    def is_behind(self) -> bool:
        """Whether something has happened that no look has seen."""
        behind = self.cluster_view is not None and self.cluster_view.is_behind
        return bool(self._unread) or behind

    async def run(self) -> None:
        """Look at the cluster until cancelled."""
        loop = asyncio.get_running_loop()
        looked = 0.0
        while True:
            await asyncio.sleep(_EVERY)
            if not self._viewers and not self.is_behind and loop.time() - looked < _UNSEEN:
                continue
            looked = loop.time()
            try:
                self.look(looked, _MOST if self._viewers else _MOST_UNSEEN)
            except BayplanError as exc:
                _log.warning("the page is not up to date: %s", exc)
            except Exception:
                _log.exception("the page is not up to date")

    def look(self, at: float, most: int | None = None) -> None:
        """Look once, and send what has changed.

        :param at: the time in seconds, by which queues and pools are looked at less often.
        :param most: of how many nodes, pods and jobs at most; None for all.
        :raises BayplanError: when a plugin raises.
        """
        cluster_view = self.cluster_view
        if cluster_view is None:
            return
        if self._before is not None:
            self._before()
        self._read(len(self._unread) if most is None else _EVENTS * most)
        changes = cluster_view.look(most)
        rows: dict[str, Any] = changes.as_json() if changes else {}
        rows |= self._rest(cluster_view, at)
        if not rows:
            return
        self.version += 1
        rows |= {"now": round(cluster_view.scheduler.now, 3), "version": self.version}
        text = json.dumps(rows, separators=(",", ":"), ensure_ascii=False)
        patch = Patch(self.version, rows, text)
        self._sent.append(patch)
        for viewer in list(self._viewers):
            if viewer.qsize() >= _BEHIND:
                # A viewer that does not read starts again with everything.
                self._viewers.discard(viewer)
                viewer.put_nowait(None)
            else:
                viewer.put_nowait(patch)

    def _rest(self, cluster_view: ClusterView, at: float) -> dict[str, Any]:
        """Return what is new of the history, the machines, the queues and the pools."""
        found: dict[str, Any] = {}
        history = cluster_view.history
        if history.added > self._events:
            found["events"] = history.since(self._events)
            self._events = history.added
        log = cluster_view.queue_log
        if log.added > self._waits:
            found["waits"] = log.since(self._waits)
            self._waits = log.added
        if history.samples:
            last = history.samples[-1]
            figures = (last.gpus, last.used, last.pending, last.running, last.evictions)
            mark = (0.0, hash(figures))
            if mark != self._samples:
                self._samples = mark
                found["samples"] = [last.as_json()]
        if len(cluster_view.machines.rows) > self._machines:
            self._machines = len(cluster_view.machines.rows)
            found["machines"] = cluster_view.machines.rows
        # A page that opens gets all of it; until then nobody reads what changes.
        if self._viewers and at >= self._organised + _ORGANISATION:
            self._organised = at
            fresh = organisation(cluster_view.scheduler)
            if fresh != self._organisation:
                self._organisation = fresh
                found |= fresh
        return found

    # Viewers ---------------------------------------------------------------------------------

    def current(self) -> ClusterView:
        """Return the cluster as it is now; later changes have higher versions.

        :raises BayplanError: before there is a scheduler, or when a plugin raises.
        """
        cluster_view = self.cluster_view
        if cluster_view is None:
            raise BayplanError("the cluster is not listed yet")
        self.look(self._organised)
        return cluster_view

    def everything(self) -> str:
        """Return all rows as JSON text; later changes have higher versions.

        :raises BayplanError: before there is a scheduler, or when a plugin raises.
        """
        cluster_view = self.current()
        found = content(cluster_view, self.title, notes=self._notes(), wall=self._wall)
        found |= {**self._more, "version": self.version}
        return json.dumps(found, separators=(",", ":"), ensure_ascii=False)

    def _notes(self) -> list[str]:
        cluster_view = self.cluster_view
        problems = cluster_view.scheduler.snapshot.problems if cluster_view is not None else {}
        return problem_lines(problems)[:100]

    def join(self, since: int) -> asyncio.Queue[Patch | None]:
        """Return a queue of changes after a version; None in it means: get everything again.

        :raises TooManyViewers: when there are as many as are served.
        """
        if len(self._viewers) >= MOST_VIEWERS:
            raise TooManyViewers(f"{MOST_VIEWERS} pages follow the cluster already")
        viewer: asyncio.Queue[Patch | None] = asyncio.Queue()
        missed = [patch for patch in self._sent if patch.version > since]
        if since > self.version or len(missed) < self.version - since:
            viewer.put_nowait(None)
            return viewer
        for patch in missed:
            viewer.put_nowait(patch)
        self._viewers.add(viewer)
        return viewer

    def leave(self, viewer: asyncio.Queue[Patch | None]) -> None:
        """Send a viewer nothing more."""
        self._viewers.discard(viewer)

    def pod_of(self, unit: str) -> Pod | None:
        """Return a pod that stands for a unit, a pending one if there is any."""
        self._read(len(self._unread))
        return self.cluster_view.pod_of(unit) if self.cluster_view is not None else None
