"""GPUs as amounts: how many a node has, and how much of them each of its pods has.

Device plugins that share GPUs (HAMi, Volcano's vGPU, NVIDIA's with replicas) offer each of them
several times, and KAI holds a GPU with a pod of its own for those that share it. Whoever shows or
charges GPUs counts them here: what is there are GPUs, and a pod has parts of them, in thousandths
of a GPU. A part is that of the GPU's memory or of its compute, whichever is larger.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import msgspec

from bayplan.api import Node, Pod
from bayplan.api.gpu_shares import WHOLE
from bayplan.api.gpus import GPU_RESOURCES
from bayplan.api.node_state import DEVICE_VENDORS
from bayplan.dialects import nvidia
from bayplan.dialects.hami.assignments import Assigned, read_assignments
from bayplan.dialects.hami.requests import RequestRules, admitted, container_request
from bayplan.dialects.hami.systems import HAMI, VOLCANO, System
from bayplan.dialects.kai.shares import (
    GpuShareRequest,
    gpu_memory_of,
    gpu_share_of,
    groups_of,
    is_reservation,
)
from bayplan.snapshot import NodeRow
from bayplan.topology.machine.readers.hami_register import (
    REGISTER,
    VOLCANO_REGISTER,
    RegisteredGpu,
    read_register,
    read_volcano_register,
)

__all__ = [
    "GPU_COUNTS",
    "asks_of_each_gpu",
    "gpu_registers",
    "gpus_held",
    "gpus_offered",
    "gpus_used",
    "is_accelerator",
    "is_gpu_count",
    "part_of_gpu",
]

GPU_COUNTS = (*GPU_RESOURCES, VOLCANO.resources.count)
"""The resources that count GPUs, or shares of them."""
_OF_EACH = {*HAMI.resources.names[1:], *VOLCANO.resources.names[1:]}
_PERCENT = 10
"""Thousandths in a percent."""
_MOST_REGISTERS = 1024


def is_gpu_count(resource: str) -> bool:
    """Tell whether a resource counts GPUs, so that its amounts are in thousandths of one."""
    return resource in GPU_COUNTS


def is_accelerator(resource: str) -> bool:
    """Tell whether a resource counts accelerators: by its vendor, or as the driver of devices."""
    vendor, _, kind = resource.partition("/")
    if not kind:
        return vendor.startswith("gpu.")
    return is_gpu_count(resource) or (vendor in DEVICE_VENDORS and not asks_of_each_gpu(resource))


def asks_of_each_gpu(resource: str) -> bool:
    """Tell whether a resource only says what its pod needs of each GPU; nodes offer none of it."""
    return resource in _OF_EACH


def gpu_registers(node: Node) -> tuple[str | None, ...]:
    """Return the annotations of a node by which its GPUs are counted."""
    return tuple(map(node.metadata.annotations.get, (REGISTER, VOLCANO_REGISTER)))


def part_of_gpu(compute: int, memory: int, total: int) -> int:
    """Return which part of a GPU somebody has, in thousandths, 1000 at most.

    :param compute: the thousandths of its compute.
    :param memory: how much of its ``total`` memory, 0 if that is not known.
    """
    of_memory = round(memory * WHOLE / total) if total else 0
    return min(WHOLE, max(compute, of_memory))


def gpus_offered(node: Node, resource: str, amount: int) -> int:
    """Return how many GPUs a node offers, in thousandths.

    :param amount: the node's amount of a resource that counts GPUs.
    """
    return round(amount * WHOLE / _offers_of_each(node, resource))


def gpus_held(pod: Pod, node: Node | None, requests: Mapping[str, int]) -> dict[str, int]:
    """Return how much of GPUs a pod has on its node, in thousandths, by resource.

    :param requests: its effective requests.
    """
    if is_reservation(pod):
        # Those that share the GPU have it.
        return {}
    found = {name: requests[name] * WHOLE for name in GPU_COUNTS if requests.get(name)}
    if node is None:
        return found
    for name in found:
        shared = _shared(node, name)
        if shared is not None:
            found[name] = _shares(pod, node, shared, found[name])
        else:
            found[name] = round(found[name] / _offers_of_each(node, name))
    of_kai = _share_of_kai(pod, node)
    if of_kai:
        found[nvidia.GPU] = found.get(nvidia.GPU, 0) + of_kai
    return found


def gpus_used(row: NodeRow, resource: str) -> int:
    """Return how much of a node's GPUs its pods have, in thousandths."""
    used = row.used(resource)
    if not used:
        return 0
    node = row.node
    pods = row.pods.values()
    if _offers_of_each(node, resource) == 1 and not any(is_reservation(one.pod) for one in pods):
        return used * WHOLE
    return sum(gpus_held(one.pod, node, one.requests).get(resource, 0) for one in pods)


