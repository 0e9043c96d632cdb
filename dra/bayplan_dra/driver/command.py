"""bayplan dra-driver: the driver of this node."""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
import time
from pathlib import Path
from typing import Literal

import click

from bayplan.errors import InputError
from bayplan.topology.machine import Machine

__all__ = ["command"]

_FOLDER = click.Path(path_type=Path, file_okay=False)
_FILE = click.Path(path_type=Path, dir_okay=False)


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
    help="Where the host's /dev, /proc/driver and /sys are seen.",
)
@click.option("--kubeconfig", type=_FILE, help="Without it, the pod's service account.")
@click.option("--context", default="", help="The kubeconfig's context.")
@click.option("--plugins-dir", type=_FOLDER, default=Path("/var/lib/kubelet/plugins"))
@click.option("--registry-dir", type=_FOLDER, default=Path("/var/lib/kubelet/plugins_registry"))
@click.option("--cdi-dir", type=_FOLDER, default=Path("/var/run/cdi"))
@click.option("--pod-uid", envvar="POD_UID", default="", help="For rolling updates.")
@click.option("--numa-node", type=click.Choice(["int", "list"]), default="int", show_default=True)
@click.option("--cpus", is_flag=True, help="Publish the CPUs of each NUMA node as well.")
@click.option(
    "--taint-effect",
    type=click.Choice(["NoSchedule", "NoExecute"]),
    default="NoSchedule",
    show_default=True,
    help="Of devices that are not well.",
)
@click.option("--listen", default="127.0.0.1:9450", show_default=True, help="Probes and metrics.")
@click.option("--log-format", type=click.Choice(["console", "json"]), default="console")
def command(
    node: str,
    machine: str | None,
    sysfs_root: Path,
    host_root: Path,
    kubeconfig: Path | None,
    context: str,
    plugins_dir: Path,
    registry_dir: Path,
    cdi_dir: Path,
    pod_uid: str,
    numa_node: Literal["int", "list"],
    cpus: bool,
    taint_effect: Literal["NoSchedule", "NoExecute"],
    listen: str,
    log_format: str,
) -> None:
    """Publish this node's GPUs and NICs, and prepare them when the kubelet asks."""
    from bayplan_dra.driver.app import NodeDriver
    from bayplan_dra.driver.devices import DRIVER, inventory_of
    from bayplan_dra.driver.edits import DeviceFiles
    from bayplan_dra.driver.health import Health
    from bayplan_dra.driver.kubernetes_api import KubernetesApi
    from bayplan_dra.driver.sockets import Sockets
    from bayplan_dra.driver.web import WebServer

    host, port = _address(listen)
    _log_as(log_format)
    found = _machine(machine, sysfs_root)
    driver = NodeDriver(
        node,
        inventory_of(found, numa_node, cpus),
        KubernetesApi(kubeconfig, context),
        Health(DRIVER, node, taint_effect),
        DeviceFiles(None if machine is not None else host_root),
        Sockets(registry_dir, plugins_dir, pod_uid),
        cdi_dir,
    )
    web = WebServer(host, port, driver.ready)
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    try:
        driver.start()
        web.start()
        names = ", ".join(driver.inventory.devices)
        logging.getLogger("bayplan.driver").info("%s of %s offers %s", DRIVER, node, names)
        stopped.wait()
    finally:
        driver.stop()
        web.stop()


def _machine(machine: str | None, sysfs_root: Path) -> Machine:
    from bayplan.topology.discovery import discover
    from bayplan.topology.machinefile import known_machine, known_machines, load_machine

    if machine is None:
        return discover(sysfs_root=sysfs_root)
    if machine in known_machines():
        return known_machine(machine)
    return load_machine(Path(machine))


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise InputError(f'expected HOST:PORT such as 127.0.0.1:9450, got "{text}"', "--listen")
    return host.strip("[]"), int(port)


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        content = {"time": f"{at}Z", "level": record.levelname, "message": record.getMessage()}
        for name in ("claim", "error"):
            value = getattr(record, name, "")
            if value:
                content[name] = value
        return json.dumps(content)


class _Console(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        error = getattr(record, "error", "")
        text = f"{record.levelname.lower():7} {record.getMessage()}"
        return f"{text}: {error}" if error else text


def _log_as(kind: str) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(_JsonLines() if kind == "json" else _Console())
    logger = logging.getLogger("bayplan")
    logger.handlers = [handler]
    logger.setLevel(os.environ.get("BAYPLAN_LOG", "INFO").upper())
