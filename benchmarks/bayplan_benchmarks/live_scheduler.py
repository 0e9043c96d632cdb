"""The live scheduler in this process, for the time of a measurement."""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import yaml
from prometheus_client import CollectorRegistry

from bayplan.live.address import Address
from bayplan.live.app import LiveApp, Options
from bayplan.live.loop import LiveScheduler
from bayplan.profiles.loading import ProfileSet, default_profiles

__all__ = ["scheduling", "scheduling_at"]


@asynccontextmanager
async def scheduling(
    kubeconfig: Path, load: Callable[[], ProfileSet] = default_profiles
) -> AsyncIterator[tuple[LiveApp, LiveScheduler]]:
    """Run the live scheduler without leader election; yield it once it is idle.

    :param load: returns the profiles.
    :raises BayplanError: when it cannot start.
    """
    logging.getLogger("bayplan").setLevel(logging.WARNING)
    app = LiveApp(
        Options(
            load,
            kubeconfig,
            leader_elect=False,
            address=Address(port=0),
            registry=CollectorRegistry(),
        )
    )
    running = asyncio.create_task(app.run())
    try:
        while app.live is None or not app.live.idle:
            if running.done():
                break
            await asyncio.sleep(0.05)
        else:
            yield app, app.live
    finally:
        app.stop()
        await running


@asynccontextmanager
async def scheduling_at(url: str) -> AsyncIterator[tuple[LiveApp, LiveScheduler]]:
    """Do the same on a server without authentication."""
    with tempfile.TemporaryDirectory() as folder:
        async with scheduling(_write_kubeconfig(Path(folder) / "kubeconfig", url)) as running:
            yield running


def _write_kubeconfig(path: Path, url: str) -> Path:
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "bench",
        "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
        "clusters": [{"name": "bench", "cluster": {"server": url}}],
        "users": [{"name": "bench", "user": {}}],
    }
    path.write_text(yaml.safe_dump(content))
    return path
