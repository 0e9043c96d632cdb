"""bayplan demo: a cluster, a scheduler, jobs that come and go, and the page, in one command."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bayplan.cli.options import Duration

if TYPE_CHECKING:
    from bayplan.cluster.apiserver.cluster_up import Served
    from bayplan.cluster.apiserver.store import ServedCluster
    from bayplan.live.app import LiveApp

__all__ = ["command"]

_SPINES, _RACKS, _NODES, _GPUS = 2, 3, 4, 8
"""Racks of a spine, nodes of a rack, GPUs of a node."""
_SPINE, _RACK = "network/spine", "network/rack"
_SIZES = (1, 1, 2, 2, 4, 4, 6, 8)
"""Pods of a job, each with all GPUs of a node, or half of them where it is small."""
_EVERY, _SHORTEST, _LONGEST = 3.0, 8, 40
"""Seconds between two jobs, and how long one runs."""
_MOST = 40
"""Jobs that are there at a time."""
_JOBS = "/apis/batch/v1/namespaces/default/jobs"
_REQUIRED = "kueue.x-k8s.io/podset-required-topology"
_PREFERRED = "kueue.x-k8s.io/podset-preferred-topology"


@click.command(name="demo")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    metavar="N",
    help="The port of the page on 127.0.0.1. By default, a free port.",
)
@click.option("--seed", default=0, show_default=True, help="Which jobs come.")
@click.option("--for", "seconds", type=Duration(), metavar="DURATION", help="Stop after this time.")
def command(port: int, seed: int, seconds: float | None) -> None:
    """Run a cluster of 24 nodes with 192 GPUs, on which jobs come and go, and show its page.

    All of it is in this process and ends with Ctrl-C. kubectl works on it, too.
    """
    from bayplan.cluster.apiserver.cluster_up import serve
    from bayplan.cluster.manifests import load_manifests

    with tempfile.TemporaryDirectory(prefix="bayplan-demo-") as folder:
        kubeconfig, nodes = Path(folder) / "kubeconfig", Path(folder) / "nodes.json"
        contents = {"apiVersion": "v1", "kind": "List", "items": [*_topology(), *_nodes()]}
        nodes.write_text(json.dumps(contents), encoding="utf-8")

        def ready(served: Served) -> None:
            click.echo(f"the page     {served.page}")
            click.echo(f"for kubectl  export KUBECONFIG={kubeconfig}")
            click.echo("Jobs come and go; Ctrl-C ends it.")

        @contextlib.asynccontextmanager
        async def play(_: ServedCluster) -> AsyncIterator[str]:
            async with _scheduler(kubeconfig, port, seed, seconds) as url:
                yield url

        serve(load_manifests([str(nodes)], in_full=True), 0, kubeconfig, ready, play)


@contextlib.asynccontextmanager
async def _scheduler(
    kubeconfig: Path, port: int, seed: int, seconds: float | None
) -> AsyncIterator[str]:
    """Run the scheduler and what makes jobs; yield the address of the page."""
    from bayplan.live.address import Address
    from bayplan.live.app import LiveApp, Options
    from bayplan.profiles.loading import default_profiles

    app = LiveApp(
        Options(
            default_profiles,
            kubeconfig,
            leader_elect=False,
            address=Address(port=port),
            title="bayplan demo",
        )
    )
    name = default_profiles().profiles[0].scheduler_name
    running = asyncio.create_task(app.run())
    tasks = [asyncio.create_task(_jobs(app, name, random.Random(seed)))]  # noqa: S311 - a demo
    if seconds is not None:
        tasks.append(asyncio.create_task(_end_after(seconds)))
    try:
        while app.live is None and not running.done():
            await asyncio.sleep(0.02)
        yield app.listener.url
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        app.stop()
        await running


async def _end_after(seconds: float) -> None:
    await asyncio.sleep(seconds)
    os.kill(os.getpid(), signal.SIGTERM)


async def _jobs(app: LiveApp, scheduler: str, chance: random.Random) -> None:
    """Create a job after the other, and delete those that are complete."""
    from bayplan.errors import ClusterError

    number = 0
    while True:
        # The server may be about to end.
        with contextlib.suppress(ClusterError):
            found = json.loads(await app.transport.request("GET", _JOBS))["items"]
            done = [one for one in found if (one.get("status") or {}).get("completionTime")]
            for one in done:
                query = {"propagationPolicy": "Background"}
                path = f"{_JOBS}/{one['metadata']['name']}"
                await app.transport.request("DELETE", path, query=query)
            if len(found) - len(done) < _MOST:
                body = json.dumps(_job(f"train-{number}", scheduler, chance)).encode()
                await app.transport.request("POST", _JOBS, body)
                number += 1
        await asyncio.sleep(_EVERY)


def _job(name: str, scheduler: str, chance: random.Random) -> Any:
    pods = chance.choice(_SIZES)
    gpus = chance.choice((_GPUS // 2, _GPUS)) if pods < 3 else _GPUS
    # Large jobs need more than a rack.
    asks = {_REQUIRED: _RACK} if pods <= _NODES else {_PREFERRED: _SPINE}
    container = {
        "name": "trainer",
        "image": "demo",
        "resources": {"limits": {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": str(gpus)}},
    }
    template = {
        "metadata": {
            "annotations": {
                **asks,
                "bayplan.dev/duration": f"{chance.randint(_SHORTEST, _LONGEST)}s",
            }
        },
        "spec": {"schedulerName": scheduler, "restartPolicy": "Never", "containers": [container]},
    }
    spec = {"parallelism": pods, "completions": pods, "template": template}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}


def _topology() -> Iterator[Any]:
    levels = [{"nodeLabel": label} for label in (_SPINE, _RACK, "kubernetes.io/hostname")]
    yield {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Topology",
        "metadata": {"name": "network"},
        "spec": {"levels": levels},
    }


def _nodes() -> Iterator[Any]:
    room = {"cpu": "128", "memory": "2Ti", "pods": "110", "nvidia.com/gpu": str(_GPUS)}
    for number in range(_SPINES * _RACKS * _NODES):
        rack = number // _NODES
        name = f"gpu-{number:02}"
        labels = {
            "kubernetes.io/hostname": name,
            _SPINE: f"spine-{rack // _RACKS}",
            _RACK: f"rack-{rack}",
        }
        yield {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": labels},
            "status": {
                "capacity": room,
                "allocatable": room,
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }
