"""The scheduler's web server: probes, metrics, decisions and explanations.

Probes are open. Everything else is open only on loopback; on other addresses it needs TLS and a
bearer token: either the one in a file, or one that the API server accepts for the path
(TokenReview and SubjectAccessReview, as kube-scheduler delegates it). The pages of costs ask for
themselves.
"""

from __future__ import annotations

import hmac
import io
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from rich.console import Console

from bayplan.api import Pod
from bayplan.errors import InputError
from bayplan.explain.explanation import explain, explain_job
from bayplan.explain.pool_view import PoolView
from bayplan.explain.queue_view import QueueView, ViewKind
from bayplan.explain.target import nearest, pods_of, target_of, what_has
from bayplan.explain.text import print_explanation, print_job
from bayplan.explain.top_view import TopView
from bayplan.inputs.httpserver import SHUTDOWN_SECONDS, asks_loopback, request_log
from bayplan.live.address import Listener
from bayplan.live.leases import OTHERS
from bayplan.live.loop import LiveScheduler
from bayplan.live.token_reviews import bearer_token
from bayplan.page.site import Site
from bayplan.plugin.decision import Decision
from bayplan.scheduler.scheduler import Scheduler

if TYPE_CHECKING:
    from bayplan.live.bill_pages import BillPages, Bills

__all__ = ["WebPage"]

_PROBES = ("/healthz", "/livez", "/readyz")
_WIDTH = 120
_WIDTHS = range(40, 1_001)
_MOST = 1000

Authorize = Callable[[str, str], Awaitable[bool]]


