"""A job's ring over all of its GPUs, what it carries and how long an all-reduce takes.

Within a node GPUs are passed in the order of their best ring; between nodes the ring crosses as
rarely as it can, once out of each. The time is that of NCCL's two levels: NVLink reduces within the
node, the NICs carry what is left (nccl-tests, doc/PERFORMANCE.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bayplan.topology.bandwidth import nic_bandwidth
from bayplan.topology.levels import Level
from bayplan.topology.machine import Machine
from bayplan.topology.rings import all_reduce_seconds, ring_across, ring_model, ring_order

__all__ = ["JobPlan", "Member", "plan_job"]


@dataclass(frozen=True, slots=True)
class Member:
    """The GPUs of a job on one node."""

    node: str
    machine: Machine
    gpus: tuple[int, ...]

    def nics(self) -> list[int]:
        """Return the compute NICs at PXB or nearer of any of the GPUs, by index.

        Beyond PXB NCCL does not let a NIC read a GPU's memory.
        """
        machine = self.machine
        near = [gpu for gpu in self.gpus if machine.nic_distance(gpu) <= Level.PXB]
        return sorted({nic for gpu in near for nic in machine.near_nics(gpu)})


@dataclass(frozen=True)
class JobPlan:
    """A job's ring as (node, GPU), and its bandwidths in GB/s as NCCL reckons.

    ``within`` is that of the slowest node, infinite where each node has one GPU; ``between`` that
    of the node with the least NICs, infinite for one node and 0 where no NIC is near.
    """

    members: tuple[Member, ...]
    ring: tuple[tuple[str, int], ...]
    within: float
    between: float

    @property
    def ranks(self) -> int:
        """The number of GPUs."""
        return len(self.ring)

    @property
    def crossings(self) -> int:
        """How often the ring goes from one node to another."""
        nodes = [node for node, _ in self.ring]
        return sum(a != b for a, b in zip(nodes, [*nodes[1:], nodes[0]], strict=True))

    @property
    def bandwidth(self) -> float:
        """The ring's slowest part in GB/s."""
        return min(self.within, self.between)

    def all_reduce_seconds(self, size: float) -> float:
        """Return how long a large all-reduce of ``size`` bytes takes.

        One node: 2(n-1)/n * size / bandwidth. Several: that within the largest node, and
        2(k-1)/k * size / (bandwidth of a node's NICs) between k nodes. Infinite without NICs.
        """
        most = max(len(member.gpus) for member in self.members)
        seconds = all_reduce_seconds(size, most, self.within)
        if len(self.members) > 1:
            if not self.between:
                return float("inf")
            seconds += all_reduce_seconds(size, len(self.members), self.between)
        return seconds


def plan_job(members: Sequence[Member]) -> JobPlan:
    """Return the plan of a job; the order of the members is that of their ranks.

    :raises ValueError: without any GPU.
    """
    if not members or not all(member.gpus for member in members):
        raise ValueError("expected members with one GPU or more each")
    orders = [ring_order(member.machine.bandwidth, member.gpus) for member in members]
    ring = tuple((members[index].node, gpu) for index, gpu in ring_across(orders))
    within = min(ring_model(m.machine).both(m.gpus).effective for m in members)
    between = float("inf")
    if len(members) > 1:
        between = min(_out_of(member) for member in members)
        if _one_nvlink_domain(members):
            between = within
    return JobPlan(tuple(members), ring, within, between)


def _out_of(member: Member) -> float:
    nics = (member.machine.nics[nic] for nic in member.nics())
    return sum(nic_bandwidth(nic.rate).effective for nic in nics)


def _one_nvlink_domain(members: Sequence[Member]) -> bool:
    domains = {m.machine.gpus[gpu].nvlink_domain for m in members for gpu in m.gpus}
    return len(domains) == 1 and domains != {""}
