"""A run on a cluster: it is checked before anything is created there."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import msgspec

from bayplan.api import Namespace, ObjectMeta
from bayplan.benchmark import BenchmarkResult, ClusterTarget
from bayplan.cluster.kubernetes.credentials import Credentials
from bayplan.cluster.kubernetes.transport import Transport
from bayplan.errors import AlreadyExists, ClusterError, InputError
from bayplan_benchmarks.live_cluster.cleanup import Cleanup
from bayplan_benchmarks.live_cluster.objects import LABEL
from bayplan_benchmarks.live_cluster.preflight import Served, check_rights, look_at
from bayplan_benchmarks.live_cluster.requests import create

__all__ = ["in_own_namespace", "on_cluster", "say"]

_Run = Callable[[Transport, Served], Awaitable[BenchmarkResult]]


def on_cluster(target: ClusterTarget, run: _Run) -> BenchmarkResult:
    """Measure on a cluster.

    :raises BayplanError: when the cluster cannot be used, or the run fails.
    """
    try:
        return asyncio.run(_on_cluster(target, run))
    except asyncio.CancelledError:
        # Ctrl-C ends as KeyboardInterrupt instead.
        sys.exit(128 + signal.SIGTERM)


async def _on_cluster(target: ClusterTarget, run: _Run) -> BenchmarkResult:
    task = asyncio.current_task()
    assert task is not None, "asyncio.run makes one"
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    credentials = Credentials(target.kubeconfig)
    await credentials.endpoint()
    transport = Transport(credentials)
    try:
        try:
            served = await look_at(transport)
            await check_rights(transport, credentials.source, served)
        except ClusterError as exc:
            raise InputError(str(exc), credentials.source) from None
        return await run(transport, served)
    finally:
        await transport.close()


@asynccontextmanager
async def in_own_namespace(cleanup: Cleanup) -> AsyncIterator[None]:
    """Create the namespace of a run; at the end of the block, delete all of the run."""
    name, run = cleanup.namespace, cleanup.run
    try:
        await _create_namespace(cleanup.transport, name, run)
        yield
    finally:
        say(f"deleting {name} and everything with the label {LABEL}={run}")
        left = await cleanup.all()
        say(f"could not delete {'; '.join(left)}" if left else "all is deleted")


async def _create_namespace(transport: Transport, name: str, run: str) -> None:
    """Create a namespace, so that pods can be created there."""
    await create(transport, Namespace(ObjectMeta(name=name, labels={LABEL: run})), "v1")
    # Pods are refused until there is this account; a controller may take its time.
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
    path = f"/api/v1/namespaces/{name}/serviceaccounts"
    with suppress(AlreadyExists):
        await transport.request("POST", path, msgspec.json.encode(account))


def say(text: str) -> None:
    """Tell the user what happens on the cluster."""
    print(f"bayplan: {text}", file=sys.stderr, flush=True)
