"""Kueue's visibility API: what waits in its queues, served to the API server's aggregator.

``GET /apis/visibility.kueue.x-k8s.io/v1beta2/clusterqueues/NAME/pendingworkloads`` and
``.../namespaces/NAMESPACE/localqueues/NAME/pendingworkloads``, with ``limit`` and ``offset``, as
Kueue's manager serves them (its KEP-168). Who asks, and whether that is allowed, the API server
says.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import ssl
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec
from aiohttp import web

from bayplan.api.kueue import ClusterQueue, KueueWorkload, LocalQueue
from bayplan.cluster.api_errors import ApiError, bad_request, not_found
from bayplan.cluster.kubernetes.transport import Transport
from bayplan.errors import ClusterError, InputError
from bayplan.inputs.httpserver import SHUTDOWN_SECONDS, request_log
from bayplan.live.front_proxy import (
    CONFIG_MAP,
    FrontProxy,
    as_authenticated,
    front_proxy,
)
from bayplan.live.loop import LiveScheduler
from bayplan.live.token_reviews import Caller, TokenReviews, bearer_token
from bayplan.scheduler.scheduler import Scheduler

__all__ = ["GROUP", "VERSIONS", "VisibilityAddress", "VisibilityServer"]

GROUP = "visibility.kueue.x-k8s.io"
VERSIONS = ("v1beta2", "v1beta1")
_LIMIT = 1000
_MOST = 100_000
_LOOK_SECONDS = 10.0
"""How often certificates and the ConfigMap are looked at: both are replaced while we run."""

_log = logging.getLogger("bayplan.live")
_Handler = Callable[[web.Request], Any]


class VisibilityAddress(msgspec.Struct, frozen=True):
    """Where to listen, and the paths of the certificate and its key."""

    host: str
    port: int
    certificate: Path
    key: Path


class VisibilityServer:
    """Serves the API on a port of its own.

    :param live: returns the scheduler's loop, None before there is one.
    """

    def __init__(
        self,
        address: VisibilityAddress,
        transport: Transport,
        live: Callable[[], LiveScheduler | None],
    ) -> None:
        self._address = address
        self._transport = transport
        self._reviews = TokenReviews(transport)
        self._live = live
        self._proxy = FrontProxy()
        self._trusted: tuple[object, ...] = ()
        """The certificates that are in use."""
        self._context: ssl.SSLContext | None = None
        """Of the connections that are accepted."""
        self._problem = ""
        self._runner: web.AppRunner | None = None
        self._site: web.TCPSite | None = None
        self._looking: asyncio.Task[None] | None = None
        self.port = address.port

    # Listening -------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start listening.

        :raises InputError: when the address or the certificate cannot be used.
        """
        app = web.Application(middlewares=[self._answers_with_status])
        for version in VERSIONS:
            root = f"/apis/{GROUP}/{version}"
            queue = "{name}/pendingworkloads"
            app.router.add_get(root, self._resources, allow_head=False)
            queues = {
                f"{root}/clusterqueues/{queue}": self._of_cluster_queue,
                f"{root}/namespaces/{{namespace}}/localqueues/{queue}": self._of_local_queue,
            }
            for path, handler in queues.items():
                app.router.add_get(path, handler, allow_head=False)
        self._runner = web.AppRunner(
            app, access_log=None, logger=request_log(), shutdown_timeout=SHUTDOWN_SECONDS
        )
        await self._runner.setup()
        try:
            await self._look()
        except InputError:
            await self.stop()
            raise
        self._looking = asyncio.create_task(self._keep_looking())

    async def stop(self) -> None:
        """Stop listening."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        if self._runner is not None:
            server = self._runner.server
            opened = [one.transport for one in server.connections] if server is not None else []
            await self._runner.cleanup()
            for transport in filter(None, opened):
                # Over TLS a client that is silent would keep it open.
                transport.abort()
            self._runner = self._site = None

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            try:
                await self._look()
            except InputError as exc:
                self._report(str(exc))

    async def _look(self) -> None:
        """Listen again with other certificates, where those in use have been replaced."""
        try:
            self._proxy = await front_proxy(self._transport)
            self._report("")
        except (ClusterError, InputError) as exc:
            # Until then callers need tokens of their own: the aggregator has none.
            self._report(f"{CONFIG_MAP} cannot be read: {exc}; configs/deploy/visibility.yaml")
        own = (self._address.certificate, self._address.key)
        try:
            trusted = (*(path.read_bytes() for path in own), self._proxy.authority)
        except OSError as exc:
            raise InputError(f"cannot be read: {exc.strerror}", str(exc.filename)) from None
        if trusted == self._trusted:
            return
        context = self._tls()
        if self._context is not None and trusted[2] == self._trusted[2]:
            # Listening again would lose a connection that is accepted meanwhile.
            self._load(self._context)
        else:
            if self._site is not None:
                await self._site.stop()
                self._site = None
            await self._listen(context)
            self._context = context
        self._trusted = trusted

    async def _listen(self, context: ssl.SSLContext) -> None:
        assert self._runner is not None, "started"
        address = self._address
        site = web.TCPSite(self._runner, address.host, self.port, ssl_context=context)
        try:
            await site.start()
        except OSError as exc:
            where = f"--visibility-address {address.host}:{self.port}"
            raise InputError(f"cannot listen: {exc.strerror}", where) from None
        self._site, self.port = site, self._runner.addresses[0][1]

    def _tls(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._load(context)
        if self._proxy.authority:
            try:
                context.load_verify_locations(cadata=self._proxy.authority)
            except ssl.SSLError as exc:
                raise InputError(
                    f"has no certificates of an authority: {exc}", CONFIG_MAP
                ) from None
            # Callers with a token have no certificate.
            context.verify_mode = ssl.CERT_OPTIONAL
        return context

    def _load(self, context: ssl.SSLContext) -> None:
        certificate, key = self._address.certificate, self._address.key
        try:
            context.load_cert_chain(certificate, key)
        except (OSError, ssl.SSLError) as exc:
            raise InputError(f"cannot be used: {exc}", f"{certificate} with {key}") from None

    def _report(self, problem: str) -> None:
        if problem and problem != self._problem:
            _log.warning("visibility API: %s", problem)
        self._problem = problem

    # Who may ask -----------------------------------------------------------------------------

    @web.middleware
    async def _answers_with_status(self, request: web.Request, handler: _Handler) -> web.Response:
        """Answer who may ask; everything else gets a Status."""
        try:
            await self._authorize(request)
            answer: web.Response = await handler(request)
            return answer
        except ApiError as exc:
            return web.json_response(exc.status(), status=exc.code)
        except web.HTTPException as exc:
            error = ApiError(exc.status, exc.reason.replace(" ", ""), exc.reason)
            return web.json_response(error.status(), status=error.code)

    async def _authorize(self, request: web.Request) -> None:
        caller = await self._caller(request)
        if caller is None:
            raise ApiError(401, "Unauthorized", "Unauthorized")
        attributes = _attributes(request)
        if not await self._reviews.permits(caller, attributes):
            raise ApiError(403, "Forbidden", _refusal(caller, attributes))

    async def _caller(self, request: web.Request) -> Caller | None:
        transport = request.transport
        certificate = transport.get_extra_info("peercert") if transport is not None else None
        caller = self._proxy.caller(certificate, request.headers)
        if caller is not None:
            return as_authenticated(caller)
        token = bearer_token(request)
        return await self._reviews.caller_of(token) if token else None

    # Answers ---------------------------------------------------------------------------------

    async def _resources(self, request: web.Request) -> web.Response:
        version = request.path.rpartition("/")[2]
        resources = [
            {
                "name": f"{name}s{part}",
                "singularName": "" if part else name,
                "namespaced": name == "localqueue",
                "kind": "PendingWorkloadsSummary",
                "verbs": ["get"] if part else [],
            }
            for name in ("clusterqueue", "localqueue")
            for part in ("", "/pendingworkloads")
        ]
        answer = {
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": f"{GROUP}/{version}",
            "resources": resources,
        }
        return web.json_response(answer)

    async def _of_cluster_queue(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        scheduler = self._scheduler()
        if name not in scheduler.snapshot.objects(ClusterQueue):
            raise not_found(GROUP, "clusterqueue", name)
        return _summary(request, _pending(scheduler, name))

    async def _of_local_queue(self, request: web.Request) -> web.Response:
        namespace, name = request.match_info["namespace"], request.match_info["name"]
        scheduler = self._scheduler()
        queue = scheduler.snapshot.objects(LocalQueue).get(f"{namespace}/{name}")
        if queue is None:
            raise not_found(GROUP, "localqueue", name)
        pending = _pending(scheduler, queue.spec.cluster_queue)
        own = (one for one in pending if one.is_of(namespace, name))
        return _summary(request, own)

    def _scheduler(self) -> Scheduler:
        live = self._live()
        if live is None:
            raise ApiError(503, "ServiceUnavailable", "not every kind is listed yet")
        return live.scheduler


class _Pending(msgspec.Struct, frozen=True):
    """A Workload that waits, with its places, which count from 0."""

    workload: KueueWorkload
    in_cluster_queue: int
    in_local_queue: int

    def is_of(self, namespace: str, local_queue: str) -> bool:
        """Tell whether it waits in a LocalQueue."""
        one = self.workload
        return (one.metadata.namespace, one.spec.queue_name) == (namespace, local_queue)

    def as_json(self) -> dict[str, Any]:
        """Return it in the API's words."""
        meta, spec = self.workload.metadata, self.workload.spec
        metadata: dict[str, Any] = {"name": meta.name, "namespace": meta.namespace}
        metadata["creationTimestamp"] = meta.creation_timestamp
        owners = [
            {"apiVersion": one.api_version, "kind": one.kind, "name": one.name, "uid": one.uid}
            for one in meta.owner_references
        ]
        return {
            "metadata": {**metadata, "ownerReferences": owners} if owners else metadata,
            "priority": spec.priority or 0,
            "localQueueName": spec.queue_name,
            "positionInClusterQueue": self.in_cluster_queue,
            "positionInLocalQueue": self.in_local_queue,
        }


