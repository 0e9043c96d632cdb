"""How parts of a simulated cluster fail, as its objects tell it, and how they are repaired."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from functools import partial

import msgspec
from msgspec.structs import replace

from bayplan.api import Node, Pod, ResourceClaim, ResourceSlice
from bayplan.api.dra import DeviceTaint
from bayplan.api.gpu_shares import WHOLE
from bayplan.api.gpus import GPU_RESOURCES, named_gpus
from bayplan.api.node import NodeCondition
from bayplan.api.quantity import Quantity
from bayplan.api.resources import amount_of, pod_requests
from bayplan.cluster.embedded.store import MemoryCluster
from bayplan.queues.gpus import gpus_offered, is_accelerator
from bayplan.snapshot import Snapshot

__all__ = ["BrokenParts", "Repair"]

_TAINT = "bayplan.dev/failed"
Repair = Callable[[], None]


class BrokenParts(msgspec.Struct):
    """Breaks and repairs what is on an embedded cluster.

    Each method returns what repairs it, None for what is not there any more.

    :param hit: called with the uid of each pod that a fault ends.
    """

    cluster: MemoryCluster
    snapshot: Snapshot
    hit: Callable[[str], None]
    _silenced: Counter[str] = msgspec.field(default_factory=Counter)
    _cordoned: Counter[str] = msgspec.field(default_factory=Counter)
    _tainted: Counter[tuple[str, str]] = msgspec.field(default_factory=Counter)
    _before: dict[str, NodeCondition] = msgspec.field(default_factory=dict)
    """What nodes said of themselves before they fell silent."""
    _lost: dict[str, Counter[int]] = msgspec.field(default_factory=lambda: defaultdict(Counter))
    """The GPUs that have failed on each node, by index, and by how many faults."""
    _whole: dict[str, int] = msgspec.field(default_factory=dict)
    """How many GPUs nodes offered before."""

    def gpus(self, nodes: Iterable[Node]) -> list[str]:
        """Return the GPUs of nodes, as ``NODE/INDEX``, or ``NODE/DEVICE`` for those of claims.

        Shared and partitioned GPUs are left out.
        """
        devices: dict[str, list[str]] = defaultdict(list)
        for one in self.cluster.list(ResourceSlice):
            if is_accelerator(one.spec.driver):
                # A part of a device does not fail alone.
                whole = (device.name for device in one.spec.devices if not device.consumes_counters)
                devices[one.spec.node_name] += whole
        found = []
        for node in nodes:
            name, resource = node.metadata.name, _counted(node)
            counted = range(_offered(node, resource)) if resource is not None else ()
            found += [f"{name}/{gpu}" for gpu in (*counted, *devices[name])]
        return found

    # Nodes and their NICs ------------------------------------------------------------------------

    def silence(self, name: str) -> Repair | None:
        """Let a node's kubelet fall silent."""
        node = self.cluster.get(Node, name)
        if node is None:
            return None
        if not self._silenced[name]:
            before = next((one for one in node.status.conditions if one.type == "Ready"), None)
            self._before[name] = before or NodeCondition("Ready", "True")
        self._silenced[name] += 1
        self._set_ready(name)
        return partial(self._answer, name)

    def _answer(self, name: str) -> None:
        self._silenced[name] -= 1
        self._set_ready(name)

    def _set_ready(self, name: str) -> None:
        node = self.cluster.get(Node, name)
        if node is None:
            return
        silent = NodeCondition("Ready", "Unknown")
        ready = silent if self._silenced[name] > 0 else self._before[name]
        others = tuple(one for one in node.status.conditions if one.type != "Ready")
        self.cluster.update(replace(node, status=replace(node.status, conditions=(*others, ready))))

    def cut_off(self, name: str) -> Repair | None:
        """Let the NIC of a node fail: its monitor cordons it, and pods of gangs fail."""
        node = self.cluster.get(Node, name)
        if node is None:
            return None
        # Whoever has cordoned it before uncordons it.
        own = not node.spec.unschedulable or self._cordoned[name] > 0
        if own:
            self._cordoned[name] += 1
            self._set_cordoned(name)
        for pod in self._pods_on(name):
            info = self.snapshot.living.get(pod.key)
            if info is not None and info.gang is not None:
                self._end(pod, "the NIC of its node failed")
        return partial(self._connect, name) if own else _nothing

    def _connect(self, name: str) -> None:
        self._cordoned[name] -= 1
        self._set_cordoned(name)

    def _set_cordoned(self, name: str) -> None:
        node = self.cluster.get(Node, name)
        if node is not None:
            spec = replace(node.spec, unschedulable=self._cordoned[name] > 0)
            self.cluster.update(replace(node, spec=spec))

    # GPUs ----------------------------------------------------------------------------------------

    def lose_gpu(self, node: str, gpu: str) -> Repair | None:
        """Let a GPU fail, by its index or the name of its device."""
        return self._lose_counted(node, int(gpu)) if gpu.isdigit() else self._taint(node, gpu)

    def _lose_counted(self, name: str, index: int) -> Repair | None:
        """Let a GPU fail that a device plugin counts: it offers one less, and its pod fails."""
        node = self.cluster.get(Node, name)
        resource = _counted(node) if node is not None else None
        if node is None or resource is None:
            return None
        lost = self._lost[name]
        if not lost:
            self._whole[name] = _offered(node, resource)
        lost[index] += 1
        if lost[index] == 1:
            user = self._user_of(name, resource, index)
            if user is not None:
                self._end(user, "a GPU of its node failed")
            self._offer(name, resource)
        return partial(self._find, name, resource, index)

    def _find(self, name: str, resource: str, index: int) -> None:
        lost = self._lost[name]
        lost[index] -= 1
        if not lost[index]:
            del lost[index]
        self._offer(name, resource)

    def _offer(self, name: str, resource: str) -> None:
        """Let a node offer as many GPUs as have not failed."""
        node = self.cluster.get(Node, name)
        if node is None:
            return
        offered = node.status.allocatable or node.status.capacity
        amount = Quantity(str(max(0, self._whole[name] - len(self._lost[name]))))
        status = replace(node.status, allocatable={**offered, resource: amount})
        self.cluster.update(replace(node, status=status))

    def _user_of(self, node: str, resource: str, index: int) -> Pod | None:
        """Return the pod that uses a GPU; pods that do not say which they use follow each other."""
        taken = 0
        for pod in self._pods_on(node):
            count = pod_requests(pod.spec).effective.get(resource, 0)
            own = named_gpus(pod.metadata.annotations) or range(taken, taken + count)
            if count and index in own:
                return pod
            taken += count
        return None

    def _taint(self, node: str, device: str) -> Repair | None:
        """Let a device fail: its driver taints it, so that those that use it are evicted."""
        slices = self.cluster.list(ResourceSlice)
        found = next((one for one in slices if _is_of(one, node) and _has(one, device)), None)
        if found is None:
            return None
        key = found.metadata.name
        for claim in self.cluster.list(ResourceClaim):
            allocation = claim.status.allocation
            used = allocation.devices.results if allocation is not None else ()
            own = (found.spec.driver, found.spec.pool.name, device)
            if any((one.driver, one.pool, one.device) == own for one in used):
                for consumer in claim.status.reserved_for:
                    self.hit(consumer.uid)
        self._tainted[key, device] += 1
        self._set_tainted(key, device)
        return partial(self._untaint, key, device)

    def _untaint(self, key: str, device: str) -> None:
        self._tainted[key, device] -= 1
        self._set_tainted(key, device)

    def _set_tainted(self, key: str, name: str) -> None:
        failed = self._tainted[key, name] > 0
        found = self.cluster.get(ResourceSlice, key)
        if found is None:
            return
        devices = []
        for device in found.spec.devices:
            if device.name == name:
                taints = tuple(one for one in device.taints if one.key != _TAINT)
                if failed:
                    taints += (DeviceTaint(_TAINT, "NoExecute", "true"),)
                device = replace(device, taints=taints)
            devices.append(device)
        self.cluster.update(replace(found, spec=replace(found.spec, devices=tuple(devices))))

    def _pods_on(self, node: str) -> list[Pod]:
        """Return the pods that run on a node."""
        return [
            pod
            for pod in self.cluster.list(Pod)
            if pod.spec.node_name == node and pod.status.phase == "Running"
        ]

    def _end(self, pod: Pod, why: str) -> None:
        self.hit(pod.metadata.uid)
        status = replace(pod.status, phase="Failed", reason="Error", message=why)
        self.cluster.update(replace(pod, status=status))


def _counted(node: Node) -> str | None:
    """Return the resource by which a node's device plugin counts whole GPUs, None without one."""
    found = next((one for one in GPU_RESOURCES if _offered(node, one)), None)
    count = _offered(node, found) if found is not None else 0
    return (
        found if found is not None and gpus_offered(node, found, count) == WHOLE * count else None
    )


def _offered(node: Node, resource: str) -> int:
    offered = node.status.allocatable or node.status.capacity
    quantity = offered.get(resource)
    return amount_of(resource, quantity) if quantity is not None else 0


def _is_of(slice_: ResourceSlice, node: str) -> bool:
    return slice_.spec.node_name == node and is_accelerator(slice_.spec.driver)


def _has(slice_: ResourceSlice, device: str) -> bool:
    return any(one.name == device for one in slice_.spec.devices)


def _nothing() -> None:
    """Repair nothing: somebody else does."""
