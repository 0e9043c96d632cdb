"""The live scheduler's memory beside many pods, and after very many that came and went."""

from __future__ import annotations

import asyncio
import gc
import logging
import subprocess
import sys
import tempfile
from pathlib import Path

from prometheus_client import CollectorRegistry

from bayplan.benchmark import Benchmark, BenchmarkResult
from bayplan.live.app import LiveApp, Options
from bayplan.live.web import Address
from bayplan.profile import default_profiles
from bayplan_benchmarks.live import write_kubeconfig

__all__ = ["churn"]

_EVENTS = 200_000
_STEPS = 4


def _measure(nodes: int, pods: int) -> BenchmarkResult:
    command = [sys.executable, "-m", "bayplan_benchmarks.churn_server", str(nodes), str(pods)]
    with subprocess.Popen(  # noqa: S603 - our own module
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            figures = asyncio.run(_run(server))
        finally:
            server.kill()
    return BenchmarkResult({"nodes": nodes, "pods": pods, "events": _EVENTS}, figures)


async def _run(server: subprocess.Popen[str]) -> dict[str, float]:
    assert server.stdin is not None
    assert server.stdout is not None
    logging.getLogger("bayplan").setLevel(logging.WARNING)
    url = (await asyncio.to_thread(server.stdout.readline)).split()[1]
    with tempfile.TemporaryDirectory() as folder:
        kubeconfig = write_kubeconfig(Path(folder) / "kubeconfig", url)
        app = LiveApp(
            Options(
                default_profiles,
                kubeconfig,
                leader_elect=False,
                address=Address(port=0),
                registry=CollectorRegistry(),
            )
        )
        running = asyncio.create_task(app.run())
        while app.live is None or not app.live.idle:
            await asyncio.sleep(0.1)
        figures = {"listedMemoryMiB": _memory()}
        for step in range(1, _STEPS + 1):
            server.stdin.write(f"churn {_EVENTS // _STEPS}\n")
            server.stdin.flush()
            await asyncio.to_thread(server.stdout.readline)
            figures[f"memoryMiBAfter{step * _EVENTS // _STEPS}"] = _memory()
        app.stop()
        await running
    return figures


def _memory() -> float:
    """Return the resident memory of this process in MiB."""
    gc.collect()
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return round(int(line.split()[1]) / 1024, 1)
    raise AssertionError("Linux tells it")


churn = Benchmark("the live scheduler's memory while pods come and go", (5000,), 50_000, _measure)
