"""A stage for the driver: a kubelet that calls it over its sockets, a cluster with a scheduler."""

from __future__ import annotations

import json
import queue
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from tests.dra.driver.cdi_runtime import create
from tests.dra.driver.fake_kubelet import Kubelet

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
from bayplan_dra.driver.publish.devices import DRIVER, inventory_of
from bayplan_dra.driver.publish.health import DeviceHealth, HealthTracker
from bayplan_dra.driver.publish.publisher import Owner, SliceChange

MACHINE = known_machine("dgx-h100")


@dataclass
class EmbeddedApi:
    """The driver's API over an embedded cluster; records writes, and fails on demand."""

    cluster: MemoryCluster
    lock: threading.RLock = field(default_factory=threading.RLock)
    writes: list[str] = field(default_factory=list)
    failing: Exception | None = None
    asked: int = 0
    _followers: list[queue.Queue[SliceChange | None]] = field(default_factory=list)

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
        changes: queue.Queue[SliceChange | None] = queue.Queue()
        changes.put(SliceChange.STARTED)
        with self.lock:
            self._check()
            self._followers.append(changes)
        try:
            while (change := changes.get()) is not None:
                yield change
                changes.task_done()
        finally:
            changes.task_done()
            with self.lock:
                if changes in self._followers:
                    self._followers.remove(changes)

    @property
    def follows(self) -> bool:
        """Whether anybody follows the slices."""
        return bool(self._followers)

    def settle(self) -> None:
        """Wait until all followers have seen all changes."""
        for follower in list(self._followers):
            follower.join()

    def end(self) -> None:
        """End all watches."""
        with self.lock:
            while self._followers:
                self._followers.pop().put(None)

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

    # What the kubelet of the only node asks for:

    def pods(self) -> list[Pod]:
        with self.lock:
            self._check()
            return [one for one in self.cluster.list(Pod) if one.spec.node_name]

    def wipe(self) -> None:
        with self.lock:
            self._check()
            for one in self.cluster.list(ResourceSlice):
                self.writes.append("wipe")
                self._tell(SliceChange.DELETED)
                self.cluster.delete(ResourceSlice, one.metadata.name)

    def remove(self, pod: Pod) -> None:
        with self.lock:
            self._check()
            found = self.cluster.get(Pod, pod.key)
            if found is not None and found.metadata.uid == pod.metadata.uid:
                self.cluster.delete(Pod, pod.key, grace=0)
                self.cluster.deliver()


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


class SeenHealth(HealthTracker):
    """Health that tells whether the publisher has done everything about it."""

    _known = -1

    def wait(self, version: int, seconds: float) -> tuple[int, list[DeviceHealth]]:
        if threading.current_thread().name == "publish":
            self._known = version
        return super().wait(version, seconds)

    def is_published(self) -> bool:
        with self._changed:
            return self._known == self._version


def make_driver(
    root: Path,
    machine: Machine,
    api: EmbeddedApi,
    pod_uid: str = "",
    gpus: Iterable[int] | None = None,
    host: Path | None = None,
    **more: Any,
) -> NodeDriver:
    """Return a driver of the node n, whose folders are all below ``root``.

    :param gpus: those that it offers; all unless given.
    :param host: where device files are; without it there are none.
    """
    own = gpus if gpus is None else frozenset(gpus)
    return NodeDriver(
        "n",
        inventory_of(machine, gpus=own),
        api,
        SeenHealth(DRIVER, "n"),
        DeviceFiles(host),
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
    spec = {"spec": _claim_spec(config, counts)}
    return _resource("ResourceClaimTemplate", name, spec)


def shared_claim(**counts: int) -> ApiObject:
    """Return the claim "shared", which asks for the given number of devices of each type."""
    return _resource("ResourceClaim", "shared", _claim_spec(None, counts))


def _claim_spec(config: Any, counts: Mapping[str, int]) -> dict[str, Any]:
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
    return {"devices": devices}


def _resource(kind: str, name: str, spec: dict[str, Any]) -> ApiObject:
    return make_object(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": kind,
            "metadata": {"name": name, "namespace": "default"},
            "spec": spec,
        }
    )


