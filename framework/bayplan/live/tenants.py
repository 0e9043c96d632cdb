"""The page for tenants: jobs and costs of the namespaces whose pods the reader may list.

It has a port of its own, always with TLS, and answers nobody whom it does not know: by a bearer
token (TokenReview), or by the headers of a proxy that signs people on and shows a client
certificate. Which namespaces somebody may see, the API server says (SubjectAccessReview: ``list``
on pods).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import ssl
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web
from msgspec.structs import replace
from multidict import CIMultiDictProxy

from bayplan.billing.usage_source import UsageOfNamespaces
from bayplan.errors import BayplanError, InputError
from bayplan.inputs.httpserver import SHUTDOWN_SECONDS, request_log
from bayplan.live.bill_pages import Bills, Computing, costs, hours
from bayplan.live.front_proxy import AUTHENTICATED, FrontProxy
from bayplan.live.token_reviews import Caller, TokenReviews, bearer_token
from bayplan.page.feed import Feed, Patch, TooManyViewers
from bayplan.page.site import HEADERS, document_answer
from bayplan.page.tenant_rows import TenantRows, namespace_of, namespaces_in, tenant_detail

__all__ = ["SignOn", "TenantAddress", "TenantPage"]

_RIGHTS_SECONDS = 30.0
"""How long what somebody may see counts, before the API server is asked again."""
_AT_ONCE = 8
_REMEMBERED = 256
_BEAT_SECONDS = 15.0
_MOST_STREAMS = 48
"""Less than the feed serves: the rest is left to operators."""
_MOST_OF_ONE = 4
_BURST, _PER_SECOND = 20.0, 4.0
"""How much one reader may ask for at once, and per second."""
_LONGEST_KEY = 600
_OF_KUBERNETES = "system:"


class SignOn(msgspec.Struct, frozen=True):
    """A proxy that signs people on, and says in headers who they are.

    :param authority: the file with certificates that sign the proxy's, in PEM.
    :param name: the common name of the proxy's certificate.
    :param user_header: the header with the user's name.
    :param groups_header: the header with groups, with commas between them.
    """

    authority: Path
    name: str
    user_header: str = "X-Remote-User"
    groups_header: str = "X-Remote-Group"

    def caller(self, certificate: Any, headers: CIMultiDictProxy[str]) -> Caller | None:
        """Return for whom the proxy asks; None where it is not the proxy that asks.

        Names of Kubernetes' own (``system:``) are nobody's who signs on.

        :param certificate: of the client, verified by ``authority``, as ``ssl`` returns it.
        """
        if len(headers.getall(self.user_header, ())) != 1:
            # A proxy that adds its header to the client's own does not say who asks.
            return None
        proxy = FrontProxy(
            str(self.authority), (self.name,), (self.user_header,), (), (self.groups_header,)
        )
        found = proxy.caller(certificate, headers)
        if found is None:
            return None
        groups = [one.strip() for text in found.groups for one in text.split(",")]
        if any(one.startswith(_OF_KUBERNETES) for one in (found.name, *groups)):
            return None
        return replace(found, groups=(*filter(None, groups), AUTHENTICATED))


class TenantAddress(msgspec.Struct, frozen=True):
    """Where to listen, the paths of the certificate and its key, and who signs people on."""

    host: str
    port: int
    certificate: Path
    key: Path
    sign_on: SignOn | None = None


class _Reader(msgspec.Struct):
    """What is known of somebody: the namespaces asked about, those allowed, and how often he asks.

    ``allowed`` is None for all namespaces.
    """

    asked: frozenset[str] = frozenset()
    allowed: frozenset[str] | None = frozenset()
    at: float = float("-inf")
    left: float = _BURST
    since: float = msgspec.field(default_factory=time.monotonic)

    def may_ask(self) -> bool:
        """Count a request; return whether it is not one too many."""
        now = time.monotonic()
        self.left = min(_BURST, self.left + (now - self.since) * _PER_SECOND)
        self.since = now
        if self.left < 1.0:
            return False
        self.left -= 1.0
        return True


class TenantPage:
    """Serves the page of a feed, by reader.

    :param bills: what costs are computed from, None to show none.
    """

    DATA = "/page/data"
    EVENTS = "/page/events"
    EXPLAIN = "/page/explain"
    COSTS = "/allocation"
    USAGE = "/usage"

    def __init__(
        self, address: TenantAddress, reviews: TokenReviews, feed: Feed, bills: Bills | None
    ) -> None:
        self._address = address
        self._reviews = reviews
        self._feed = feed
        self._bills = bills
        self._computing = Computing()
        self._readers: OrderedDict[Caller, _Reader] = OrderedDict()
        self._sessions: OrderedDict[tuple[Caller, int], tuple[TenantRows, int]] = OrderedDict()
        """What was sent to a page that opened, and the feed's version then, until it follows."""
        self._streams: Counter[Caller] = Counter()
        self._runner: web.AppRunner | None = None
        self.port = address.port

    # Listening -------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start listening.

        :raises InputError: when the address or a certificate cannot be used.
        """
        tls = self._tls()
        app = web.Application()
        for path in ("/", "/page"):
            app.router.add_get(path, self._document)
        app.router.add_get(self.DATA, self._data)
        app.router.add_get(self.EVENTS, self._events)
        app.router.add_get(self.EXPLAIN, self._explain)
        if self._bills is not None:
            app.router.add_get(self.COSTS, self._costs)
            app.router.add_get(self.USAGE, self._usage)
        self._runner = web.AppRunner(
            app, access_log=None, logger=request_log(), shutdown_timeout=SHUTDOWN_SECONDS
        )
        await self._runner.setup()
        address = self._address
        try:
            await web.TCPSite(self._runner, address.host, address.port, ssl_context=tls).start()
        except OSError as exc:
            await self.stop()
            where = f"--tenant-address {address.host}:{address.port}"
            raise InputError(f"cannot listen: {exc.strerror}", where) from None
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Stop listening."""
        self._computing.close()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def _tls(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        address = self._address
        try:
            context.load_cert_chain(address.certificate, address.key)
        except (OSError, ssl.SSLError) as exc:
            where = f"{address.certificate} with {address.key}"
            raise InputError(f"cannot be used: {exc}", where) from None
        if address.sign_on is not None:
            authority = address.sign_on.authority
            try:
                context.load_verify_locations(authority)
            except (OSError, ssl.SSLError) as exc:
                text = f"has no certificates of an authority: {exc}"
                raise InputError(text, str(authority)) from None
            # Readers with a token have no certificate.
            context.verify_mode = ssl.CERT_OPTIONAL
        return context

    # Who reads, and what he may see ----------------------------------------------------------

    async def _caller(self, request: web.Request) -> Caller | None:
        transport, sign_on = request.transport, self._address.sign_on
        if sign_on is not None and transport is not None:
            caller = sign_on.caller(transport.get_extra_info("peercert"), request.headers)
            if caller is not None:
                return caller
        token = bearer_token(request)
        return await self._reviews.caller_of(token) if token else None

    async def _reader(self, request: web.Request) -> tuple[Caller, _Reader]:
        """Return who asks.

        :raises web.HTTPException: when it is nobody known, or he asks too often.
        """
        caller = await self._caller(request)
        if caller is None:
            raise web.HTTPUnauthorized(text="a bearer token is needed\n", headers=HEADERS)
        reader = self._readers.setdefault(caller, _Reader())
        self._readers.move_to_end(caller)
        if len(self._readers) > _REMEMBERED:
            self._readers.popitem(last=False)
        if not reader.may_ask():
            text = "too many questions at once: ask again\n"
            raise web.HTTPTooManyRequests(text=text, headers=HEADERS)
        return caller, reader

    def _namespaces(self) -> frozenset[str]:
        """Return the namespaces that the page knows anything of."""
        view = self._feed.cluster_view
        if view is None:
            return frozenset()
        keys = (*view.pods, *(job.key for job in view.held_jobs()))
        return frozenset(map(namespace_of, keys))

    async def _allowed(
        self, caller: Caller, reader: _Reader, namespaces: frozenset[str]
    ) -> frozenset[str] | None:
        """Return the namespaces whose pods somebody may list, None for all.

        :param namespaces: those in question, beside the ones that were asked about before.
        """
        now = time.monotonic()
        fresh = now < reader.at + _RIGHTS_SECONDS
        if fresh and (reader.allowed is None or namespaces <= reader.asked):
            return reader.allowed
        if not fresh and await self._lists_pods(caller, ""):
            reader.allowed, reader.at = None, now
            return None
        known = (reader.allowed or frozenset()) if fresh else frozenset()
        asked = reader.asked | namespaces
        turns = asyncio.Semaphore(_AT_ONCE)

        async def may(namespace: str) -> bool:
            async with turns:
                return await self._lists_pods(caller, namespace)

        new = sorted(asked - reader.asked if fresh else asked)
        answers = await asyncio.gather(*map(may, new))
        reader.allowed = known | {one for one, yes in zip(new, answers, strict=True) if yes}
        reader.asked, reader.at = asked, reader.at if fresh else now
        return reader.allowed

    async def _lists_pods(self, caller: Caller, namespace: str) -> bool:
        asked = {"resource": "pods", "verb": "list", "namespace": namespace}
        return await self._reviews.permits(caller, {"resourceAttributes": asked})

    # Answers ---------------------------------------------------------------------------------

    async def _document(self, request: web.Request) -> web.Response:
        return document_answer(self._feed.title)

    async def _data(self, request: web.Request) -> web.Response:
        caller, reader = await self._reader(request)
        try:
            view = self._feed.current()
        except BayplanError:
            # What a plugin says may name others.
            return web.Response(status=503, text="the cluster is not known yet\n", headers=HEADERS)
        rows = TenantRows(view, await self._allowed(caller, reader, self._namespaces()))
        # Numbers that count would tell how much happens in the cluster.
        session = secrets.randbelow(2**48)
        found = {**rows.everything(), "title": self._feed.title, "version": session}
        if self._bills is not None:
            found["bills"] = {"currency": self._bills.terms().prices.currency}
        self._remember(caller, session, rows)
        answer = web.json_response(found, headers=HEADERS)
        answer.enable_compression()
        return answer

    def _remember(self, caller: Caller, session: int, rows: TenantRows) -> None:
        """Keep what a page was sent until it follows; of pages that never do, the latest."""
        self._sessions[caller, session] = (rows, self._feed.version)
        own = [key for key in self._sessions if key[0] == caller]
        for key in (*own[:-_MOST_OF_ONE], *list(self._sessions)[:-_MOST_STREAMS]):
            self._sessions.pop(key, None)

    async def _explain(self, request: web.Request) -> web.Response:
        caller, reader = await self._reader(request)
        unit, view = request.query.get("unit", ""), self._feed.cluster_view
        found = None
        if view is not None and 0 < len(unit) <= _LONGEST_KEY:
            namespace = namespace_of(unit)
            # Only what exists is asked about: a reader cannot have it review names that he guesses.
            if namespace in self._namespaces():
                allowed = await self._allowed(caller, reader, frozenset({namespace}))
                if allowed is None or namespace in allowed:
                    found = tenant_detail(view, unit)
        if found is None:
            # The same for what is not there, and for what he may not see.
            return web.Response(status=404, text="there is no such job\n", headers=HEADERS)
        return web.json_response(found, headers=HEADERS)

    async def _own_bills(self, request: web.Request) -> Bills:
        """Return what the reader's costs are computed from."""
        assert self._bills is not None, "there is a route"
        caller, reader = await self._reader(request)
        allowed = await self._allowed(caller, reader, self._namespaces())
        return replace(self._bills, source=UsageOfNamespaces(self._bills.source, allowed))

    async def _costs(self, request: web.Request) -> web.Response:
        return await costs(self._computing, await self._own_bills(request), request.query)

    async def _usage(self, request: web.Request) -> web.Response:
        asked = {"aggregate": "namespace"} | dict(request.query)
        return await hours(self._computing, await self._own_bills(request), asked)

    # What changes ----------------------------------------------------------------------------

    async def _events(self, request: web.Request) -> web.StreamResponse:
        caller, reader = await self._reader(request)
        since = request.query.get("since", "")
        if not (since.isascii() and since.isdigit() and len(since) < 16):
            return web.Response(status=400, text="give ?since=VERSION\n", headers=HEADERS)
        if self._streams[caller] >= _MOST_OF_ONE or self._streams.total() >= _MOST_STREAMS:
            text = "too many pages follow the cluster already\n"
            return web.Response(status=429, text=text, headers=HEADERS)
        answer = web.StreamResponse(headers={**HEADERS, "Content-Type": "text/event-stream"})
        session = self._sessions.pop((caller, int(since)), None)
        self._streams[caller] += 1
        try:
            await answer.prepare(request)
            if session is not None:
                async with self._following(session[1]) as viewer:
                    await self._send(request, (caller, reader), session[0], viewer, answer)
            await answer.write(b"event: again\ndata: {}\n\n")
        except (ConnectionError, TooManyViewers):
            return answer
        finally:
            self._streams[caller] -= 1
            if not self._streams[caller]:
                del self._streams[caller]
        return answer

    @contextlib.asynccontextmanager
    async def _following(self, since: int) -> AsyncIterator[asyncio.Queue[Patch | None]]:
        viewer = self._feed.join(since)
        try:
            yield viewer
        finally:
            self._feed.leave(viewer)

    async def _send(
        self,
        request: web.Request,
        who: tuple[Caller, _Reader],
        rows: TenantRows,
        viewer: asyncio.Queue[Patch | None],
        answer: web.StreamResponse,
    ) -> None:
        """Send what changes, until the page has to get everything again."""
        beat = time.monotonic() + _BEAT_SECONDS
        while True:
            patch: Patch | None = None
            try:
                patch = await asyncio.wait_for(viewer.get(), max(0.0, beat - time.monotonic()))
                if patch is None:
                    return
            except TimeoutError:
                # In time, whatever others do in the meantime.
                beat += _BEAT_SECONDS
                if await self._caller(request) is None:
                    return
                await answer.write(b": still here\n\n")
            new = namespaces_in(patch.rows) if patch is not None else frozenset()
            if await self._allowed(*who, frozenset(new)) != rows.namespaces:
                return
            fresh = rows.of(patch.rows) if patch is not None else {}
            if fresh:
                text = json.dumps(fresh, separators=(",", ":"), ensure_ascii=False)
                await answer.write(b"data: " + text.encode() + b"\n\n")
