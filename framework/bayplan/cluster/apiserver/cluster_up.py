"""``bayplan cluster up``: serve a cluster in real time until a signal ends it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import secrets
import signal
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from bayplan.cluster.apiserver.assembly import start_all
from bayplan.cluster.apiserver.kubeconfig import check_free, remove_kubeconfig
from bayplan.cluster.apiserver.loading import load_into
from bayplan.cluster.apiserver.pidfile import beside, held_pid
from bayplan.cluster.apiserver.server import ApiServer
from bayplan.cluster.apiserver.store import ServedCluster
from bayplan.cluster.apiserver.wall_clock import WallClock
from bayplan.cluster.manifests import Manifests
from bayplan.errors import InputError
from bayplan.inputs.sockets import allow_many_connections

__all__ = ["Served", "serve"]


class Served(msgspec.Struct, frozen=True):
    """A summary of the served cluster, for the terminal; ``page`` is the URL of its page, or ""."""

    url: str
    objects: dict[str, int]
    ignored: dict[str, int]
    page: str = ""


Show = Callable[[ServedCluster], AbstractAsyncContextManager[str]]
"""Serves a page of the cluster, and yields its URL."""


def serve(
    manifests: Manifests,
    port: int,
    kubeconfig: Path,
    ready: Callable[[Served], None],
    show: Show | None = None,
) -> None:
    """Serve a cluster with these objects until SIGINT or SIGTERM.

    :param ready: called once the server listens and all objects exist.
    :param show: runs as long as the server does.
    :raises InputError: when the port is taken, the kubeconfig cannot be written, or an object is
        refused.
    """
    check_free(kubeconfig)
    with held_pid(beside(kubeconfig, "pid")):
        asyncio.run(_serve(manifests, port, kubeconfig, ready, show))
        _remove_own_log(beside(kubeconfig, "log"))


def _remove_own_log(path: Path) -> None:
    """Remove the background process's log if standard error goes to it."""
    with contextlib.suppress(OSError):
        if os.path.samestat(os.stat(path), os.fstat(2)):
            path.unlink()


async def _serve(
    manifests: Manifests,
    port: int,
    kubeconfig: Path,
    ready: Callable[[Served], None],
    show: Show | None,
) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    allow_many_connections(loop)
    # Clients may know versions of an earlier cluster: these must be older than ours.
    clock = WallClock()
    cluster = ServedCluster(
        secrets.randbits(64), clock, start=datetime.now(UTC), first_version=int(time.time())
    )
    token = secrets.token_urlsafe(24)
    server = ApiServer(start_all(cluster), port, {token: None})
    cluster.settle()
    ignored = load_into(cluster, manifests)
    try:
        await _start(server)
        try:
            server.write_kubeconfig(kubeconfig)
        except OSError as exc:
            raise InputError(exc.strerror or str(exc), str(kubeconfig)) from None
        try:
            async with contextlib.nullcontext("") if show is None else show(cluster) as page:
                ready(Served(server.url, _counts(cluster), ignored, page))
                await ended.wait()
        finally:
            with contextlib.suppress(OSError):
                remove_kubeconfig(kubeconfig, token)
    finally:
        clock.stop()
        await server.stop()


async def _start(server: ApiServer) -> None:
    try:
        await server.start()
    except OSError as exc:
        if exc.errno == errno.EADDRINUSE:
            text = f"port {server.port} of 127.0.0.1 is taken; choose another one with --port"
            raise InputError(text) from None
        raise InputError(f"port {server.port}: {exc.strerror or exc}") from None


def _counts(cluster: ServedCluster) -> dict[str, int]:
    counts = {r.plural: 0 for r in cluster.resources.all()}
    for resource in cluster.resources.all():
        counts[resource.plural] += len(cluster.records(resource))
    del counts["namespaces"]
    return {plural: count for plural, count in counts.items() if count}
