"""A scheduler that starts on a large cluster with a backlog: until it is ready, and the drain.

The nodes, pods that are bound to them, and pods that wait are there before the scheduler's process
starts. It counts as ready with the first binding, whatever it says of itself, so that schedulers
can be compared.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import yaml

from bayplan.benchmark import BenchmarkResult, ClusterTarget
from bayplan.cluster.kubernetes.transport import Transport
from bayplan.errors import BayplanError
from bayplan_benchmarks.live_cluster.bound import BoundPods
from bayplan_benchmarks.live_cluster.cleanup import Cleanup
from bayplan_benchmarks.live_cluster.connection import in_own_namespace, on_cluster, say
from bayplan_benchmarks.live_cluster.objects import LABEL, Workload, bound_pods, pods, surroundings
from bayplan_benchmarks.live_cluster.preflight import Served
from bayplan_benchmarks.live_cluster.requests import at_once, create

__all__ = ["drain_on"]

_BOUND_A_NODE = 5
_STOP_SECONDS = 30.0
_SHOWN = 2000


def drain_on(target: ClusterTarget, nodes: int, waiting: int) -> BenchmarkResult:
    """Measure the start of a scheduler on a cluster; all that is created is deleted again.

    :param waiting: how many pods wait before it starts. Five times the nodes are bound already.
    :raises BayplanError: when the cluster cannot be used, or the pods are not bound.
    """
    return on_cluster(
        target, lambda transport, served: _Backlog(transport, target, served).run(nodes, waiting)
    )


class _Backlog:
    """One run on one cluster."""

    def __init__(self, transport: Transport, target: ClusterTarget, served: Served) -> None:
        self._transport = transport
        self._target = target
        self._served = served
        self._run = secrets.token_hex(4)[:5]

    async def run(self, nodes: int, waiting: int) -> BenchmarkResult:
        """Say what will be created, measure, and delete everything."""
        name = self._target.scheduler or f"bayplan-bench-{self._run}"
        workload = Workload(self._run, "plain", nodes, waiting, name, pod_groups=False)
        bound = nodes * _BOUND_A_NODE
        say(
            f"on {self._transport.url}: namespace {workload.namespace}, {nodes:,} nodes without "
            f"kubelets (label and taint {LABEL}={self._run}), {bound:,} bound and {waiting:,} "
            "waiting pods; all is deleted at the end"
        )
        cleanup = Cleanup(self._transport, self._run, workload.namespace, self._served)
        async with in_own_namespace(cleanup):
            for some in (surroundings(workload), bound_pods(workload, bound), pods(workload)):
                await at_once(lambda obj: create(self._transport, obj, "v1"), some)
            figures = await self._drain(workload, bound)
        given = {"nodes": nodes, "boundPods": bound, "waitingPods": waiting}
        return BenchmarkResult(given, figures)

    async def _drain(self, workload: Workload, bound: int) -> dict[str, float]:
        followed = BoundPods(self._transport, workload.namespace)
        following = asyncio.create_task(followed.run())
        try:
            await followed.all_of(bound)
            started = time.perf_counter()
            with tempfile.TemporaryDirectory() as folder:
                command = self._command(workload.scheduler, Path(folder))
                async with _process(command, Path(folder) / "log") as process:
                    await followed.all_of(bound + 1)
                    first = time.perf_counter()
                    await followed.all_of(bound + workload.pods)
                    last = time.perf_counter()
                    memory = _peak_memory(process.pid)
        finally:
            following.cancel()
        return {
            "readySeconds": round(first - started, 3),
            "drainPodsPerSecond": round((workload.pods - 1) / max(last - first, 1e-9), 1),
            "drainSeconds": round(last - started, 3),
            **memory,
        }

    def _command(self, scheduler: str, folder: Path) -> Sequence[str]:
        """Return what starts the scheduler; ours gets a profile of this name."""
        if self._target.start:
            return self._target.start
        profile = folder / "profile.yaml"
        content = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "profiles": [{"schedulerName": scheduler}],
        }
        profile.write_text(yaml.safe_dump(content))
        return (
            *(sys.executable, "-m", "bayplan.cli", "run", "--no-leader-elect"),
            *("--bind-address", "127.0.0.1:0"),
            *("--kubeconfig", str(self._target.kubeconfig), "--config", str(profile)),
        )


@asynccontextmanager
async def _process(command: Sequence[str], log: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a scheduler for the time of a block, which fails if the scheduler ends before.

    :raises BayplanError: when it cannot be started, or ends by itself.
    """
    with log.open("wb") as out:
        try:
            process = await asyncio.create_subprocess_exec(
                *command, stdout=out, stderr=out, start_new_session=True
            )
        except OSError as exc:
            raise BayplanError(f"{command[0]}: {exc.strerror}") from None
    measuring = asyncio.current_task()
    assert measuring is not None, "it is called in one"
    ended = False

    async def watch() -> None:
        nonlocal ended
        await process.wait()
        ended = True
        measuring.cancel()

    watching = asyncio.create_task(watch())
    try:
        yield process
    except asyncio.CancelledError:
        if not ended:
            raise
        measuring.uncancel()
        text = log.read_text(errors="replace")[-_SHOWN:].strip()
        raise BayplanError(f"the scheduler ended with {process.returncode}: {text}") from None
    finally:
        watching.cancel()
        await _stop(process)


async def _stop(process: asyncio.subprocess.Process) -> None:
    """End a process, by force if it takes too long."""
    if process.returncode is not None:
        return
    process.terminate()
    try:
        await asyncio.wait_for(process.wait(), _STOP_SECONDS)
    except TimeoutError:
        process.kill()
        await process.wait()


def _peak_memory(pid: int) -> dict[str, float]:
    """Return the most memory that a process had, where the system tells."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return {}
    found = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
    return {"peakMemoryMiB": round(int(found[1]) / 1024, 1)} if found else {}
