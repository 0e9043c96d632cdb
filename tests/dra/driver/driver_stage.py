"""A stage for the driver: a kubelet that calls it over its sockets, a cluster with a scheduler."""

from __future__ import annotations

import json
import queue
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from msgspec.structs import replace

from bayplan.api import ApiObject, Node, Pod, ResourceClaim, ResourceSlice
from bayplan.api.dra import AllocationResult
from bayplan.cluster.embedded.claims import ClaimController
from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.testing import Cluster, assert_placed, make_node, make_object, make_pod
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
from bayplan_dra.driver.publish.publisher import Owner, SliceChange

MACHINE = known_machine("dgx-h100")
SERVICE = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"


@dataclass
class EmbeddedApi:
    """The driver's API over an embedded cluster; records writes, and fails on demand."""

    cluster: MemoryCluster
    lock: threading.RLock = field(default_factory=threading.RLock)
    writes: list[str] = field(default_factory=list)
    failing: Exception | None = None
    asked: int = 0
    _followers: list[queue.Queue[SliceChange]] = field(default_factory=list)

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

    def follow(self, driver: str, node: str) -> Iterator[SliceChange]:
        changes: queue.Queue[SliceChange] = queue.Queue()
        with self.lock:
            self._check()
            self._followers.append(changes)
        changes.put(SliceChange.STARTED)
        with suppress(queue.Empty):
            while True:
                yield changes.get(timeout=1.0)
        with self.lock:
            self._followers.remove(changes)

    def _tell(self, change: SliceChange) -> None:
        for follower in self._followers:
            follower.put(change)

    def create(self, obj: ResourceSlice) -> ResourceSlice:
        with self.lock:
            self._check()
            self.writes.append("create")
            return self.cluster.create(obj)

    def update(self, obj: ResourceSlice) -> ResourceSlice:
        with self.lock:
            self._check()
            self.writes.append("update")
            self._tell(SliceChange.MODIFIED)
            return self.cluster.update(obj)

    def delete(self, obj: ResourceSlice) -> None:
        with self.lock:
            self._check()
            self.writes.append("delete")
            self._tell(SliceChange.DELETED)
            self.cluster.delete(ResourceSlice, obj.metadata.name)

    def claim(self, namespace: str, name: str) -> ResourceClaim | None:
        with self.lock:
            self.asked += 1
            self._check()
            return self.cluster.get(ResourceClaim, f"{namespace}/{name}")


