"""Whole GPUs of a node whose machine is known: which are free, and which a pod is said to hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from bayplan import PodInfo
from bayplan.api import Node, NodeResourceTopology
from bayplan.api.dra import DeviceId
from bayplan.api.gpu_shares import Share
from bayplan.api.gpus import GPU_RESOURCES, named_gpus
from bayplan.topology.machine.model import Machine
from bayplan_plugins.gpus.machines import numa_nodes

__all__ = ["GpuState", "WholeGpus", "first_free", "plugin_gpus", "rails", "stated_gpus"]

_UUIDS = "hami.io/vgpu-devices-allocated"


class GpuState(msgspec.Struct, frozen=True):
    """A machine, its free GPUs by index, and the most that could ever be free.

    Nodes in equal states are equally good, except for pods that name their GPUs.
    """

    machine: Machine
    free: tuple[int, ...]
    most: tuple[int, ...]

    def on_numa_nodes(self, numbers: frozenset[int]) -> GpuState:
        """Return the state without the GPUs of other NUMA nodes."""
        own = self.machine.numa_of
        free = tuple(gpu for gpu in self.free if own[gpu] in numbers)
        most = tuple(gpu for gpu in self.most if own[gpu] in numbers)
        return GpuState(self.machine, free, most)


class WholeGpus(msgspec.Struct):
    """The GPUs of a node's machine, of which whole ones are chosen by topology.

    ``offered`` is how many its device plugin has in all. ``devices`` are those that resource slices
    offer; ``elsewhere`` the GPUs that claims hold, or that only claims can get. ``held`` is what
    pods hold, by uid: the node's own record, where a GPU of which anybody has a share is in use.
    """

    machine: Machine
    offered: int
    devices: Mapping[DeviceId, int] = msgspec.field(default_factory=dict)
    elsewhere: frozenset[int] = frozenset()
    held: Mapping[str, tuple[Share, ...]] = msgspec.field(default_factory=dict)

    def busy(self, but: str = "") -> set[int]:
        """Return the GPUs that pods hold, except those of the pod ``but``, by uid."""
        return {share.gpu for uid, own in self.held.items() if uid != but for share in own}

    def free(self, but: str = "") -> tuple[int, ...]:
        """Return the free GPUs; those of the pod ``but``, by uid, count as free."""
        busy = self.busy(but) | self.elsewhere
        return tuple(gpu for gpu in self.machine.usable if gpu not in busy)

    def left(self, but: str = "") -> int:
        """Return how many more GPUs the device plugin can give; those of ``but`` count as free."""
        return max(0, min(len(self.free(but)), self.offered - len(self.busy(but))))


def first_free(
    gpus: WholeGpus, uid: str, count: int, zones: NodeResourceTopology | None
) -> tuple[int, ...]:
    """Return the GPUs that a pod, by uid, probably holds: the first free ones.

    NUMA nodes come first whose report has fewer free GPUs than are free here.
    """
    free = list(gpus.free(uid))
    reported = _free_in(zones) if zones is not None else {}
    numa = gpus.machine.numa_of
    more = Counter(numa[gpu] for gpu in free)
    more.subtract(reported)
    found: list[int] = []
    for _ in range(min(count, len(free))):
        gpu = max(free, key=lambda one: more[numa[one]]) if reported else free[0]
        free.remove(gpu)
        more[numa[gpu]] -= 1
        found.append(gpu)
    return tuple(found)


def stated_gpus(pod: PodInfo, machine: Machine) -> tuple[int, ...]:
    """Return the GPUs of the machine that a bound pod's annotations name.

    None if any is not on it, and none for a pod without a node: nobody can have given it GPUs.
    """
    if not pod.spec.node_name:
        return ()
    found = named_gpus(pod.annotations)
    if found:
        return found if found[-1] < len(machine) else ()
    theirs = pod.annotations.get(_UUIDS, "")
    uuids = {gpu.uuid: gpu.index for gpu in machine.gpus if gpu.uuid}
    named = {part.split(",")[0] for part in theirs.replace(";", ":").split(":") if part}
    return tuple(sorted(uuids[uuid] for uuid in named & uuids.keys()))


def plugin_gpus(node: Node) -> int:
    """Return how many GPUs the node's device plugin has."""
    amounts = node.status.allocatable
    return max((amounts[name].units for name in GPU_RESOURCES if name in amounts), default=0)


def rails(machine: Machine, gpus: Iterable[int]) -> frozenset[int]:
    """Return the rails of the NICs near GPUs."""
    nics = (machine.nics[nic] for gpu in gpus for nic in machine.near_nics(gpu))
    return frozenset(nic.rail for nic in nics if nic.rail is not None)


def _free_in(zones: NodeResourceTopology) -> dict[int, int]:
    """Return how many GPUs a report has as free, by NUMA node."""
    return {
        number: max(
            (r.available.units for r in zone.resources if r.name in GPU_RESOURCES), default=0
        )
        for number, zone in numa_nodes(zones).items()
    }
