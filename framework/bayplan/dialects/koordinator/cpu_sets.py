"""Koordinator: which CPUs a pod asks for and got, and what agents publish of a node's CPUs.

Names as in koordinator-sh/koordinator v1.8 (apis/extension/numa_aware.go, node_reservation.go,
node_resource_amplification.go).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from bayplan.api import NodeResourceTopology, Pod
from bayplan.api.cpu_lists import MOST_CPUS, cpu_list, cpus_in
from bayplan.api.meta import ApiStruct
from bayplan.api.quantity import Quantity
from bayplan.api.resources import amount_of
from bayplan.dialects.koordinator.annotations import list_in, mapping_in, part_of
from bayplan.dialects.koordinator.qos import priority_class, qos_class

__all__ = [
    "RESOURCE_SPEC",
    "RESOURCE_STATUS",
    "BindPolicy",
    "ExclusivePolicy",
    "NumaStrategy",
    "PublishedCpus",
    "ResourceSpec",
    "amplification_of",
    "cpus_of_status",
    "may_have_cpu_set",
    "node_bind_policy",
    "node_strategy",
    "numa_amounts_of_status",
    "published_cpus",
    "publishes_cpus",
    "resource_spec_of",
    "spec_text",
    "status_text",
]

BindPolicy: TypeAlias = Literal["", "Default", "FullPCPUs", "SpreadByPCPUs", "ConstrainedBurst"]
ExclusivePolicy: TypeAlias = Literal["", "None", "PCPULevel", "NUMANodeLevel"]
NumaStrategy: TypeAlias = Literal["MostAllocated", "LeastAllocated", "DistributeEvenly"]

RESOURCE_SPEC = "scheduling.koordinator.sh/resource-spec"
RESOURCE_STATUS = "scheduling.koordinator.sh/resource-status"
_NODE = "node.koordinator.sh/"
_TOPOLOGY = f"{_NODE}cpu-topology"
_ALLOCATIONS = f"{_NODE}pod-cpu-allocs"
_KUBELET = "kubelet.koordinator.sh/cpu-manager-policy"
_RESERVATION = f"{_NODE}reservation"
_SYSTEM = f"{_NODE}system-qos-resource"
_RATIOS = f"{_NODE}resource-amplification-ratio"
_BIND = f"{_NODE}cpu-bind-policy"
_STRATEGY = f"{_NODE}numa-allocate-strategy"
_STRATEGIES: Mapping[str, NumaStrategy] = {
    "MostAllocated": "MostAllocated",
    "LeastAllocated": "LeastAllocated",
    "DistributeEvenly": "DistributeEvenly",
}
_MOST_RATIO = 1000.0


class ResourceSpec(ApiStruct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a pod asks of the choice of its CPUs."""

    required: BindPolicy = msgspec.field(default="", name="requiredCPUBindPolicy")
    preferred: BindPolicy = msgspec.field(default="", name="preferredCPUBindPolicy")
    exclusive: ExclusivePolicy = msgspec.field(default="", name="preferredCPUExclusivePolicy")


class _OfNuma(ApiStruct, frozen=True):
    node: int = 0
    resources: dict[str, Quantity] = msgspec.field(default_factory=dict)


class _Status(ApiStruct, frozen=True):
    cpuset: str = ""
    numa_node_resources: tuple[_OfNuma, ...] = ()


class _Cpu(ApiStruct, frozen=True):
    id: int
    core: int
    socket: int
    node: int


class _Topology(ApiStruct, frozen=True):
    detail: tuple[_Cpu, ...] = ()


class _Allocation(ApiStruct, frozen=True):
    uid: str = ""
    cpuset: str = ""
    managed_by_kubelet: bool = False


class _Kubelet(ApiStruct, frozen=True):
    policy: str = ""
    options: dict[str, str] = msgspec.field(default_factory=dict)
    reserved: str = msgspec.field(default="", name="reservedCPUs")


class _Reservation(ApiStruct, frozen=True):
    reserved: str = msgspec.field(default="", name="reservedCPUs")


class _System(ApiStruct, frozen=True):
    cpuset: str = ""
    exclusive: bool = msgspec.field(default=True, name="cpusetExclusive")


class PublishedCpus(msgspec.Struct, frozen=True):
    """What a NodeResourceTopology says of a node's CPUs.

    :param cpus: the core, the NUMA node and the socket of each logical CPU.
    :param reserved: the CPUs that no pod may get: those of the system, of the kubelet, and of pods
        to which the kubelet gave CPUs of their own.
    :param whole_cores: whether the kubelet gives out whole cores only.
    """

    cpus: tuple[tuple[int, tuple[int, int, int]], ...] = ()
    reserved: frozenset[int] = frozenset()
    whole_cores: bool = False


def may_have_cpu_set(pod: Pod) -> bool:
    """Tell whether a pod is of a class that gets CPUs of its own."""
    return qos_class(pod) in ("LSE", "LSR") and priority_class(pod) == "koord-prod"


def resource_spec_of(annotations: Mapping[str, str]) -> ResourceSpec:
    """Return what a pod asks of the choice of its CPUs; the defaults without the annotation.

    :raises ValueError: for an annotation that cannot be read, naming it.
    """
    content = mapping_in(annotations, RESOURCE_SPEC)
    return part_of(ResourceSpec, RESOURCE_SPEC, "$", content)


def states_cpus(pod: Pod) -> bool:
    """Tell whether an annotation of a pod says which CPUs it got."""
    return RESOURCE_STATUS in pod.metadata.annotations


