"""The live scheduler against an API server in another process: pods per second, CPU per pod.

The API server is the embedded cluster's, so the rate is that of both on this machine. The CPU time
is that of the scheduler's process alone, which is what it needs beside a real API server. Splitting
the CPU time by purpose costs time itself, so that is a separate run.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Coroutine, Generator
from typing import Any

from bayplan.benchmark import Benchmark, BenchmarkResult
from bayplan_benchmarks.live_cluster import drain_on, measure_on
from bayplan_benchmarks.live_scheduler import scheduling_at

__all__ = ["live", "live_mega"]

_DRA = (200, 1600)
_GANGS = (1000, 3000)


def _measure(nodes: int, pods: int) -> BenchmarkResult:
    given = {"nodes": nodes, "pods": pods, "draNodes": _DRA[0], "draPods": _DRA[1]}
    given |= {"gangNodes": _GANGS[0], "gangPods": _GANGS[1]}
    plain = _run("plain", nodes, pods)
    dra = {f"dra.{name}": value for name, value in _run("dra", *_DRA).items()}
    gang = {f"gang.{name}": value for name, value in _run("gang", *_GANGS).items()}
    return BenchmarkResult(given, {**plain, **dra, **gang})


def _run(workload: str, nodes: int, pods: int) -> dict[str, float]:
    """Run a workload twice: for the figures, and to split the CPU time by purpose."""
    figures = _once(workload, nodes, pods, split=False)
    return {**_once(workload, nodes, pods, split=True), **figures}


def _once(workload: str, nodes: int, pods: int, split: bool) -> dict[str, float]:
    command = [sys.executable, "-m", "bayplan_benchmarks.live_server", workload]
    with subprocess.Popen(  # noqa: S603 - our own module
        [*command, str(nodes), str(pods)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            return asyncio.run(_schedule(server, pods, split))
        finally:
            server.kill()


async def _schedule(server: subprocess.Popen[str], pods: int, split: bool) -> dict[str, float]:
    assert server.stdin is not None
    assert server.stdout is not None
    spent = _Spent()
    if split:
        asyncio.get_running_loop().set_task_factory(spent.task)
    url = (await asyncio.to_thread(server.stdout.readline)).split()[1]
    async with scheduling_at(url) as (app, live):
        started, before = time.process_time(), dict(spent.seconds)
        server.stdin.write("pods\n")
        server.stdin.flush()
        seconds = float((await asyncio.to_thread(server.stdout.readline)).split()[1])
        while live.scheduler.statistics.bound < pods:
            await asyncio.sleep(0.01)
        assert app.writer is not None
        await app.writer.drain(60)
        cpu = time.process_time() - started
        parts = {name: value - before.get(name, 0.0) for name, value in spent.seconds.items()}
    if split:
        parts["decide"] = parts.pop("run", 0.0)
        parts["sockets"] = cpu - sum(parts.values())
        per_pod = {name: _micros(seconds, pods) for name, seconds in sorted(parts.items())}
        return {f"{name}MicrosecondsPerPod": value for name, value in per_pod.items()}
    return {
        "cpuMicrosecondsPerPod": _micros(cpu, pods),
        "podsPerSecond": round(pods / seconds, 1),
        "podsPerCpuSecond": round(pods / cpu, 1),
    }


def _micros(seconds: float, pods: int) -> float:
    return round(seconds / pods * 1e6, 1)


class _Spent:
    """The CPU seconds of tasks, by the purpose of their coroutines."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def task(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **more: Any) -> Any:
        """Create a task whose steps are timed (an asyncio task factory)."""
        return asyncio.Task(
            _Measured(coroutine, self.seconds, _label(coroutine)), loop=loop, **more
        )


def _label(coroutine: Any) -> str:
    name = getattr(coroutine, "__qualname__", "")
    known = {"Reflector.run": "watch", "Writer._work": "write", "LiveScheduler.run": "run"}
    return known.get(name, "other")


class _Measured(Coroutine[Any, Any, Any]):
    """A coroutine that adds the CPU time of its steps to a total, by label."""

    def __init__(
        self, inner: Coroutine[Any, Any, Any], seconds: dict[str, float], label: str
    ) -> None:
        self._inner = inner
        self._seconds = seconds
        self._label = label

    def send(self, value: Any) -> Any:
        started = time.thread_time()
        try:
            return self._inner.send(value)
        finally:
            took = time.thread_time() - started
            self._seconds[self._label] = self._seconds.get(self._label, 0.0) + took

    def throw(self, *args: Any) -> Any:
        return self._inner.throw(*args)

    def close(self) -> None:
        self._inner.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._inner.__await__()


live = Benchmark(
    "the live scheduler against an API server in another process",
    (1000,),
    5000,
    _measure,
    measure_on,
)
live_mega = Benchmark(
    "the start of a scheduler on a large cluster with a backlog (with --kubeconfig)",
    (10_000,),
    10_000,
    None,
    drain_on,
    starts=True,
)