def claim_pod(name: str, wanted: str, **containers: str) -> Pod:
    """Return a pod with a claim of a template, or with the claim "shared".

    :param containers: the request that each container names; without any, one names the claim.
    """
    source = "resourceClaimName" if wanted == "shared" else "resourceClaimTemplateName"
    made = [
        {
            "name": container,
            "resources": {"claims": [{"name": "own", "request": request}]},
        }
        for container, request in (containers or {"c": ""}).items()
    ]
    spec = {
        "resourceClaims": [{"name": "own", source: wanted}],
        "containers": made,
        # The kubelet decides when a deleted pod is gone, not the embedded cluster.
        "terminationGracePeriodSeconds": 10**6,
    }
    return make_pod(name, spec=spec)


class DriverNode:
    """A node with a kubelet and a driver, in a cluster with a scheduler.

    :param more: arguments of the driver.
    """

    def __init__(self, root: Path, **more: Any) -> None:
        self.root = root
        self.cluster = Cluster([make_node("n", cpu=64), device_class()])
        ClaimController(self.cluster.api)
        self.api = EmbeddedApi(self.cluster.api)
        self.kubelet = Kubelet(root, self.api)
        self.driver = self.start(**more)

    def made(self, **more: Any) -> NodeDriver:
        """Return a driver that is not started."""
        return make_driver(self.root, MACHINE, self.api, **more)

    def start(self, **more: Any) -> NodeDriver:
        """Start a driver, and let the kubelet register it."""
        driver = self.made(**more)
        driver.start()
        self.kubelet.advance()
        eventually(lambda: driver.published)
        return driver

    def settle(self) -> None:
        """Wait until the driver has published what it wants to publish at this time."""
        self.api.settle()
        assert isinstance(self.driver.health, SeenHealth)
        eventually(self.driver.health.is_published)

    def stop(self, driver: NodeDriver) -> None:
        """Stop a driver; the kubelet notices that its connection has ended."""
        driver.stop()
        self._wait_until_lost(driver)

    def kill(self, driver: NodeDriver) -> None:
        """End a driver as SIGKILL does: its sockets stay, and nobody answers there."""
        driver._publishing.stop()
        for server in driver._servers:
            server._server.stop(None).wait()
        self._wait_until_lost(driver)

    def _wait_until_lost(self, driver: NodeDriver) -> None:
        endpoint = driver.sockets.service(DRIVER)
        eventually(lambda: not self.kubelet.plugins.is_connected(endpoint))

    def close(self) -> None:
        """End everything."""
        self.driver.stop()
        self.kubelet.stop()
        self.api.end()

    def run(self, name: str, wanted: str, **containers: str) -> Pod:
        """Let the scheduler place a pod, and the kubelet run it; see ``claim_pod``."""
        with self.api.lock:
            self.cluster.add(claim_pod(name, wanted, **containers))
            assert_placed(self.cluster, **{name.replace("-", "_"): "n"})
        pod = self.pod(name)
        self.kubelet.add_pod(pod)
        return pod

    def pod(self, name: str) -> Pod:
        """Return a pod."""
        with self.api.lock:
            found = self.cluster.api.get(Pod, f"default/{name}")
        assert found is not None
        return found

    def delete(self, pod: Pod, force: bool = False) -> None:
        """Delete a pod: the kubelet terminates it first, unless by force."""
        with self.api.lock:
            self.cluster.api.delete(Pod, pod.key, grace=0 if force else None)
            self.cluster.api.deliver()
        self.kubelet.remove_pod(pod)

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
        said = create(self.root / "cdi", _given(answer, request)).environment
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
