"""Creates the pods of a workload and waits until all have nodes, in a process of its own.

So that the scheduler's process spends its CPU time on scheduling only. It is called with a
kubeconfig and a workload as JSON, and answers with ``Times`` as JSON on standard output. Errors are
one line on standard error, with exit status 1.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import msgspec

from bayplan.cluster.kubernetes.credentials import Credentials
from bayplan.cluster.kubernetes.transport import Transport
from bayplan.errors import BayplanError
from bayplan_benchmarks.live_cluster.bound import BoundPods
from bayplan_benchmarks.live_cluster.objects import Workload, pods
from bayplan_benchmarks.live_cluster.requests import at_once, create

__all__ = ["Times", "main"]


class Times(msgspec.Struct, frozen=True, rename="camel"):
    """Seconds until all pods were created, and until all had nodes."""

    created: float
    bound: float


async def _create(transport: Transport, workload: Workload) -> Times:
    bound = BoundPods(transport, workload.namespace)
    tasks = [asyncio.create_task(bound.run()), asyncio.create_task(bound.following.wait())]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    started = time.perf_counter()
    await at_once(lambda pod: create(transport, pod, "v1"), pods(workload))
    created = time.perf_counter() - started
    waiting = asyncio.create_task(bound.all_of(workload.pods))
    await asyncio.wait((tasks[0], waiting), return_when=asyncio.FIRST_COMPLETED)
    for task in (tasks[0], waiting):
        if task.done():
            task.result()
    return Times(created, time.perf_counter() - started)


async def _run(kubeconfig: Path, workload: Workload) -> Times:
    transport = Transport(Credentials(kubeconfig))
    try:
        return await _create(transport, workload)
    finally:
        await transport.close()


def main() -> None:
    """Create the pods of a workload: KUBECONFIG WORKLOAD."""
    kubeconfig, workload = sys.argv[1:]
    try:
        times = asyncio.run(_run(Path(kubeconfig), msgspec.json.decode(workload, type=Workload)))
    except BayplanError as exc:
        sys.exit(str(exc))
    print(msgspec.json.encode(times).decode())


if __name__ == "__main__":
    main()