def eventually(check: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Call a check until its result is true; return that."""
    until = time.monotonic() + seconds
    while not (found := check()):
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.005)
    return found


@contextmanager
def short_folder() -> Iterator[Path]:
    """Make a temporary folder whose path is short enough for sockets."""
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
        root / "pod-resources",
        **more,
    )


def make_preparer(root: Path, api: ClaimApi) -> Preparer:
    """Return a preparer for the node n, a DGX H100."""
    inventory = inventory_of(MACHINE)
    folders = Folders(root / "plugin", root / "cdi")
    (root / "plugin").mkdir(parents=True)
    return Preparer(DRIVER, "n", folders, lambda: inventory, api, DeviceFiles(None))


class Kubelet:
    """A kubelet: finds the driver by its socket in the registry, and calls it."""

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
        """Unprepare claims; return the errors by claim name."""
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
    """Return another claim of the same name."""
    return replace(claim, metadata=replace(claim.metadata, uid=uid))


def device_class() -> ApiObject:
    """Return the class of all devices of the driver."""
    expression = f'device.driver == "{DRIVER}"'
    return make_object(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": "bayplan"},
            "spec": {"selectors": [{"cel": {"expression": expression}}]},
        }
    )


def template(name: str, config: Any = None, **counts: int) -> ApiObject:
    """Return a template that asks for the given number of devices of each type."""
    requests = []
    for kind, count in counts.items():
        expression = f'device.attributes["{DRIVER}"].type == "{kind}"'
        exactly = {
            "deviceClassName": "bayplan",
            "count": count,
            "selectors": [{"cel": {"expression": expression}}],
        }
        requests.append({"name": kind, "exactly": exactly})
    devices: dict[str, Any] = {"requests": requests}
    if config is not None:
        devices["config"] = [{"opaque": {"driver": DRIVER, "parameters": config}}]
    return make_object(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"spec": {"devices": devices}},
        }
    )


def claim_pod(name: str, wanted: str) -> Pod:
    """Return a pod with a claim of a template."""
    claims = [{"name": "own", "resourceClaimTemplateName": wanted}]
    return make_pod(name, spec={"resourceClaims": claims})


class DriverNode:
    """A node with a driver on it, in a cluster with a scheduler.

    :param more: arguments of the driver.
    """

    def __init__(self, root: Path, **more: Any) -> None:
        self.root = root
        self.cluster = Cluster([make_node("n", cpu=64), device_class()])
        ClaimController(self.cluster.api)
        self.api = EmbeddedApi(self.cluster.api)
        self.kubelet = Kubelet(root / "registry")
        self.driver = self.start(**more)

    def start(self, **more: Any) -> NodeDriver:
        """Start a driver, and let the kubelet register it."""
        driver = make_driver(self.root, MACHINE, self.api, **more)
        driver.start()
        self.kubelet.register()
        eventually(lambda: driver.published)
        return driver

    def claim_of(self, pod: str) -> ResourceClaim:
        """Return the claim of a pod."""
        (found,) = [
            one
            for one in self.cluster.api.list(ResourceClaim)
            if any(owner.name == pod for owner in one.metadata.owner_references)
        ]
        return found

    def bind(self, name: str, wanted: str) -> ResourceClaim:
        """Let the scheduler give a pod its node and its devices; return its claim."""
        with self.api.lock:
            self.cluster.add(claim_pod(name, wanted))
            assert_placed(self.cluster, **{name.replace("-", "_"): "n"})
            return self.claim_of(name)

    def reallocate(self, claim: ResourceClaim, allocation: AllocationResult | None) -> None:
        """Replace a claim's allocation."""
        status = replace(claim.status, allocation=allocation)
        meta = replace(claim.metadata, resource_version="")
        with self.api.lock:
            self.cluster.api.update(replace(claim, status=status, metadata=meta))

    def slices(self) -> list[ResourceSlice]:
        """Return all slices."""
        with self.api.lock:
            return self.cluster.api.list(ResourceSlice)

    def said(self, claim: ResourceClaim, request: str = "") -> dict[str, str]:
        """Return the environment of a container that names a request of a claim, "" for none.

        Without what only marks a device.
        """
        answer = self.kubelet.prepare(claim)[claim.metadata.name]
        spec = self.cdi()[claim.metadata.uid]
        edits = {f"{spec['kind']}={one['name']}": one["containerEdits"] for one in spec["devices"]}
        lines = [line for name in _given(answer, request) for line in edits[name].get("env", ())]
        said = dict(line.split("=", 1) for line in lines)
        return {name: value for name, value in said.items() if not name.startswith("BAYPLAN_")}

    def cdi(self) -> dict[str, Any]:
        """Return the CDI files by the claim's UID."""
        return {
            path.stem.partition("_")[2]: json.loads(path.read_text())
            for path in (self.root / "cdi").iterdir()
        }


def _given(answer: dra.NodePrepareResourceResponse, request: str) -> list[str]:
    """Return the CDI devices that the kubelet gives a container, in their order."""
    return [
        name
        for one in answer.devices
        if not request or request in one.request_names
        for name in one.cdi_device_ids
    ]


def devices_of(claim: ResourceClaim) -> list[str]:
    """Return the names of a claim's devices, sorted."""
    assert claim.status.allocation is not None
    return sorted(one.device for one in claim.status.allocation.devices.results)


def with_result(claim: ResourceClaim, **fields: Any) -> AllocationResult:
    """Return the allocation of a claim with other fields in its only result."""
    allocation = claim.status.allocation
    assert allocation is not None
    (result,) = allocation.devices.results
    devices = replace(allocation.devices, results=(replace(result, **fields),))
    return replace(allocation, devices=devices)