class WebPage:
    """Serves the web pages of one process.

    :param listener: listens already; its sockets are closed with the page.
    :param ready: returns why the process is not ready, "" when it is.
    :param live: returns the scheduler's loop, None before there is one.
    :param find: returns a pod by its key, as it was last seen.
    :param pods: returns every pod, those of other schedulers, too.
    :param authorize: returns whether a token may get a path.
    :param authorize_tenant: returns whether a token may see a tenant's costs.
    :param bills: what costs are computed from, None to show none.
    :param site: the page that shows the cluster, None for none.
    """

    def __init__(
        self,
        listener: Listener,
        registry: CollectorRegistry,
        ready: Callable[[], str],
        live: Callable[[], LiveScheduler | None],
        find: Callable[[str], Pod | None],
        pods: Callable[[], Sequence[Pod]],
        authorize: Authorize,
        authorize_tenant: Authorize,
        bills: Bills | None = None,
        site: Site | None = None,
    ) -> None:
        self._site = site
        self._listener = listener
        self._address = listener.address
        self._registry = registry
        self._ready = ready
        self._live = live
        self._find = find
        self._pods = pods
        self._authorize = authorize
        self._bills = None if bills is None else self._bill_pages(bills, authorize_tenant)
        self._open = {*Site.OPEN, *(() if self._bills is None else self._bills.PATHS)}
        self._runner: web.AppRunner | None = None

    def _bill_pages(self, bills: Bills, authorize_tenant: Authorize) -> BillPages:
        # Their library for files of prices takes time to load.
        from bayplan.live.bill_pages import BillPages

        return BillPages(bills, self._accepts, authorize_tenant)

    async def start(self) -> None:
        """Answer whoever connects, and has connected already."""
        app = web.Application(middlewares=[self._guard])
        for probe in _PROBES:
            app.router.add_get(probe, self._probe)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/debug/decisions", self._decisions)
        app.router.add_get("/debug/explain", self._explain)
        app.router.add_get("/debug/pools", self._pools)
        app.router.add_get("/debug/queues", self._queues)
        app.router.add_get(TopView.page, self._top)
        if self._site is not None:
            app.router.add_routes(self._site.routes())
        if self._bills is not None:
            app.router.add_routes(self._bills.routes())
        self._runner = web.AppRunner(
            app, access_log=None, logger=request_log(), shutdown_timeout=SHUTDOWN_SECONDS
        )
        await self._runner.setup()
        for one in self._listener.sockets:
            await web.SockSite(self._runner, one, ssl_context=self._listener.tls).start()

    async def stop(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        self._listener.close()
        if self._bills is not None:
            self._bills.close()

    # Who may ask -----------------------------------------------------------------------------

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if request.path in _PROBES:
            return await handler(request)
        if self._address.on_loopback:
            if not asks_loopback(request):
                return web.Response(status=403, text="ask for localhost or 127.0.0.1\n")
        elif request.path not in self._open:
            token = bearer_token(request)
            if not token:
                return web.Response(status=401, text="a bearer token is needed\n")
            if not await self._accepts(token, request.path):
                return web.Response(status=403, text=f"this token may not get {request.path}\n")
        return await handler(request)

    async def _accepts(self, token: str, path: str) -> bool:
        if self._address.token is not None:
            # Read each time: a mounted Secret changes while the scheduler runs.
            known = self._address.read_token()
            return bool(known) and hmac.compare_digest(known, token.encode(errors="replace"))
        return await self._authorize(token, path)

    # Answers ---------------------------------------------------------------------------------

    async def _probe(self, request: web.Request) -> web.Response:
        problem = self._ready() if request.path == "/readyz" else ""
        return web.Response(status=503 if problem else 200, text=f"{problem or 'ok'}\n")

    async def _metrics(self, request: web.Request) -> web.Response:
        body = generate_latest(self._registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _decisions(self, request: web.Request) -> web.Response:
        live = self._live()
        decisions = list(live.scheduler.decisions.values()) if live is not None else []
        wanted = request.query.get("unit")
        if wanted is not None:
            decisions = [one for one in decisions if wanted == one.unit or wanted in one.pods]
        newest = decisions[: -_MOST - 1 : -1]
        body = json.dumps({"decisions": [_plain(one) for one in newest]})
        return web.Response(text=body, content_type="application/json")

    async def _explain(self, request: web.Request) -> web.Response:
        key = request.query.get("pod", "")
        if not key:
            return web.Response(status=400, text="give ?pod=NAMESPACE/NAME\n")
        live = self._live()
        try:
            target = target_of(key)
        except InputError as exc:
            return web.Response(status=400, text=f"{exc}\n")
        found: list[Pod] = []
        if live is not None:
            target = what_has(live.scheduler, target)
            alive = (pod for pod in self._pods() if pod.status.phase not in ("Succeeded", "Failed"))
            found = pods_of(live.scheduler, alive, self._find, target)
        job = None
        if live is not None and not found and target.makes_pods:
            job = explain_job(live.scheduler, target.kind, target.key)
        if job is not None:
            if request.query.get("output") == "json":
                return web.json_response(job.as_json())
            return _printed(request, lambda console: print_job(console, job))
        if live is not None and not found:
            # Of a job that has ended, where its pods were.
            found = pods_of(live.scheduler, self._pods(), self._find, target)
        if live is None or not found:
            near = nearest(target, self._pods(), live.scheduler) if live is not None else ""
            return web.Response(status=404, text=f"there is no {target}{near}\n")
        about = explain(live.scheduler, found[0], found)
        if request.query.get("output") == "json":
            answer = web.json_response(about.as_json())
        else:
            answer = _printed(request, lambda console: print_explanation(console, about))
        if live.scheduler.profile_of(found[0]) is None:
            answer.headers[OTHERS] = "true"
        return answer

    async def _queues(self, request: web.Request) -> web.Response:
        kinds = {kind.value: kind for kind in ViewKind}
        kind = kinds.get(request.query.get("view", "list"))
        if kind is None:
            return web.Response(status=400, text=f"give ?view={'|'.join(kinds)}\n")
        live = self._live()
        if live is None:
            return web.Response(status=404, text="there is no queue yet\n")
        return _shown(request, QueueView(kind, request.query.get("name", "")), live.scheduler)

    async def _pools(self, request: web.Request) -> web.Response:
        live = self._live()
        if live is None:
            return web.Response(status=404, text="there is no pool yet\n")
        return _shown(request, PoolView(request.query.get("name", "")), live.scheduler)

    async def _top(self, request: web.Request) -> web.Response:
        live = self._live()
        if live is None:
            return web.Response(status=503, text="this scheduler stands by\n")
        return _shown(request, TopView(), live.scheduler)


def _shown(
    request: web.Request, view: QueueView | PoolView | TopView, scheduler: Scheduler
) -> web.Response:
    """Return a view, as JSON or for people."""
    try:
        if request.query.get("output") == "json":
            return web.json_response(view.as_json(scheduler))
        return _printed(request, lambda console: view.print(console, scheduler))
    except InputError as exc:
        return web.Response(status=404, text=f"{exc}\n")


def _printed(request: web.Request, show: Callable[[Console], None]) -> web.Response:
    """Return what ``show`` prints, as wide as the caller asks."""
    out = io.StringIO()
    text = request.query.get("width", "")
    asked = int(text) if text.isascii() and text.isdigit() and len(text) < 5 else _WIDTH
    width = asked if asked in _WIDTHS else _WIDTH
    show(Console(file=out, width=width, highlight=False, emoji=False, no_color=True))
    return web.Response(text=out.getvalue())


def _plain(decision: Decision) -> dict[str, Any]:
    return {
        "unit": decision.unit,
        "cycle": decision.cycle,
        "at": round(decision.at, 3),
        "outcome": decision.outcome.value,
        "message": decision.message,
        "domain": decision.domain,
        "refusedBy": sorted(decision.refused_by),
        "pods": {
            key: {"node": own.node, "message": own.message, "feasibleNodes": own.feasible}
            for key, own in decision.pods.items()
        },
    }
