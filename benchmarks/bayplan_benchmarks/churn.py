"""The memory of the live scheduler with many pods, and after many more came and went."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from pathlib import Path

from bayplan.benchmark import Benchmark, BenchmarkResult
from bayplan_benchmarks.live_scheduler import scheduling_at

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
    url = (await asyncio.to_thread(server.stdout.readline)).split()[1]
    async with scheduling_at(url):
        figures = {"listedMemoryMiB": _memory()}
        for step in range(1, _STEPS + 1):
            server.stdin.write(f"churn {_EVENTS // _STEPS}\n")
            server.stdin.flush()
            await asyncio.to_thread(server.stdout.readline)
            figures[f"memoryMiBAfter{step * _EVENTS // _STEPS}"] = _memory()
    return figures


def _memory() -> float:
    """Return the resident memory of this process in MiB."""
    gc.collect()
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return round(int(line.split()[1]) / 1024, 1)
    raise AssertionError("Linux reports VmRSS")


churn = Benchmark("the live scheduler's memory while pods come and go", (5000,), 50_000, _measure)
