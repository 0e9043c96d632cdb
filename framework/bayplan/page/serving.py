"""A web server for the page alone, for this machine only."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import AsyncIterator, Awaitable, Callable

from aiohttp import web

from bayplan.errors import InputError
from bayplan.inputs.httpserver import SHUTDOWN_SECONDS, asks_loopback, request_log
from bayplan.page.feed import Feed
from bayplan.page.site import Site

__all__ = ["page_server"]

_HOST = "127.0.0.1"


@web.middleware
async def _local(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    if not asks_loopback(request):
        return web.Response(status=403, text="ask for localhost or 127.0.0.1\n")
    return await handler(request)


@contextlib.asynccontextmanager
async def page_server(feed: Feed, port: int) -> AsyncIterator[str]:
    """Serve the page on 127.0.0.1, and yield its URL.

    :param port: 0 for a free one.
    :raises InputError: when the port is taken.
    """
    app = web.Application(middlewares=[_local], client_max_size=4096)
    app.router.add_routes(Site(feed).routes())
    runner = web.AppRunner(
        app, access_log=None, logger=request_log(), shutdown_timeout=SHUTDOWN_SECONDS
    )
    await runner.setup()
    looking = asyncio.create_task(feed.run())
    try:
        try:
            await web.TCPSite(runner, _HOST, port).start()
        except OSError as exc:
            why = os.strerror(exc.errno) if exc.errno else str(exc)
            text = "is taken; choose another one" if exc.errno == errno.EADDRINUSE else why
            raise InputError(text, f"--port {port}") from None
        yield f"http://{_HOST}:{runner.addresses[0][1]}/"
    finally:
        looking.cancel()
        await runner.cleanup()
