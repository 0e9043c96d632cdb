"""A kubelet of tests: it finds the driver by its socket, and calls it as the real one does."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from msgspec.structs import replace

from bayplan.api import Node, ResourceClaim, ResourceSlice
from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.topology.machine.model import Machine
from bayplan.topology.machine.readers.machinefile import known_machine
from bayplan_dra.driver.app import NodeDriver
from bayplan_dra.driver.kubelet.sockets import Sockets
from bayplan_dra.driver.prepare.edits import DeviceFiles
from bayplan_dra.driver.prepare.preparer import ClaimApi, Folders, Preparer
from bayplan_dra.driver.proto import dra_pb2 as dra
from bayplan_dra.driver.proto import health_pb2 as health
from bayplan_dra.driver.proto import registration_pb2 as registration
from bayplan_dra.driver.publish.devices import DRIVER, inventory_of
from bayplan_dra.driver.publish.health import HealthTracker
from bayplan_dra.driver.publish.publisher import Owner

SERVICE = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"


@dataclass
class EmbeddedApi:
    """The driver's view of an embedded cluster. Counts what is written."""

    cluster: MemoryCluster
    lock: threading.RLock = field(default_factory=threading.RLock)
    writes: list[str] = field(default_factory=list)
    failing: Exception | None = None

    def _check(self) -> None:
        if self.failing is not None:
            raise self.failing

    def owner(self, node: str) -> Owner:
        with self.lock:
            self._check()
            found = self.cluster.get(Node, node)
            assert found is not None
            return Owner(node, found.metadata.uid)

    def slices(self, driver: str, node: str) -> list[ResourceSlice]:
        with self.lock:
            self._check()
            every = self.cluster.list(ResourceSlice)
            return [one for one in every if (one.spec.driver, one.spec.node_name) == (driver, node)]

    def create(self, obj: ResourceSlice) -> ResourceSlice:
        with self.lock:
            self._check()
            self.writes.append("create")
            return self.cluster.create(obj)

    def update(self, obj: ResourceSlice) -> ResourceSlice:
        with self.lock:
            self._check()
            self.writes.append("update")
            return self.cluster.update(obj)

    def delete(self, obj: ResourceSlice) -> None:
        with self.lock:
            self._check()
            self.writes.append("delete")
            self.cluster.delete(ResourceSlice, obj.metadata.name)

    def claim(self, namespace: str, name: str) -> ResourceClaim | None:
        with self.lock:
            self._check()
            return self.cluster.get(ResourceClaim, f"{namespace}/{name}")


def eventually(check: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Return the first true answer of a check."""
    until = time.monotonic() + seconds
    while not (found := check()):
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.005)
    return found


@contextmanager
def short_folder() -> Iterator[Path]:
    """Make a folder whose path is short enough for sockets."""
    path = Path(tempfile.mkdtemp(prefix="bd-", dir="/tmp"))
    try:
        yield path
    finally:
        shutil.rmtree(path)


def make_driver(
    root: Path, machine: Machine, api: EmbeddedApi, node: str = "n", pod_uid: str = "", **more: Any
) -> NodeDriver:
    """Return a driver whose folders are all below ``root``."""
    return NodeDriver(
        node,
        inventory_of(machine),
        api,
        HealthTracker(DRIVER, node),
        DeviceFiles(None),
        Sockets(root / "registry", root / "plugins", pod_uid),
        root / "cdi",
        **more,
    )


def make_preparer(root: Path, api: ClaimApi) -> Preparer:
    """Return what prepares claims of the node n, a DGX H100."""
    inventory = inventory_of(known_machine("dgx-h100"))
    folders = Folders(root / "plugin", root / "cdi")
    (root / "plugin").mkdir(parents=True)
    return Preparer(DRIVER, "n", folders, lambda: inventory, api, DeviceFiles(None))


class Kubelet:
    """Calls a driver that has registered in a folder."""

    def __init__(self, registry: Path) -> None:
        self._registry = registry
        self.endpoint = ""
        self.versions: tuple[str, ...] = ()

    def register(self) -> None:
        """Find the newest socket of the registry, ask what is behind it, and accept it."""
        newest = max(self._registry.glob("*-reg.sock"), key=lambda path: path.stat().st_mtime_ns)
        with grpc.insecure_channel(f"unix:{newest}") as channel:
            path = "/pluginregistration.Registration"
            info = _call(channel, f"{path}/GetInfo", registration.PluginInfo)(
                registration.InfoRequest(), timeout=60
            )
            assert (info.type, info.name) == ("DRAPlugin", DRIVER)
            self.endpoint, self.versions = info.endpoint, tuple(info.supported_versions)
            status = registration.RegistrationStatus(plugin_registered=True)
            answer = registration.RegistrationStatusResponse
            _call(channel, f"{path}/NotifyRegistrationStatus", answer)(status, timeout=60)

    def prepare(
        self, *claims: ResourceClaim, service: str = SERVICE
    ) -> dict[str, dra.NodePrepareResourceResponse]:
        """Prepare claims; return the answers by claim name."""
        request = dra.NodePrepareResourcesRequest(claims=[_claim(one) for one in claims])
        with grpc.insecure_channel(f"unix:{self.endpoint}") as channel:
            call = _call(
                channel, f"/{service}/NodePrepareResources", dra.NodePrepareResourcesResponse
            )
            answer = call(request, timeout=60)
        return {one.metadata.name: answer.claims[one.metadata.uid] for one in claims}

    def unprepare(self, *claims: ResourceClaim, service: str = SERVICE) -> dict[str, str]:
        """Undo it; return the errors by claim name."""
        request = dra.NodeUnprepareResourcesRequest(claims=[_claim(one) for one in claims])
        with grpc.insecure_channel(f"unix:{self.endpoint}") as channel:
            call = _call(
                channel, f"/{service}/NodeUnprepareResources", dra.NodeUnprepareResourcesResponse
            )
            answer = call(request, timeout=60)
        return {one.metadata.name: answer.claims[one.metadata.uid].error for one in claims}

    @contextmanager
    def health(self) -> Iterator[Iterator[dict[str, health.DeviceHealth]]]:
        """Watch the devices' health: the whole list, by name, at every change."""
        with grpc.insecure_channel(f"unix:{self.endpoint}") as channel:
            call = channel.unary_stream(
                "/v1alpha1.DRAResourceHealth/NodeWatchResources",
                request_serializer=_bytes,
                response_deserializer=health.NodeWatchResourcesResponse.FromString,
            )(health.NodeWatchResourcesRequest(), timeout=60)
            yield ({one.device.device_name: one for one in answer.devices} for answer in call)
            call.cancel()


def _call(channel: grpc.Channel, method: str, answer: Any) -> Any:
    return channel.unary_unary(
        method, request_serializer=_bytes, response_deserializer=answer.FromString
    )


def _bytes(message: Any) -> bytes:
    content: bytes = message.SerializeToString()
    return content


def _claim(claim: ResourceClaim) -> dra.Claim:
    meta = claim.metadata
    return dra.Claim(namespace=meta.namespace, uid=meta.uid, name=meta.name)


def with_uid(claim: ResourceClaim, uid: str) -> ResourceClaim:
    """Return the claim as another of its name."""
    return replace(claim, metadata=replace(claim.metadata, uid=uid))
