"""``bayplan dra-driver``: the driver of this node, and its device plugin."""

from __future__ import annotations

import logging
import os
import re
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import click
import msgspec
from msgspec.structs import replace

from bayplan.errors import BayplanError, InputError, did_you_mean
from bayplan.inputs.choices import OneOf
from bayplan.logs import set_up_logging
from bayplan.topology.machine.model import Machine
from bayplan.topology.machine.readers.sysfs import Sysfs, cpu_set

if TYPE_CHECKING:
    from bayplan_dra.driver.app import NodeDriver, Watcher
    from bayplan_dra.driver.kubelet.deviceplugin import DevicePlugin
    from bayplan_dra.driver.kubelet.sockets import Sockets
    from bayplan_dra.driver.prepare.edits import DeviceFiles
    from bayplan_dra.driver.prepare.handover import Handover
    from bayplan_dra.driver.prepare.partitions import InstanceMaker
    from bayplan_dra.driver.publish.devices import NodeInventory
    from bayplan_dra.driver.publish.health import HealthTracker

__all__ = ["command"]

log = logging.getLogger("bayplan.driver")

_FOLDER = click.Path(path_type=Path, file_okay=False)
_FILE = click.Path(path_type=Path, dir_okay=False)


class DriverService(Protocol):
    """Something that the command runs: the driver, or the device plugin."""

    def start(self) -> None:
        """Serve in the background."""

    def ready(self) -> str:
        """Return why it is not ready; "" if it is."""

    def stop(self) -> None:
        """Stop serving."""


@click.command(name="dra-driver")
@click.option("--node", required=True, help="The name of this node in the cluster.")
@click.option(
    "--machine", metavar="FILE|NAME", help="Simulate this machine instead of reading the hardware."
)
@click.option("--sysfs-root", type=_FOLDER, default=Path("/sys"), show_default=True)
@click.option(
    "--host-root",
    type=_FOLDER,
    default=Path("/"),
    show_default=True,
    help="Where the host's /dev, /proc/driver and /sys are mounted.",
)
@click.option("--kubeconfig", type=_FILE, help="Default: the pod's service account.")
@click.option("--context", default="", help="The kubeconfig's context.")
@click.option("--plugins-dir", type=_FOLDER, default=Path("/var/lib/kubelet/plugins"))
@click.option("--registry-dir", type=_FOLDER, default=Path("/var/lib/kubelet/plugins_registry"))
@click.option("--pod-resources-dir", type=_FOLDER, default=Path("/var/lib/kubelet/pod-resources"))
@click.option("--cdi-dir", type=_FOLDER, default=Path("/var/run/cdi"))
@click.option("--pod-uid", envvar="POD_UID", default="", help="For rolling updates.")
@click.option(
    "--numa-node",
    type=OneOf(["int", "list"]),
    default="int",
    show_default=True,
    help="A list needs the API server's feature gate DRAListTypeAttributes.",
)
@click.option("--cpus", is_flag=True, help="Also publish the CPUs of each NUMA node.")
@click.option(
    "--taint-effect",
    type=OneOf(["NoSchedule", "NoExecute"]),
    default="NoSchedule",
    show_default=True,
    help="Effect of the taint on unhealthy devices.",
)
@click.option(
    "--device-plugin",
    "plugin_gpus",
    metavar="GPUS",
    help='Offer these GPUs, such as "0-3" or "all", as nvidia.com/gpu instead.',
)
@click.option(
    "--partition",
    "divided_gpus",
    metavar="GPUS",
    help="Offer these GPUs as MIG partitions, made and removed as claims ask for them.",
)
@click.option(
    "--share",
    "shared_gpus",
    metavar="GPUS",
    help="Let claims take shares of these GPUs: a part of the memory, and of the cores.",
)
@click.option(
    "--mps-root",
    type=_FOLDER,
    help="The folder of the MPS control daemon on the host, with pipe/ and shm/.",
)
@click.option("--no-driver", is_flag=True, help="Only run the device plugin.")
@click.option("--device-plugins-dir", type=_FOLDER, default=Path("/var/lib/kubelet/device-plugins"))
@click.option("--listen", default="127.0.0.1:9450", show_default=True, help="Probes and metrics.")
@click.option("--log-format", type=OneOf(["console", "json"]), default="console")
def command(**given: Any) -> None:
    """Publish this node's GPUs and NICs, and prepare them when the kubelet asks."""
    _run(_Options(**given))


