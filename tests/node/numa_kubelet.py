"""The real kubelet on a machine with two NUMA nodes, and what it has given to pods.

The kubelet reads NUMA nodes and CPUs from sysfs: it is shown files. Of the sixteen CPUs most do not
exist, so that containers start only while the CPU manager and the memory manager are off.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from tests.controlplane.plane import wait_until
from tests.node.real_node import NODE, PODS, Content, RealNode

GPU = "nvidia.com/gpu"
CPUS = 8
"""Of each NUMA node; the first of them is reserved for the system."""
_RESERVED_MEMORY = 50 * 2**20
"""The kubelet insists on the sum of what it reserves and its eviction threshold."""
_CHECKPOINT = "device-plugins/kubelet_internal_checkpoint"
_STATES = ("cpu_manager_state", "memory_manager_state", _CHECKPOINT)
_SOON = "nodeStatusUpdateFrequency: 1s"
_MANAGERS = f"""
cpuManagerPolicy: static
reservedSystemCPUs: "0,{CPUS}"
memoryManagerPolicy: Static
reservedMemory: [{{numaNode: 0, limits: {{memory: {_RESERVED_MEMORY}}}}}]"""

_Amounts: TypeAlias = dict[str, list[int]]
"""By resource, of each NUMA node; CPUs, bytes, devices."""


@dataclass(frozen=True)
class Alignment:
    """What the kubelet is configured to align.

    :ivar exclusive: CPUs and memory of guaranteed pods, too, not only devices.
    """

    policy: str
    scope: str = "container"
    exclusive: bool = False

    def __str__(self) -> str:
        return f"{self.policy}, {self.scope}{', CPUs, memory' if self.exclusive else ''}"


class NumaKubelet:
    """The kubelet of a node that shows it two NUMA nodes."""

    def __init__(self, node: RealNode) -> None:
        self.node = node
        self._folder = node.folder / "kubelet"
        self._alignment: Alignment | None = None
        self._registrations = 0

    def align(self, alignment: Alignment) -> None:
        """Start the kubelet again, without pods, if it has other settings."""
        if alignment != self._alignment:
            self._restart(alignment)
            self._alignment = alignment

    def _restart(self, alignment: Alignment) -> None:
        # The script writes the policy into the kubelet's configuration; more lines may follow it.
        settings = f"{alignment.policy}\ntopologyManagerScope: {alignment.scope}\n{_SOON}"
        settings += _MANAGERS if alignment.exclusive else ""
        with self.node.restarted("kubelet", TOPOLOGY=settings):
            self._registrations = self._registered()
            # The kubelet refuses to start with what managers of other settings have stored, and may
            # count devices of pods that are gone.
            for name in _STATES:
                (self._folder / name).unlink(missing_ok=True)
            # What is there again has to come from the kubelet.
            nothing = dict.fromkeys(("cpu", GPU))
            status = {"status": {"capacity": nothing, "allocatable": nothing}}
            self.node.client.patch(f"/api/v1/nodes/{NODE}/status", status)
        expected = 2 * (CPUS - 1) if alignment.exclusive else 2 * CPUS
        wait_until(lambda: self._allocatable().get("cpu") == str(expected), "the kubelet is back")

    def wait_for_gpus(self, count: int) -> None:
        """Wait until the kubelet reports GPUs: their plugin registers again after a restart."""
        # A kubelet that has started may report GPUs that it cannot give away yet.
        wait_until(lambda: self._registered() > self._registrations, "the plugin has registered")
        wait_until(lambda: self._allocatable().get(GPU) == str(count), f"there are {count} GPUs")

    def _registered(self) -> int:
        """Return how often a device plugin has registered."""
        log = self.node.folder / "logs" / "bayplan-driver.log"
        return log.read_text().count(f"registered {GPU} with the kubelet") if log.exists() else 0

    def _allocatable(self) -> dict[str, str]:
        answer = self.node.client.get(f"/api/v1/nodes/{NODE}")
        return dict(answer.json["status"].get("allocatable", {}))

    def gpus(self, pod: str) -> set[int]:
        """Return the GPUs that a pod has been given, by index."""
        uid = self.node.pod(pod)["metadata"]["uid"]
        return {
            int(name.rpartition("-")[2])
            for entry in self._devices()
            if entry["PodUID"] == uid
            for names in entry["DeviceIDs"].values()
            for name in names
        }

    def cpus(self) -> dict[str, set[int]]:
        """Return the CPUs that the kubelet has given to each pod for itself, by uid."""
        entries = self._state("cpu_manager_state").get("entries", {})
        return {
            uid: {cpu for text in containers.values() for cpu in _numbers(text)}
            for uid, containers in entries.items()
        }

    def report(self, alignment: Alignment, gpus: Mapping[int, int]) -> Content:
        """Return the NodeResourceTopology that an agent would publish now.

        :param gpus: how many there are on each NUMA node.
        """
        capacity: _Amounts = {GPU: [gpus[0], gpus[1]]}
        allocatable = {GPU: [gpus[0], gpus[1]]}
        memory = self._state("memory_manager_state").get("machineState", {})
        if alignment.exclusive:
            capacity["cpu"], allocatable["cpu"] = [CPUS] * 2, [CPUS - 1] * 2
            zones = [memory[str(numa)]["memoryMap"]["memory"] for numa in (0, 1)]
            capacity["memory"] = [zone["total"] for zone in zones]
            allocatable["memory"] = [zone["allocatable"] for zone in zones]
        left = {name: list(amounts) for name, amounts in allocatable.items()}
        self._subtract(left)
        return {
            "apiVersion": "topology.node.k8s.io/v1alpha2",
            "kind": "NodeResourceTopology",
            "metadata": {"name": NODE},
            "attributes": [
                {"name": "topologyManagerPolicy", "value": alignment.policy},
                {"name": "topologyManagerScope", "value": alignment.scope},
            ],
            "zones": [
                {
                    "name": f"node-{numa}",
                    "type": "Node",
                    "resources": [
                        {
                            "name": name,
                            "capacity": str(capacity[name][numa]),
                            "allocatable": str(allocatable[name][numa]),
                            "available": str(left[name][numa]),
                        }
                        for name in capacity
                    ],
                }
                for numa in (0, 1)
            ],
        }

    def _subtract(self, left: _Amounts) -> None:
        """Take off what the pods that are there have; the kubelet forgets others only later."""
        pods = self.node.items(PODS)
        alive = {pod["metadata"]["uid"] for pod in pods if pod["status"]["phase"] != "Failed"}
        # Containers have what init containers had, so that it may be listed twice.
        given = {
            (int(numa), name)
            for entry in self._devices()
            if entry["PodUID"] in alive
            for numa, names in entry["DeviceIDs"].items()
            for name in names
        }
        for numa, _ in given:
            left[GPU][numa] -= 1
        for uid, cpus in self.cpus().items():
            for cpu in cpus if uid in alive else ():
                left["cpu"][cpu // CPUS] -= 1
        for uid, blocks in self._state("memory_manager_state").get("entries", {}).items():
            if uid in alive:
                for block in (one for ones in blocks.values() for one in ones):
                    _fill(left["memory"], block["numaAffinity"], block["size"])

    def _devices(self) -> list[Content]:
        path = self._folder / _CHECKPOINT
        if not path.exists():
            return []
        entries = json.loads(path.read_text())["Data"]["PodDeviceEntries"] or ()
        return [entry for entry in entries if entry["ResourceName"] == GPU]

    def _state(self, name: str) -> Content:
        path = self._folder / name
        return dict(json.loads(path.read_text())) if path.exists() else {}


def _fill(left: list[int], nodes: Iterable[int], size: int) -> None:
    """Take memory from NUMA nodes as the memory manager does: the first one first."""
    for node in nodes:
        taken = min(size, left[node])
        left[node] -= taken
        size -= taken


def _numbers(text: str) -> Iterator[int]:
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


@contextmanager
def two_numa_nodes(node: RealNode) -> Iterator[NumaKubelet]:
    """Show two NUMA nodes to the kubelet of a node; in the end it is what it was."""
    folder = node.folder / "numa"
    _write_sysfs(folder)
    shown = {folder / "node": "/sys/devices/system/node", folder / "online": _ONLINE}
    _run(node, *(f"mount --bind {source} {target}" for source, target in shown.items()))
    try:
        yield NumaKubelet(node)
    finally:
        with node.restarted("kubelet"):
            _run(node, *(f"umount {target}" for target in shown.values()))
            for name in _STATES:
                (node.folder / "kubelet" / name).unlink(missing_ok=True)


_ONLINE = "/sys/devices/system/cpu/online"


def _run(node: RealNode, *commands: str) -> None:
    subprocess.run(node.within("sh", "-ec", "; ".join(commands)), check=True)


def _write_sysfs(folder: Path) -> None:
    """Write the files that the kubelet reads of NUMA nodes; they share the machine's memory."""
    nodes = folder / "node"
    memory = Path("/sys/devices/system/node/node0/meminfo").read_text()
    for numa in (0, 1):
        own = nodes / f"node{numa}"
        (own / "hugepages").mkdir(parents=True, exist_ok=True)
        half = re.sub(
            r"^Node 0 (\S+\s+)(\d+)",
            lambda found, numa=numa: f"Node {numa} {found[1]}{int(found[2]) // 2}",
            memory,
            flags=re.MULTILINE,
        )
        (own / "meminfo").write_text(half)
        (own / "distance").write_text("10 21\n" if numa == 0 else "21 10\n")
        for cpu in range(CPUS * numa, CPUS * (numa + 1)):
            topology = own / f"cpu{cpu}" / "topology"
            topology.mkdir(parents=True, exist_ok=True)
            (topology / "core_id").write_text(f"{cpu}\n")
            (topology / "physical_package_id").write_text(f"{numa}\n")
    (folder / "online").write_text(f"0-{2 * CPUS - 1}\n")