def cpus_of_status(annotations: Mapping[str, str]) -> frozenset[int]:
    """Return the CPUs that a pod got; none without the annotation.

    :raises ValueError: for an annotation that cannot be read, naming it.
    """
    return _list(_status_of(annotations).cpuset, RESOURCE_STATUS, "$.cpuset")


def numa_amounts_of_status(annotations: Mapping[str, str]) -> Mapping[int, Mapping[str, int]]:
    """Return what a pod got of each NUMA node, by resource; nothing without the annotation.

    :raises ValueError: for an annotation that cannot be read, naming it.
    """
    return {
        own.node: {name: amount_of(name, quantity) for name, quantity in own.resources.items()}
        for own in _status_of(annotations).numa_node_resources
    }


def _status_of(annotations: Mapping[str, str]) -> _Status:
    content = mapping_in(annotations, RESOURCE_STATUS)
    return part_of(_Status, RESOURCE_STATUS, "$", content)


def status_text(cpus: frozenset[int], by_numa: Mapping[int, Mapping[str, str]]) -> str:
    """Return the annotation that tells the agent which CPUs, and what of each NUMA node, a pod got.

    :param by_numa: quantities by resource, by the number of the NUMA node.
    """
    content: dict[str, Any] = {"cpuset": cpu_list(cpus)} if cpus else {}
    if by_numa:
        content["numaNodeResources"] = [
            {"node": number, "resources": dict(amounts)}
            for number, amounts in sorted(by_numa.items())
        ]
    return json.dumps(content, separators=(",", ":"))


def spec_text(spec: ResourceSpec) -> str:
    """Return the annotation for what a pod asks."""
    return msgspec.json.encode(spec).decode()


def node_bind_policy(labels: Mapping[str, str], published: PublishedCpus | None) -> BindPolicy:
    """Return the policy that a node demands of all pods with CPUs of their own; "" for none."""
    own = labels.get(_BIND, "")
    if own == "FullPCPUsOnly" or (published is not None and published.whole_cores):
        return "FullPCPUs"
    return "SpreadByPCPUs" if own == "SpreadByPCPUs" else ""


def node_strategy(labels: Mapping[str, str]) -> NumaStrategy | None:
    """Return from which NUMA nodes CPUs are taken first, None where the node does not say."""
    return _STRATEGIES.get(labels.get(_STRATEGY, ""))


def amplification_of(annotations: Mapping[str, str]) -> float:
    """Return by how much a node's agent amplifies its CPUs; 1 without the annotation.

    :raises ValueError: for an annotation that cannot be read, naming it.
    """
    ratio = mapping_in(annotations, _RATIOS).get("cpu", 1)
    number = isinstance(ratio, (int, float)) and not isinstance(ratio, bool)
    if not number or not math.isfinite(ratio) or not 0 < ratio <= _MOST_RATIO:
        raise ValueError(f"annotation {_RATIOS}: $.cpu: expected a number above 0 up to 1000")
    return max(1.0, float(ratio))


def publishes_cpus(found: NodeResourceTopology) -> bool:
    """Tell whether a NodeResourceTopology is that of Koordinator's agent.

    Its zones say what there is, and never what of that is left.
    """
    return _TOPOLOGY in found.metadata.annotations


def published_cpus(found: NodeResourceTopology) -> PublishedCpus | None:
    """Return what a NodeResourceTopology says of a node's CPUs; None if it lists none.

    :raises ValueError: for an annotation that cannot be read, naming it.
    """
    annotations = found.metadata.annotations
    if not publishes_cpus(found):
        return None
    listed = part_of(_Topology, _TOPOLOGY, "$", mapping_in(annotations, _TOPOLOGY)).detail
    # The numbers of cores may start again in each socket.
    cpus = {cpu.id: (cpu.socket << 16 | cpu.core, cpu.node, cpu.socket) for cpu in listed}
    if len(cpus) < len(listed) or any(not 0 <= cpu < MOST_CPUS for cpu in cpus):
        raise ValueError(f"annotation {_TOPOLOGY}: $.detail: expected different CPUs below 8192")
    kubelet = part_of(_Kubelet, _KUBELET, "$", mapping_in(annotations, _KUBELET))
    reservation = part_of(_Reservation, _RESERVATION, "$", mapping_in(annotations, _RESERVATION))
    system = part_of(_System, _SYSTEM, "$", mapping_in(annotations, _SYSTEM))
    reserved = _list(kubelet.reserved, _KUBELET, "$.reservedCPUs")
    reserved |= _list(reservation.reserved, _RESERVATION, "$.reservedCPUs")
    if system.exclusive:
        reserved |= _list(system.cpuset, _SYSTEM, "$.cpuset")
    for place, content in enumerate(list_in(annotations, _ALLOCATIONS)):
        where = f"$[{place}]"
        pod = part_of(_Allocation, _ALLOCATIONS, where, content)
        if pod.managed_by_kubelet and pod.uid:
            reserved |= _list(pod.cpuset, _ALLOCATIONS, f"{where}.cpuset")
    whole = kubelet.policy == "static" and kubelet.options.get("full-pcpus-only") == "true"
    return PublishedCpus(tuple(sorted(cpus.items())), reserved, whole)


def _list(text: str, name: str, where: str) -> frozenset[int]:
    try:
        return cpus_in(text)
    except ValueError as exc:
        raise ValueError(f"annotation {name}: {where}: {exc}") from None
