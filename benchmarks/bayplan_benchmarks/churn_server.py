"""The API server of the churn benchmark: many bound pods, then pods that come and go.

It reads commands from standard input: ``churn N`` creates and deletes pods for N events. It answers
on standard output: ``at URL`` once it serves, ``done`` after each command.
"""

from __future__ import annotations

import asyncio
import sys

from bayplan.api import Namespace, ObjectMeta, Pod, PodSpec
from bayplan.cluster.apiserver import ApiServer, ServedCluster
from bayplan_benchmarks.workloads import container, make_node

__all__ = ["main"]

_CHUNK = 100


def _pod(name: str, node: str = "") -> Pod:
    spec = PodSpec(containers=(container("100m", "200Mi"),), node_name=node)
    labels = {"app": name.rpartition("-")[0], "name": name}
    return Pod(ObjectMeta(name=name, namespace="bench", labels=labels), spec)


async def _churn(cluster: ServedCluster, events: int, first: int) -> None:
    """Create and delete pods in turn; half of the events are creations."""
    for start in range(first, first + events // 2, _CHUNK):
        names = [f"churn-{index}" for index in range(start, start + _CHUNK)]
        for name in names:
            cluster.create(_pod(name))
        cluster.settle()
        while not all(_is_bound(cluster, name) for name in names):
            await asyncio.sleep(0.001)
        for name in names:
            cluster.delete(Pod, f"bench/{name}", grace=0)
        cluster.settle()
        await asyncio.sleep(0)


def _is_bound(cluster: ServedCluster, name: str) -> bool:
    pod = cluster.get(Pod, f"bench/{name}")
    return pod is not None and bool(pod.spec.node_name)


async def _serve(nodes: int, pods: int) -> None:
    cluster = ServedCluster()
    cluster.create(Namespace(ObjectMeta(name="bench")))
    for index in range(nodes):
        cluster.create(make_node(index))
    for index in range(pods):
        cluster.create(_pod(f"pod-{index}", f"node-{index % nodes}"))
    done = 0
    async with ApiServer(cluster) as server:
        print(f"at {server.url}", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            events = int(line.split()[1])
            await _churn(cluster, events, done)
            done += events // 2
            print("done", flush=True)


def main() -> None:
    """Serve NODES PODS until standard input ends."""
    nodes, pods = sys.argv[1:]
    asyncio.run(_serve(int(nodes), int(pods)))


if __name__ == "__main__":
    main()
