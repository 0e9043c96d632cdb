"""Nodes whose CPUs Koordinator's agent publishes, and the rules by which pods may have them.

All that is checked is in the API server's objects: nothing is asked of a scheduler.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.cpu_nodes import QOS, STATUS

from bayplan.api.cpu_lists import cpu_list, cpus_in
from bayplan.api.quantity import Quantity
from bayplan.api.resources import amount_of

Content = dict[str, Any]

THREADS, CORES, NUMA_NODES = 2, 4, 4
"""Threads of a core, cores of a NUMA node, NUMA nodes; two of those are in a socket."""
_HALF = CORES * NUMA_NODES
CPUS = frozenset(range(THREADS * _HALF))
_OF_NUMA = {"cpu": 1000 * THREADS * CORES, "memory": 16 * 2**30}
"""What a NUMA node has; milli-CPU, bytes."""
_DOMAIN = "node.koordinator.sh/"
_OWN = ("LSE", "LSR")
ASKED = "test/asked"
"""The annotation with what a pod asked of its CPUs: the scheduler may add to its resource-spec."""


def _amounts(resources: Mapping[str, str]) -> dict[str, int]:
    """Return amounts as numbers; CPU in milli-CPU, memory in bytes."""
    return {name: amount_of(name, Quantity(text)) for name, text in resources.items()}


def core_of(cpu: int) -> int:
    """Return the core of a CPU: as in Linux, first come the first threads of all cores."""
    return cpu % _HALF


def numa_of(cpu: int) -> int:
    """Return the NUMA node of a CPU."""
    return core_of(cpu) // CORES


@dataclass(frozen=True)
class CpuMachine:
    """A node: what its labels and its agent say.

    :ivar bind: its label for the policy of all pods.
    :ivar numa: its label for the alignment of what pods get.
    :ivar strategy: its label for the NUMA nodes that come first.
    :ivar by_kubelet: the CPUs of a pod to which the kubelet gave them.
    """

    name: str
    bind: str = ""
    numa: str = ""
    strategy: str = ""
    ratio: float = 1.0
    reserved: frozenset[int] = frozenset()
    by_kubelet: frozenset[int] = frozenset()

    @property
    def policy(self) -> str:
        """The policy that pods get their CPUs by, whatever they ask; "" for theirs."""
        return "FullPCPUs" if self.bind == "FullPCPUsOnly" else self.bind

    @property
    def possible(self) -> frozenset[int]:
        """The CPUs that pods may have."""
        return CPUS - self.reserved - self.by_kubelet

    @property
    def milli(self) -> int:
        """The amplified CPUs that pods may request."""
        return int(1000 * len(self.possible) * self.ratio)

    def objects(self) -> list[Content]:
        """Return the node, and what its agent publishes."""
        labels = {"cpu-bind-policy": self.bind, "numa-topology-policy": self.numa}
        labels["numa-allocate-strategy"] = self.strategy
        amounts = {"cpu": f"{self.milli}m", "memory": "64Gi", "pods": "110"}
        ratio = {f"{_DOMAIN}resource-amplification-ratio": json.dumps({"cpu": self.ratio})}
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": self.name,
                "labels": {f"{_DOMAIN}{key}": value for key, value in labels.items() if value},
                "annotations": ratio if self.ratio > 1 else {},
            },
            "status": {
                "capacity": amounts,
                "allocatable": amounts,
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }
        return [node, self._report()]

    def _report(self) -> Content:
        # The numbers of cores start again in each socket; nothing says what is left of a zone.
        listed = [
            {
                "id": cpu,
                "core": core_of(cpu) % (_HALF // 2),
                "socket": numa_of(cpu) // 2,
                "node": numa_of(cpu),
            }
            for cpu in sorted(CPUS)
        ]
        given = {"uid": "other", "cpuset": cpu_list(self.by_kubelet), "managedByKubelet": True}
        kubelet = {"policy": "static", "reservedCPUs": cpu_list(self.reserved)}
        amounts = {"cpu": str(THREADS * CORES), "memory": str(_OF_NUMA["memory"])}
        resources = [
            {"name": name, "capacity": amount, "allocatable": amount, "available": amount}
            for name, amount in amounts.items()
        ]
        annotations = {
            f"{_DOMAIN}cpu-topology": {"detail": listed},
            f"{_DOMAIN}pod-cpu-allocs": [given] if self.by_kubelet else None,
            f"{_DOMAIN}reservation": {},
            f"{_DOMAIN}system-qos-resource": {},
            "kubelet.koordinator.sh/cpu-manager-policy": kubelet,
        }
        return {
            "apiVersion": "topology.node.k8s.io/v1alpha1",
            "kind": "NodeResourceTopology",
            "metadata": {
                "name": self.name,
                "annotations": {key: json.dumps(value) for key, value in annotations.items()},
            },
            "topologyPolicies": ["None"],
            "zones": [
                {"name": f"node-{number}", "type": "Node", "resources": resources}
                for number in range(NUMA_NODES)
            ],
        }


@dataclass(frozen=True)
class CpuHolder:
    """A pod: what it asks, and what is written on it."""

    name: str
    node: str
    ended: bool
    qos: str
    milli: int
    memory: int
    spec: Mapping[str, str]
    cpus: frozenset[int]
    by_numa: Mapping[int, Mapping[str, int]]

    @classmethod
    def of(cls, pod: Content) -> CpuHolder:
        """Read a pod. What it asked when it was created is in an annotation of its own."""
        meta = pod["metadata"]
        annotations = meta.get("annotations", {})
        status = json.loads(annotations.get(STATUS, "{}"))
        (container,) = pod["spec"]["containers"]
        asked = _amounts(container["resources"]["requests"])
        return cls(
            name=meta["name"],
            node=pod["spec"].get("nodeName", ""),
            ended=pod["status"].get("phase") in ("Succeeded", "Failed"),
            qos=meta.get("labels", {}).get(QOS, ""),
            milli=asked["cpu"],
            memory=asked["memory"],
            spec=json.loads(annotations.get(ASKED, "{}")),
            cpus=cpus_in(status.get("cpuset", "")),
            by_numa={
                one["node"]: _amounts(one["resources"])
                for one in status.get("numaNodeResources", ())
            },
        )

    @property
    def exclusive(self) -> str:
        """Whom a pod keeps away from its CPUs."""
        return self.spec.get("preferredCPUExclusivePolicy", "")

    @property
    def required(self) -> str:
        """The policy by which a pod has to have its CPUs, "" for any."""
        return self.spec.get("requiredCPUBindPolicy", "") if self.owns else ""

    @property
    def preferred(self) -> str:
        """The policy by which a pod would like to have its CPUs."""
        return self.spec.get("preferredCPUBindPolicy", "") if self.owns else ""

    @property
    def owns(self) -> bool:
        """Whether a pod has CPUs of its own on every node."""
        policy = self.spec.get("requiredCPUBindPolicy") or self.spec.get("preferredCPUBindPolicy")
        return self.qos in _OWN and policy != "ConstrainedBurst"

    def gets_cpus(self, machine: CpuMachine) -> bool:
        """Tell whether a pod has CPUs of its own on a node."""
        return self.owns or bool(machine.policy)


def problems(machine: CpuMachine, pods: Iterable[CpuHolder]) -> Iterator[str]:
    """Yield what is wrong with the CPUs of the pods of a node, at any time."""
    running = [pod for pod in pods if pod.node == machine.name and not pod.ended]
    held = Counter(cpu for pod in running for cpu in pod.cpus)
    for cpu in sorted(held):
        if held[cpu] > 1:
            holders = [pod.name for pod in running if cpu in pod.cpus]
            yield f"{machine.name}: CPU {cpu} is given twice, to {holders}"
        if cpu not in machine.possible:
            yield f"{machine.name}: CPU {cpu} is nobody's to give"
    for pod in running:
        if fault := _fault(machine, pod):
            yield f"{machine.name}: {pod.name}: {fault}: {pod}"
    surplus = math.ceil(1000 * len(held) * machine.ratio) - 1000 * len(held)
    asked = sum(pod.milli for pod in running) + surplus
    if asked > machine.milli:
        yield f"{machine.name}: {asked}m of {machine.milli}m amplified CPU are requested"
    for name, most in _OF_NUMA.items():
        for number, amount in enumerate(_given(running, name)):
            if amount > most:
                yield f"{machine.name}: {amount} {name} of NUMA node {number} are given"


def _given(running: Iterable[CpuHolder], resource: str) -> list[int]:
    """Return how much of a resource of each NUMA node is written on pods."""
    given = [0] * NUMA_NODES
    for pod in running:
        for number, amounts in pod.by_numa.items():
            given[number] += amounts.get(resource, 0)
    return given


def _fault(machine: CpuMachine, pod: CpuHolder) -> str:
    if not pod.gets_cpus(machine):
        return "it has CPUs of its own" if pod.cpus else ""
    if 1000 * len(pod.cpus) != pod.milli:
        return "it has another number of CPUs than it requests"
    policy = machine.policy or pod.required
    cores = {core_of(cpu) for cpu in pod.cpus}
    if policy and len(cores) * (THREADS if policy == "FullPCPUs" else 1) != len(pod.cpus):
        return f"it does not have its CPUs by {policy}"
    if machine.numa == "SingleNUMANode":
        if len({numa_of(cpu) for cpu in pod.cpus}) != 1:
            return "its CPUs are not of one NUMA node"
        if list(pod.by_numa) != [numa_of(cpu) for cpu in pod.cpus][:1]:
            return "another NUMA node is written on it than that of its CPUs"
    return ""


def choice_faults(
    machine: CpuMachine, others: Iterable[CpuHolder], pod: CpuHolder
) -> Iterator[str]:
    """Yield what is wrong with what a pod got, given what the other pods had by then.

    :param pod: one that got CPUs of its own.
    """
    others = [one for one in others if one.node == machine.name and not one.ended]
    free = machine.possible - {cpu for one in others for cpu in one.cpus}
    rivals = [cpu for one in others if one.exclusive == pod.exclusive for cpu in one.cpus]
    exclusive = pod.exclusive if pod.owns else ""
    closed_cores = {core_of(cpu) for cpu in rivals} if exclusive == "PCPULevel" else set()
    closed_numa = {numa_of(cpu) for cpu in rivals} if exclusive == "NUMANodeLevel" else set()
    policy = machine.policy or pod.required or pod.preferred
    count = len(pod.cpus)
    cores = {core_of(cpu) for cpu in pod.cpus}
    nodes = {numa_of(cpu) for cpu in pod.cpus}
    by_core: dict[int, list[int]] = defaultdict(list)
    for cpu in free:
        by_core[core_of(cpu)].append(cpu)
    whole = [core for core, own in by_core.items() if len(own) == THREADS]
    usable = whole if policy in ("", "FullPCPUs") else list(by_core)
    each = THREADS if policy in ("", "FullPCPUs") else 1
    asked = {"cpu": pod.milli, "memory": pod.memory}
    fitting = {
        number
        for number in range(NUMA_NODES)
        if not machine.numa
        or all(_given(others, name)[number] + asked[name] <= _OF_NUMA[name] for name in asked)
    }
    usable = [core for core in usable if numa_of(core) in fitting]
    of_numa = Counter(numa_of(core) for core in usable)
    apart = Counter(
        numa_of(core)
        for core in usable
        if core not in closed_cores and numa_of(core) not in closed_numa
    )
    if all(each * found < count for found in of_numa.values()):
        return
    if len(nodes) > 1:
        yield f"{cpu_list(pod.cpus)} are of several NUMA nodes, one had enough"
    if each == THREADS and len(cores) != -(-count // THREADS):
        yield f"{cpu_list(pod.cpus)} are not whole cores, of which there were enough"
    if machine.numa and each == 1 and len(cores) < count:
        yield f"{cpu_list(pod.cpus)} share cores, and need not"
    if machine.numa:
        # There, the NUMA node is that where everything fits.
        return
    if any(each * found >= count for found in apart.values()):
        if cores & closed_cores or nodes & closed_numa:
            yield f"{cpu_list(pod.cpus)} are where {exclusive} excludes it, and need not be"
        if exclusive in ("PCPULevel", "NUMANodeLevel") and each == 1 and len(cores) < count:
            yield f"{cpu_list(pod.cpus)} share cores, and need not"
    (numa,) = nodes if len(nodes) == 1 else (-1,)
    if each == THREADS and numa in of_numa and exclusive in ("", "None"):
        enough = [THREADS * found for found in of_numa.values() if THREADS * found >= count]
        first = min(enough) if machine.strategy == "MostAllocated" else max(enough)
        if THREADS * of_numa[numa] != first:
            yield f"{cpu_list(pod.cpus)} are of NUMA node {numa}, against {machine.strategy}"
