"""The time in which the node driver prepares claims, through its socket, as for the kubelet."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

from bayplan.api import ResourceClaim, ResourceSlice
from bayplan.api.dra import (
    AllocatedDevice,
    AllocationResult,
    DeviceAllocation,
    ResourceClaimStatus,
)
from bayplan.api.meta import ObjectMeta
from bayplan.benchmark import Benchmark, BenchmarkResult
from bayplan.topology.machine.bandwidth import inter_socket, nvlink, pcie
from bayplan.topology.machine.builder import MachineBuilder
from bayplan.topology.machine.model import Gpu, Machine
from bayplan_dra.driver.publish.publisher import Owner, SliceChange

__all__ = ["driver"]

_NODE = "node-0"
_ROUNDS = 5


class _Api:
    """An API server where claim N has GPU N."""

    def owner(self, node: str) -> Owner:
        return Owner(node, "uid")

    def slices(self, driver: str, node: str) -> list[ResourceSlice]:
        return []

    def follow(self, driver: str, node: str) -> Iterator[SliceChange]:
        yield SliceChange.STARTED

    def create(self, obj: ResourceSlice) -> ResourceSlice:
        return obj

    def update(self, obj: ResourceSlice) -> ResourceSlice:
        return obj

    def delete(self, obj: ResourceSlice) -> None: ...

    def claim(self, namespace: str, name: str) -> ResourceClaim | None:
        from bayplan_dra.driver.publish.devices import DRIVER

        result = AllocatedDevice("gpu", DRIVER, _NODE, f"gpu-{name}")
        allocation = AllocationResult(DeviceAllocation((result,)))
        meta = ObjectMeta(name=name, namespace=namespace, uid=f"uid-{name}")
        return ResourceClaim(metadata=meta, status=ResourceClaimStatus(allocation))


def _machine(gpus: int) -> Machine:
    builder = MachineBuilder("many", nvlink(4), inter_socket("sapphire-rapids"))
    builder.socket("socket 0")
    builder.numa("numa 0", "socket 0", 0)
    for index in range(gpus):
        builder.root(f"root {index}", "numa 0")
        builder.gpu(Gpu(index, uuid=f"GPU-{index}", numa=0), f"root {index}", pcie(5))
    return builder.build()


def _run(nodes: int, pods: int) -> BenchmarkResult:
    with tempfile.TemporaryDirectory(prefix="bd-", dir="/tmp") as folder:
        return _measured(Path(folder), pods)


def _measured(root: Path, claims: int) -> BenchmarkResult:
    import grpc

    from bayplan_dra.driver.app import NodeDriver
    from bayplan_dra.driver.kubelet.sockets import Sockets
    from bayplan_dra.driver.prepare.edits import DeviceFiles
    from bayplan_dra.driver.proto import dra_pb2 as dra
    from bayplan_dra.driver.publish.devices import DRIVER, inventory_of
    from bayplan_dra.driver.publish.health import HealthTracker

    sockets = Sockets(root / "r", root / "p")
    health = HealthTracker(DRIVER, _NODE)
    inventory = inventory_of(_machine(claims))
    driver = NodeDriver(
        _NODE, inventory, _Api(), health, DeviceFiles(None), sockets, root / "c", root / "none"
    )
    driver.start()
    service = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
    channel = grpc.insecure_channel(f"unix:{sockets.service(DRIVER)}")

    def call(method: str, number: int) -> Any:
        claim = dra.Claim(namespace="default", uid=f"uid-{number}", name=str(number))
        ask: Any = channel.unary_unary(
            f"{service}/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=getattr(dra, f"{method}Response").FromString,
        )
        answer = ask(getattr(dra, f"{method}Request")(claims=[claim]), timeout=45)
        assert not answer.claims[claim.uid].error, answer
        return answer

    at_once, alone = [], []
    for _ in range(_ROUNDS):
        with ThreadPoolExecutor(claims) as pool:
            started = time.perf_counter()
            list(pool.map(lambda number: call("NodePrepareResources", number), range(claims)))
            at_once.append(time.perf_counter() - started)
            list(pool.map(lambda number: call("NodeUnprepareResources", number), range(claims)))
        started = time.perf_counter()
        call("NodePrepareResources", 0)
        alone.append(time.perf_counter() - started)
        call("NodeUnprepareResources", 0)
    channel.close()
    driver.stop()
    figures = {"atOnceSeconds": median(at_once), "oneMilliseconds": median(alone) * 1e3}
    return BenchmarkResult({"claims": claims}, figures)


driver = Benchmark("the node driver: claims prepared at once, through its socket", (1,), 64, _run)