def _share_of_kai(pod: Pod, node: Node) -> int:
    """Return what a pod has of the GPUs that it shares in KAI's groups."""
    share = gpu_share_of(pod) if groups_of(pod) else None
    if not isinstance(share, GpuShareRequest):
        return 0
    size = gpu_memory_of(node.metadata.labels)
    return share.devices * part_of_gpu(0, share.memory_of(size), size)


# Registers of virtual GPUs ----------------------------------------------------------------------


class _Shared(msgspec.Struct, frozen=True):
    """GPUs that a device plugin registers: whose words its pods speak, and each one's MiB."""

    system: System
    memory: Mapping[str, int]
    slots: int

    @property
    def offers_of_each(self) -> float:
        """How many times each GPU is offered, the mean."""
        return max(1.0, self.slots / len(self.memory))


_Registers = tuple[System, str, Callable[[str], list[RegisteredGpu]]]
_BY_RESOURCE: Mapping[str, _Registers] = {
    **dict.fromkeys(GPU_RESOURCES, (HAMI, REGISTER, read_register)),
    VOLCANO.resources.count: (VOLCANO, VOLCANO_REGISTER, read_volcano_register),
}


def _offers_of_each(node: Node, resource: str) -> float:
    """Return how many times a node offers each of its GPUs."""
    shared = _shared(node, resource)
    if shared is not None:
        return shared.offers_of_each
    if resource != nvidia.GPU:
        return 1.0
    try:
        return float(max(1, nvidia.gpu_labels(node.metadata.labels).replicas.get(resource, 1)))
    except ValueError:
        return 1.0


def _shared(node: Node, resource: str) -> _Shared | None:
    """Return how a node's GPUs are registered as shared; None if they are not."""
    _, annotation, _ = _BY_RESOURCE[resource]
    text = node.metadata.annotations.get(annotation)
    return _registered(resource, text) if text is not None else None


@lru_cache(_MOST_REGISTERS)
def _registered(resource: str, text: str) -> _Shared | None:
    system, _, read = _BY_RESOURCE[resource]
    try:
        gpus = read(text)
    except ValueError:
        return None
    memory = {one.uuid: one.memory for one in gpus}
    return _Shared(system, memory, sum(max(1, one.slots) for one in gpus)) if memory else None


def _shares(pod: Pod, node: Node, shared: _Shared, asked: int) -> int:
    """Return what a pod has of registered GPUs: what it was given, else what it asks for.

    :param asked: what it is taken for where neither can be read.
    """
    try:
        given = _given(pod, node, shared)
        return _most_at_once(pod, given if given is not None else _wanted(pod, shared))
    except ValueError:
        return asked


def _given(pod: Pod, node: Node, shared: _Shared) -> list[int] | None:
    """Return what each container was given, by the pod's annotations; None where they say nothing.

    Init containers come first; Volcano's device plugin serves none.
    """
    names, annotations = shared.system.annotations, pod.metadata.annotations
    text = annotations.get(names.allocated) or annotations.get(names.to_allocate)
    if text is None or annotations.get(names.node, node.metadata.name) != node.metadata.name:
        return None
    inits = len(pod.spec.init_containers)
    unserved = inits if shared.system is VOLCANO else 0
    served = inits + len(pod.spec.containers) - unserved
    devices = read_assignments(text, served)

    def part(one: Assigned) -> int:
        return part_of_gpu(one.cores * _PERCENT, one.memory, shared.memory.get(one.uuid, 0))

    return [0] * unserved + [sum(map(part, own)) for own in devices]


def _wanted(pod: Pod, shared: _Shared) -> list[int]:
    """Return what each container asks for, init containers first."""
    hami = shared.system is HAMI
    rules = RequestRules(shared.system.resources, whole_gpus_are_exclusive=hami)
    total = max(shared.memory.values())
    found = []
    for container in (*pod.spec.init_containers, *pod.spec.containers):
        one = container_request(admitted(container.resources, rules), rules)
        part = 0
        if one is not None:
            part = one.count * part_of_gpu(one.cores * _PERCENT, one.memory_of(total), total)
        found.append(part)
    return found


def _most_at_once(pod: Pod, parts: Sequence[int]) -> int:
    """Return the most that a pod's containers have at any time, by what each has."""
    inits = pod.spec.init_containers
    stays = [one.restart_policy == "Always" for one in inits]
    first, later = parts[: len(inits)], parts[len(inits) :]
    sidecars = sum(part for part, stay in zip(first, stays, strict=True) if stay)
    passing = (part for part, stay in zip(first, stays, strict=True) if not stay)
    return sidecars + max(sum(later), max(passing, default=0))
