"""Which pod has what of which GPU of a node, whatever plugin knows it."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping, Sequence

import msgspec

from bayplan.api import ResourceClaim
from bayplan.api.dra import DeviceId
from bayplan.api.gpu_shares import WHOLE
from bayplan.dialects.kai.shares import groups_of, is_reservation
from bayplan.plugin.devices import GpuHolder, NodeDevices, PublishedDevice
from bayplan.queues.gpus import part_of_gpu
from bayplan.scheduler.scheduler import Scheduler
from bayplan.snapshot import PodInfo
from bayplan.topology.machine.model import Machine

__all__ = ["MOST_GPUS", "GpusOfNode", "PodGpu", "gpu_count", "gpus_of_node"]

MOST_GPUS = 64
"""The most GPUs of one node that are drawn."""
_GPUS = ("gpu", "npu", "mlu", "dcu", "gcu", "xpu")
_ASCEND = "huawei.com/Ascend"
_WHOLE_GPU = re.compile(r"gpu-?\d+")


class PodGpu(msgspec.Struct, frozen=True):
    """What a pod has of a GPU: its index, thousandths of it (0: a part of unknown size), a name.

    ``label`` names the partition or the device; ``guessed`` says that nothing states which GPU it
    is, as when the kubelet chooses. A NIC counts down from -1: -1 is the first.
    """

    gpu: int
    compute: int = WHOLE
    label: str = ""
    guessed: bool = False

    def as_json(self) -> list[object]:
        """Return ``[gpu, compute, label, guessed]`` without what is empty at its end."""
        plain: list[object] = [self.gpu, self.compute, self.label, int(self.guessed)]
        while len(plain) > 2 and not plain[-1]:
            plain.pop()
        return plain


class GpusOfNode(msgspec.Struct):
    """The GPUs of a node: how many, their machine, and what pods have, by key.

    ``published`` is what drivers say of its GPUs and NICs, where the machine is None.
    """

    count: int = 0
    machine: Machine | None = None
    published: tuple[PublishedDevice, ...] = ()
    models: Sequence[str] = ()
    of_pod: dict[str, list[PodGpu]] = msgspec.field(default_factory=dict)


def gpu_count(amounts: Mapping[str, int]) -> int:
    """Return how many whole GPUs amounts of resources name, by the resources' names."""
    return sum(amount for name, amount in amounts.items() if _is_gpu(name))


def _is_gpu(resource: str) -> bool:
    domain, slash, name = resource.partition("/")
    return bool(slash) and (
        resource.startswith(_ASCEND) or (name in _GPUS and not domain.startswith("requests."))
    )


def gpus_of_node(
    scheduler: Scheduler,
    node: str,
    offered: int,
    pods: Mapping[str, PodInfo],
    claims: Mapping[str, Iterable[ResourceClaim]],
) -> GpusOfNode:
    """Return the GPUs of a node.

    :param offered: how many its extended resources count.
    :param pods: the pods on it, by key.
    :param claims: the allocated claims of these pods, by key.
    :raises PluginError: when a plugin raises.
    """
    reported = _reported(scheduler, node)
    found = GpusOfNode(machine=next((one.machine for one in reported if one.machine), None))
    if found.machine is None:
        found.published = _drawn(next((one.published for one in reported if one.published), ()))
    shared = next((one.gpus for one in reported if one.gpus), ())
    gpus = [gpu for gpu in shared if gpu.kind == "gpu"]
    # A device plugin that shares GPUs counts each of them several times.
    count = max((gpu.index + 1 for gpu in gpus), default=0) or offered
    count = max([count, *(gpu + 1 for one in reported for gpu in one.devices.values())])
    found.count = min(MOST_GPUS, len(found.machine) if found.machine is not None else count)
    models = {gpu.index: gpu.model for gpu in gpus}
    if found.machine is None and models:
        found.models = [models.get(index, "") for index in range(found.count)]
    memory = {gpu.index: gpu.memory for gpu in shared}
    holders = [holder for one in reported for holder in one.holders]
    for_others = _held_for_others(pods, {one.pod for one in holders})
    _hold(found, [one for one in holders if one.pod not in for_others], memory)
    devices = {key: index for one in reported for key, index in one.devices.items()}
    nics = {key: nic for one in reported for key, nic in one.nics.items()}
    for key, own in claims.items():
        _claimed(found, key, own, devices, nics)
    _place_uncounted(found, {key: pod for key, pod in pods.items() if key not in for_others})
    return found


