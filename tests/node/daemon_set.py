"""The driver's DaemonSet on the node, in an image without anything but the host's folders."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.controlplane.installation import path_of
from tests.controlplane.plane import free_ports, wait_until
from tests.controlplane.process import BAYPLAN
from tests.live.deployed import DEPLOY, documents
from tests.node.machine_files import MachineFiles
from tests.node.real_node import Content, RealNode
from tests.paths import ROOT

IMAGE = "bayplan.test/bayplan:1"
NAMESPACE = "bayplan-system"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
SET = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/bayplan-dra-driver"


class DriverSet:
    """The DaemonSet of configs/deploy, with what this node differs in."""

    def __init__(self, node: RealNode, machine: MachineFiles) -> None:
        self._node = node
        self._machine = machine

    def apply(self) -> None:
        """Install it, or make a rolling update of it: each time on another port."""
        (port,) = free_ports(1)
        (content,) = (one for one in documents(DEPLOY / "dra-driver.yaml") if _is_set(one))
        spec = content["spec"]["template"]["spec"]
        spec["hostNetwork"] = True  # nothing else reaches the API server
        (container,) = spec["containers"]
        container["image"] = IMAGE
        container["command"] = [str(BAYPLAN)]
        container["args"] = [*_arguments(container["args"], port), *self._machine.options]
        container["env"] += [{"name": name, "value": value} for name, value in self._variables()]
        del container["ports"]
        for probe in ("livenessProbe", "readinessProbe"):
            container[probe]["httpGet"] |= {"host": "127.0.0.1", "port": port}
            container[probe]["periodSeconds"] = 1
        for number, folder in enumerate(self._folders()):
            name = f"of-host-{number}"
            spec["volumes"].append({"name": name, "hostPath": {"path": folder}})
            mount = {"name": name, "mountPath": folder, "readOnly": True}
            container["volumeMounts"].append(mount)
        self._node.apply(content)

    def _variables(self) -> Iterator[tuple[str, str]]:
        yield "KUBERNETES_SERVICE_HOST", "127.0.0.1"
        yield "KUBERNETES_SERVICE_PORT", self._node.environment["API_PORT"]
        yield "PYTHONDONTWRITEBYTECODE", "1"
        yield from self._machine.environment.items()

    def _folders(self) -> list[str]:
        """Return the host's folders with the programs, bayplan and the machine."""
        machine = Path(self._machine.environment["NVML_STUB_MACHINE"]).parents[1]
        found = ["/usr", "/lib", "/lib64", str(ROOT), str(machine)]
        return found if sys.base_prefix == "/usr" else [*found, sys.base_prefix]

    def wait_until_updated(self) -> None:
        """Wait until its newest pod is ready, and no other is left."""

        def updated() -> bool:
            content = self._node.client.get(SET).json
            status, spec = content.get("status", {}), content["metadata"]
            numbers = [status.get(name) for name in ("updatedNumberScheduled", "numberAvailable")]
            current = status.get("observedGeneration") == spec["generation"]
            return current and numbers == [1, 1] and len(self._node.items(PODS)) == 1

        try:
            wait_until(updated, "the driver's pod is ready")
        except TimeoutError as exc:
            statuses = [one["status"] for one in self._node.items(PODS)]
            raise AssertionError(f"{exc}: {json.dumps(statuses, indent=1)}") from None

    def delete(self) -> None:
        """Delete everything that the manifest installs."""
        for content in documents(DEPLOY / "dra-driver.yaml"):
            assert self._node.client.delete(path_of(content)).code == 200
        wait_until(lambda: not self._node.items(PODS), "the driver's pod is gone")


def _is_set(content: Content) -> bool:
    return bool(content["kind"] == "DaemonSet")


def _arguments(given: list[str], port: int) -> Iterator[str]:
    for one in given:
        if one.startswith("--listen"):
            yield f"--listen=127.0.0.1:{port}"
        elif not one.startswith("--host-root"):
            yield one
