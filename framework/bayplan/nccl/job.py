"""A job's ring over all its GPUs, its bandwidth, and the time of an all-reduce.

Within a node, the ring passes GPUs in the order of their best ring; it leaves each node once. The
time follows NCCL's two levels: NVLink reduces within the node, the NICs carry the rest (nccl-tests,
doc/PERFORMANCE.md). Nodes of one NVLink domain form a single level.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import msgspec
from msgspec.structs import replace

from bayplan.topology.machine.levels import Level
from bayplan.topology.machine.model import Machine
from bayplan.topology.machine.rings import all_reduce_seconds, ring_model, ring_order
from bayplan.topology.network.fabric import nvlink_port, out_of_machine

__all__ = ["JobPlan", "Member", "RingPart", "plan_job"]


class Member(msgspec.Struct, frozen=True):
    """The GPUs of a job on one node: those of one pod, or of all its pods there."""

    node: str
    machine: Machine
    gpus: tuple[int, ...]

    def nics(self) -> list[int]:
        """Return the indices of the compute NICs at PXB or nearer to any of the GPUs, in order.

        Beyond PXB, NCCL does not let a NIC read a GPU's memory.
        """
        machine = self.machine
        near = [gpu for gpu in self.gpus if machine.nic_distance(gpu) <= Level.PXB]
        return sorted({nic for gpu in near for nic in machine.near_nics(gpu)})


class RingPart(msgspec.Struct, frozen=True):
    """A ring's way through one node: the node before, the GPUs in order, and the node after.

    For a job on a single node, that node is also the one before and after.
    """

    before: str
    gpus: tuple[int, ...]
    after: str


class JobPlan(msgspec.Struct, frozen=True):
    """A job's ring over its nodes, and its bandwidths in GB/s in NCCL's model.

    NICs connect ``groups`` of at most ``most`` GPUs: one group per node, or a single group if all
    GPUs share an NVLink domain. ``within`` is the bandwidth within the slowest group, infinite if
    every group has one GPU. ``between`` is the bandwidth out of the node with the slowest NICs,
    infinite for a single group, and 0 without NICs or if a rate is unknown.
    """

    members: tuple[Member, ...]
    groups: int
    most: int
    within: float
    between: float

    def part(self, node: str) -> RingPart:
        """Return the ring's way through a node.

        :raises ValueError: for a node where the job has no GPU.
        """
        nodes = [member.node for member in self.members]
        at = nodes.index(node)
        own = self.members[at]
        order = ring_order(own.machine.bandwidth, own.gpus)
        return RingPart(nodes[at - 1], order, nodes[(at + 1) % len(nodes)])

    @property
    def bandwidth(self) -> float:
        """The bandwidth of the ring's slowest part in GB/s, 0 if unknown."""
        return min(self.within, self.between)

    def all_reduce_seconds(self, size: float) -> float:
        """Return the seconds of a large all-reduce of ``size`` bytes.

        It is 2(n-1)/n * size / within for n GPUs in the largest group, plus 2(k-1)/k * size /
        between for k groups; infinite if the bandwidth between them is unknown.
        """
        if not self.bandwidth:
            return float("inf")
        own = all_reduce_seconds(size, self.most, self.within)
        return own + all_reduce_seconds(size, self.groups, self.between)


def plan_job(members: Iterable[Member]) -> JobPlan:
    """Return the plan of a job.

    :param members: the GPUs of the job, in the order of their ranks.
    :raises ValueError: when there is no member, or one without GPUs.
    """
    nodes = _by_node(members)
    if not nodes or not all(member.gpus for member in nodes):
        raise ValueError("expected members with one GPU or more each")
    # Most nodes of a job are alike: each combination of machine and GPUs is looked at once.
    kinds = {(member.machine, member.gpus) for member in nodes}
    most = max(len(gpus) for _, gpus in kinds)
    within = min(ring_model(machine).both(gpus).effective for machine, gpus in kinds)
    if len(nodes) == 1:
        return JobPlan(nodes, 1, most, within, float("inf"))
    if _one_nvlink_domain(kinds):
        ports = min(_ports(*kind) for kind in kinds)
        if ports:
            everyone = sum(len(member.gpus) for member in nodes)
            return JobPlan(nodes, 1, everyone, min(within, ports), float("inf"))
    return JobPlan(nodes, len(nodes), most, within, min(_out_of(*kind) for kind in kinds))


def _by_node(members: Iterable[Member]) -> tuple[Member, ...]:
    """Return one member for each node; pods of one node share its ring."""
    found: dict[str, Member] = {}
    for member in members:
        known = found.get(member.node)
        if known is not None:
            member = replace(known, gpus=tuple(sorted({*known.gpus, *member.gpus})))
        found[member.node] = member
    return tuple(found.values())


@lru_cache(maxsize=1024)
def _out_of(machine: Machine, gpus: tuple[int, ...]) -> float:
    if any(not machine.nics[nic].rate for gpu in gpus for nic in machine.near_nics(gpu)):
        return 0.0
    return out_of_machine(machine, gpus)


def _ports(machine: Machine, gpus: tuple[int, ...]) -> float:
    return min(nvlink_port(machine, gpu).effective for gpu in gpus)


def _one_nvlink_domain(kinds: Iterable[tuple[Machine, tuple[int, ...]]]) -> bool:
    domains = {machine.gpus[gpu].nvlink_domain for machine, gpus in kinds for gpu in gpus}
    return len(domains) == 1 and domains != {""}
