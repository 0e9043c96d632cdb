"""The API server of the live benchmark, in a process of its own.

It reads a command from standard input: ``pods`` creates the pods. It answers on standard output:
``at URL`` once it serves, ``bound SECONDS`` once every pod is bound.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterable

from bayplan.api import ApiObject, Namespace, ObjectMeta, Pod, PodGroup, PodSpec
from bayplan.api.pod import PodResourceClaim
from bayplan.api.podgroup import PodGroupSpec
from bayplan.cluster.apiserver import ApiServer, ServedCluster, start_all
from bayplan.cluster.protocol import WatchEvent
from bayplan_benchmarks.dra import devices
from bayplan_benchmarks.workloads import container, make_node

__all__ = ["main"]

_CHUNK = 50
_GANG = 4
_RACK = "rack"


def _objects(workload: str, nodes: int) -> Iterable[ApiObject]:
    yield Namespace(ObjectMeta(name="bench"))
    if workload == "dra":
        yield from devices(nodes)
        return
    for index in range(nodes):
        yield make_node(index, rack=f"rack-{index // 20}")


def _pods(workload: str, count: int) -> Iterable[ApiObject]:
    spec = PodSpec(containers=(container("1", "2Gi"),))
    if workload == "dra":
        claims = (PodResourceClaim("pair", resource_claim_template_name="pair"),)
        spec = PodSpec(containers=spec.containers, resource_claims=claims)
    for index in range(count):
        labels = {}
        if workload == "gang":
            group = f"gang-{index // _GANG}"
            labels = {"pod-group.scheduling.sigs.k8s.io": group}
            if index % _GANG == 0:
                yield PodGroup(
                    ObjectMeta(name=group, namespace="bench"), PodGroupSpec(min_member=_GANG)
                )
        yield Pod(ObjectMeta(name=f"pod-{index}", namespace="bench", labels=labels), spec)


class _BoundPods:
    """Counts the pods that have a node, and sets ``all`` when all have."""

    def __init__(self, wanted: int) -> None:
        self._keys: set[str] = set()
        self._wanted = wanted
        self.all = asyncio.Event()

    def handle(self, event: WatchEvent) -> None:
        pod = event.obj
        if isinstance(pod, Pod) and pod.spec.node_name:
            self._keys.add(pod.key)
            if len(self._keys) == self._wanted:
                self.all.set()


async def _command() -> str:
    return await asyncio.to_thread(sys.stdin.readline)


async def _serve(workload: str, nodes: int, pods: int) -> None:
    cluster = ServedCluster()
    start_all(cluster)
    bound = _BoundPods(pods)
    cluster.watch(bound.handle)
    for obj in _objects(workload, nodes):
        cluster.create(obj)
    cluster.settle()
    async with ApiServer(cluster) as server:
        print(f"at {server.url}", flush=True)
        assert (await _command()).strip() == "pods"
        started = time.perf_counter()
        for index, obj in enumerate(_pods(workload, pods)):
            cluster.create(obj)
            if index % _CHUNK == 0:
                cluster.settle()
                await asyncio.sleep(0)
        cluster.settle()
        await bound.all.wait()
        print(f"bound {time.perf_counter() - started}", flush=True)
        await _command()


def main() -> None:
    """Serve WORKLOAD (plain, dra or gang) NODES PODS until standard input ends."""
    workload, nodes, pods = sys.argv[1:]
    asyncio.run(_serve(workload, int(nodes), int(pods)))


if __name__ == "__main__":
    main()