class _Options(msgspec.Struct, frozen=True):
    """The options of the command, by their names."""

    node: str
    machine: str | None
    sysfs_root: Path
    host_root: Path
    kubeconfig: Path | None
    context: str
    plugins_dir: Path
    registry_dir: Path
    pod_resources_dir: Path
    cdi_dir: Path
    pod_uid: str
    numa_node: Literal["int", "list"]
    cpus: bool
    taint_effect: Literal["NoSchedule", "NoExecute"]
    plugin_gpus: str | None
    divided_gpus: str | None
    shared_gpus: str | None
    mps_root: Path | None
    no_driver: bool
    device_plugins_dir: Path
    listen: str
    log_format: str

    def check(self) -> None:
        """Check what click does not.

        :raises InputError: for options that make no sense.
        """
        if not re.fullmatch(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?", self.node):
            raise InputError(f'expected the name of a node, got "{self.node}"', "--node")
        if self.no_driver and self.plugin_gpus is None:
            raise InputError("there is nothing to do without --device-plugin", "--no-driver")


def _run(options: _Options) -> None:
    """Serve until a signal comes."""
    from bayplan_dra.driver.kubelet.deviceplugin import split
    from bayplan_dra.driver.prepare.handover import Handover
    from bayplan_dra.driver.publish.devices import DRIVER, divisible
    from bayplan_dra.driver.publish.health import HealthTracker

    stopped = _stop_on_signals()
    options.check()
    address = _address(options.listen)
    set_up_logging(options.log_format, _log_level())
    machine = _machine(options.machine, options.sysfs_root)
    netdevs = Sysfs(options.sysfs_root).netdevs() if options.machine is None else ()
    gpus = _gpus(options.plugin_gpus, len(machine))
    divided = _gpus(options.divided_gpus, len(machine), "--partition")
    machine = divisible(machine, divided, simulated=options.machine is not None)
    shared = _gpus(options.shared_gpus, len(machine), "--share")
    ours, theirs = split(machine, gpus, options.numa_node, options.cpus, netdevs, divided, shared)
    health = HealthTracker(DRIVER, options.node, options.taint_effect)
    plugin_health = HealthTracker(DRIVER, options.node)
    handover = Handover(_sockets(options).folder(DRIVER))
    services: list[DriverService] = []
    if not options.no_driver:
        services.append(_driver(options, ours, health))
    if options.plugin_gpus is not None:
        services.append(_device_plugin(options, theirs, plugin_health, handover))
    else:
        handover.offer(())
    watchers: Sequence[Watcher] = ()
    if options.machine is None:
        every = replace(ours, devices={**ours.devices, **theirs.devices})
        watchers = _watchers(every, (health, plugin_health), options.sysfs_root)
    _serve(services, watchers, address, stopped)
    try:
        handover.leave()
    except (BayplanError, OSError) as exc:
        log.warning("files of the driver are left: %s", exc)


def _driver(options: _Options, inventory: NodeInventory, health: HealthTracker) -> NodeDriver:
    from bayplan_dra.driver.app import NodeDriver
    from bayplan_dra.driver.kubernetes_api import KubernetesApi
    from bayplan_dra.driver.prepare.sharing import TimeSlices
    from bayplan_dra.driver.publish.devices import DRIVER

    api = KubernetesApi(options.kubeconfig, options.context)
    log.info("%s of %s offers %s", DRIVER, options.node, ", ".join(inventory.devices))
    return NodeDriver(
        options.node,
        inventory,
        api,
        health,
        _device_files(options),
        _sockets(options),
        options.cdi_dir,
        options.pod_resources_dir / "kubelet.sock",
        instances=_instances(options),
        mps_root=str(options.mps_root or ""),
        time_slices=TimeSlices("" if options.machine is not None else "nvidia-smi"),
    )


def _instances(options: _Options) -> InstanceMaker:
    from bayplan_dra.driver.prepare.nvml_instances import NvmlInstances
    from bayplan_dra.driver.prepare.partitions import SimulatedInstances

    return SimulatedInstances() if options.machine is not None else NvmlInstances()


def _device_plugin(
    options: _Options, inventory: NodeInventory, health: HealthTracker, handover: Handover
) -> DevicePlugin:
    from bayplan_dra.driver.app import write_topology_file
    from bayplan_dra.driver.kubelet.deviceplugin import DevicePlugin
    from bayplan_dra.driver.publish.devices import DRIVER

    log.info("the device plugin of %s offers %s", options.node, ", ".join(inventory.devices))
    health.set_devices(inventory.devices)
    return DevicePlugin(
        inventory,
        health,
        _device_files(options),
        handover,
        folder=options.device_plugins_dir,
        topology_file=write_topology_file(inventory.machine, _sockets(options).folder(DRIVER)),
        instance=options.pod_uid,
    )


def _device_files(options: _Options) -> DeviceFiles:
    from bayplan_dra.driver.prepare.edits import DeviceFiles

    return DeviceFiles(None if options.machine is not None else options.host_root)


def _sockets(options: _Options) -> Sockets:
    from bayplan_dra.driver.kubelet.sockets import Sockets

    return Sockets(options.registry_dir, options.plugins_dir, options.pod_uid)


def _stop_on_signals() -> threading.Event:
    """Return an event that is set at SIGTERM or SIGINT."""
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    return stopped


def _watchers(
    inventory: NodeInventory, trackers: Sequence[HealthTracker], sysfs_root: Path
) -> Sequence[Watcher]:
    """Return the watchers of all devices; they report to all trackers."""
    from bayplan_dra.driver.publish.watchers import LinkWatcher, PortWatcher, XidWatcher

    def report(device: str, cause: str, text: str) -> bool:
        # Each device belongs to one tracker; the others ignore it.
        return any(tracker.report(device, cause, text) for tracker in trackers)

    return (
        XidWatcher(inventory, report),
        LinkWatcher(inventory, report),
        PortWatcher(inventory, report, sysfs_root),
    )


def _serve(
    services: Sequence[DriverService],
    watchers: Sequence[Watcher],
    address: tuple[str, int],
    stopped: threading.Event,
) -> None:
    """Run until ``stopped`` is set, then stop everything that was started."""
    from bayplan_dra.driver.app import watch
    from bayplan_dra.driver.web import WebServer

    def ready() -> str:
        return "; ".join(problem for one in services if (problem := one.ready()))

    web = WebServer(*address, ready)
    started: list[DriverService] = []
    threads: list[threading.Thread] = []
    try:
        for service in services:
            started.append(service)
            service.start()
        threads = watch(watchers, stopped)
        web.start()
        stopped.wait()
    finally:
        stopped.set()
        for service in reversed(started):
            service.stop()
        for thread in threads:
            thread.join()
        web.stop()


def _gpus(text: str | None, count: int, option: str = "--device-plugin") -> frozenset[int]:
    """Return the GPUs in a list such as 0-3,6.

    :param count: the number of GPUs of the machine.
    :raises InputError: for anything else.
    """
    if text is None:
        return frozenset()
    if text == "all":
        return frozenset(range(count))
    if not re.fullmatch(r"\d{1,4}(-\d{1,4})?(,\d{1,4}(-\d{1,4})?)*", text):
        raise InputError(f'expected "all" or GPUs such as 0-3,6, got "{text}"', option)
    return frozenset(cpu_set(text))


def _machine(machine: str | None, sysfs_root: Path) -> Machine:
    from bayplan.topology.machine.readers.discovery import discover
    from bayplan.topology.machine.readers.machinefile import (
        known_machine,
        known_machines,
        load_machine,
    )

    if machine is None:
        return discover(sysfs_root=sysfs_root)
    if machine in known_machines():
        return known_machine(machine)
    if not Path(machine).exists():
        hint = did_you_mean(machine, known_machines())
        raise InputError(f'there is no file or known machine "{machine}"{hint}', "--machine")
    return load_machine(Path(machine))


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise InputError(f'expected HOST:PORT such as 127.0.0.1:9450, got "{text}"', "--listen")
    return host.strip("[]"), int(port)


def _log_level() -> str:
    """Return the level that the environment asks for."""
    level = os.environ.get("BAYPLAN_LOG", "INFO").upper()
    if level not in logging.getLevelNamesMapping():
        raise InputError(f'expected a level such as DEBUG or WARNING, got "{level}"', "BAYPLAN_LOG")
    return level
