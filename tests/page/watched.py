"""A simulation that goes on while a page follows it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from bayplan.api import ApiObject
from bayplan.page.feed import Feed
from bayplan.page.serving import page_server
from bayplan.profiles.loading import default_profiles
from bayplan.simulation import Simulation

Act = Callable[[Callable[[Simulation], object]], None]


@contextmanager
def watched(objects: Iterable[ApiObject], wall: bool = False) -> Iterator[tuple[str, Act]]:
    """Serve the page of a simulation; yield its URL, and what lets something happen to it.

    :param wall: the page takes the virtual time for that of clocks.
    """
    simulation = Simulation(default_profiles())
    feed = Feed("test", wall=wall)
    feed.follow(simulation.scheduler)
    simulation.cluster.watch(feed.handle)
    simulation.create(objects)
    simulation.run()
    loop = asyncio.new_event_loop()
    started, ended = threading.Event(), asyncio.Event()
    url = ""

    async def serve() -> None:
        nonlocal url
        async with page_server(feed, 0) as url:
            started.set()
            await ended.wait()

    def act(happens: Callable[[Simulation], object]) -> None:
        def on_loop() -> None:
            happens(simulation)
            simulation.run()

        loop.call_soon_threadsafe(on_loop)

    server = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    server.start()
    try:
        assert started.wait(30)
        yield url, act
    finally:
        loop.call_soon_threadsafe(ended.set)
        server.join(30)
        loop.close()