def _held_for_others(pods: Mapping[str, PodInfo], reported: Container[str]) -> set[str]:
    """Return the pods that hold a GPU for others that share it, by key.

    :param reported: the pods that are known to have something of GPUs.
    """
    groups = {
        group
        for key, pod in pods.items()
        if key in reported and not is_reservation(pod.pod)
        for group in groups_of(pod.pod)
    }
    return {
        key
        for key, pod in pods.items()
        if is_reservation(pod.pod) and not groups.isdisjoint(groups_of(pod.pod))
    }


def _drawn(published: Sequence[PublishedDevice]) -> tuple[PublishedDevice, ...]:
    """Return devices to draw: numbered from 0 without a gap, and at a place that is stated."""
    gpus = [one.gpu for one in published if one.gpu is not None]
    placed = any(one.pcie_root or one.numa is not None for one in published)
    return tuple(published) if placed and gpus == list(range(len(gpus))) else ()


def _reported(scheduler: Scheduler, node: str) -> list[NodeDevices]:
    found = []
    for profile in scheduler.profiles.values():
        answers = (call(node) for call in profile.runtime["node_devices"])
        found += [one for one in answers if one is not None]
        if found:
            break
    return found


def _hold(found: GpusOfNode, holders: Iterable[GpuHolder], memory: Mapping[int, int]) -> None:
    """Enter the holders of GPUs; a part of a GPU counts before a hold of it as a whole.

    :param memory: that of each GPU, 0 where it is not known.
    """
    parts = [(one, part_of_gpu(one.compute, one.memory, memory.get(one.gpu, 0))) for one in holders]
    shared = {one.gpu for one, part in parts if part < WHOLE or one.partition}
    for one, part in parts:
        if part >= WHOLE and not one.partition and one.gpu in shared:
            continue
        own = found.of_pod.setdefault(one.pod, [])
        gpu = PodGpu(one.gpu, part, one.partition, one.guessed)
        if gpu not in own:
            own.append(gpu)


def _claimed(
    found: GpusOfNode,
    pod: str,
    claims: Iterable[ResourceClaim],
    devices: Mapping[DeviceId, int],
    nics: Mapping[DeviceId, int],
) -> None:
    parts: dict[int, int] = {}
    for gpu in devices.values():
        parts[gpu] = parts.get(gpu, 0) + 1
    for claim in claims:
        allocation = claim.status.allocation
        if allocation is None:
            continue
        for one in allocation.devices.results:
            device = DeviceId(one.driver, one.pool, one.device)
            index, nic = devices.get(device), nics.get(device)
            if nic is not None:
                found.of_pod.setdefault(pod, []).append(PodGpu(-1 - nic, WHOLE, one.device))
            if index is None:
                continue
            whole = parts[index] == 1 or _WHOLE_GPU.fullmatch(one.device) is not None
            own = found.of_pod.setdefault(pod, [])
            own.append(PodGpu(index, WHOLE if whole else 0, one.device))


def _place_uncounted(found: GpusOfNode, pods: Mapping[str, PodInfo]) -> None:
    """Give GPUs that are free to pods whose GPUs nobody knows, the lowest first."""
    taken = {one.gpu for own in found.of_pod.values() for one in own}
    free = [gpu for gpu in range(found.count) if gpu not in taken]
    for key, pod in pods.items():
        if any(one.gpu >= 0 for one in found.of_pod.get(key, ())):
            continue
        wanted = gpu_count(pod.requests)
        if wanted:
            own, free = free[:wanted], free[wanted:]
            gpus = found.of_pod.setdefault(key, [])
            gpus += [PodGpu(gpu, guessed=True) for gpu in own]
