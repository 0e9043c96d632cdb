"""The driver of one node: recovers, publishes, serves the kubelet and tracks device health."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import msgspec

from bayplan.nccl import TopologyFileError, needed_topology_file
from bayplan.topology.machine.model import Machine
from bayplan_dra.driver import metrics
from bayplan_dra.driver.files import folder, write_atomically
from bayplan_dra.driver.kubelet.pod_resources import PluginPods
from bayplan_dra.driver.kubelet.services import (
    KubeletServer,
    claim_handlers,
    health_handler,
    registration_handler,
)
from bayplan_dra.driver.kubelet.sockets import Sockets
from bayplan_dra.driver.prepare.edits import DeviceFiles
from bayplan_dra.driver.prepare.partitions import InstanceMaker
from bayplan_dra.driver.prepare.preparer import ClaimApi, Folders, Preparer
from bayplan_dra.driver.prepare.sharing import TimeSlices
from bayplan_dra.driver.publish.devices import DRIVER, NodeInventory
from bayplan_dra.driver.publish.health import HealthTracker
from bayplan_dra.driver.publish.loop import PublisherApi, PublishLoop
from bayplan_dra.driver.publish.turn import Turn

__all__ = ["DriverApi", "NodeDriver", "Watcher", "watch", "write_topology_file"]

_RESYNC_SECONDS = 30.0
_PATIENCE_SECONDS = 30.0
_ABANDONED_SECONDS = 20.0
_DRAIN_SECONDS = 10.0
log = logging.getLogger("bayplan.driver")


class DriverApi(PublisherApi, ClaimApi, Protocol):
    """The driver's requests to the API server; errors are ``ClusterError``."""


class Watcher(Protocol):
    """Watches a part of the hardware and reports problems."""

    def run(self, stopped: threading.Event) -> None:
        """Watch until ``stopped`` is set."""


class NodeDriver(msgspec.Struct, dict=True):
    """The driver of one node.

    :raises BayplanError: when the path of a socket is too long.

    :param cdi: the folder of CDI files.
    :param pod_resources: the socket of the kubelet's PodResources API.
    :param files: the device files of this machine.
    :param resync_seconds: how often the slices are checked when nothing changes.
    :param patience_seconds: for how long a call to prepare tries again what may pass; the kubelet
        waits for 45 s, and after a failure tries again only after 60 to 90 s.
    :param abandoned_seconds: after which a device is taken from a claim that is gone, but that the
        kubelet has not unprepared; less than ``patience_seconds``, so that a call may wait for it.
    :param instances: makes MIG instances; None for a simulated machine.
    :param mps_root: the folder of the MPS control daemon, "" for none.
    :param time_slices: sets the time slices of GPUs; None for a simulated machine.
    :ivar registered: set while the kubelet knows the driver.
    :ivar registration_error: why the kubelet did not register the driver; "" for no error.
    """

    node: str
    inventory: NodeInventory
    api: DriverApi
    health: HealthTracker
    files: DeviceFiles
    sockets: Sockets
    cdi: Path
    pod_resources: Path
    resync_seconds: float = _RESYNC_SECONDS
    patience_seconds: float = _PATIENCE_SECONDS
    abandoned_seconds: float = _ABANDONED_SECONDS
    instances: InstanceMaker | None = None
    mps_root: str = ""
    time_slices: TimeSlices | None = None

    def __post_init__(self) -> None:
        self.registered = threading.Event()
        self.registration_error = ""
        self._stopped = threading.Event()
        self._servers: list[KubeletServer] = []
        own = self.sockets.service(DRIVER)
        self._publishing = PublishLoop(
            self.api,
            DRIVER,
            self.node,
            self.inventory,
            self.health,
            Turn(own.with_name("publisher"), own),
            self.sockets.registration(DRIVER),
            self.resync_seconds,
        )

    def start(self) -> None:
        """Recover what was prepared, listen, and publish once the kubelet knows the driver.

        :raises BayplanError: for folders or sockets that cannot be used.
        """
        own = folder(self.sockets.folder(DRIVER))
        folder(self.sockets.registry)
        plugin_pods = PluginPods(self.pod_resources, self.inventory, self.health)
        preparer = Preparer(
            DRIVER,
            self.node,
            Folders(own, self.cdi),
            lambda: self.inventory,
            self.api,
            self.files,
            write_topology_file(self.inventory.machine, own),
            plugin_pods.holders,
            self.abandoned_seconds,
            self.instances,
            self.mps_root,
            self.time_slices,
        )
        for text in preparer.recover():
            log.error("cannot recover a prepared claim: %s", text)
        self.health.set_devices(self.inventory.devices)
        service = self.sockets.service(DRIVER)
        handlers = claim_handlers(
            preparer, metrics.claim_done, self._stopped, self.patience_seconds
        )
        handlers.append(health_handler(self.health, self._stopped))
        registration = registration_handler(DRIVER, service, self._on_registration)
        self._servers = [
            KubeletServer(service, handlers),
            KubeletServer(self.sockets.registration(DRIVER), [registration]),
        ]
        for server in self._servers:
            server.start()
        watch([plugin_pods], self._stopped)
        self._publishing.start()

    @property
    def published(self) -> bool:
        """Whether the slices have been published."""
        return self._publishing.published.is_set()

    def _on_registration(self, error: str) -> None:
        """Called when the kubelet answers the registration; "" for no error."""
        self.registration_error = error
        if error:
            self.registered.clear()
            self._publishing.kubelet_refused()
            log.error("the kubelet did not register the driver: %s", error)
        else:
            self.registered.set()
            self._publishing.kubelet_registered()
            log.info("registered with the kubelet")

    def ready(self) -> str:
        """Return why the driver is not ready; "" if it is."""
        if not self._publishing.is_alive():
            return "publishing has stopped"
        if not self.registered.is_set():
            return f"not registered with the kubelet {self.registration_error}".rstrip()
        return "" if self.published else "its slices are not published yet"

    def stop(self) -> None:
        """Leave the kubelet's registry, finish running calls (up to 10 s), and stop.

        Slices stay: the kubelet removes them if no other instance starts.
        """
        self._stopped.set()
        self.health.wake()
        for server in reversed(self._servers):
            server.stop(_DRAIN_SECONDS)
        self._publishing.stop()


def watch(watchers: Iterable[Watcher], stopped: threading.Event) -> list[threading.Thread]:
    """Start each watcher in a thread of its own; return the threads."""
    threads = [
        threading.Thread(target=one.run, args=(stopped,), name=type(one).__name__, daemon=True)
        for one in watchers
    ]
    for thread in threads:
        thread.start()
    return threads


def write_topology_file(machine: Machine, own: Path) -> str:
    """Write NCCL's topology file if the machine needs one; return its path, "" for none."""
    try:
        text = needed_topology_file(machine)
    except TopologyFileError as exc:
        log.warning("no topology file for NCCL: %s", exc)
        return ""
    if not text:
        return ""
    path = folder(own) / "nccl-topo.xml"
    write_atomically(path, text.encode(), 0o644)
    return str(path)
