"""The page over HTTP: the document, its rows, what changes, explanations and what-ifs.

All of it only reads: a what-if is tried in a trial of the snapshot, and undone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from typing import Any

from aiohttp import web

from bayplan.errors import BayplanError
from bayplan.page.details import detail_of, detail_of_job
from bayplan.page.document import document, policy
from bayplan.page.feed import Feed, Patch, TooManyViewers

__all__ = ["HEADERS", "Site", "document_answer"]

_BEAT_SECONDS = 15.0
_MOST_BODY = 4096
_LONGEST_KEY = 600
_BURST, _PER_SECOND = 10.0, 4.0
"""How many explanations may be asked for at once, and per second: each takes some time."""
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
}


def document_answer(title: str) -> web.Response:
    """Return the document, which holds nothing of the cluster."""
    csp = f"{policy(chr(39) + 'self' + chr(39))}; frame-ancestors 'none'"
    return web.Response(
        text=document(title, None),
        content_type="text/html",
        headers={**HEADERS, "Content-Security-Policy": csp},
    )


class Site:
    """Serves the page of one feed. ``OPEN`` are the paths that hold nothing of the cluster."""

    OPEN = ("/", "/page")
    DATA = "/page/data"
    EVENTS = "/page/events"
    EXPLAIN = "/page/explain"
    WHAT_IF = "/page/what-if"

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._left = _BURST
        self._since = time.monotonic()

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [
            web.get("/", self._document),
            web.get(self.DATA, self._data),
            web.get(self.EVENTS, self._events),
            web.get(self.EXPLAIN, self._explain),
            web.post(self.WHAT_IF, self._what_if),
        ]

    async def _document(self, request: web.Request) -> web.Response:
        return document_answer(self._feed.title)

    async def _data(self, request: web.Request) -> web.Response:
        try:
            text = self._feed.everything()
        except BayplanError as exc:
            return web.Response(status=503, text=f"{exc}\n")
        answer = web.Response(text=text, content_type="application/json", headers=HEADERS)
        answer.enable_compression()
        return answer

    async def _events(self, request: web.Request) -> web.StreamResponse:
        since = request.query.get("since", "")
        if not (since.isascii() and since.isdigit() and len(since) < 16):
            return web.Response(status=400, text="give ?since=VERSION\n")
        try:
            viewer = self._feed.join(int(since))
        except TooManyViewers as exc:
            return web.Response(status=429, text=f"{exc}\n")
        answer = web.StreamResponse(headers={**HEADERS, "Content-Type": "text/event-stream"})
        try:
            await answer.prepare(request)
            await self._send(viewer, answer)
        except ConnectionError:
            # The viewer has gone.
            return answer
        finally:
            self._feed.leave(viewer)
        return answer

    async def _send(self, viewer: asyncio.Queue[Patch | None], answer: web.StreamResponse) -> None:
        while True:
            try:
                patch = await asyncio.wait_for(viewer.get(), _BEAT_SECONDS)
            except TimeoutError:
                await answer.write(b": still here\n\n")
                continue
            if patch is None:
                await answer.write(b"event: again\ndata: {}\n\n")
                return
            await answer.write(b"data: " + patch.text.encode() + b"\n\n")

    # Explanations ----------------------------------------------------------------------------

    async def _explain(self, request: web.Request) -> web.Response:
        return self._explained(request.query.get("unit", ""))

    def _explained(self, unit: str) -> web.Response:
        found = self._detail(unit)
        return (
            found if isinstance(found, web.Response) else web.json_response(found, headers=HEADERS)
        )

    def _detail(self, unit: str) -> dict[str, Any] | web.Response:
        if not unit or len(unit) > _LONGEST_KEY:
            return web.Response(status=400, text="give ?unit=NAMESPACE/NAME\n")
        if not self._may_ask():
            return web.Response(status=429, text="too many questions at once: ask again\n")
        pod, cluster_view = self._feed.pod_of(unit), self._feed.cluster_view
        held = cluster_view.held_job(unit) if cluster_view is not None else None
        if cluster_view is not None and held is not None:
            return detail_of_job(cluster_view.scheduler, held)
        if pod is None or cluster_view is None:
            return web.Response(status=404, text="there is no such job any more\n")
        return detail_of(cluster_view.scheduler, pod)

    def _may_ask(self) -> bool:
        now = time.monotonic()
        self._left = min(_BURST, self._left + (now - self._since) * _PER_SECOND)
        self._since = now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True

    async def _what_if(self, request: web.Request) -> web.Response:
        """Try a remedy again, on the cluster as it is now."""
        if request.content_type != "application/json":
            # Other types may come from a form of a foreign page without asking first.
            return web.Response(status=415, text="send application/json\n")
        asked: Any = None
        if (request.content_length or 0) <= _MOST_BODY:
            with contextlib.suppress(ValueError):
                asked = json.loads(await request.content.read(_MOST_BODY))
        if not isinstance(asked, dict) or not isinstance(asked.get("unit"), str):
            return web.Response(status=400, text='send {"unit", "text"}\n')
        found = self._detail(asked["unit"])
        if isinstance(found, web.Response):
            return found
        for one in found.get("suggestions", ()):
            if one["text"] == asked.get("text"):
                return web.json_response(one, headers=HEADERS)
        return web.json_response(
            {"problem": "the cluster has changed: this would not help any more"},
            headers=HEADERS,
        )
