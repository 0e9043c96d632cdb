"""Who holds which GPU of which node.

Every pod with GPUs that is on a node holds certain ones: those that were reserved for it, those
that its annotation names, or, where nobody says, the first that are free. The ledger follows pods
as they come and go, also in trials and when these are undone; a pod that comes back holds what it
held.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from bayplan import PodInfo
from bayplan.api import Node
from bayplan.api.dra import DeviceId
from bayplan.api.gpus import GPU_RESOURCES, named_gpus
from bayplan.hookspecs import IntColumn
from bayplan.snapshot import Snapshot
from bayplan.topology.machine import Machine
from bayplan_plugins.dynamic_resources.ledger import DeviceLedger
from bayplan_plugins.gpus.claims import gpus_of_devices
from bayplan_plugins.gpus.machines import NodeMachines
from bayplan_plugins.gpus.resources import gpu_count
from bayplan_plugins.gpus.wishes import job_of

__all__ = ["UNKNOWN", "GpuLedger", "NodeGpus", "State"]

_UUIDS = "hami.io/vgpu-devices-allocated"
_MOST_REMEMBERED = 8192
UNKNOWN = -1
"""The code of a node whose machine is not known."""


@dataclass(frozen=True)
class State:
    """A machine and its free GPUs; nodes in equal states get equal answers."""

    machine: Machine
    free: tuple[int, ...]


@dataclass
class NodeGpus:
    """The GPUs of one node, by the uid of the pod that holds them.

    ``devices`` are those that resource slices offer; ``elsewhere`` the GPUs that claims hold, or
    that only claims can have.
    """

    machine: Machine
    held: dict[str, tuple[int, ...]] = field(default_factory=dict)
    devices: Mapping[DeviceId, int] = field(default_factory=dict)
    elsewhere: frozenset[int] = frozenset()

    def free(self, but: str = "") -> tuple[int, ...]:
        """Return the free GPUs; those of ``but`` count as free."""
        busy = {gpu for uid, gpus in self.held.items() if uid != but for gpu in gpus}
        return tuple(g for g in self.machine.usable if g not in busy and g not in self.elsewhere)


class GpuLedger:
    """The GPUs of a cluster. One for all profiles of a scheduler.

    It and the ledger of devices tell each other which GPUs are in use.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self.machines = snapshot.shared(NodeMachines, NodeMachines)
        self.problems: dict[str, str] = {}
        self._nodes: dict[str, NodeGpus] = {}
        self._sources: dict[str, Node] = {}
        self._pods: dict[str, dict[str, PodInfo]] = {}
        self._remembered: dict[tuple[str, str], tuple[tuple[int, ...], tuple[int, ...]]] = {}
        self._jobs: dict[str, dict[str, dict[str, int]]] = {}
        self._devices = snapshot.shared(DeviceLedger, DeviceLedger)
        self._machines_version = -1
        self._codes: IntColumn = np.zeros(0, dtype=np.int64)
        self._states: list[State] = []
        self._code_of: dict[tuple[bytes, tuple[int, ...]], int] = {}
        self._version: object = None
        self._dirty: set[str] = set()
        snapshot.on_pod(self._on_pod)
        self._devices.on_devices(self._on_devices)
        for pod, node in snapshot.placed.values():
            self._on_pod(pod, node, True)

    # Following the cluster -----------------------------------------------------------------

    def _on_pod(self, pod: PodInfo, node: str, placed: bool) -> None:
        if not pod.facts.wants_devices or not gpu_count(pod.requests):
            return
        on_node = self._pods.setdefault(node, {})
        job = job_of(pod)
        if placed:
            on_node[pod.uid] = pod
            if job:
                self._jobs.setdefault(job, {}).setdefault(node, {})[pod.uid] = gpu_count(
                    pod.requests
                )
            gpus = self.node(node)
            if gpus is not None and pod.uid not in gpus.held:
                gpus.held[pod.uid] = self._guess(pod, node, gpus)
        else:
            on_node.pop(pod.uid, None)
            self._leave_job(job, node, pod.uid)
            gpus = self._nodes.get(node)
            if gpus is not None and pod.uid in gpus.held:
                self._remember(pod, node, gpus)
        if gpus is not None:
            self._held_changed(node, gpus)

    def _remember(self, pod: PodInfo, node: str, gpus: NodeGpus) -> None:
        self._remembered[pod.uid, node] = (gpus.held.pop(pod.uid), _annotated(pod, gpus.machine))
        if len(self._remembered) > _MOST_REMEMBERED:
            del self._remembered[next(iter(self._remembered))]

    def _leave_job(self, job: str, node: str, uid: str) -> None:
        nodes = self._jobs.get(job)
        if nodes is None or node not in nodes:
            return
        nodes[node].pop(uid, None)
        if not nodes[node]:
            del nodes[node]
        if not nodes:
            del self._jobs[job]

    def _guess(self, pod: PodInfo, node: str, gpus: NodeGpus) -> tuple[int, ...]:
        """Return the GPUs that a pod on a node holds, as far as anybody says."""
        before, said = self._remembered.pop((pod.uid, node), ((), ()))
        annotated = _annotated(pod, gpus.machine)
        # What another scheduler or device plugin has written since then is newer.
        known = before if annotated == said and before else annotated
        free = gpus.free(pod.uid)
        count = gpu_count(pod.requests)
        if len(known) == count and set(known) <= set(free):
            return known
        return free[:count]

    def _on_devices(self, nodes: Iterable[str] | None) -> None:
        for name in self._nodes if nodes is None else nodes:
            self._refresh_devices(name)

    def _refresh_devices(self, name: str) -> None:
        """Note which GPUs of a node resource slices offer, and which of them claims hold."""
        gpus = self._nodes.get(name)
        row = self._snapshot.nodes.row_of.get(name)
        if gpus is None or row is None:
            return
        node = self._snapshot.nodes.nodes[row]
        pools = self._devices.inventory.pools(node)
        devices = gpus_of_devices(pools, gpus.machine) if pools else {}
        offered = frozenset(devices.values())
        claimed = {gpu for one, gpu in devices.items() if self._devices.is_claimed(one, name)}
        # A device plugin that has more GPUs than no slice offers has some of the same.
        apart = _plugin_gpus(node) <= len(set(gpus.machine.usable) - offered)
        elsewhere = offered if apart else frozenset(claimed)
        if devices != gpus.devices or elsewhere != gpus.elsewhere:
            gpus.devices, gpus.elsewhere = devices, elsewhere
            self._held_changed(name, gpus)

    def _held_changed(self, name: str, gpus: NodeGpus) -> None:
        """Tell the ledger of devices what pods hold without a claim."""
        self._dirty.add(name)
        busy = {gpu for held in gpus.held.values() for gpu in held} if gpus.devices else ()
        held = frozenset(one for one, gpu in gpus.devices.items() if gpu in busy)
        self._devices.set_outside(name, held)

    # Nodes -----------------------------------------------------------------------------------

    def node(self, name: str) -> NodeGpus | None:
        """Return a node's GPUs; None where no device plugin has any.

        None as well where its machine is not known (see ``problems``).
        """
        row = self._snapshot.nodes.row_of.get(name)
        if row is None:
            return None
        node = self._snapshot.nodes.nodes[row]
        if self._sources.get(name) is not node:
            self._sources[name] = node
            self._read_node(name, node)
        return self._nodes.get(name)

    def _read_node(self, name: str, node: Node) -> None:
        machine = self.machines.of(node)
        self.problems.pop(name, None)
        known = self._nodes.get(name)
        if isinstance(machine, str) and machine:
            self.problems[name] = machine
        if isinstance(machine, str) or not _plugin_gpus(node):
            if self._nodes.pop(name, None) is not None:
                self._devices.set_outside(name, frozenset())
            return
        if known is not None and known.machine is machine:
            self._refresh_devices(name)
            return
        gpus = self._nodes[name] = NodeGpus(machine)
        self._refresh_devices(name)
        pods = self._pods.get(name, {}).values()
        # Whoever says which GPUs it holds comes before those that get what is left.
        for pod in sorted(pods, key=lambda pod: not _annotated(pod, machine)):
            gpus.held[pod.uid] = self._guess(pod, name, gpus)
        self._held_changed(name, gpus)

    def hold(self, pod: PodInfo, node: str, chosen: Sequence[int]) -> None:
        """Give a pod certain GPUs of its node, instead of those that it was taken to hold."""
        gpus = self._nodes[node]
        gpus.held[pod.uid] = tuple(chosen)
        self._held_changed(node, gpus)

    def release(self, pod: PodInfo, node: str) -> None:
        """Take a pod's GPUs back; it gets them again should it come back to the node."""
        gpus = self._nodes.get(node)
        if gpus is not None and pod.uid in gpus.held:
            self._remember(pod, node, gpus)
            self._held_changed(node, gpus)

    def held_by(self, pod: PodInfo, node: str) -> tuple[int, ...]:
        """Return the GPUs that a pod holds on a node."""
        gpus = self._nodes.get(node)
        return gpus.held.get(pod.uid, ()) if gpus is not None else ()

    # Jobs ------------------------------------------------------------------------------------

    def job_nodes(self, job: str, but: str = "") -> Mapping[str, int]:
        """Return how many GPUs a job's pods hold by node; the pod ``but``, by uid, left out."""
        found: dict[str, int] = {}
        for node, pods in self._jobs.get(job, {}).items():
            count = sum(n for uid, n in pods.items() if uid != but)
            if count:
                found[node] = count
        return found

    def job_gpus(self, job: str, but: str = "") -> Iterable[tuple[str, Machine, Sequence[int]]]:
        """Yield the nodes of a job with their machines and the GPUs that its pods hold there."""
        for node, pods in self._jobs.get(job, {}).items():
            gpus = self._nodes.get(node)
            if gpus is not None:
                held = [g for uid in pods if uid != but for g in gpus.held.get(uid, ())]
                if held:
                    yield node, gpus.machine, held

    # States ----------------------------------------------------------------------------------

    def codes(self) -> IntColumn:
        """Return the state of every node row as a number for ``state``; UNKNOWN for no machine."""
        table = self._snapshot.nodes
        version = (table.epoch, table.node_version, len(table), self.machines.version)
        if version != self._version:
            self._version = version
            if self._machines_version != self.machines.version:
                self._machines_version = self.machines.version
                self._sources.clear()
            self._codes = np.full(len(table), UNKNOWN, dtype=np.int64)
            for row, name in enumerate(table.names):
                self._codes[row] = self._code(name)
        else:
            for name in self._dirty:
                row_of = table.row_of.get(name)
                if row_of is not None:
                    self._codes[row_of] = self._code(name)
        self._dirty.clear()
        return self._codes

    def _code(self, name: str) -> int:
        gpus = self.node(name)
        if gpus is None:
            return UNKNOWN
        free = gpus.free()
        key = (gpus.machine.shape, free)
        code = self._code_of.get(key)
        if code is None:
            code = self._code_of[key] = len(self._states)
            self._states.append(State(gpus.machine, free))
        return code

    def state(self, code: int) -> State:
        """Return the state that a code stands for."""
        return self._states[code]

    def refresh(self, name: str) -> State | None:
        """Return the state of one node as it is now."""
        code = self.codes()[self._snapshot.nodes.row_of[name]]
        return None if code == UNKNOWN else self._states[code]


def _plugin_gpus(node: Node) -> int:
    """Return how many GPUs the node's device plugin has."""
    return max(
        (q.units for name, q in node.status.allocatable.items() if name in GPU_RESOURCES), default=0
    )


def _annotated(pod: PodInfo, machine: Machine) -> tuple[int, ...]:
    """Return the GPUs that a pod's annotations name, none where they name none of the machine."""
    found = named_gpus(pod.annotations)
    if found:
        return found if found[-1] < len(machine) else ()
    theirs = pod.annotations.get(_UUIDS, "")
    uuids = {gpu.uuid: gpu.index for gpu in machine.gpus if gpu.uuid}
    named = {part.split(",")[0] for part in theirs.replace(";", ":").split(":") if part}
    return tuple(sorted(uuids[uuid] for uuid in named & uuids.keys()))