def _pending(scheduler: Scheduler, queue: str) -> Iterator[_Pending]:
    """Yield the Workloads of the API server that wait in a ClusterQueue, the next one first."""
    known = scheduler.snapshot.objects(KueueWorkload)
    before: dict[tuple[str, str], int] = {}
    jobs = scheduler.queues.jobs(f"kueue/{queue}") or ()
    stored = (known[one.workload] for one in jobs if one.workload in known)
    for place, workload in enumerate(stored):
        local = workload.metadata.namespace, workload.spec.queue_name
        yield _Pending(workload, place, before.get(local, 0))
        before[local] = before.get(local, 0) + 1


def _summary(request: web.Request, pending: Iterator[_Pending]) -> web.Response:
    offset = max(0, _number(request, "offset", 0))
    # An unset limit is a limit of 0 on the wire.
    limit = min(max(0, _number(request, "limit", 0) or _LIMIT), _MOST)
    items = itertools.islice(pending, offset, offset + limit)
    answer = {
        "kind": "PendingWorkloadsSummary",
        "apiVersion": f"{GROUP}/{request.path.split('/')[3]}",
        "metadata": {},
        "items": [one.as_json() for one in items],
    }
    return web.json_response(answer)


def _number(request: web.Request, name: str, default: int) -> int:
    text = request.query.get(name, "")
    with contextlib.suppress(ValueError):
        return int(text) if text else default
    raise bad_request(f'{name}: expected an integer, got "{text[:20]}"')


def _attributes(request: web.Request) -> Mapping[str, Any]:
    """Return what a SubjectAccessReview asks about a request, as the API server reads its path."""
    verb = request.method.lower()
    # As the routes are matched: a slash in a name is none of the path.
    parts = [unquote(part) for part in request.rel_url.raw_path.strip("/").split("/")]
    rest = parts[3:]
    if parts[:2] != ["apis", GROUP] or not rest:
        return {"nonResourceAttributes": {"path": request.path, "verb": verb}}
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    resource, name, subresource = (*rest[:3], "", "", "")[:3]
    return {
        "resourceAttributes": {
            "group": GROUP,
            "version": parts[2],
            "resource": resource,
            "subresource": subresource,
            "namespace": namespace,
            "name": name,
            "verb": verb,
        }
    }


def _refusal(caller: Caller, attributes: Mapping[str, Any]) -> str:
    """Return why a request is refused, in the words of Kubernetes."""
    asked = attributes.get("resourceAttributes")
    if asked is None:
        path = attributes["nonResourceAttributes"]["path"]
        return f'forbidden: User "{caller.name}" cannot get path "{path}"'
    resource = "/".join(filter(None, (asked["resource"], asked["subresource"])))
    where = "at the cluster scope"
    if asked["namespace"]:
        where = f'in the namespace "{asked["namespace"]}"'
    return (
        f'{asked["resource"]}.{GROUP} "{asked["name"]}" is forbidden: User "{caller.name}" cannot '
        f'{asked["verb"]} resource "{resource}" in API group "{GROUP}" {where}'
    )
